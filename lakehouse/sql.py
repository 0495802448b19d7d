"""The only place that quotes identifiers and literals.

Postgres, Trino and Spark differ in how a quoted name is spelled; nothing else in this project concatenates a
name or a value into SQL text.
"""


def ident(name: str) -> str:
    """A quoted identifier for Postgres and Trino (SQL standard: double quotes, doubled inside)."""
    return '"' + name.replace('"', '""') + '"'


def relation(schema: str, name: str) -> str:
    """A quoted, schema-qualified relation for Postgres and Trino."""
    return f"{ident(schema)}.{ident(name)}"


def columns(names: tuple[str, ...] | list[str]) -> str:
    """A comma-separated list of quoted identifiers."""
    return ", ".join(map(ident, names))


def spark_ident(name: str) -> str:
    """A quoted identifier for Spark SQL (back-ticks, doubled inside)."""
    return "`" + name.replace("`", "``") + "`"


def spark_relation(*parts: str) -> str:
    """A quoted multi-part name for Spark SQL, such as catalog.namespace.table."""
    return ".".join(map(spark_ident, parts))


def literal(value: str) -> str:
    """A string literal for Trino, and for Postgres with `standard_conforming_strings = on` (its default)."""
    return "'" + value.replace("'", "''") + "'"


def spark_literal(value: str) -> str:
    """A string literal for Spark SQL, where a backslash escapes (`spark.sql.parser.escapedStringLiterals=false`)."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
