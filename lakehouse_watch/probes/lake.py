"""The lake itself: schema changes, dead letters, maintenance, sizes, and backups. No file of raw is read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

from lakehouse.catalog.open import PUBLISHED, total
from lakehouse.metrics import Sample, sample
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.limits import declared_still
from lakehouse_watch.probes.reading import Reading
from lakehouse_watch.probes.schema_changes import TOLD_FOR, altered, standings
from lakehouse_watch.probes.still_there import Declared

if TYPE_CHECKING:
    from pyiceberg.table import Table

Name = tuple[str, str]
SCHEMA_CHANGES, MAINTENANCE = ("meta", "schema_changes"), ("meta", "maintenance")
QUARANTINE, SPOOL = ("meta", "quarantine"), ("meta", "spool")
META = {SCHEMA_CHANGES, QUARANTINE, SPOOL}
UNMADE = "unmade/"
EDITED_SECONDS = 600.0  # somebody may be renaming a model
FAILURES = 3  # of an action in a row: one may be a conflict with a load, and the next run tries again
HOUR = timedelta(hours=1)
# One with the warehouse, where any was made; none that a clock ahead has dated later than now. Then whether newer ones
# were made without the warehouse.
_BACKUP: LiteralString = """SELECT made_at, folder, clock_timestamp() - made_at, made_at < max(made_at) OVER ()
 FROM lakehouse.backups WHERE made_at <= clock_timestamp() ORDER BY catalog_only, made_at DESC LIMIT 1"""
# Since its state was made, where something was ever ingested: before, there is nothing to lose.
_LAKE_AGE: LiteralString = """SELECT clock_timestamp() - min(applied_at) FROM lakehouse.schema_version
 WHERE EXISTS (SELECT FROM lakehouse.streams)"""
WEEKS, TRIED_AGAIN = timedelta(days=22), timedelta(days=8)  # of a weekly schedule: so many runs, and the next one


def read_lake(settings: Settings) -> Reading:
    """Schema changes of the last day, dead letters, marts that no model makes, failed maintenance, and the sizes of raw
    tables and of what was set aside."""
    from lakehouse.catalog.derived import derived
    from lakehouse.catalog.open import open_catalog
    from lakehouse.catalog.relations import list_relations

    with closing(open_catalog(settings)) as catalog:
        names = {(r.name.namespace, r.name.name) for r in list_relations(catalog) if r.kind == "table"}
        meta = catalog.load_tables([name for name in names if name in META])
        raw = derived(catalog, [name for name in names if name[0].startswith("raw_")], size_of)
        sizes = raw | {name: size_of(table) for name, table in meta.items()}
        letters = derived(catalog, [QUARANTINE], dead_letters_of).get(QUARANTINE, {})
        done = derived(catalog, [MAINTENANCE], maintained).get(MAINTENANCE, Maintained())
        there = declared_still(settings)
        changes = _rows_since(meta.get(SCHEMA_CHANGES), "noticed_at", TOLD_FOR)
        occasions = (
            *altered(changes, datetime.now(UTC), partial(standings, settings)),
            *_dead_letters(letters, there),
            *_unmade(derived(catalog, _of_no_model(names, there), was_published)),
            *_failures(done.failing, {".".join(name) for name in names}, datetime.now(UTC)),
        )
        unknown = () if there else (UNMADE,)
        return Reading(occasions, (*_sizes(sizes), *done.samples), unknown=unknown)


def size_of(table: Table) -> tuple[int, int]:
    """Rows and bytes of a table."""
    newest = table.current_snapshot()
    return total(newest, "total-records"), total(newest, "total-files-size")


def dead_letters_of(quarantine: Table) -> dict[Name, int]:
    """Dead letters by source and table, which are its partitions; without tables that have none."""
    from pyiceberg.expressions import And, EqualTo

    found = {}
    partitions = [task.file.partition for task in quarantine.scan().plan_files()]
    for source, table in sorted({(of[0], of[1]) for of in partitions}):
        mine = And(EqualTo(term="source", value=source), EqualTo(term="table", value=table))
        if count := quarantine.scan(row_filter=mine).count():
            found[source, table] = count
    return found


def _dead_letters(letters: Mapping[Name, int], there: Declared | None) -> Iterator[Occasion]:
    """One for each table that the project still has: those of another one never land."""
    for (source, table), count in letters.items():
        if there is None or there.lands(source, table):
            name = f"{source}.{table}"
            yield Occasion(
                f"dead_letters/{name}", f"dead letters of {name} in meta.quarantine: {count:,}",
                f"see `reason` there, fix the cause, then `lakehouse ingest --replay {name}`", "warning", source,
            )  # fmt: skip


def was_published(table: Table) -> bool:
    """Whether it is one of those that are built whole, tested and then published."""
    return any(name.startswith(PUBLISHED) for name in table.properties)


def _of_no_model(names: Collection[Name], there: Declared | None) -> list[Name]:
    """The tables that lie where models make theirs, and that none of them makes."""
    models = there.models if there else frozenset[Name]()
    schemas = {schema for schema, _ in models}
    return sorted(name for name in names if name[0] in schemas and name not in models)


def _unmade(published: Mapping[Name, bool]) -> Iterator[Occasion]:
    """Marts whose model was renamed or removed: a table of one's own was never published."""
    for schema, name in sorted(table for table, is_mart in published.items() if is_mart):
        yield Occasion(
            f"{UNMADE}{schema}.{name}", f"no model makes {schema}.{name} any more: readers see it as it was built last",
            "drop the table, or have a model make it", "warning", patience=EDITED_SECONDS,
        )  # fmt: skip


def _rows_since(table: Table | None, column: str, age: timedelta) -> list[dict[str, Any]]:
    from pyiceberg.expressions import GreaterThanOrEqual

    if table is None:
        return []
    since = (datetime.now(UTC) - age).isoformat()
    return table.scan(row_filter=GreaterThanOrEqual(term=column, value=since)).to_arrow().to_pylist()


def _sizes(sizes: Mapping[tuple[str, str], tuple[int, int]]) -> Iterator[Sample]:
    for (namespace, name), (rows, size) in sorted(sizes.items()):
        if namespace.startswith("raw_"):
            source = namespace.removeprefix("raw_")
            yield sample("lakehouse_table_rows", rows, source=source, table=name)
            yield sample("lakehouse_table_bytes", size, source=source, table=name)
    yield sample("lakehouse_quarantined_rows", sizes.get(QUARANTINE, (0, 0))[0])
    yield sample("lakehouse_spool_rows", sizes.get(SPOOL, (0, 0))[0])
    yield sample("lakehouse_spool_bytes", sizes.get(SPOOL, (0, 0))[1])


class Act(NamedTuple):
    """An action of maintenance on a table. It removed files, or wrote the table's rows into fewer ones; `error` is why
    it failed, None where it is done."""

    table: str
    action: str
    run_id: str
    started_at: datetime
    removed_files: int
    removed_bytes: int
    error: str | None


class Maintained(NamedTuple):
    """What `meta.maintenance` tells: numbers, and the newest failure of each action that fails on a table."""

    samples: tuple[Sample, ...] = ()
    failing: tuple[Act, ...] = ()


def maintained(history: Table) -> Maintained:
    """What was done and what failed in the last weeks."""
    rows = _rows_since(history, "started_at", WEEKS)
    acts = sorted(map(_act, rows), key=lambda act: act.started_at, reverse=True)
    return Maintained(tuple(_measured(acts)), tuple(_failing(acts)))


def _act(row: Mapping[str, Any]) -> Act:
    files, size = (
        row[f"removed_{what}"] or (row[f"{what}_before"] or 0) - (row[f"{what}_after"] or 0)
        for what in ("files", "bytes")
    )
    error = (row["error"] or "no message") if row["status"] == "failed" else None
    return Act(row["table"], row["action"], row["run_id"], row["started_at"], files, size, error)


def _measured(acts: Sequence[Act]) -> Iterator[Sample]:
    """Of each action the newest run that did something: when, and how many files and bytes it has taken away."""
    done = [act for act in acts if act.error is None]
    for action in sorted({act.action for act in done}):
        mine = [act for act in done if act.action == action]
        last = [act for act in mine if act.run_id == mine[0].run_id]
        yield sample("lakehouse_maintenance_last_timestamp_seconds", mine[0].started_at.timestamp(), action=action)
        yield sample("lakehouse_maintenance_removed_files", sum(act.removed_files for act in last), action=action)
        yield sample("lakehouse_maintenance_removed_bytes", sum(act.removed_bytes for act in last), action=action)


def _failing(acts: Sequence[Act]) -> Iterator[Act]:
    """The newest of those that have failed in a row; `acts` are newest first."""
    by_kind: dict[tuple[str, str], list[Act]] = {}
    for act in acts:
        by_kind.setdefault((act.table, act.action), []).append(act)
    for newest, *others in by_kind.values():
        in_a_row = [newest, *others][:FAILURES]
        if len(in_a_row) == FAILURES and all(act.error is not None for act in in_a_row):
            yield newest


def _failures(failing: Sequence[Act], tables: Collection[str], now: datetime) -> Iterator[Occasion]:
    """One for each table: a run of which few tables fail succeeds. What is not tried again is not needed any more."""
    tried = [act for act in failing if act.table in tables and now - act.started_at < TRIED_AGAIN]
    for table in sorted({act.table for act in tried}):
        mine = [act for act in tried if act.table == table]
        actions = " and ".join(sorted(act.action for act in mine))
        yield Occasion(
            f"maintenance/{table}", f"{actions} of {table} failed {FAILURES} times in a row: {mine[0].error}",
            f"fix the cause, then `lakehouse maintain --table {table}`", "warning",
        )  # fmt: skip


def read_backups(settings: Settings) -> Reading:
    """The age of the last backup, one with the warehouse where there are any, or of a lake that was never backed up."""
    with connect_catalog(settings) as connection:
        newest, lake_age = connection.execute(_BACKUP).fetchone(), connection.execute(_LAKE_AGE).fetchone()
    samples, limit = [], timedelta(hours=settings.alerts.backup_hours)
    if newest is not None:
        made_at, folder, age, is_followed = newest
        samples = [sample("lakehouse_last_backup_timestamp_seconds", made_at.timestamp())]
        which = "last backup with the warehouse" if is_followed else "last backup"
        otherwise = (
            "; if the warehouse is backed up by other means now, run `DELETE FROM lakehouse.backups "
            "WHERE NOT catalog_only` in the catalog's database"
        )
        late = Occasion(
            "backup/age", f"the {which} was made {age / HOUR:,.0f} hours ago",
            f"run `lakehouse backup {quote(folder)}`; see why it did not run{otherwise if is_followed else ''}",
        )  # fmt: skip
    else:
        age = lake_age[0] if lake_age and lake_age[0] else timedelta()
        late = Occasion(
            "backup/age", f"the lake is {age / HOUR:,.0f} hours old, and no backup has succeeded yet",
            "run `lakehouse backup FOLDER`, and see why the one that runs every night does not; with "
            "LAKEHOUSE_ALERTS__BACKUP_HOURS=0 nobody is told", "warning",
        )  # fmt: skip
    return Reading((late,) if limit and age >= limit else (), tuple(samples))
