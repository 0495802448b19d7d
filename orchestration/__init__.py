"""Dagster only: assets, jobs, sensors and schedules made from the declarations (see definitions.py)."""
