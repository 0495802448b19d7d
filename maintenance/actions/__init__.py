"""The actions: each does one thing to one table."""
