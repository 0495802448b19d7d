"""Erases a data subject from the lake, and proves that no stored object contains its personal data.

`origins` asks whether the subject would come back. `key_periods` finds the subject's rows, `targets` the tables that
hold them. `rows` and `records` change rows, `rewrite` and `expire` replace and delete files. `proof` searches every
object, `strays` finds tables that dbt does not know, `tombstones` remembers the erasure. `steps` and `run` put these in
order.
"""
