"""A transaction that is too large to be waited for: only whether it needed it is found out."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.tasks.shared_keys.keys import key_values

_REPEATED = "one that is too large to be put in order changed a key more than once"


class LargeTransaction:
    """Hashes of the keys that a transaction changed, since it truncated the table last."""

    def __init__(self, lsn: int, key: tuple[str, ...]) -> None:
        self.lsn = lsn
        self._key = key
        self._hashes: list[np.ndarray] = []

    def note(self, rows: pa.Table) -> None:
        """Takes note of rows, in their order."""
        is_truncate = pc.equal(rows.column("_op"), "t").to_numpy()
        if is_truncate.any():
            self._hashes = []
            rows = rows.slice(int(np.flatnonzero(is_truncate)[-1]) + 1)
        self._hashes.append(np.array([hash(value) for value in key_values(rows, self._key)], np.int64))

    def resync_reason(self) -> str | None:
        """Why its rows may have landed in a wrong order; None when no key was changed twice."""
        hashes = np.concatenate(self._hashes) if self._hashes else np.array([], np.int64)
        return _REPEATED if len(np.unique(hashes)) < len(hashes) else None
