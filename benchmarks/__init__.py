"""Measurements, not tests: `make bench` runs them on a stack of their own and writes JSON."""
