"""Three sample source databases and the workloads that change them.

`retail` is a shop with sales, returns and price changes, `bank` has users and accounts under REPLICA IDENTITY FULL, and
`payroll` is one table of 100,000 rows. Each folder contains the tables (`schema.sql`) and the workload.
"""
