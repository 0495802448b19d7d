"""docs/types.md, printed from the type table: `python -m ingestion.schema.types.docs > docs/types.md`."""

from ingestion.schema.types.model import Form
from ingestion.schema.types.table import MAX_PRECISION, NUMERIC_NOTE, RULES, TEXT_KINDS, UNTYPED_NUMERIC, WIDE_NUMERIC
from ingestion.schema.types.unrepresentable import FIRST_DAY, KINDS, LAST_DAY

_HEAD = """# Types

<!-- Generated: `python -m ingestion.schema.types.docs > docs/types.md`. A test fails when it is out of date. -->

What a Postgres column becomes in a raw table. A domain is taken as its base type, with the domain's precision.

| Postgres | Iceberg | Note |
|---|---|---|
"""

_EQUAL = """
## Values that Postgres calls equal and prints differently

Raw, parsed and the `current_` views have each value as it is printed. An update of a key to an equal one is a delete
and an insert there, because Postgres compares old and new key by their bytes: no row is lost or doubled. In a key of
the vault such values are one, so that references find it; satellites show which one the source has.

| Type | Equal values | In a key of the vault |
|---|---|---|
| `real`, `double precision` | `0`, `-0` | `0` |
| `numeric`, `numeric(p,s)` with p > 38 | `1.0`, `1.00` | without trailing zeros, as `numeric(p,s)` and whole numbers |
| `char(n)`, `bpchar` | `'ab'`, `'ab '` | without trailing spaces |
| `citext` | `'ab'`, `'AB'` | in lower case; see below |
| `interval` | `1 day`, `24:00:00` | refused by name |
| `jsonb` | `1.0`, `1.00` | refused by name |
| `numrange`, `nummultirange`, arrays of a type in this table | `{1.0}`, `{1.00}` | refused by name |
| text in a nondeterministic collation | `'a'`, `'A'` | different keys, unless the hub declares `normalize`: see below |
| composites, and ranges of one's own, of such types | `(1.0)`, `(1.00)` | different keys |
| masked columns (`mask: sha256`) | all of these | different keys: the text is masked |

A database whose `LC_CTYPE` is `C` folds the case of ASCII alone: there, `citext` keys that differ in the case of other
letters only are two in Postgres and would be one in the vault.

Two rows of one table whose keys differ in case alone are [one thing](data-vault.md#keys-that-are-not-there) of a hub
with `normalize`.

`time` has `00:00` and `24:00`, `timetz` the same moment with two offsets, `inet` and `money` each value: Postgres tells
them apart, or prints them alike.
"""

_POLICIES = f"""
## Values that Iceberg cannot hold

They follow the table's `on_unrepresentable` policy, are counted, and are never changed silently. `error` (the
default) stops that table and names the kind of value and its column; `null` stores null; `clamp` stores the nearest
value that has a place, from {FIRST_DAY} to {LAST_DAY} for dates and timestamps. The original text
is kept in `meta.unrepresentable`.

| Type | Value | `clamp` stores |
|---|---|---|
"""

_KEYS = f"""
**In a key** they are one value where the source has several: `clamp` makes one of `infinity`, {LAST_DAY} (the last
microsecond of it) and all later years, and one of `-infinity`, {FIRST_DAY} and all earlier years; `null` makes one of
all. Rows whose keys differ in these alone are one row in the lake, with the newest change of any of them. A table
that ends its periods by `infinity` alone, or by {LAST_DAY} alone, has all its rows under `clamp`.
`lakehouse prepare --check` names the key columns for which this is to be looked at.
"""

_CLAMP = {"lowest": "the lowest value", "highest": "the highest value", "null": "null: no number is near it"}


def types_markdown() -> str:
    """The page."""
    return _HEAD + "\n".join(_type_rows()) + "\n" + _EQUAL + _POLICIES + "\n".join(_policy_rows()) + "\n" + _KEYS


def _type_rows() -> list[str]:
    rows = []
    for rule in RULES:
        if rule.iceberg is None:
            rows += [
                f"| `numeric(p,s)`, p ≤ {MAX_PRECISION} | `decimal(p,s)` | {NUMERIC_NOTE} |",
                f"| `numeric(p,s)`, p > {MAX_PRECISION} | `string` | {WIDE_NUMERIC} |",
                f"| `numeric` | `string` | {UNTYPED_NUMERIC} |",
            ]
        else:
            rows.append(f"| `{rule.name}` | `{rule.iceberg}` | {rule.note} |")
    for note in TEXT_KINDS.values():
        name, _, text = note.partition(": ")
        rows.append(f"| {name} | `string` | {text} |")
    return rows


def _policy_rows() -> list[str]:
    names: dict[Form, list[str]] = {}
    for rule in RULES:
        names.setdefault(rule.form, []).append(rule.name if rule.iceberg else f"{rule.name}(p,s)")
    return [
        f"| `{name}` | {kind.name} | {_CLAMP[kind.clamp]} |"
        for form, kinds in KINDS.items()
        for name in names[form]
        for kind in kinds
    ]


if __name__ == "__main__":
    print(types_markdown(), end="")
