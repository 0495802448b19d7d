"""How Debezium writes values that a slot has brought as Postgres prints them: the same text, another one, or none.

What is not named here does not come: Debezium leaves out the columns of types that it does not know, and writes some
as structures that no column takes.
"""

from ingestion.schema.evolve import source_type
from ingestion.schema.facts import ColumnFacts
from ingestion.schema.types.model import Form
from ingestion.schema.types.table import target_type
from ingestion.sources.base import Brought
from ingestion.sources.debezium.message.columns import Modes

FIRST_OF_USERS = 16384  # the lowest oid that is no built-in type's, whatever its name
AS_PRINTED = frozenset((
    "text", "varchar", "bpchar", "char", "uuid", "json", "jsonb", "xml", "inet", "cidr", "macaddr", "macaddr8", "bit",
    "int4range", "int8range", "numrange", "tsrange", "daterange", "tsvector",
))  # fmt: skip
OTHERWISE = {
    "interval": "by ISO 8601", "timetz": "without its offset", "tstzrange": "in the time zone of Kafka Connect",
}  # fmt: skip
OF_EXTENSIONS = {"citext": "", "ltree": "", "hstore": "as JSON", "vector": "as JSON", "halfvec": "as JSON"}
EXTENSIONS_IN_ARRAYS = frozenset(("citext", "ltree", "hstore"))
UNKNOWN_TO_DEBEZIUM = frozenset(("xid", "cid"))  # of those that are no text in the lake
IN_ARRAYS = AS_PRINTED - {"xml", "bit", "tsvector"} | {
    "int2", "int4", "int8", "oid", "float4", "float8", "bool", "timestamptz", "timetz", "tstzrange",
}  # fmt: skip
ABSENT = "does not come from topics, or in a form that no column takes: leave the source on its slot"
DECIMALS = "may come as numbers from topics: set decimal.handling.mode of the connector, and `decimals` here, to string"
TIMES = "may come as numbers from topics: set time.precision.mode of the connector, and `times` here, to isostring"
BINARY = "may come as bytes from topics: set binary.handling.mode of the connector, and `binary` here, to base64 or hex"


def brought(column: ColumnFacts, modes: Modes) -> Brought:
    """What comes of a column that a slot has described, by a connector that writes values in these modes."""
    name = column.type_name
    if name.startswith("_"):
        return _array(column, modes)
    if target_type(source_type(column)).form is not Form.TEXT:
        return _nothing(ABSENT) if name in UNKNOWN_TO_DEBEZIUM else Brought()
    if column.type_kind == "e":
        return Brought()
    if column.type_oid >= FIRST_OF_USERS:
        return Brought(OF_EXTENSIONS[name]) if name in OF_EXTENSIONS else _nothing(ABSENT)
    if name == "numeric":
        return Brought() if column.typmod >= 4 or modes.decimals == "string" else Brought("without trailing zeros")
    if name == "money":
        return Brought("without a currency sign") if modes.decimals == "string" else _nothing(DECIMALS)
    if name in OTHERWISE:
        return Brought(OTHERWISE[name])
    return Brought() if name in AS_PRINTED else _nothing(ABSENT)


def _array(column: ColumnFacts, modes: Modes) -> Brought:
    element = column.type_name[1:]
    if column.type_oid >= FIRST_OF_USERS:
        return Brought("as JSON") if element in EXTENSIONS_IN_ARRAYS or _has_labels(column) else _nothing(ABSENT)
    as_text = {"numeric": (modes.decimals == "string", DECIMALS), "bytea": (modes.binary in ("base64", "hex"), BINARY)}
    as_text |= dict.fromkeys(("date", "time", "timestamp"), (modes.times == "isostring", TIMES))
    comes, why = as_text.get(element, (element in IN_ARRAYS, ABSENT))
    return Brought("as JSON") if comes else _nothing(why)


def _has_labels(column: ColumnFacts) -> bool:
    """Whether its elements are those of an enum, and no composite that may have one inside."""
    return bool(column.prints) and all(part.startswith("label ") for part, _ in column.prints or ())


def _nothing(why: str) -> Brought:
    return Brought(why, lands=False)
