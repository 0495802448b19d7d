"""Commands on what is in the lake."""
