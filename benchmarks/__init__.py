"""Benchmarks: `make bench` runs them on their own stack and writes JSON."""
