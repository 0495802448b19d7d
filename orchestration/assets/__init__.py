"""Assets: the dbt project, table health, and the metadata, owners and lineage shown in the UI."""
