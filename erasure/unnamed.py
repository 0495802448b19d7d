"""Rows with personal data that no subject's key can name: what an erasure cannot find, it must not call clean.

Rows from before a column was the table's key have null there. Of a table with hash keys, these are rows whose hash no
stage makes any more: those of a snapshot of dbt stay as they were after `lakehouse rehash`, and those of a satellite
until it is built anew. An erasure cannot tell whose they are. It reports them and does not change them.
Events without a key that lack what names a subject, as those of visitors do who have not signed in, are only counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import And, BooleanExpression, EqualTo, In, IsNull, Or
from pyiceberg.table import Table

from erasure.plan import Plan
from erasure.proof import Trace
from erasure.rows import POSITION, SubjectRows
from erasure.targets import lake_names, stages_above
from lakehouse.catalog.open import load_table
from lakehouse.catalog.relations import list_relations
from lakehouse.text.sql import ident, relation

SEARCHED = ("empty", "collapse", "delete")  # the others are made anew
Ask = Callable[[str], list[list[Any]]]


def unnamed(catalog: SqlCatalog, plan: Plan, ask: Ask) -> list[Trace]:
    """Tables with such rows, and how many; `ask` returns the rows of a statement of Trino's."""
    found = list[Trace]()
    if plan.keyless:  # events that name nobody are no mistake (see `nameless`)
        return found
    for part in (plan.raw[0], *plan.derived) if plan.raw else plan.derived:
        table = load_table(catalog, *part.target.identifier)
        if not isinstance(part, SubjectRows) or table is None or part.target.treatment not in SEARCHED:
            continue
        if part.target.is_hashed:
            count, why = _of_no_stage(catalog, plan, part, ask), _why_hashed(part)
        else:
            count, why = _without_key(catalog, plan, part, table), _why_keyless(plan)
        if count:
            found.append(Trace(str(part.target), table.location(), count, f"{count} rows with personal data {why}"))
    return found


def nameless(catalog: SqlCatalog, plan: Plan) -> int:
    """How many events without a key have personal data and no value in a column that names the subjects."""
    landed = plan.raw[0] if plan.keyless else None
    if not isinstance(landed, SubjectRows):
        return 0
    return _without_key(catalog, plan, landed, catalog.load_table(landed.target.identifier))


def _without_key(catalog: SqlCatalog, plan: Plan, part: SubjectRows, table: Table) -> int:
    key, names = part.target.key, [field.name for field in table.schema().fields]
    personal = part.target.personal_among(names)
    if not key or not personal:
        return 0
    nulls: list[BooleanExpression] = [IsNull(term=name) for name in key]
    wanted = tuple(name for name in names if name in {*key, *personal, *POSITION})
    rows = table.scan(row_filter=reduce(Or, nulls), selected_fields=wanted).to_arrow()
    says = reduce(pc.or_, (pc.is_valid(rows.column(name)) for name in personal))
    numbers = set(pc.indices_nonzero(says).to_pylist()) - set(part.rows(rows))
    if not numbers or not set(POSITION) <= set(names):
        return len(numbers)
    told = rows.take(pa.array(sorted(numbers), pa.int64()))
    unheld = _unheld(catalog, plan)
    return sum(at not in unheld for at in zip(*(told.column(name).to_pylist() for name in POSITION), strict=True))


def _unheld(catalog: SqlCatalog, plan: Plan) -> set[tuple[Any, ...]]:
    """The positions of rows whose key is null because the lake cannot hold its value: they had one."""
    if (table := load_table(catalog, "meta", "unrepresentable")) is None:
        return set()
    of_key = And(
        EqualTo(term="source", value=plan.table.source),
        EqualTo(term="table", value=plan.table.name),
        In(term="column", literals=set(lake_names(plan.table, plan.table.key))),
    )
    rows = table.scan(row_filter=of_key, selected_fields=("epoch", "commit_lsn", "seq")).to_arrow()
    return {tuple(row.values()) for row in rows.select(["epoch", "commit_lsn", "seq"]).to_pylist()}


def _of_no_stage(catalog: SqlCatalog, plan: Plan, part: SubjectRows, ask: Ask) -> int:
    says = " OR ".join(f"t.{ident(name)} IS NOT NULL" for name in sorted(part.target.personal))
    [hash_key] = part.target.key
    there_are = {known.name for known in list_relations(catalog)}  # not those of a source that is not used here
    of_none = [
        f"NOT EXISTS (SELECT 1 FROM {relation(*stage)} AS s WHERE s.{ident(hash_key)} = t.{ident(hash_key)})"
        for stage in stages_above(plan.table, plan.manifest, part.target)
        if stage in there_are
    ]
    where = " AND ".join((f"({says})", *of_none))
    [[count]] = ask(f"SELECT count(*) FROM {relation(*part.target.identifier)} AS t WHERE {where}")
    return int(count)


def _why_keyless(plan: Plan) -> str:
    table = plan.table
    name = f"{table.source}.{table.name}"
    by_hand = f"declare it again, then `lakehouse ingest --recover {table.source}`"
    again = f"then `lakehouse add {name}`" if table.kind == "postgres" else by_hand
    return (
        f"have no {', '.join(lake_names(table, table.key))}: they are from before that was the key, and may be the "
        f"subject's. Declare the former key again, run `lakehouse ingest --once {table.source}`, and erase by it; or "
        f"begin the table without its history: `lakehouse remove {name} --drop-tables`, {again}"
    )


def _why_hashed(part: SubjectRows) -> str:
    return (
        f"have a {part.target.key[0]} that no stage makes, as after a change of the key or of the hash, and may be the "
        "subject's: run `lakehouse rehash`, and drop the table if it is a snapshot of dbt"
    )
