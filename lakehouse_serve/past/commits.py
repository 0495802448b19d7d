"""From the source's side: the first cut that has a transaction, a position, or all that was committed until a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThan, GreaterThanOrEqual, Or
from pyiceberg.types import LongType

from lakehouse.catalog.open import load_table
from lakehouse.catalog.relations import LISTED, TableName
from lakehouse.errors import LakehouseError
from lakehouse_serve.past.cuts import ORDER, Cut, CutKey, at_key, newest_keys
from lakehouse_serve.past.moments import LSN, Moment, Position, parse_warehouse
from lakehouse_serve.past.states import came_later

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

    from lakehouse.catalog.lake_catalog import LakeCatalog

XID = re.compile(r"xid:(?P<xid>[0-9]{1,19})")
MOST_OF_32 = (1 << 32) - 1
KEY = ("source", *ORDER)
ASKED = "SOURCE=xid:N, SOURCE=[EPOCH:]LSN or SOURCE=TIME"


@dataclass(frozen=True)
class Found:
    """A first cut; of a transaction also where and when it committed, the rows that raw has of it by table, and those
    tables that the cut does not cover. `later` are tables with changes until the time that the cut does not have: the
    source stamps a commit before others can read it, and topics tell of it whenever they do."""

    cut: Cut
    commit: Position | None = None
    committed_at: datetime | None = None
    rows: dict[str, int] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


def first_cuts(catalog: LakeCatalog, asked: str) -> list[Found]:
    """The cut that is asked for, such as `retail=xid:7345`; one in each epoch that has it.

    Raises LakehouseError for another text, and where the lake has no such cut, yet or any more.
    """
    source, _, text = asked.partition("=")
    if "=" in text:
        raise LakehouseError(f"{asked!r} names a source twice, {source} and {text.partition('=')[0]}: ask for {ASKED}")
    cuts = load_table(catalog, *LISTED["raw"])
    if cuts is None or not cuts.scan(EqualTo(term="source", value=source), ("source",), limit=1).to_arrow().num_rows:
        raise LakehouseError(f"no cut of {source or asked} was published: ask for {ASKED}")
    if transaction := XID.fullmatch(text):
        return list(_of_transaction(catalog, cuts, source, int(transaction["xid"])))
    reached, moment = _reached(asked, text)
    if found := _first_of_each_epoch(cuts, source, reached):
        if moment.at is None:
            return [Found(cut) for cut in found]
        return [Found(found[0], later=tuple(came_later(catalog, found[0], moment)))]
    raise LakehouseError(f"{text} is in no cut of {source} yet: the newest is {_newest(cuts, source)}")


def _reached(asked: str, text: str) -> tuple[BooleanExpression, Moment]:
    """Which cuts have a position, or all that was committed until a time; and the moment that is meant."""
    try:
        moment = parse_warehouse(f"@{asked if LSN.fullmatch(asked) else text}", "")
    except ValueError:
        moment = None
    if moment is not None and moment.at is not None:
        return GreaterThan(term="cut_at", value=moment.at.isoformat()), moment
    if moment is None or len(moment.positions) != 1 or moment.mirrors is not None:
        raise LakehouseError(f"{asked!r}: ask for {ASKED}")
    [position] = moment.positions
    reached = GreaterThanOrEqual(term="cut_lsn", value=position.lsn)
    of = And(reached, EqualTo(term="epoch", value=position.epoch)) if position.epoch is not None else reached
    return of, moment


def _of_transaction(catalog: LakeCatalog, cuts: Table, source: str, xid: int) -> Iterator[Found]:
    """By epoch: a source that was restored gives the same ids again."""
    rows = {name: found for name, raw in _raws(catalog, source) if (found := _rows_of(raw, xid))}
    if not rows:
        raise LakehouseError(_why_not(catalog, cuts, source, xid))
    for epoch, lsn in sorted({_commit(row) for found in rows.values() for row in found}):
        own = {name: [row for row in found if _commit(row) == (epoch, lsn)] for name, found in rows.items()}
        every, commit = [row for found in own.values() for row in found], Position(lsn, source, epoch)
        landed = max(row["_ingested_at"] for row in every)
        own_epoch = And(EqualTo(term="epoch", value=epoch), GreaterThanOrEqual(term="cut_lsn", value=lsn))
        reached = Or(own_epoch, GreaterThan(term="epoch", value=epoch))  # a cut has all of the epochs before its own
        published = GreaterThanOrEqual(term="published_at", value=landed.isoformat())  # or it came late
        first = _first_of_each_epoch(cuts, source, And(reached, published))
        if not first:
            raise LakehouseError(
                f"transaction {xid} of {source} is in raw, at {commit}, and in no cut yet: the newest is "
                f"{_newest(cuts, source)}"
            )
        there = {name: len(of_table) for name, of_table in own.items() if of_table}
        left_out = tuple(sorted(there.keys() - first[0].snapshots.keys()))
        yield Found(first[0], commit, every[0]["_committed_at"], there, left_out)


def _commit(row: dict[str, Any]) -> tuple[int, int]:
    return row["_epoch"], row["_commit_lsn"]


def _rows_of(raw: Table, xid: int) -> list[dict[str, Any]]:
    fields = ("_epoch", "_commit_lsn", "_committed_at", "_ingested_at")
    found: list[dict[str, Any]] = (
        raw.scan(EqualTo(term="_xid", value=xid), selected_fields=fields).to_arrow().to_pylist()
    )
    return found


def _why_not(catalog: LakeCatalog, cuts: Table, source: str, xid: int) -> str:
    """By what the files of raw say of their ids; rows of a first read have none."""
    known = [bound for _, raw in _raws(catalog, source) for bound in _bounds(raw)]
    says = f"raw tables of {source} have no row of transaction {xid}: "
    if known and xid > MOST_OF_32 >= max(known):
        says += f"if {source} comes through Debezium, which has ids of 32 bits, ask for xid:{xid & MOST_OF_32}; else "
    if not known or xid > max(known):
        return (
            f"{says}it is not in the lake yet, or changed no table that is ingested; the newest cut is "
            f"{_newest(cuts, source)}"
        )
    before = (
        f"it is older than all that came by replication (the first is {min(known)}), so a first read has what it left"
    )
    within = (
        "it changed no table that is ingested, was rolled back, or is open still (in the source: SELECT "
        f"pg_xact_status('{xid}')); or its rows have been removed, by `lakehouse erase` or with their table"
    )
    return says + (before if xid < min(known) else within)


def _bounds(raw: Table) -> Iterator[int]:
    from pyiceberg.conversions import from_bytes

    field = raw.schema().find_field("_xid").field_id
    for task in raw.scan(selected_fields=("_xid",)).plan_files():
        for bounds in (task.file.lower_bounds, task.file.upper_bounds):
            if bounds and (stored := bounds.get(field)) is not None:
                yield int(from_bytes(LongType(), stored))


def _raws(catalog: LakeCatalog, source: str) -> Iterator[tuple[str, Table]]:
    names = [TableName(*name) for name in catalog.list_tables(f"raw_{source}")]
    for (_, name), raw in sorted(catalog.load_tables(names).items()):
        yield name, raw


def _newest(cuts: Table, source: str) -> str:
    """The newest cut, for people."""
    cut = _keyed(cuts, source, newest_keys(cuts.scan(EqualTo(term="source", value=source), KEY).to_arrow())[source])
    return f"{cut.position}, of {cut.said_at}"


def _first_of_each_epoch(cuts: Table, source: str, reached: BooleanExpression) -> list[Cut]:
    """The first cuts that the condition holds of, of the earliest epoch first."""
    found = cuts.scan(And(EqualTo(term="source", value=source), reached), KEY).to_arrow()
    epochs = (found.filter(pc.equal(found["epoch"], epoch)) for epoch in sorted(found["epoch"].unique().to_pylist()))
    return [_keyed(cuts, source, _first(of_epoch)) for of_epoch in epochs]


def _first(cuts: pa.Table) -> CutKey:
    for column in ORDER:
        cuts = cuts.filter(pc.equal(cuts[column], pc.min(cuts[column])))
    return CutKey(*(cuts[column][0].as_py() for column in ORDER))


def _keyed(cuts: Table, source: str, key: CutKey) -> Cut:
    return at_key(cuts, source, key, "raw")
