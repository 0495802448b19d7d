"""Marts, whole or by the keys that changed."""
