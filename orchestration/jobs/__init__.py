"""Jobs that load, build marts and maintain tables."""
