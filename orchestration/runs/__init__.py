"""What surrounds a run of a job: pools it waits for, signals that end it, the words for a failure."""
