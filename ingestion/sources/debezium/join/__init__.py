"""Events joined to the transactions that they are of, and placed. Pure."""
