"""Asset checks beside dbt's: lag, erasures, and the raw layer against its source."""
