"""The policy of a raw table in the vault, the names that it creates, and its mistakes."""
