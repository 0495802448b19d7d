"""Asset checks other than dbt tests: lag, erasures, and reconciliation of the raw layer with its source."""
