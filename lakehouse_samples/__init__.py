"""Three sample source databases and a sample topic, and the workloads that change them.

`retail` is a shop with sales, returns and price changes, `bank` has users and accounts under REPLICA IDENTITY FULL,
`payroll` is one table of 100,000 rows, `clicks` a topic of page views in Kafka. Each folder contains the tables
(`schema.sql`) and the workload.
"""
