"""Whether the source is still the one the lake was read from, with the same past: nothing else may be read."""
