"""A mirror as of a cut: by the snapshot that stands there, or made of the history that parsed keeps.

A mirror has a snapshot for some cuts alone, those of its refreshes, and keeps it as long as others. Parsed has every
version of every row, so of any other cut the mirror's rows are made as those of the current view are.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from lakehouse.catalog.open import MIRROR_STATE, load_table
from lakehouse.catalog.relations import TableName
from lakehouse.errors import LakehouseError
from lakehouse.text.sql import columns, ident, literal
from lakehouse_serve.past.cuts import Cut

if TYPE_CHECKING:
    from lakehouse.catalog.lake_catalog import LakeCatalog

MIRROR = "mirror_"


def parsed_of(mirror: TableName) -> TableName:
    """The parsed table of the raw table that is mirrored."""
    return TableName("parsed", f"parsed_{mirror.namespace.removeprefix(MIRROR)}__{mirror.name}")


def key_of(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that tell a mirror's rows apart, as Trino calls them; none where a refresh has not said so."""
    state = json.loads(properties.get(MIRROR_STATE, "{}"))
    key = set(state.get("key") or ())
    names = tuple(name.lower() for name, field in state.get("columns", {}).items() if field in key)
    return names if len(names) == len(key) else ()


def newest_versions(
    mirror: TableName,
    rows: str,
    wanted: Mapping[str, str],
    there: Mapping[str, str],
    key: Collection[str],
    hidden: Collection[str],
) -> str:
    """The query that makes a mirror's rows of those of parsed: its columns with its types, in its order.

    `wanted` are the types of the mirror's columns by name, `there` those of parsed. Raises LakehouseError where the key
    is not known, or parsed lacks a column.
    """
    if not key:
        raise LakehouseError(
            f"{mirror} has no snapshot of that cut, and does not say which columns are its key: refresh it "
            f"(`lakehouse mirror {mirror.namespace.removeprefix(MIRROR)}`), or query the current_… view in its place"
        )
    if lacking := [name for name in wanted if name not in there]:
        raise LakehouseError(
            f"{mirror} has no snapshot of that cut, and {parsed_of(mirror)}, of which its past is made, has no column "
            f"{', '.join(lacking)} yet: run its load, or query the current_… view in its place"
        )
    values = [_as_mirrored(name, there[name], type_) for name, type_ in wanted.items() if name not in hidden]
    return (
        f"SELECT {', '.join(values)} FROM (SELECT *, row_number() OVER (PARTITION BY {columns(list(key))} "
        f"ORDER BY _epoch DESC, _commit_lsn DESC, _seq DESC) AS _lh_version FROM ({rows})) "
        "WHERE _lh_version = 1 AND NOT _is_deleted"
    )


def _as_mirrored(name: str, there: str, wanted: str) -> str:
    """A column of another type than the mirror's, as one that is declared otherwise: no value changes in silence."""
    column = ident(name)
    if there == wanted:
        return column
    value, says = f"CAST({column} AS {wanted})", literal(f"a value of {name} is {there}, and not the same as {wanted}")
    return (
        f"IF(CAST({value} AS {there}) IS DISTINCT FROM {column}, CAST(fail({says}) AS {wanted}), {value}) AS {column}"
    )


def has_snapshot(catalog: LakeCatalog, name: TableName, snapshot: int, landed: tuple[Cut, Cut] | None) -> bool:
    """Whether a mirror still has a snapshot. `landed` are the cut that the source and its mirrors had there, where it
    has to have all rows that raw has of that cut by now."""
    found = load_table(catalog, *name)
    if found is None or found.snapshot_by_id(snapshot) is None:
        return False
    return landed is None or not _landed_since(catalog, *landed, name)


def _landed_since(catalog: LakeCatalog, cut: Cut, mirrors: Cut, name: TableName) -> bool:
    """Whether raw got rows of the cut after it was published, as by a replay or a repair; also if that is not known."""
    from pyiceberg.expressions import And, EqualTo, GreaterThan, LessThan, LessThanOrEqual, Or

    if cut.published_at is None or mirrors.published_at is None or mirrors.published_at < cut.published_at:
        return True
    raw = load_table(catalog, f"raw_{cut.source}", name.name)
    if raw is None:
        return False
    until = Or(
        LessThan(term="_epoch", value=cut.epoch),
        And(EqualTo(term="_epoch", value=cut.epoch), LessThanOrEqual(term="_commit_lsn", value=cut.lsn)),
    )
    late = And(GreaterThan(term="_ingested_at", value=cut.published_at.isoformat()), until)
    return raw.scan(late, selected_fields=("_seq",), limit=1).to_arrow().num_rows > 0
