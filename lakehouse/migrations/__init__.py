"""The lake's state, the schema `lakehouse` of the catalog's database, made and changed by numbered steps.

A step is a file `<number>_<name>.sql` of this folder, for the tables of every package: one order for all. Steps only
add (a table, a column with a default, an index), so a process of the release before goes on beside them, and every
command that works with the lake may run them by itself. Once they are applied that release does not start again, so
commands that only look refuse the state instead. Applied together in one transaction, each leaves a row in
`lakehouse.schema_version`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

from lakehouse.errors import LakehouseError

if TYPE_CHECKING:
    import psycopg

    from lakehouse.settings import Settings

_STAMP: LiteralString = """CREATE TABLE IF NOT EXISTS lakehouse.schema_version (
  version integer PRIMARY KEY, name text NOT NULL, release text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"""
# to_regclass would answer a session that has waited for the lock from its cache, which lacks what was made meanwhile
_HAS_SCHEMA: LiteralString = "SELECT FROM pg_namespace WHERE nspname = 'lakehouse'"
_HAS_TABLES: LiteralString = (
    "SELECT FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'lakehouse' LIMIT 1"
)
_HAS_STAMP: LiteralString = (
    "SELECT FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace"
    " WHERE nspname = 'lakehouse' AND relname = 'schema_version'"
)


@dataclass(frozen=True)
class Step:
    """One change of the state's tables."""

    number: int
    name: str
    sql: bytes


@cache
def known_steps() -> tuple[Step, ...]:
    """The steps of this release, in order."""
    files = sorted(Path(__file__).parent.glob("[0-9]*.sql"))
    return tuple(_step(file) for file in files)


def newest_version() -> int:
    """The state's version in this release."""
    return known_steps()[-1].number


def ensure_state(connection: psycopg.Connection[Any]) -> None:
    """Migrates the state to this release's version, if it is older. Raises LakehouseError if it is newer."""
    migrate(connection, known_steps())


def migrate(connection: psycopg.Connection[Any], steps: Sequence[Step]) -> tuple[Step, ...]:
    """Applies the missing steps, all or none, once among many processes; returns those it applied.

    State without a stamp is of release 0.1.0 or there is none: the first step makes what it lacks.
    """
    if not pending(connection, steps):
        return ()
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('lakehouse.state'))")
        missing = pending(connection, steps)
        if connection.execute(_HAS_SCHEMA).fetchone() is None:
            connection.execute("CREATE SCHEMA lakehouse")
        connection.execute(_STAMP)
        for step in missing:
            connection.execute(step.sql)
            connection.execute(
                "INSERT INTO lakehouse.schema_version (version, name, release) VALUES (%s, %s, %s)",
                (step.number, step.name, version("lakehouse")),
            )
    return missing


def is_new(connection: psycopg.Connection[Any]) -> bool:
    """Whether nothing was stored yet: the first command makes the state, and nothing is to be migrated."""
    return connection.execute(_HAS_TABLES).fetchone() is None


def refuse_former_state(settings: Settings) -> None:
    """For a command that only looks, before anything that would migrate the state.

    Raises LakehouseError if the state is of another release, and Unreachable if the catalog does not answer.
    """
    from lakehouse.servers.database import connect_catalog

    with connect_catalog(settings) as connection:
        if not is_new(connection) and pending(connection, known_steps()):
            raise LakehouseError(
                "the catalog's state is of an earlier release, and this command changes nothing: make a backup, then "
                "run `lakehouse upgrade`"
            )


def pending(connection: psycopg.Connection[Any], steps: Sequence[Step]) -> tuple[Step, ...]:
    """The missing steps; changes nothing. Raises LakehouseError if the state is newer than this release."""
    at, release = stamp(connection)
    if at > steps[-1].number:
        raise newer_state("the catalog's state is", at, release)
    return tuple(step for step in steps if step.number > at)


def stamp(connection: psycopg.Connection[Any]) -> tuple[int, str]:
    """The state's version and the release that migrated it; 0 if it has no version."""
    if connection.execute(_HAS_STAMP).fetchone() is None:
        return 0, ""
    row = connection.execute(
        "SELECT version, release FROM lakehouse.schema_version ORDER BY version DESC LIMIT 1"
    ).fetchone()
    return (row[0], row[1]) if row else (0, "")


def newer_state(what: str, at: int, release: str) -> LakehouseError:
    """The error for state of a newer release."""
    return LakehouseError(
        f"{what} of version {at}, made by release {release}; release {version('lakehouse')} knows up to "
        f"{newest_version()}: install {release} or newer, or restore a backup that was made before the upgrade"
    )


def _step(file: Path) -> Step:
    number, _, name = file.stem.partition("_")
    return Step(int(number), name, file.read_text().encode())
