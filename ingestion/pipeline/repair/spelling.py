"""One spelling per value, written by each server itself: Postgres spells the source's, Spark the lake's.

Nothing here passes through ingestion's own conversion. Where the two print a value alike, that text is the spelling;
floats are spelled as their bits, times as microseconds. `NULL` stays null and is told from '' in a `cell`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    FloatType,
    IcebergType,
    TimestampType,
    TimestamptzType,
)

from ingestion.schema.compared import ComparedColumn, stand_ins
from ingestion.schema.facts import TableFacts
from ingestion.schema.former_names import Called, names_of
from ingestion.schema.types import Policy
from lakehouse.declarations import RawTable
from lakehouse.text.sql import spark_literal

_IN_SPARK: dict[type[IcebergType], str] = {
    BooleanType: "boolean", TimestampType: "timestamp_ntz", TimestamptzType: "timestamp",
}  # fmt: skip


@dataclass(frozen=True)
class SpelledColumn(ComparedColumn):
    """A column and its SQL for Spark. `names` are those by which rows call it: it may have been renamed since.
    `policy` is what the table does now with values that the lake cannot hold."""

    names: tuple[Called, ...]
    policy: Policy = "error"

    @property
    def lake_name(self) -> str:
        """Its name in the lake."""
        return self.source.lake

    def lake_text(self, value: str) -> str:
        """The spelling of a lake value; SQL for Spark."""
        match self.lake_type:
            case BooleanType():
                return f"CASE WHEN {value} THEN 't' WHEN NOT {value} THEN 'f' END"
            case DoubleType():
                return _lake_bits(value, "java.lang.Double", "doubleToLongBits", "0D")
            case FloatType():
                return _lake_bits(value, "java.lang.Float", "floatToIntBits", "0F")
            case TimestamptzType():
                return f"concat(CAST({value} AS string), '+00')"
            case BinaryType():
                return f"concat({spark_literal(chr(92) + 'x')}, lower(hex({value})))"
        return f"CAST({value} AS string)"

    def printed_text(self, text: str, policy: Policy) -> str:
        """The spelling of what landed under a policy of a value that Postgres printed, as `_old_key` holds it; SQL for
        Spark. An earlier version landed booleans, times and moments of topics otherwise, which is read too."""
        if isinstance(self.lake_type, DoubleType | FloatType):
            return self.lake_text(f"CAST({text} AS {'double' if isinstance(self.lake_type, DoubleType) else 'float'})")
        if self.is_time:
            part = f"split({text}, ':')"
            micros = (
                f"CAST(CAST((CAST({part}[0] AS bigint) * 3600 + CAST({part}[1] AS bigint) * 60"
                f" + CAST({part}[2] AS decimal(8, 6))) * 1000000 AS bigint) AS string)"
            )
            return f"CASE WHEN instr({text}, ':') = 0 THEN {text} ELSE {micros} END"
        cases = [
            f"WHEN {text} RLIKE {spark_literal(f'^({printed})$')} THEN"
            f" {'NULL' if instead is None else spark_literal(instead)}"
            for printed, instead in stand_ins(policy, str(self.lake_type))
        ]
        kind = _IN_SPARK.get(type(self.lake_type))
        said = text if kind is None else f"coalesce({self.lake_text(f'TRY_CAST({text} AS {kind})')}, {text})"
        return f"CASE {' '.join(cases)} ELSE {said} END" if cases else said

    @property
    def in_old_key(self) -> str:
        """What `_old_key` says of it, as `old_key_text` reads it; SQL for Spark."""
        said = "from_json(_old_key, 'map<string,string>')"
        names = dict.fromkeys((self.source.name, *(called.name for called in self.names)))
        texts = {name: f"try_element_at({said}, {spark_literal(name)})" for name in names}
        if len(texts) == 1:
            return texts[self.source.name]
        cases = " ".join(
            f"WHEN {' AND '.join((f'map_contains_key({said}, {spark_literal(called.name)})', *_bounds(called)))}"
            f" THEN {texts[called.name]}"
            for called in self.names
        )
        return f"CASE {cases} ELSE coalesce({', '.join(texts.values())}) END"

    def left_out(self, value: str) -> str:
        """Whether a row did not carry it: its value is null, and it is named as it was called then; SQL for Spark."""
        return f"({value} IS NULL AND coalesce({' OR '.join(map(_names, self.names))}, false))"


def spelled_columns(table: RawTable, iceberg: Table, facts: TableFacts) -> tuple[SpelledColumn, ...]:
    """The columns that both sides have, in the source's order."""
    in_lake = {field.name: field.field_type for field in iceberg.schema().fields}
    return tuple(
        SpelledColumn(
            column,
            in_lake[column.lake],
            table.raw.mask.get(column.name),
            names_of(column.lake, iceberg.properties),
            table.raw.on_unrepresentable,
        )
        for column in facts.columns
        if column.lake in in_lake
    )


def old_keys(key: Sequence[SpelledColumn]) -> str:
    """The keys under which the row of `_old_key` may have landed, the likeliest first: rows keep what a former policy
    made of a value. SQL for Spark; null where the key did not change."""
    policies: dict[Policy, None] = dict.fromkeys((*(column.policy for column in key), "clamp", "null"))
    keys = dict.fromkeys(
        ", ".join(lake_cell(column.printed_text(column.in_old_key, policy)) for column in key)
        for policy in policies
        if policy != "error"
    )
    return f"CASE WHEN _old_key IS NOT NULL THEN array({', '.join(f'concat({cells})' for cells in keys)}) END"


def _names(called: Called) -> str:
    return " AND ".join((f"array_contains(_unchanged, {spark_literal(called.name)})", *_bounds(called)))


def _bounds(called: Called) -> list[str]:
    return [
        f"_ingested_at {sign} timestamp_micros({int(bound.timestamp()) * 10**6 + bound.microsecond})"
        for bound, sign in ((called.since, ">="), (called.until, "<"))
        if bound is not None
    ]


def lake_cell(text: str) -> str:
    """The same in SQL for Spark."""
    return f"coalesce(concat(length({text}), ':', {text}), 'n')"


def _lake_bits(value: str, java_class: str, method: str, zero: str) -> str:
    called = f"java_method('{java_class}', '{method}', coalesce({value}, {zero}))"
    return f"CASE WHEN isnan({value}) THEN 'NaN' WHEN {value} IS NOT NULL THEN {called} END"
