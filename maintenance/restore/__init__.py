"""Restores the state of a table at a time."""
