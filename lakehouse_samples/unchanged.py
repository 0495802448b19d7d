"""Tests whether a sample is unchanged since it was loaded, so that a script can run its workload exactly once."""

from typing import LiteralString

from lakehouse_samples.database import session

_CHANGED: dict[str, LiteralString] = {
    "retail": "SELECT EXISTS (SELECT FROM transactions)",
    "bank": "SELECT EXISTS (SELECT FROM users)",
    # the workload deletes the rows it inserts: only the sequence shows that it ran
    "payroll": "SELECT last_value > 100000 FROM employee_id_seq",
}


def is_unchanged(url: str, source: str) -> bool:
    """Whether no workload has changed the sample; raises LakehouseError if it is not loaded."""
    with session(url, source) as connection:
        row = connection.execute(_CHANGED[source]).fetchone()
        return row is not None and not row[0]
