"""What runs inside Spark tasks: read from a source, decode, and write data files."""
