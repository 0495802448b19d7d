"""The warm worker: loads what a cut brought within seconds, without a Dagster run."""
