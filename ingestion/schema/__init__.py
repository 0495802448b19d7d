"""What a table looks like, how that changes, and what the change means for the lake. Pure."""
