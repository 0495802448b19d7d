"""The Dagster code location: assets, jobs, sensors and schedules generated from the declarations."""
