"""When a job is due."""
