"""One-line errors for a server that goes away or a disk that is full, whichever library reports it."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
from errno import EDQUOT, ENOSPC
from os import strerror
from pathlib import Path
from traceback import walk_tb

from lakehouse.errors import LakehouseError
from lakehouse.text.shown import shortened

UP = "or run `lakehouse up` where the embedded stack serves it"
ROOM = "make room, then run this again"
# What urllib raises: also of an answer that is no HTTP, or ends in the middle
BROKEN_OFF = (OSError, http.client.HTTPException)
JVM_ENDED = "Spark's JVM has ended; the end of logs/spark.log in the home may say why"


def expected(error: BaseException) -> str | None:
    """What to tell of an error that was expected: a LakehouseError's own text, else `told`."""
    return str(error) if isinstance(error, LakehouseError) else told(error)


def told(error: BaseException) -> str | None:
    """The server that went away or the full disk, the library's message and the remedy; None for other errors.

    A library may have wrapped the error in one of its own (`raise … from`).
    """
    import psycopg
    from py4j.protocol import Py4JError
    from sqlalchemy.exc import OperationalError
    from trino.exceptions import HttpError, TrinoConnectionError

    if of_ended_jvm(error):
        return f"{JVM_ENDED}; run this again"
    if isinstance(error, OperationalError):  # whichever driver: Dagster's database has another one than the catalog
        error = error.orig if isinstance(error.orig, psycopg.Error) else psycopg.OperationalError(said(error))
    if isinstance(error, psycopg.OperationalError) and is_full(str(error)):
        return f"Postgres: {said(error)}; {ROOM}"
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        urls = "LAKEHOUSE_CATALOG_URL, LAKEHOUSE_DAGSTER__STORAGE_URL and the sources' URLs"
        return f"Postgres: {said(error)}; check {urls}, {UP}, then run this again"
    if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT):
        return f"{error.filename or 'a disk of this machine'}: {error.strerror}; {ROOM}"
    if isinstance(error, Py4JError) and is_full(text_of(error)):
        return f"Spark: {said(error)}; {ROOM}"
    if isinstance(error, OSError) and "AWS Error" in str(error):
        return f"object store: {said(error)}; check LAKEHOUSE_S3__ENDPOINT and its keys, {UP}, then run this again"
    if isinstance(error, HttpError) and "error 401" in str(error):
        return f"Trino: {said(error)}; check LAKEHOUSE_TRINO__USER and …__PASSWORD, {UP}, then run this again"
    if isinstance(error, TrinoConnectionError | HttpError):
        return f"Trino: {said(error)}; check LAKEHOUSE_TRINO__HOST and …__PORT, {UP}, then run this again"
    return told(error.__cause__) if error.__cause__ is not None else None


def of_ended_jvm(error: BaseException) -> bool:
    """Whether a call of Spark found no JVM. Py4J tells the first of them with an error of its own; those after it fail
    at the socket, as a call of any other server may, so that only the traceback tells them apart."""
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

    if isinstance(error, Py4JError):
        return isinstance(error, Py4JNetworkError) or (not isinstance(error, Py4JJavaError) and _jvm_ends())
    modules = (str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__))
    return isinstance(error, OSError) and any(module.partition(".")[0] in ("py4j", "pyspark") for module in modules)


def _jvm_ends() -> bool:
    """Whether the JVM of this process is gone, or is just going: its sockets close first."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    process = getattr(getattr(context, "_gateway", None), "proc", None)
    try:
        return process is not None and process.wait(timeout=1.0) is not None
    except subprocess.TimeoutExpired:
        return False


def no_room(where: Path) -> LakehouseError:
    """The error of a full disk."""
    return LakehouseError(f"{where}: {strerror(ENOSPC)}; {ROOM}")


def is_full(reason: str) -> bool:
    """Whether a server says that its disk is full."""
    return any(strerror(number) in reason for number in (ENOSPC, EDQUOT))


def said(error: BaseException) -> str:
    """An error's message on one line, without the statement and link of SQLAlchemy and the call stack of Java."""
    text = re.split(r"\n\[SQL|\n\(Background|\n\tat ", text_of(error))[0]
    text = re.sub(r"^An error occurred while calling \S+\n: ", "", text)
    return shortened(" ".join(text.split()), 300) or type(error).__name__


def text_of(error: BaseException) -> str:
    """An error's whole message; empty if it was of a JVM that is gone, as nobody else knows it."""
    from py4j.protocol import Py4JError

    try:
        return str(error)
    except (Py4JError, OSError):
        return ""
