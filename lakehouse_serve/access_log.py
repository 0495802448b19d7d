"""Who read what: one line of JSON per login, table, view and refusal, in files of bounded size.

Refusals that anybody may cause at any rate, as without a login, are aside: in a file of their own, and there in a
bounded number of lines per address. Else whoever reaches the port could have the lines go that say who has read what.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from io import FileIO
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

from starlette.requests import Request

from lakehouse_serve.access.limits import Limit
from lakehouse_serve.past.moments import warehouse_of

log = logging.getLogger("lakehouse.serve")
FILE_BYTES, FILES = 20 << 20, 10
ASIDE_FILES = 1
MOST_CHARACTERS = 300  # of a name: Postgres and Iceberg have none so long, and headers take 64 KiB
LINES_PER_SECOND, LINES_AT_ONCE = 0.2, 20  # of one address
TOLD_EVERY, MOST_ADDRESSES = 60.0, 1000
UNLISTED = frozenset({"config", "namespaces", "namespace", "tables", "views", "metrics"})


class AccessLog:
    """Writes `serve-access.log`, and what is aside to `serve-access-refused.log`; only their owner reads them."""

    def __init__(self, file: Path, catalog: str) -> None:
        self._catalog = catalog
        self._lines = _Lines(file, FILE_BYTES, FILES)
        self._aside = _Lines(file.with_name(f"{file.stem}-refused{file.suffix}"), FILE_BYTES, ASIDE_FILES)
        self._limit = Limit(LINES_PER_SECOND, LINES_AT_ONCE)
        self._left_out: Counter[str] = Counter()
        self._told_at = time.monotonic()
        self._lock = Lock()

    def write(self, what: str, login: str | None, request: Request, status: int, aside: bool = False) -> None:
        """Records an answer; lists of names are not recorded unless they were refused.

        Of what is aside, `login` is what somebody calls himself. Raises OSError where the line cannot be written.
        """
        if status < 400 and what in UNLISTED:
            return
        if time.monotonic() - self._told_at >= TOLD_EVERY:
            self._tell()
        address = request.client.host if request.client else None
        if aside and not self._admits(str(address)):
            return
        values = request.path_params
        line = {
            "at": _now(),
            "login": login,
            "address": address,
            "what": what,
            "warehouse": warehouse_of(values.get("prefix", ""), self._catalog),
            "namespace": values.get("namespace"),
            "name": next((values[part] for part in ("table", "view", "key", "rest") if part in values), None),
            "status": status,
        }
        (self._aside if aside else self._lines).append(line)

    def close(self) -> None:
        """Writes how many lines were left out since that was written last."""
        self._tell()

    def _admits(self, address: str) -> bool:
        """Whether a line is written for this refusal; else it is counted."""
        with self._lock:
            if self._limit.admits(address, time.monotonic()):
                return True
            is_known = address in self._left_out or len(self._left_out) < MOST_ADDRESSES
            self._left_out[address if is_known else "others"] += 1
            return False

    def _tell(self) -> None:
        with self._lock:
            counted, self._left_out, self._told_at = self._left_out, Counter(), time.monotonic()
        try:
            for address, count in counted.items():
                self._aside.append({"at": _now(), "address": address, "what": "more refusals", "count": count})
        except OSError as error:  # it keeps no login from what its own line can be written of
            log.warning("%s refusals are in no log: %s", f"{counted.total():,}", error)


class _Lines:
    """A file of lines that only its owner reads; when it is full, it gets the suffix `.1`, and that one `.2`.

    It is opened for each line, so a file that somebody has taken away is missed by nobody.
    """

    def __init__(self, file: Path, most_bytes: int, files: int) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._most_bytes, self._files = file, most_bytes, files
        self._lock = Lock()

    def append(self, line: Mapping[str, Any]) -> None:
        """Writes what is not None, texts cut to a bounded length: the whole line, or none of it. Raises OSError."""
        text = json.dumps({name: _short(value) for name, value in line.items() if value is not None})
        content = f"{text}\n".encode()
        with self._lock:
            if self._file.exists() and self._file.stat().st_size + len(content) > self._most_bytes:
                self._rotate()
            with FileIO(self._file, "a", opener=_private) as file:
                if (written := file.write(content)) != len(content):
                    file.truncate(file.tell() - (written or 0))
                    raise OSError(f"{self._file}: the disk is full")

    def _rotate(self) -> None:
        places = [self._file, *(self._file.with_name(f"{self._file.name}.{n + 1}") for n in range(self._files))]
        for former, place in reversed([*pairwise(places)]):
            if former.exists():
                former.replace(place)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _short(value: Any) -> Any:
    is_long = isinstance(value, str) and len(value) > MOST_CHARACTERS
    return f"{value[:MOST_CHARACTERS]}…" if is_long else value
