"""Sensors that launch jobs when there is new data."""
