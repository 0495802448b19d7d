"""Whether a sample still is as it was loaded, so that a script can run its workload exactly once."""

from typing import LiteralString

from lakehouse_samples.database import session

_TOUCHED: dict[str, LiteralString] = {
    "retail": "SELECT EXISTS (SELECT FROM transactions)",
    "bank": "SELECT EXISTS (SELECT FROM users)",
    # Workload and all, the hired are let go again: only the sequence remembers them.
    "payroll": "SELECT last_value > 100000 FROM employee_id_seq",
}


def untouched(url: str, source: str) -> bool:
    """True when no workload has changed the sample; raises LakehouseError when it is not loaded."""
    with session(url, source) as connection:
        row = connection.execute(_TOUCHED[source]).fetchone()
        return row is not None and not row[0]
