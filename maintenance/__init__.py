"""Keeps the lake's tables fast and small: plain functions `(session, table, policy) -> Outcome`."""
