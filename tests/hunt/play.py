"""The stage on which histories are played: a source database with a schema for each case, and its sessions."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from ingestion.run import operate
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.clusters import ROLE, Cluster, world_in
from tests.hunt.history import SCHEMA, USER, Shape, Step
from tests.world import World, declared_source

PATIENCE = "SET lock_timeout = '150ms'; SET client_min_messages = error; SET search_path = {s}, {s}_x, public"


@dataclass
class Stage:
    """Plays steps; a statement that fails fails, as in life."""

    world: World
    cases: dict[str, Shape]
    _sessions: dict[tuple[str, int], psycopg.Connection[Any]] = field(default_factory=dict)

    def connection(self, schema: str, session: int) -> psycopg.Connection[Any]:
        """A session of a case, opened when first asked for."""
        known = self._sessions.get((schema, session))
        if known is None or known.closed:
            known = psycopg.connect(self.world.owner_url, autocommit=True)
            known.execute(PATIENCE.replace(SCHEMA, schema).encode())
            self._sessions[schema, session] = known
        return known

    def do(self, schema: str, step: Step) -> bool:
        """Whether it worked."""
        if step.session == USER:
            return self._tell(schema, step.sql)
        try:
            self.connection(schema, step.session).execute(step.sql.replace(SCHEMA, schema).encode())
        except psycopg.Error:
            return False
        return True

    def _tell(self, schema: str, what: str) -> bool:
        verb, _, key = what.partition(" ")
        if verb == "declare":
            self.declare(f"{schema}_0", tuple(key.split(", ")))
            return True
        change = {"resume": operate.resume, "resnapshot": operate.read_anew}[what]
        for table in tables_of(schema, self.cases[schema]):
            with suppress(LakehouseError):
                change(self.world.settings, self.world.source.table(table))
        return True

    def key(self, table: str) -> tuple[str, ...]:
        """The key that is declared now."""
        return self.world.source.table(table).key

    def declare(self, table: str, key: tuple[str, ...]) -> None:
        """Declares another key of a table."""
        source = self.world.source
        policy = source.table(table).raw.model_copy(update={"key": key})
        (mine,) = declared_source(source.name, {table: policy}).tables
        tables = tuple(mine if known.name == table else known for known in source.tables)
        self.world = replace(self.world, source=source.model_copy(update={"tables": tables}))

    def end_transactions(self, *, only_locking: bool, of: str | None = None) -> None:
        """Commits what is open: all, that of a case, or what would keep a look of the catalog waiting."""
        for connection in [known for (case, _), known in self._sessions.items() if of in (None, case)]:
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE and (
                not only_locking or _locks(connection)
            ):
                with suppress(psycopg.Error):
                    connection.execute("COMMIT")

    def close(self) -> None:
        """Ends all sessions."""
        for connection in self._sessions.values():
            connection.close()


def _locks(connection: psycopg.Connection[Any]) -> bool:
    """Whether it holds what ingestion's questions wait for; a session whose transaction failed holds nothing."""
    try:
        row = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
            " WHERE pid = pg_backend_pid() AND mode = 'AccessExclusiveLock' AND (c.relkind = 'p' OR c.relispartition))"
        ).fetchone()
    except psycopg.Error:
        return True
    return row is not None and bool(row[0])


def tables_of(schema: str, shape: Shape) -> list[str]:
    """The declared names of a case's tables."""
    return [f"{schema}_{number}" for number in range(len(shape.tables))]


def make_stage(made: Cluster, settings: Settings, name: str, shapes: Sequence[Shape], **limits: Any) -> Stage:
    """A database with a schema for each shape, its tables declared and published."""
    cases = {f"h{number:02}": shape for number, shape in enumerate(shapes)}
    declared = {
        table: RawPolicy(relation=f"{schema}.{relation}", key=key)
        for schema, shape in cases.items()
        for table, (relation, key) in zip(tables_of(schema, shape), shape.tables, strict=True)
    }
    for schema, shape in cases.items():
        exclude = tuple(name for name, how in shape.withheld if how == "exclude")
        update = {"exclude": exclude, "mask": {name: how for name, how in shape.withheld if how != "exclude"}}
        declared[f"{schema}_0"] = declared[f"{schema}_0"].model_copy(update=update)
    script = [
        f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {ROLE}",
        f"ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO {ROLE}",
    ]
    for schema, shape in cases.items():
        script += [f"CREATE SCHEMA {schema}", f"SET search_path = {schema}", *shape.setup]
    return Stage(world_in(made, settings, name, ";".join(script), declared, **limits), cases)
