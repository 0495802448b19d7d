"""The one table from Postgres types to Iceberg types.

Rules are found by OID, which Postgres fixes for its built-in types: a type of the user's own may bear any name.
Whatever has no rule (arrays, enums, composites, ranges, extensions) is kept as the text that Postgres prints.
"""

from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from ingestion.schema.types.model import Form, SourceType, Target

MAX_PRECISION = 38
NUMERIC_OID = 1700


@dataclass(frozen=True)
class Rule:
    """What one built-in type becomes. `iceberg` is None for numeric alone, where precision and scale decide."""

    oid: int
    name: str
    form: Form
    iceberg: IcebergType | None
    note: str = ""


def _texts(note: str, **oids: int) -> tuple[Rule, ...]:
    return tuple(Rule(oid, name, Form.TEXT, StringType(), note) for name, oid in oids.items())


_YEARS = "years 0001 to 9999, which Trino and Spark both read; infinity cannot be stored"
_AS_PRINTED = "as Postgres prints it"
_TIME = (
    "microseconds since midnight, up to 24:00:00, as Spark has no time type; the `current_` view shows Trino's time, "
    "where 24:00:00 cannot be stored and becomes 00:00:00"
)
_MONEY = (
    "printed in the lc_monetary that ingestion's role has in the database, currency sign included; where that is "
    "changed, `lakehouse reconcile --repair` restates the rows"
)

RULES: tuple[Rule, ...] = (
    Rule(16, "bool", Form.BOOLEAN, BooleanType()),
    Rule(21, "int2", Form.INTEGER, IntegerType()),
    Rule(23, "int4", Form.INTEGER, IntegerType()),
    Rule(20, "int8", Form.INTEGER, LongType()),
    Rule(26, "oid", Form.INTEGER, LongType(), "unsigned 32 bits"),
    Rule(28, "xid", Form.INTEGER, LongType(), "unsigned 32 bits"),
    Rule(29, "cid", Form.INTEGER, LongType(), "unsigned 32 bits"),
    Rule(700, "float4", Form.FLOAT, FloatType(), "NaN, infinities and -0 included"),
    Rule(701, "float8", Form.FLOAT, DoubleType(), "NaN, infinities and -0 included"),
    Rule(NUMERIC_OID, "numeric", Form.DECIMAL, None),
    Rule(1082, "date", Form.DATE, DateType(), _YEARS),
    Rule(1114, "timestamp", Form.TIMESTAMP, TimestampType(), f"microseconds; {_YEARS}"),
    Rule(1184, "timestamptz", Form.TIMESTAMPTZ, TimestamptzType(), f"microseconds in UTC; {_YEARS}"),
    Rule(1083, "time", Form.TIME, LongType(), _TIME),
    Rule(17, "bytea", Form.BYTES, BinaryType()),
    *_texts("", text=25, varchar=1043, name=19),
    Rule(1042, "bpchar", Form.TEXT, StringType(), "char(n) keeps its padding, which a cast to text would strip"),
    Rule(18, "char", Form.TEXT, StringType(), 'the one-byte type "char"'),
    Rule(2950, "uuid", Form.TEXT, StringType(), "lower case with hyphens, which joins in every engine"),
    *_texts("the text of the document, unparsed", json=114, xml=142),
    Rule(3802, "jsonb", Form.TEXT, StringType(), "normalized by Postgres: keys ordered, duplicates gone"),
    Rule(4072, "jsonpath", Form.TEXT, StringType(), _AS_PRINTED),
    Rule(790, "money", Form.TEXT, StringType(), _MONEY),
    Rule(1186, "interval", Form.TEXT, StringType(), "IntervalStyle postgres; a month has no fixed length"),
    Rule(1266, "timetz", Form.TEXT, StringType(), "with its offset, which a time type cannot keep"),
    *_texts("a host address without the mask length that a cast to text would add", inet=869, cidr=650),
    *_texts(_AS_PRINTED, macaddr=829, macaddr8=774),
    *_texts("zeros and ones", bit=1560, varbit=1562),
    *_texts(_AS_PRINTED, tsvector=3614, tsquery=3615),
    *_texts(_AS_PRINTED, point=600, lseg=601, path=602, box=603, polygon=604, line=628, circle=718),
    *_texts(_AS_PRINTED, pg_lsn=3220, xid8=5069, tid=27, txid_snapshot=2970, pg_snapshot=5038),
)

_BY_OID = {rule.oid: rule for rule in RULES}

TEXT_KINDS = {
    "A": "array: the text of the whole array, nested ones and NULL elements included",
    "e": "enum: the label",
    "c": "composite: the text of the whole row",
    "r": "range: as Postgres prints it",
    "m": "multirange: as Postgres prints it",
    "b": "a type without a rule (hstore, citext, PostGIS, any extension's): as Postgres prints it",
}
UNTYPED_NUMERIC = "numeric without a precision has no bound on its digits; text keeps every one, NaN and infinities too"
WIDE_NUMERIC = f"more than {MAX_PRECISION} digits, which no decimal holds"
NUMERIC_NOTE = "the declared precision and scale; a negative scale becomes integer digits"

_ARROW: dict[type[IcebergType], pa.DataType] = {
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    DateType: pa.date32(),
    TimestampType: pa.timestamp("us"),
    TimestamptzType: pa.timestamp("us", tz="UTC"),
    BinaryType: pa.binary(),
    StringType: pa.string(),
}


def target_type(source: SourceType) -> Target:
    """What a source type becomes in the lake."""
    rule = _BY_OID.get(source.oid)
    if rule is None:
        return _text(TEXT_KINDS[_text_kind(source)])
    if rule.iceberg is None:
        return _numeric(source.typmod)
    return Target(rule.iceberg, _ARROW[type(rule.iceberg)], rule.form, rule.note)


def _text(note: str) -> Target:
    return Target(StringType(), pa.string(), Form.TEXT, note)


def _text_kind(source: SourceType) -> str:
    if source.kind == "d":
        raise ValueError(f"domain {source.name}: give its base type and typmod")
    if source.kind in ("e", "c", "r", "m"):
        return source.kind
    return "A" if source.name.startswith("_") else "b"


def _numeric(typmod: int) -> Target:
    if typmod < 4:
        return _text(UNTYPED_NUMERIC)
    precision, scale = numeric_digits(typmod)
    digits, fraction = max(precision, scale, precision - scale), max(scale, 0)
    if digits > MAX_PRECISION:
        return _text(WIDE_NUMERIC)
    return Target(DecimalType(digits, fraction), pa.decimal128(digits, fraction), Form.DECIMAL, NUMERIC_NOTE)


def numeric_digits(typmod: int) -> tuple[int, int]:
    """Precision and scale as declared; the scale is a signed 11-bit field since Postgres 15."""
    packed = typmod - 4
    return (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024
