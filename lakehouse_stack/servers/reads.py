"""The log of who has read what readers may not: a process beside Trino, which asks it every few seconds."""

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from lakehouse.declarations.access.rules import RULES
from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import private_dir
from lakehouse.servers.reads import Record, details, ended_queries, instance_of, record_of
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import Settings
from lakehouse_stack.processes.process import RELEASE, Launch
from lakehouse_stack.servers.server import Server

POLL_SECONDS, LATE_SECONDS = 5.0, 60.0
FILE_BYTES, FILES = 50 * 1024 * 1024, 20
BEGINS = "the log begins"
ANEW = f"Trino was started anew: reads of its last {POLL_SECONDS:.0f} seconds may be missing"


def log_file(home: Path) -> Path:
    """A line of JSON per query; older ones in `.1`, `.2` …"""
    return home / "logs" / "reads.jsonl"


def asked_file(home: Path) -> Path:
    """Touched whenever Trino has answered."""
    return home / "data" / "reads" / "asked"


def reads_server(home: Path, trino: Mapping[str, object]) -> Server:
    """The process that keeps the log; it listens nowhere. `trino` are the settings by which it reaches Trino."""
    folder, asked = home / "data" / "reads", asked_file(home)
    reach = {f"LAKEHOUSE_TRINO__{name.upper()}": str(value) for name, value in trino.items()}
    launch = Launch(
        argv=(sys.executable, "-m", "lakehouse_stack", "reads"),
        cwd=folder,
        log=home / "logs" / "reads.log",
        env={"LAKEHOUSE_HOME": str(home), "LAKEHOUSE_CONFIG": os.devnull, **reach},
        config=RELEASE,
    )
    return Server(
        name="reads",
        port=0,
        launch=launch,
        check_health=lambda: check_health(asked),
        prepare=lambda: _prepare(asked),
        after_start=lambda: None,
        working_dir=folder,
        program=Path(sys.executable).name,
    )


def _prepare(asked: Path) -> None:
    private_dir(asked.parent)
    asked.unlink(missing_ok=True)


def check_health(asked: Path) -> str | None:
    """Why nothing is logged; None if it is."""
    age = time.time() - asked.stat().st_mtime if asked.exists() else None
    if age is not None and age < LATE_SECONDS:
        return None
    return "Trino has not answered it " + ("yet" if age is None else f"for {age:.0f} seconds")


def keep_log(settings: Settings) -> None:
    """Appends to the log until SIGTERM; raises LakehouseError where the rules of this Trino are not known."""
    if settings.trino.access is None:
        raise LakehouseError("LAKEHOUSE_TRINO__ACCESS is not set: the rules of that folder say what readers may see")
    stop, file = threading.Event(), log_file(settings.home)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    write, known = _writer(file), set(_known(file))
    asked_file(settings.home).parent.mkdir(parents=True, exist_ok=True)
    write.info(_line({"event": BEGINS}))
    trouble: str | None = None
    while True:
        try:
            known, before, trouble = _ask(settings, write, known), trouble, None
            asked_file(settings.home).touch()
        except Unreachable as error:
            before, trouble = trouble, str(error)
        if trouble != before:
            print(trouble or "Trino answers", file=sys.stderr, flush=True)  # noqa: T201 (its log)
        if stop.wait(POLL_SECONDS):
            return


def _ask(settings: Settings, write: logging.Logger, known: set[str]) -> set[str]:
    """Writes the queries that are not known, and adds each to them at once, as Trino may go away before the last.

    Returns those that Trino still has.
    """
    assert settings.trino.access is not None
    rules = json.loads((settings.trino.access / RULES).read_text())
    ended = ended_queries(settings)
    if known and not {instance_of(query) for query in known} & {instance_of(query) for query in ended} and ended:
        write.info(_line({"event": ANEW}))
        known.clear()
    for query_id in sorted(ended.keys() - known):
        record = record_of({**ended[query_id], **details(settings, query_id)}, rules, settings.trino.catalog)
        if record["tables"]:
            write.info(_line(record))
        known.add(query_id)
    return set(ended) or known


def _line(record: Record) -> str:
    return json.dumps({"logged": datetime.now(UTC).isoformat(timespec="milliseconds"), **record})


def _writer(file: Path) -> logging.Logger:
    file.parent.mkdir(parents=True, exist_ok=True)
    os.umask(0o077)  # also of the files that follow
    handler = RotatingFileHandler(file, maxBytes=FILE_BYTES, backupCount=FILES - 1)
    if file.read_bytes()[-1:] not in (b"", b"\n"):
        handler.stream.write("\n")
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("lakehouse.reads")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    return log


def _known(file: Path) -> Iterator[str]:
    """The queries that were logged before this process began; a power loss or a full disk leaves torn lines."""
    for part in (file.with_name(f"{file.name}.1"), file):
        for line in part.read_text(errors="replace").splitlines() if part.exists() else ():
            with suppress(ValueError, TypeError, KeyError):
                yield json.loads(line)["query"]
