"""Types of keys and of the references to them: a foreign key may join two of which one value has two texts.

A key is hashed as text. So a reference of another type is hashed as one of its hub's, or refused where the vault cannot
tell which values are equal.
"""

from ingestion.schema.types.declared import type_name
from scaffold.types import lake_type

UNLIKE = "the vault cannot tell which of their values are equal"
_FLOATS = {"float4", "float8"}
_EXACT = {"int2", "int4", "int8", "oid", "xid", "cid", "numeric"}
_NAMES_OF_OIDS = {
    "regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper", "regoperator", "regproc",
    "regprocedure", "regrole", "regtype",
}  # fmt: skip
# Types that Postgres compares, though it prints one value differently, or goes by the session's time zone.
_COMPARED = (
    {"date", "timestamp", "timestamptz"}, {"time", "timetz", "interval"}, {"inet", "cidr"}, {"macaddr", "macaddr8"},
    {*_FLOATS, *_EXACT}, {"isbn", "isbn13", "ismn", "ismn13", "issn", "issn13", "ean13", "upc"},
)  # fmt: skip


def is_comparable(reference: str, key: str) -> bool:
    """Whether the vault can tell which key of the other type a value names."""
    one, other = _name(reference), _name(key)
    if one == other or {one, other} <= _EXACT or is_converted(reference, key):
        return True
    is_unlike = _NAMES_OF_OIDS & {one, other} or any({one, other} <= types for types in _COMPARED)
    return not is_unlike and _fits(reference, key)


def _fits(reference: str, key: str) -> bool:
    """Whether the hub can hold a value of the other type: text holds what has one text, all else its own type alone."""
    own, held = lake_type(reference), lake_type(key)
    return own != "varbinary" if held == "varchar" and _name(key) != "numeric" else own == held != "varchar"


def is_converted(reference: str, key: str) -> bool:
    """Whether a value is hashed as one of the key's type, because in its own it has another text."""
    one, other = _name(reference), _name(key)
    if one == other:
        return False
    if other in _FLOATS:
        return one in _EXACT or (one, other) == ("float4", "float8")
    are_texts = all(lake_type(kind) == "varchar" for kind in (reference, key)) and "numeric" not in (one, other)
    return (one, other) == ("date", "timestamp") or (are_texts and (other == "bpchar" or "citext" in (one, other)))


def _name(declared: str) -> str:
    """The type's name without its schema, and one name for the type that is padded."""
    name = type_name(declared).rpartition(".")[2]
    return "bpchar" if name in ("character", "char") else name
