"""Assets: raw tables, the dbt project, the health of the tables, and how they are shown."""
