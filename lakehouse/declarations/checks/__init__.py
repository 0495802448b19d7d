"""What is wrong with declarations that dbt reads, and whose keys and values are allowed: names, jobs, places.

Mistakes of a YAML file itself, and keys that nobody reads, are found before dbt reads it: `dbt.yaml_files`.
"""
