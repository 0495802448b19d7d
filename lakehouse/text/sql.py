"""The only place that quotes identifiers and literals.

Postgres, Trino and Spark differ in how a quoted name is spelled; nothing else in this project concatenates a
name or a value into SQL text.
"""

from lakehouse.text.shown import visible


def ident(name: str) -> str:
    """A quoted identifier for Postgres and Trino (SQL standard: double quotes, doubled inside)."""
    return '"' + name.replace('"', '""') + '"'


def trino_ident(name: str) -> str:
    """A quoted column for Trino, which calls columns in lower case, as dbt's models have it (`cdc_vault.quoted`): by
    itself it does not find İ, whose lower case is two letters."""
    return ident(name.replace("İ", "İ".lower()))


def relation(schema: str, name: str) -> str:
    """A quoted, schema-qualified relation for Postgres and Trino."""
    return f"{ident(schema)}.{ident(name)}"


def typed_ident(name: str) -> str:
    """A quoted identifier for Postgres that can be copied from a terminal: unprintable characters are escaped."""
    if visible(name) == name:
        return ident(name)
    spelled = (
        c if visible(c) == c else f"\\{ord(c):04x}" if ord(c) < 0x10000 else f"\\+{ord(c):06x}"
        for c in name.replace("\\", "\\\\").replace('"', '""')
    )
    return f'U&"{"".join(spelled)}"'


def typed_relation(schema: str, name: str) -> str:
    """The same of a schema-qualified relation."""
    return f"{typed_ident(schema)}.{typed_ident(name)}"


def beside_parameters(sql: str) -> str:
    """SQL that holds names, for a statement of psycopg's with parameters: it takes a `%` for a placeholder."""
    return sql.replace("%", "%%")


def columns(names: tuple[str, ...] | list[str]) -> str:
    """A comma-separated list of quoted columns for Trino."""
    return ", ".join(map(trino_ident, names))


def spark_ident(name: str) -> str:
    """A quoted identifier for Spark SQL (back-ticks, doubled inside)."""
    return "`" + name.replace("`", "``") + "`"


def spark_relation(*parts: str) -> str:
    """A quoted multi-part name for Spark SQL, such as catalog.namespace.table."""
    return ".".join(map(spark_ident, parts))


def literal(value: str) -> str:
    """A string literal for Trino, and for Postgres with `standard_conforming_strings = on` (pinned for sources)."""
    return "'" + value.replace("'", "''") + "'"


def spark_literal(value: str) -> str:
    """A string literal for Spark SQL as our sessions are set up: a backslash escapes, `${…}` means nothing."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
