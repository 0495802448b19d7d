"""Names the lake's tables in a second JDBC catalog, and keeps it pointing at their newest state.

No file is copied: both catalogs name the same metadata files. All pointers are read in one query and written in one
transaction, so the mirrors of a source stand at one cut there too. What that catalog names of the lake belongs to the
export (`exported`): what is exported no longer, goes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import psycopg
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from sqlalchemy import delete, insert, inspect, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from lakehouse.declarations.access.rules import OWN, RELATIONS
from lakehouse.errors import LakehouseError
from lakehouse.servers import exports
from lakehouse.servers.database import unreachable
from lakehouse.servers.logins import Rights
from lakehouse.settings import ExportSettings, Settings
from lakehouse.text.urls import parse_url
from lakehouse_serve.access.grants import Grants
from lakehouse_serve.exported import Name, Owner, Pointers, read_notes, write_notes
from lakehouse_serve.reading import CatalogRows
from lakehouse_serve.store import Store

OURS = "lakehouse"  # the schema of the lake's state, beside its own catalog
LOCK = 20_476_103  # of the second catalog's database: whoever has it exports
WAIT_SECONDS = 60
log = logging.getLogger("lakehouse.export")


@dataclass(frozen=True)
class Plan:
    """What changes in the second catalog: tables to register, to point elsewhere, and to drop."""

    register: Pointers
    refresh: Pointers
    drop: tuple[Name, ...]

    def __bool__(self) -> bool:
        return bool(self.register or self.refresh or self.drop)

    def __str__(self) -> str:
        return f"{len(self.register)} registered, {len(self.refresh)} refreshed, {len(self.drop)} dropped"


def plan(here: Pointers, there: Pointers, owner: Owner) -> Plan:
    """Compares both catalogs. Raises LakehouseError where a name is taken by a table that is not the lake's."""
    ours = {name: location for name, location in there.items() if owner.has(name, location, here.get(name))}
    if taken := sorted(set(there) & set(here) - set(ours)):
        raise LakehouseError(
            f"{'.'.join(taken[0])} is another table in the second catalog: leave it out of LAKEHOUSE_EXPORT__TABLES, "
            "or give the export a catalog of its own (LAKEHOUSE_EXPORT__CATALOG)"
        )
    register = {name: location for name, location in here.items() if name not in there}
    refresh = {name: location for name, location in here.items() if name in ours and ours[name] != location}
    return Plan(register, refresh, tuple(sorted(set(ours) - set(here))))


def export(settings: Settings) -> Plan:
    """Brings the second catalog up to date, all of it or nothing; what was done. Raises LakehouseError."""
    with _alone(settings.export), _rows(settings) as rows, closing(_second(settings.export)) as second:
        return _export(settings, rows, second)


def export_again(settings: Settings) -> str | None:
    """Brings a second catalog, where one is set, past files that were just deleted; what is wrong if that fails."""
    if settings.export.url is None:
        return None
    try:
        export(settings)
    except (LakehouseError, OSError) as error:
        return f"the second catalog may still name files that were deleted: {error}; then run `lakehouse export`"
    return None


def exported(settings: Settings) -> Pointers:
    """The tables that are exported, and their metadata files: for catalogs that are told by other means."""
    with _rows(settings) as rows:
        return _allowed(rows, settings)


def follow(settings: Settings, stop: threading.Event, say: Callable[[str], None]) -> None:
    """Exports on the declared pace until it is told to stop; a catalog that does not answer is tried again.

    Says what the first export did, and logs what the others do. The watch tells if it stands still, unless it was told
    to stop. Raises LakehouseError if no second catalog is set.
    """
    options, is_first = settings.export, True
    target = target_of(options)
    while not stop.is_set():
        try:
            with exports.noted(settings, target, options.every_seconds):
                done = export(settings)
            if is_first:
                say(f"{options.catalog}: {done}")
            elif done:
                log.info("%s: %s", options.catalog, done)
            is_first = False
        except (LakehouseError, OSError, psycopg.Error) as error:
            log.error("export: %s; next try in %.0f s", " ".join(str(error).split()), options.every_seconds)
        stop.wait(options.every_seconds)
    exports.ended(settings, target)


def target_of(options: ExportSettings) -> str:
    """What people know the second catalog by, which has no password in it. Raises LakehouseError if none is set."""
    url = parse_url(_dsn(options))
    return f"{options.catalog} at {url.host}:{url.port}/{url.database}"


def _export(settings: Settings, rows: CatalogRows, second: SqlCatalog) -> Plan:
    own = IcebergTables.catalog_name == second.name
    try:
        with Session(second.engine) as session, session.begin():
            # before the lake is read, so that no engine commits there meanwhile
            found = session.scalars(select(IcebergTables).where(own).with_for_update()).all()
            there = {(row.table_namespace, row.table_name): str(row.metadata_location) for row in found}
            here = _allowed(rows, settings)
            owner = Owner(settings.warehouse, read_notes(session, second.name))
            done = plan(here, there, owner)
            if done.drop and not here and not rows.locations():
                raise LakehouseError(
                    f"the lake's catalog has no table, and {second.name} would lose all of its {len(done.drop)}: check "
                    "LAKEHOUSE_CATALOG_URL; if the lake was emptied, delete its rows from iceberg_tables there"
                )
            for namespace in {namespace for namespace, _ in here}:
                second.create_namespace_if_not_exists(namespace)
            kind = {"iceberg_type": "TABLE"} if done.register and _has_types(session) else {}
            for name, location in done.register.items():
                row = {**_key(second.name, name), **kind, "metadata_location": location}
                session.execute(insert(IcebergTables).values(**row))
            for name, location in done.refresh.items():
                values = {"metadata_location": location, "previous_metadata_location": there[name]}
                session.execute(update(IcebergTables).filter_by(**_key(second.name, name)).values(**values))
            for name in done.drop:
                session.execute(delete(IcebergTables).filter_by(**_key(second.name, name)))
            write_notes(session, second.name, owner, here)
    except SQLAlchemyError as error:
        raise _unreachable(error) from None
    return done


def _key(catalog: str, name: Name) -> dict[str, str]:
    return {"catalog_name": catalog, "table_namespace": name[0], "table_name": name[1]}


def _has_types(session: Session) -> bool:
    """Not where an engine has made the catalog's tables: Iceberg's Java library makes them as of its first version."""
    columns = inspect(session.connection()).get_columns(IcebergTables.__tablename__)
    return any(column["name"] == "iceberg_type" for column in columns)


@contextmanager
def _rows(settings: Settings) -> Iterator[CatalogRows]:
    with closing(CatalogRows(settings, Store(settings))) as rows:
        yield rows


def _allowed(rows: CatalogRows, settings: Settings) -> dict[Name, str]:
    """What is asked for, and may be read by the role as a whole: files hide no column."""
    options, folder = settings.export, settings.trino.access
    if folder is None:
        raise LakehouseError("lakehouse export needs the folder of logins and rules: set LAKEHOUSE_TRINO__ACCESS")
    grants = Grants(folder)
    grants.refresh()
    try:
        asked = {name: at for name, at in rows.locations().items() if _is_asked_for(name, options)}
    except SQLAlchemyError as error:
        raise unreachable(getattr(error, "orig", None) or error) from None
    declared = asked.keys() - {(own.schema, own.name) for own in OWN}
    if options.role != "writer" and declared and not any(grants.names(*name) for name in declared):
        raise LakehouseError(
            f"{folder / RELATIONS} names none of the {len(declared)} tables to export: see that "
            "LAKEHOUSE_TRINO__ACCESS is this lake's folder of rules; `lakehouse doctor` writes the file anew"
        )
    rights = Rights(options.role)
    return {
        name: location
        for name, location in asked.items()
        if grants.shows(rights, *name) and not grants.hidden(rights.role, *name, rows.read(location).columns)
    }


def _is_asked_for(name: Name, options: ExportSettings) -> bool:
    return any(fnmatchcase(".".join(name), pattern) for pattern in options.tables)


@contextmanager
def _alone(options: ExportSettings) -> Iterator[None]:
    """Keeps other exports out of the second catalog's database, which may make its tables and register the same ones.

    A slower one would also point tables back to where they were. Waits for one that is at work; raises LakehouseError
    if that takes long.
    """
    try:
        connection = psycopg.connect(_dsn(options), connect_timeout=10, application_name="lakehouse export")
    except psycopg.Error as error:
        raise _unreachable(error) from None
    with closing(connection):
        try:
            connection.execute(f"SET lock_timeout = '{WAIT_SECONDS}s'")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        except psycopg.errors.LockNotAvailable:
            raise LakehouseError(
                f"another export to {target_of(options)} has been at work for {WAIT_SECONDS} s: try again once it has "
                "ended, or end it if it hangs"
            ) from None
        except psycopg.Error as error:
            raise _unreachable(error) from None
        yield


def _dsn(options: ExportSettings) -> str:
    if options.url is None:
        raise LakehouseError("no second catalog is set: LAKEHOUSE_EXPORT__URL is the libpq URL of its database")
    parse_url(options.url.get_secret_value(), "LAKEHOUSE_EXPORT__URL")
    return options.url.get_secret_value()


def _second(options: ExportSettings) -> SqlCatalog:
    """The second catalog, whose tables are made where they are missing. Raises LakehouseError if it is the lake's."""
    try:
        second = SqlCatalog(options.catalog, uri=parse_url(_dsn(options)).sqlalchemy(), pool_pre_ping="true")
        with closing(second.engine.connect()) as connection:
            if OURS in inspect(connection).get_schema_names():
                raise LakehouseError("LAKEHOUSE_EXPORT__URL is the lake's own database: take another one")
    except SQLAlchemyError as error:
        raise _unreachable(error) from None
    return second


def _unreachable(error: SQLAlchemyError | psycopg.Error) -> LakehouseError:
    reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    return LakehouseError(f"second catalog: {reason}; check LAKEHOUSE_EXPORT__URL and its rights")
