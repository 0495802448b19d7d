"""What a project of a user consists of: our dbt package (`cdc_vault/`), and the files that `lakehouse init` writes.

The demo's project, `dbt_project/`, uses the same package, and links to those of the files that are the same in both.
"""

from lakehouse_project.new_project import create_project

__all__ = ["create_project"]
