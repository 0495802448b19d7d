"""Users and accounts under REPLICA IDENTITY FULL, changed in rounds of an exactly known size."""
