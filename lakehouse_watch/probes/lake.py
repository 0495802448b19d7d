"""The lake itself: schema changes, dead letters, sizes, and backups. Metadata only, read when it has changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from lakehouse.catalog.open import total
from lakehouse.metrics import Sample, sample
from lakehouse.servers.database import CatalogConnection, connect_catalog
from lakehouse.settings import Settings
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.limits import declared_still
from lakehouse_watch.probes.reading import Reading
from lakehouse_watch.probes.still_there import Declared

if TYPE_CHECKING:
    from pyiceberg.table import Table

Name = tuple[str, str]
SCHEMA_CHANGES, MAINTENANCE = ("meta", "schema_changes"), ("meta", "maintenance")
QUARANTINE, SPOOL = ("meta", "quarantine"), ("meta", "spool")
META = {SCHEMA_CHANGES, MAINTENANCE, QUARANTINE, SPOOL}
TOLD_FOR = timedelta(hours=24)  # an older schema change is no news, also to a watch that starts now
MAINTAINED = timedelta(days=8)


def read_lake(settings: Settings) -> Reading:
    """Schema changes of the last day, dead letters, and the sizes of raw tables and of what was set aside."""
    from lakehouse.catalog.derived import derived
    from lakehouse.catalog.open import open_catalog
    from lakehouse.catalog.relations import list_relations

    with closing(open_catalog(settings)) as catalog:
        names = {(r.name.namespace, r.name.name) for r in list_relations(catalog) if r.kind == "table"}
        meta = catalog.load_tables([name for name in names if name in META])
        raw = derived(catalog, [name for name in names if name[0].startswith("raw_")], size_of)
        sizes = raw | {name: size_of(table) for name, table in meta.items()}
        letters = derived(catalog, [QUARANTINE], dead_letters_of).get(QUARANTINE, {})
        return Reading(
            (*_schema_changes(meta.get(SCHEMA_CHANGES)), *_dead_letters(letters, declared_still(settings))),
            (*_sizes(sizes), *_maintenance(meta.get(MAINTENANCE))),
        )


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


def _schema_changes(table: Table | None) -> list[Occasion]:
    return [_schema_change(row) for row in _rows_since(table, "noticed_at", TOLD_FOR)]


def _rows_since(table: Table | None, column: str, age: timedelta) -> list[dict[str, Any]]:
    from pyiceberg.expressions import GreaterThanOrEqual

    if table is None:
        return []
    since = (datetime.now(UTC) - age).isoformat()
    return table.scan(row_filter=GreaterThanOrEqual(term=column, value=since)).to_arrow().to_pylist()


def _schema_change(row: dict[str, Any]) -> Occasion:
    name = f"{row['source']}.{row['table']}"
    column = f" of column {row['column']}" if row["column"] else ""
    change = " → ".join(filter(None, (row["before"], row["after"])))
    return Occasion(
        f"schema/{name}/{row['noticed_at'].isoformat()}/{row['kind']}/{row['column']}",
        f"the source has changed {name}: {row['kind']}{column} {change}; in the lake: {row['effect']}",
        "see that declaration and models agree with it", "warning", row["source"], ends=False,
    )  # fmt: skip


def _sizes(sizes: Mapping[tuple[str, str], tuple[int, int]]) -> Iterator[Sample]:
    for (namespace, name), (rows, size) in sorted(sizes.items()):
        if namespace.startswith("raw_"):
            source = namespace.removeprefix("raw_")
            yield sample("lakehouse_table_rows", rows, source=source, table=name)
            yield sample("lakehouse_table_bytes", size, source=source, table=name)
    yield sample("lakehouse_quarantined_rows", sizes.get(QUARANTINE, (0, 0))[0])
    yield sample("lakehouse_spool_rows", sizes.get(SPOOL, (0, 0))[0])
    yield sample("lakehouse_spool_bytes", sizes.get(SPOOL, (0, 0))[1])


def _maintenance(table: Table | None) -> Iterator[Sample]:
    """Of each action the newest run that did something: when, and how many files fewer the tables have."""
    done = [row for row in _rows_since(table, "started_at", MAINTAINED) if row["status"] == "done"]
    for action in sorted({row["action"] for row in done}):
        rows = [row for row in done if row["action"] == action]
        newest = max(rows, key=lambda row: row["started_at"])
        same_run = [row for row in rows if row["run_id"] == newest["run_id"]]
        fewer = sum((row["files_before"] or 0) - (row["files_after"] or 0) for row in same_run)
        yield sample("lakehouse_maintenance_last_timestamp_seconds", newest["started_at"].timestamp(), action=action)
        yield sample("lakehouse_maintenance_removed_files", fewer, action=action)


def read_backups(settings: Settings) -> Reading:
    """The age of the last backup; no word where none was ever made."""
    with connect_catalog(settings) as connection:
        newest = _newest_backup(connection)
    if newest is None:
        return Reading()
    made_at, age = newest
    samples = (sample("lakehouse_last_backup_timestamp_seconds", made_at.timestamp()),)
    if age < timedelta(hours=settings.alerts.backup_hours):
        return Reading(samples=samples)
    hours = age.total_seconds() / 3600
    late = Occasion(
        "backup/age",
        f"the last backup was made {hours:,.0f} hours ago",
        "run `lakehouse backup`; see why it did not run",
    )
    return Reading((late,), samples)


def _newest_backup(connection: CatalogConnection) -> tuple[datetime, timedelta] | None:
    query = "SELECT made_at, clock_timestamp() - made_at FROM lakehouse.backups ORDER BY made_at DESC LIMIT 1"
    row = connection.execute(query).fetchone()
    return (row[0], row[1]) if row else None
