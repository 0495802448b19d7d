"""Users and accounts under REPLICA IDENTITY FULL, changed in rounds of a known size."""
