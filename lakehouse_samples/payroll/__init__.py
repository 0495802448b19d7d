"""One table of 100,000 employees: the workload inserts five, updates their salary and deletes them."""
