"""One world: histories side by side in one source database, looked at together and compared after each look."""

import time
import traceback
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import psycopg

from ingestion.sources.postgres.reading import UNDECODABLE
from lakehouse.catalog.open import open_catalog
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse.text.sql import relation
from tests.clusters import Cluster
from tests.hunt.eye import SECRET
from tests.hunt.history import History, Look, Round, Shape
from tests.hunt.look import Reader
from tests.hunt.oracle import Log, difference
from tests.hunt.play import Stage, make_stage, tables_of

LIMITS = {"lease_seconds": 60.0, "snapshot_chunk_bytes": 65536}


@dataclass(frozen=True)
class Site:
    """Where worlds are made: a throw-away cluster for the sources, the lake's stack, Spark."""

    cluster: Cluster
    settings: Settings
    spark: Any


@dataclass(frozen=True)
class Finding:
    """What is wrong after a look: `kind` is wrong, shown or crash; `case` None where it was not told which."""

    kind: str
    case: int | None
    round: int
    text: str


@dataclass
class Played:
    """What came of a world."""

    histories: list[History]
    looks: tuple[Look, ...]
    findings: list[Finding]
    seconds: float = 0.0
    compared: int = 0
    live: bool = False
    anew: bool = True
    reasons: Counter[str] = field(default_factory=Counter)
    moves: Counter[str] = field(default_factory=Counter)


class Script(Protocol):
    """What is played: each round as it is asked for, and what comes within a look."""

    def round(self, stage: Stage, case: int, number: int) -> Round:
        """Plays a case's round and says what it was."""

    def inside(self, stage: Stage, case: int, number: int, place: str) -> Round:
        """The same of what comes at a place within the look behind it."""


def play(
    site: Site, shapes: Sequence[Shape], looks: Sequence[Look], script: Script, *, live: bool, anew: bool
) -> Played:
    """Plays a world; a case with a finding is compared no more, a crash ends the world."""
    begun, name = time.monotonic(), f"t{uuid.uuid4().hex[:10]}"
    stage = make_stage(site.cluster, site.settings, name, shapes, **LIMITS)
    rounds: list[list[Round]] = [[] for _ in shapes]
    played = Played([], tuple(looks), [], live=live, anew=anew)
    try:
        reader = Reader(stage, site.spark, live=live, anew=anew)
        with closing(reader), closing(open_catalog(site.settings)) as catalog:
            log = Log(catalog, f"raw_{name}")
            for number, look in enumerate(looks):

                def inside(place: str, number: int = number) -> bool:
                    found = [script.inside(stage, case, number, place) for case in range(len(shapes))]
                    for done, more in zip(rounds, found, strict=True):
                        done[number] += more
                    return any(found)

                for case in range(len(shapes)):
                    rounds[case].append(script.round(stage, case, number))
                try:
                    reader.look(look, inside)
                except LakehouseError as error:
                    if any(text in str(error) for text in UNDECODABLE):
                        played.reasons["the server cannot decode its WAL"] += 1
                        break
                    played.findings.append(Finding("crash", _culprit(stage, str(error)), number, str(error)))
                    break
                except Exception as error:
                    text = f"{error!r}\n{traceback.format_exc()}"
                    played.findings.append(Finding("crash", _culprit(stage, str(error)), number, text))
                    break
                _compare(stage, reader, log, number, played)
    finally:
        stage.close()
        _drop(site, name)
    played.histories = [History(shape, tuple(done)) for shape, done in zip(shapes, rounds, strict=True)]
    played.seconds = time.monotonic() - begun
    return played


def _culprit(stage: Stage, text: str) -> int | None:
    for case, (schema, shape) in enumerate(stage.cases.items()):
        if any(f"'{table}'" in text or f"{table} (" in text for table in tables_of(schema, shape)):
            return case
    return None


def _compare(stage: Stage, reader: Reader, log: Log, number: int, played: Played) -> None:
    stream, positions = reader.stream(), reader.positions()
    known = {finding.case for finding in played.findings}
    with psycopg.connect(stage.world.owner_url, options="-c lock_timeout=300ms") as connection:
        for case, (schema, shape) in enumerate(stage.cases.items()):
            for table, (name, _) in zip(tables_of(schema, shape), shape.tables, strict=True):
                position, withheld = positions.get(table), [column for column, _ in shape.withheld]
                if withheld and case not in known and (value := log.shows(table, SECRET)):
                    played.findings.append(Finding("shown", case, number, f"{value} has landed, which is withheld"))
                    known.add(case)
                if position is None or table not in stream.cut_tables:
                    played.reasons[_reason(position)] += 1
                    continue
                if case in known:
                    continue
                played.compared += 1
                parts = (schema, name[1:-1].replace('""', '"') if name.startswith('"') else name)
                text = _difference(
                    connection, relation(*parts), stage.key(table), log.rows(table, stream.cut_lsn or 0), withheld
                )
                if text is not None:
                    played.findings.append(Finding("wrong", case, number, text))
                    known.add(case)


def _difference(
    connection: psycopg.Connection[Any], name: str, key: tuple[str, ...], rows: list[Any], withheld: list[str]
) -> str | None:
    try:
        return difference(connection, name, key, rows, withheld)
    except psycopg.errors.LockNotAvailable:  # an open transaction's: the next look will tell
        connection.rollback()
        return None
    except psycopg.errors.UndefinedTable:
        connection.rollback()
        return "it is in the cut, and the source has no such table"


def _reason(position: Any) -> str:
    if position is None:
        return "unknown"
    text = position.reason or position.resync_reason or ""
    return f"{position.state}: {text.partition(': ')[2].split(': ')[-1] if position.state == 'parked' else text}"[:100]


def _drop(site: Site, name: str) -> None:
    from ingestion.state import store

    made = site.cluster
    with suppress(psycopg.Error):
        made.admin(
            f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = '{name}' AND active"
        )
        for _ in range(50):
            if not made.admin(f"SELECT 1 FROM pg_replication_slots WHERE database = '{name}' AND active"):
                break
            time.sleep(0.05)
        made.admin(f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '{name}'")
        made.admin(f'DROP DATABASE "{name}" WITH (FORCE)')
    with store.connect_catalog(site.settings) as catalog:
        catalog.execute("DELETE FROM iceberg_tables WHERE table_namespace = %s", (f"raw_{name}",))
        catalog.execute("DELETE FROM iceberg_namespace_properties WHERE namespace = %s", (f"raw_{name}",))
