"""How else the values that name a subject are written in a raw table of events.

Columns of a key land in one form. In events without a key, and in those that earlier releases have landed, a uuid or a
numeric without bounds is as its producer wrote it: the subject has all of these spellings.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from erasure.key_periods import Key, key_of
from erasure.targets import lake_names
from ingestion.schema.evolve import source_type
from ingestion.schema.facts import TableFacts
from ingestion.sources.kafka.key_forms import has_key_form, in_key_form
from lakehouse.declarations import RawTable


def spellings(raw: Table, table: RawTable, facts: TableFacts, keys: Collection[Key]) -> dict[Key, set[Key]]:
    """By key, the other ones in the raw table that are the same in the form of keys."""
    columns, names = {column.name: column for column in facts.columns}, lake_names(table, table.key)
    sources = [source_type(columns[name]) for name in table.key]
    found: dict[Key, set[Key]] = {key: set() for key in keys}
    if not any(map(has_key_form, sources)):
        return found
    for batch in raw.scan(selected_fields=names).to_arrow_batch_reader():
        written = pa.Table.from_batches([batch]).group_by(list(names)).aggregate([])
        parts = [written.column(name).combine_chunks() for name in names]
        formed = [in_key_form(part, source) for part, source in zip(parts, sources, strict=True)]
        is_known = [
            pc.is_in(column, pa.array(list(values), column.type))
            for column, values in zip(formed, zip(*keys, strict=True), strict=True)
        ]
        numbers = pc.indices_nonzero(reduce(pc.and_, is_known))
        own, forms = (
            map(key_of, zip(*(column.take(numbers).to_pylist() for column in those), strict=True))
            for those in (parts, formed)
        )
        for as_written, key in zip(own, forms, strict=True):
            if key in found and as_written != key:
                found[key].add(as_written)
    return found
