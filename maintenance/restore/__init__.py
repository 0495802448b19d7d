"""A table as it was."""
