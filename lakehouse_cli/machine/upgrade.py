"""`lakehouse upgrade`: what another release has stored, brought to the shape that this one works with."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lakehouse.declarations.checks.profiles import other_timezones
from lakehouse.extras import installed
from lakehouse.servers.database import connect_catalog
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import ENDPOINTS_FILE, Settings, load_settings
from lakehouse.text.shown import say

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema

RECOVER = "their replication slots do not go along; afterwards `lakehouse ingest --recover SOURCE` for each of them"


class Part(NamedTuple):
    """Something that is stored: what there is to do, told without changing anything, and doing it.

    `do` returns what it could not do and `planned` does not tell any more, for people.
    """

    planned: Callable[[Settings], list[str]]
    do: Callable[[Settings], list[str] | None]


def upgrade(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing, print what would be done; exit 1 if there is something.")
    ] = False,
) -> None:
    """Migrate what an earlier release has stored: Postgres clusters, state, the lake's own tables, Dagster.

    Can be run at any time, and again after an interruption. Stop `lakehouse dev` and ingestion first. Exits with 1
    where something is left for you, and says what.
    """
    settings = load_settings()
    to_do = planned(settings)
    for line in to_do or ["nothing to do"]:
        say(line)
    left: list[str] = []
    if to_do and not check:
        settings, left = _upgrade(settings)
        for line in (still := _rest_planned(settings)):
            say(line)
        left += still
        say("upgraded, but for what is said here: that is left for you" if left else "upgraded")
    for line in (zones := other_timezones(settings.dbt_project_dir)):
        say(f"left for you: {line}")
    if check and to_do:  # the rest is told once this is done: what is to be upgraded cannot be asked yet
        raise typer.Exit(1)
    if lost := sources_to_recover(settings):  # also of an earlier run, which was interrupted before it could say so
        say(f"then: lakehouse ingest --recover {' '.join(lost)}")
    if lost or left or zones:
        raise typer.Exit(1)


def planned(settings: Settings) -> list[str]:
    """What there is to do, a line each; changes nothing."""
    return _clusters_planned(settings) + _rest_planned(settings)


def _upgrade(settings: Settings) -> tuple[Settings, list[str]]:
    """Does all parts; returns the settings that reach the servers now, and what could not be done."""
    from lakehouse_cli.alone import alone
    from lakehouse_cli.machine.stack import up
    from lakehouse_stack.control.postgres_upgrade import upgrade_clusters

    with alone(settings):
        _refuse_writers(settings)
        if _is_embedded(settings):
            upgrade_clusters(settings, say)
        if not _answers(settings):
            up()
        settings = load_settings(home=settings.home)
        left: list[str] = []
        for part in PARTS:
            if part.planned(settings):
                left += part.do(settings) or ()
    return settings, left


def _clusters_planned(settings: Settings) -> list[str]:
    from lakehouse_stack.home.config import stack_settings
    from lakehouse_stack.processes.accounts import find_placement
    from lakehouse_stack.servers.postgres_versions import old_clusters

    if not _is_embedded(settings):
        return []
    found = old_clusters(find_placement(settings.home, stack_settings().system_dir, make=False))
    lines = [f"{old}: stop the servers, migrate it, keep the old data beside it" for old in found]
    return lines + [f"sources: {RECOVER}" for old in found if old.name == "sources"]


def _rest_planned(settings: Settings) -> list[str]:
    if _is_embedded(settings) and not _answers(settings):
        return ["catalog: not running: start it, then inspect the state in it"]
    return [line for part in PARTS for line in part.planned(settings)]


def _state_planned(settings: Settings) -> list[str]:
    from lakehouse.migrations import is_new, known_steps, pending

    with connect_catalog(settings) as connection:
        if is_new(connection):
            return []
        return [f"state: step {step.number}, {step.name}" for step in pending(connection, known_steps())]


def _migrate_state(settings: Settings) -> None:
    from lakehouse.migrations import ensure_state

    with connect_catalog(settings) as connection:
        ensure_state(connection)


def _tables_planned(settings: Settings) -> list[str]:
    from lakehouse.catalog.open import open_catalog
    from lakehouse.catalog.writing.evolving import outdated

    with closing(open_catalog(settings)) as catalog:
        found = outdated(catalog, _own_tables())
    return [f"{table}: add {', '.join(columns)}" for table, columns in found.items()]


def _complete_tables(settings: Settings) -> None:
    from lakehouse.catalog.open import load_table, open_catalog
    from lakehouse.catalog.writing.evolving import complete

    with closing(open_catalog(settings)) as catalog:
        for name, wanted in _own_tables().items():
            if (table := load_table(catalog, *name)) is not None:
                complete(catalog, table, wanted)


def _flag_planned(settings: Settings) -> list[str]:
    from lakehouse.catalog.open import open_catalog
    from lakehouse.migrations.parsed_flag import outdated

    with closing(open_catalog(settings)) as catalog:
        return outdated(settings, catalog).lines()


def _rename_flag(settings: Settings) -> list[str]:
    from lakehouse.catalog.open import open_catalog
    from lakehouse.migrations.parsed_flag import rename

    with closing(open_catalog(settings)) as catalog:
        refused = rename(settings, catalog)
    for line in refused:  # at once: the next part can fail
        say(line)
    return refused


def _dagster_planned(settings: Settings) -> list[str]:
    if "orchestration" not in installed():
        return []
    from orchestration.instance import outdated

    behind = outdated(settings)
    return [f"dagster: migrate its storage, {behind}"] if behind else []


def _migrate_dagster(settings: Settings) -> None:
    from orchestration.instance import migrate

    migrate(settings, say)


def _logins_planned(settings: Settings) -> list[str]:
    """Until release 0.2 the embedded Trino took any name without a password."""
    file = settings.home / ENDPOINTS_FILE
    written = tomllib.loads(file.read_text()) if file.exists() else {}
    if not _is_embedded(settings) or "ca" in written.get("trino", {}):
        return []
    return ["trino: restart it, so that it requires a password over TLS; `lakehouse env` has the new addresses"]


def _users_planned(settings: Settings) -> list[str]:
    """Until release 0.2, root ran all servers but Postgres as itself."""
    from lakehouse_stack.home.config import stack_settings
    from lakehouse_stack.processes.accounts import find_server_placement

    if not _is_embedded(settings):
        return []
    placed = find_server_placement(settings.home, stack_settings().system_dir, make=False)
    if placed.account is None:
        return []
    objects = {settings.home / "data" / "s3", placed.data / "s3"}
    if not any(folder.exists() and folder.stat().st_uid == 0 for folder in objects):
        return []
    return [f"trino, s3, serve: restart them as user {placed.account.name} instead of root, and give it their data"]


def _start_again(settings: Settings) -> None:
    from lakehouse_cli.machine.stack import up

    up()


PARTS = (
    Part(_logins_planned, _start_again),
    Part(_users_planned, _start_again),
    Part(_state_planned, _migrate_state),
    Part(_tables_planned, _complete_tables),
    Part(_flag_planned, _rename_flag),
    Part(_dagster_planned, _migrate_dagster),
)


def _own_tables() -> dict[tuple[str, str], Schema | pa.Schema]:
    from ingestion.sink.meta_tables import known_schemas
    from maintenance.planning.history import HISTORY, SCHEMA

    return {**known_schemas(), HISTORY: SCHEMA}


def _is_embedded(settings: Settings) -> bool:
    """Whether this home has servers of its own."""
    from lakehouse_stack.home.pathnames import credentials_file

    return credentials_file(settings).exists()


def _answers(settings: Settings) -> bool:
    if settings.catalog_url is None and _is_embedded(settings):  # `up` was cut off before it could write where it is
        return False
    try:
        connect_catalog(settings).close()
    except Unreachable:
        return False
    return True


def _refuse_writers(settings: Settings) -> None:
    from ingestion.state.lease import refuse_writers
    from lakehouse.servers.worker_sessions import refuse_worker

    if not _answers(settings):
        return
    with connect_catalog(settings) as connection:
        refuse_writers(connection)
    refuse_worker(settings)


def sources_to_recover(settings: Settings) -> list[str]:
    """The sources of this home's cluster that were ingested from another one, such as the one before it was migrated.

    Raises LakehouseError if the cluster does not answer.
    """
    from lakehouse.migrations import is_new
    from lakehouse.text.urls import parse_url
    from lakehouse_stack.control.postgres_upgrade import identify
    from lakehouse_stack.home.pathnames import ports_file
    from lakehouse_stack.home.ports import LOOPBACK, read_ports

    port = read_ports(ports_file(settings)).get("sources")
    here = LOOPBACK, port
    reached = {
        name for name, given in settings.databases.items() if parse_url(given.url.get_secret_value()).place[:2] == here
    }
    if not _is_embedded(settings) or port is None or not reached:
        return []
    with connect_catalog(settings) as connection:
        if is_new(connection):
            return []
        rows: list[Any] = connection.execute(
            "SELECT source FROM lakehouse.streams WHERE kind = 'postgres' AND system_identifier <> %s ORDER BY source",
            (identify(settings, "sources", port),),
        ).fetchall()
    return [source for (source,) in rows if source in reached]
