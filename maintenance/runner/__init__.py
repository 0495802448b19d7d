"""Runs actions over tables, within budgets."""
