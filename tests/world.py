"""A source database of a test's own, what the lake holds of it, and the independent oracle: SQL against the source."""

import json
import pickle
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from pydantic import SecretStr

from ingestion import bring_up
from ingestion.sources.postgres.setup import Unfit, existing, prepare, setup_statements
from ingestion.state import store
from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.declarations import METADATA_COLUMNS, Column, Declarations, RawTable, Source
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.settings import Settings, SourceSettings
from lakehouse.text.urls import parse_url
from lakehouse_stack.home.pathnames import credentials_file

Row = dict[str, Any]
_MADE: list[str] = []


@dataclass(frozen=True)
class World:
    """A database with declared tables, and the settings that reach it."""

    settings: Settings
    source: Source
    owner_url: str

    def sql(self, *statements: str) -> None:
        """Runs each statement as the owner in a transaction of its own."""
        with psycopg.connect(self.owner_url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The oracle's answer."""
        with psycopg.connect(self.owner_url) as connection:
            return connection.execute(query).fetchall()

    @property
    def declarations(self) -> Declarations:
        """Its only source."""
        return Declarations(sources=(self.source,))

    def ingest(self, spark: Any) -> Any:
        """Brings the lake up to now, in this process."""
        return bring_up(self.settings, self.declarations, self.source.name, spark)

    def raw(self, table: str) -> list[Row]:
        """All rows of a raw table in the source's order."""
        catalog = open_catalog(self.settings)
        try:
            iceberg = load_table(catalog, f"raw_{self.source.name}", table)
            rows = iceberg.scan().to_arrow().to_pylist() if iceberg else []
        finally:
            catalog.close()
        return sorted(rows, key=position)

    def current(self, table: str) -> dict[tuple[Any, ...], Row]:
        """The table's state, replayed from the raw layer by the plainest code that can do it."""
        return replay(self.raw(table), self.source.table(table).key)

    def driver(self, *faults: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """One `ingest --once` in a process of its own that kills itself at the given fault."""
        process = self.start_driver(*faults)
        output, errors = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def start_driver(self, *faults: str) -> subprocess.Popen[str]:
        """The same, not waited for."""
        return self._start("tests.driver", (_plain(self.settings), self.source), *faults)

    def command(self, *arguments: str, manifest: Any = None, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """A `lakehouse` command of a project that declares this source, in a process of its own."""
        process = self.start_command(*arguments, manifest=manifest)
        output, errors = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def start_command(self, *arguments: str, manifest: Any = None) -> subprocess.Popen[str]:
        """The same, not waited for."""
        return self._start("tests.commanded", (_plain(self.settings), self.source, manifest or {}), *arguments)

    def _start(self, module: str, content: tuple[Any, ...], *arguments: str) -> subprocess.Popen[str]:
        plan = self.settings.home / f"driver-{uuid.uuid4().hex}.pickle"
        plan.write_bytes(pickle.dumps(content))
        plan.chmod(0o600)
        command = [sys.executable, "-m", module, str(plan), *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=Path(__file__).parents[1])

    def declaring(self, table: str, **policy: Any) -> "World":
        """The same database with another declaration of one table."""
        tables = tuple(
            t.model_copy(update={"raw": t.raw.model_copy(update=policy)}) if t.name == table else t
            for t in self.source.tables
        )
        return replace(self, source=self.source.model_copy(update={"tables": tables}))

    def without(self, table: str) -> "World":
        """The same database with a table that is declared no longer."""
        tables = tuple(t for t in self.source.tables if t.name != table)
        return replace(self, source=self.source.model_copy(update={"tables": tables}))


def position(row: Row) -> tuple[int, int, int]:
    """The total order of a raw table."""
    return row["_epoch"], row["_commit_lsn"], row["_seq"]


def replay(rows: list[Row], key: tuple[str, ...]) -> dict[tuple[Any, ...], Row]:
    """Applies changes in order; a value the update did not carry is the previous version's."""
    state: dict[tuple[Any, ...], Row] = {}
    last_deleted: Row = {}
    for row in rows:
        identity = tuple(row[name] for name in key)
        if row["_op"] == "t":
            state.clear()
        elif row["_op"] == "d":
            last_deleted = state.pop(identity, {})
        else:
            previous = state.get(identity) or (last_deleted if row["_old_key"] else {})
            kept = {name: previous.get(name) for name in row["_unchanged"] or ()}
            state[identity] = {k: v for k, v in row.items() if k not in METADATA_COLUMNS} | kept
    return state


def make_world(
    settings: Settings, ddl: str, tables: dict[str, RawPolicy], encoding: str = "UTF8", **limits: Any
) -> World:
    """A fresh database with `ddl` run in it, and one declared raw table per entry of `tables`."""
    name = f"t{uuid.uuid4().hex[:10]}"
    sample = settings.source("bank")
    assert sample.owner_url is not None
    owner, role = parse_url(sample.owner_url.get_secret_value()), parse_url(sample.url.get_secret_value())
    _create_database(settings, name, owner.user, encoding)
    urls = [f"postgresql://{u.user}:{u.password}@{u.host}:{u.port}/{name}" for u in (role, owner)]
    mine = settings.model_copy(
        update={
            "sources": {name: SourceSettings(url=SecretStr(urls[0]), owner_url=SecretStr(urls[1]))},
            "ingestion": settings.ingestion.model_copy(update=limits),
        }
    )
    _MADE.append(name)
    world = World(mine, declared_source(name, tables), urls[1])
    world.sql(*statements(ddl))
    set_up(world)
    return world


def without_mirrors(source: Source) -> Source:
    """The source with tables that have no mirrors."""
    return source.model_copy(update={"tables": tuple(t.model_copy(update={"mirror": "none"}) for t in source.tables)})


def set_up(world: World) -> None:
    """Prepares the source; by hand, as an owner who does not ask, where `prepare` refuses to."""
    try:
        prepare(world.settings, world.source)
    except Unfit:
        configured = world.settings.source(world.source.name)
        role = parse_url(configured.url.get_secret_value()).user
        found = existing(world.settings, world.source)
        world.sql(*setup_statements(world.source, configured.publication, role, found))


def declared_source(name: str, tables: dict[str, RawPolicy]) -> Source:
    """A source as a dbt file without columns would declare it."""
    declared = tuple(
        RawTable(
            source=name, name=table, description="", columns=tuple(_column(c) for c in policy.key), raw=policy,
            load=LoadPolicy(), maintenance=None, owners=(),
        )
        for table, policy in tables.items()
    )  # fmt: skip
    return Source(name=name, description="", load=LoadPolicy(), tables=declared)


def statements(ddl: str) -> list[str]:
    """The statements of a script without semicolons inside them."""
    return [part for part in ddl.split(";") if part.strip()]


def drop_worlds(settings: Settings) -> None:
    """Drops the databases made since the last call, with their slots."""
    while _MADE:
        name = _MADE.pop()
        with superuser(settings) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = %s"
                " AND active_pid IS NOT NULL", (name,)
            )  # fmt: skip
            temporary = "SELECT 1 FROM pg_replication_slots WHERE database = %s AND temporary"
            while admin.execute(temporary, (name,)).fetchone():  # goes with its session, a moment after the client
                time.sleep(0.05)
            admin.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (name,)
            )
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        with store.connect_catalog(settings) as catalog:  # later tests look at all tables of the lake
            names = [f"raw_{name}", f"mirror_{name}", f"next_mirror_{name}"]
            catalog.execute("DELETE FROM iceberg_tables WHERE table_namespace = ANY(%s)", (names,))
            catalog.execute(
                "DELETE FROM iceberg_tables WHERE iceberg_type = 'VIEW' AND starts_with(table_name, %s)",
                (f"current_{name}__",),
            )
            catalog.execute("DELETE FROM iceberg_namespace_properties WHERE namespace = ANY(%s)", (names,))


def _create_database(settings: Settings, name: str, owner: str, encoding: str) -> None:
    with superuser(settings) as connection:
        of_its_own = f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0" if encoding != "UTF8" else ""
        connection.execute(f'CREATE DATABASE "{name}" OWNER "{owner}" {of_its_own}')


def superuser(settings: Settings, database: str = "postgres") -> psycopg.Connection[Any]:
    """A superuser's connection to the sources' cluster, for what only an administrator may do."""
    return _superuser(settings, "sources", settings.source("bank").url.get_secret_value(), database)


def catalog_superuser(settings: Settings) -> psycopg.Connection[Any]:
    """The same of the catalog's cluster."""
    return _superuser(settings, "catalog", settings.catalog_dsn(), "postgres")


def _superuser(settings: Settings, cluster: str, url: str, database: str) -> psycopg.Connection[Any]:
    password = json.loads(credentials_file(settings).read_text())[f"{cluster}_superuser"]
    at = parse_url(url)
    return psycopg.connect(
        host=at.host, port=at.port, user="postgres", password=password, dbname=database, autocommit=True
    )


def _column(name: str) -> Column:
    return Column(name=name, data_type=None, description="")


def _plain(settings: Settings) -> str:
    def reveal(value: Any) -> Any:
        return value.get_secret_value() if isinstance(value, SecretStr) else str(value)

    return json.dumps(settings.model_dump(), default=reveal)
