"""What is wrong with the jobs that load, across tables: names that two of them have, and two triggers of one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lakehouse.declarations.declared import RawTable

MARTS = "marts"


def job_mistakes(
    sources: Mapping[str, Sequence[RawTable]], manifest: Mapping[str, Any]
) -> Iterator[tuple[RawTable, tuple[str, ...], str]]:
    """The table, the path of the key, and what to do."""
    for table, other in _of_one_name(table for tables in sources.values() for table in tables):
        yield (
            table,
            ("load", "job"),
            f"meta.load.job: table {table.name!r} of source {table.source!r} and {other.name!r} of {other.source!r} "
            f"have two jobs of the name {_job_of(table)}: rename one, or leave out `job: own`",
        )
    for table in _called_like_marts(sources, manifest):
        yield table, (), f"source {table.source!r} would have the sensor of the marts, new_data_marts: rename it"
    for table in _triggered_apart(sources):
        yield (
            table,
            ("load", "trigger"),
            f"meta.load.trigger: tables that share the job {_job_of(table)} declare different triggers: give them one, "
            "or `job: own`",
        )


def _job_of(table: RawTable) -> str:
    """The job that loads it: one of its own, or that of its source."""
    return f"load_{table.source}_{table.name}" if table.load.job == "own" else f"load_{table.source}"


def _of_one_name(tables: Iterable[RawTable]) -> Iterator[tuple[RawTable, RawTable]]:
    """Tables whose job is called like that of a table before them, and is another one."""
    seen: dict[str, RawTable] = {}
    for table in tables:
        other = seen.setdefault(_job_of(table), table)
        if (other.source, other.load.job) != (table.source, table.load.job):
            yield table, other


def _called_like_marts(sources: Mapping[str, Sequence[RawTable]], manifest: Mapping[str, Any]) -> Iterator[RawTable]:
    """The first table of a source whose sensor would be called like that of the project's marts."""
    schemas = (str(node.get("schema", "")).lower() for node in manifest.get("nodes", {}).values())
    watched = (t for t in sources.get(MARTS, ()) if t.load.job == "shared" and t.load.trigger == "sensor")
    if (table := next(watched, None)) is not None and MARTS in schemas:
        yield table


def _triggered_apart(sources: Mapping[str, Sequence[RawTable]]) -> Iterator[RawTable]:
    """Tables that start the job of their source by something else than one before them."""
    for tables in sources.values():
        shared = [table for table in tables if table.load.job == "shared"]
        yield from (table for table in shared if table.load.trigger != shared[0].load.trigger)
