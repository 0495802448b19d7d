"""Log records as lines of JSON, with what the work was about: its source, its cycle."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_fields: ContextVar[dict[str, str]] = ContextVar("lakehouse_log_fields", default={})  # noqa: B039 (never changed)


@contextmanager
def about(**fields: str) -> Iterator[None]:
    """Adds fields to the records of this thread while the block runs."""
    token = _fields.set(_fields.get() | fields)
    try:
        yield
    finally:
        _fields.reset(token)


def as_here(work: Callable[P, T]) -> Callable[P, T]:
    """The work with this thread's fields, for another one: a thread begins without any."""
    fields = _fields.get()

    @wraps(work)
    def done(*args: P.args, **kwargs: P.kwargs) -> T:
        with about(**fields):
            return work(*args, **kwargs)

    return done


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `logger`, `message`, the fields of `about`, and `traceback` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of ASCII."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields.get(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)
