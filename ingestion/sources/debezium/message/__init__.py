"""What one message says: its encoding, its envelope, the types of its columns and their values."""
