"""The authority on what is in the lake: positions, leases, chunks and progress beside the Iceberg catalog's rows."""
