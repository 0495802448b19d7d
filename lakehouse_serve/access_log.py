"""Who read what: one line of JSON per login, table, view and refusal, in files of bounded size."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from starlette.requests import Request

from lakehouse_serve.past.moments import warehouse_of

FILE_BYTES, FILES = 20 << 20, 10


class AccessLog:
    """Writes `serve-access.log`, which only its owner reads."""

    def __init__(self, file: Path, catalog: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._catalog = catalog
        self._handler = _PrivateFile(file, maxBytes=FILE_BYTES, backupCount=FILES, encoding="utf-8", delay=True)

    def write(self, what: str, login: str | None, request: Request, status: int) -> None:
        """Records an answer; lists of names are not recorded unless they were refused."""
        if status < 400 and what in {"config", "namespaces", "namespace", "tables", "views", "metrics"}:
            return
        values = request.path_params
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "login": login,
            "address": request.client.host if request.client else None,
            "what": what,
            "warehouse": warehouse_of(values.get("prefix", ""), self._catalog),
            "namespace": values.get("namespace"),
            "name": next((values[part] for part in ("table", "view", "key", "rest") if part in values), None),
            "status": status,
        }
        text = json.dumps({name: value for name, value in line.items() if value is not None})
        self._handler.handle(logging.LogRecord("serve", logging.INFO, "", 0, text, (), None))

    def close(self) -> None:
        """Closes the file."""
        self._handler.close()


class _PrivateFile(RotatingFileHandler):
    def _open(self):  # type: ignore[no-untyped-def]
        return os.fdopen(
            os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8"
        )
