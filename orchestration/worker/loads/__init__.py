"""Loads of parsed and vault: what is known before they ask, and rows that they are handed."""
