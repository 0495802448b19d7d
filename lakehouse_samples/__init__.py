"""Three small source databases to try the lakehouse on, and the workloads that change them.

`retail` is a shop with sales, returns and price changes; `bank` has users and accounts under REPLICA IDENTITY FULL;
`payroll` is one table of 100,000 rows. Each folder holds its tables (`schema.sql`) and its workload.
"""
