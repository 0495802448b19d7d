"""What is known of a job: its past runs, what a worker has loaded, which tables are held back."""
