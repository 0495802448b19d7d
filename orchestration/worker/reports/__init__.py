"""What Dagster is told of the worker's loads, as a run of their job would tell it."""
