"""`lakehouse maintain` and `python -m maintenance`: the same commands."""
