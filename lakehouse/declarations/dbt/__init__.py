"""dbt's project as it is read here: its YAML files, its manifest, and what its nodes say and are made of."""
