"""What is wrong among the tables of sources: what two of them may not both be, or have to declare alike."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lakehouse.declarations.checks.jobs import job_mistakes
from lakehouse.declarations.declared import RawTable
from lakehouse.declarations.lines import OF_TABLE
from lakehouse.declarations.policies import MirrorPolicy

Mistake = tuple[RawTable, tuple[str, ...], str]
"""The table that is to be corrected, the path of the key, and what to do."""


def mistakes_among(sources: Mapping[str, Sequence[RawTable]], manifest: Mapping[str, Any]) -> Iterator[Mistake]:
    """Mistakes of tables beside each other, by source."""
    tables = [table for declared in sources.values() for table in declared]
    yield from _declared_again(tables)
    yield from _called_alike(tables)
    yield from job_mistakes(sources, manifest)
    yield from _declared_apart(sources)


def _declared_again(tables: Iterable[RawTable]) -> Iterator[Mistake]:
    seen = set()
    for table in tables:
        if (place := (table.source, *table.relation)) in seen:
            key = "relation" if table.raw.relation else "topic"
            yield (
                table,
                ("raw", key),
                f"meta.raw.{key}: {table.raw.origin} is declared as another table of source {table.source!r} too; each "
                "change of it lands once: declare it once",
            )
        seen.add(place)


def _called_alike(tables: Iterable[RawTable]) -> Iterator[Mistake]:
    """Tables that have the name of one before them in parsed, where source and table are one name."""
    seen: dict[str, RawTable] = {}
    for table in tables:
        name = f"{table.source}__{table.name}"
        if (other := seen.get(name)) is not None:
            yield (
                table,
                (OF_TABLE, "name"),
                f"table {table.name!r} of source {table.source!r} and {other.name!r} of {other.source!r} are both "
                f"called {name} in parsed: rename one",
            )
        seen[name] = table


def _declared_apart(sources: Mapping[str, Sequence[RawTable]]) -> Iterator[Mistake]:
    """Tables that declare otherwise than one before them what holds for all of their source."""
    for source, tables in sources.items():
        paced = [table for table in tables if table.is_mirrored and isinstance(table.mirror, MirrorPolicy)]
        told = f"the mirrors of source {source!r} are refreshed together: declare it once, at the source"
        path = ("mirror", "refresh_seconds")
        yield from ((t, path, f"meta.mirror.refresh_seconds: {told}") for t in paced if t.mirror != paced[0].mirror)
    for tables in sources.values():
        told = "meta.kind: the tables of a source are of one kind: declare it once, at the source"
        yield from ((table, ("kind",), told) for table in tables if table.kind != tables[0].kind)
    for source, tables in sources.items():
        told = f"meta.flush: the tables of source {source!r} are published together: declare it once, at the source"
        yield from ((table, ("flush",), told) for table in tables if table.flush != tables[0].flush)
