"""Keys of sources, tables and columns that dbt takes without a word, and that nobody reads where they are written.

dbt keeps a key of an entry to itself if it does not know it, and lets anybody have keys of their own in `config` and
`meta`. So only keys that are ours are refused, and those that are spelled like one that is read. Sources that are not
the lake's are left alone: there a key may be another program's.
"""

from collections.abc import Iterator, Sequence

import yaml

from lakehouse.declarations.policies import RawPolicy
from lakehouse.declarations.table_meta import TableMeta
from lakehouse.text.spelling import close, unknown

COLUMN_KEYS = (
    "name", "description", "data_type", "config", "meta", "tests", "data_tests", "tags", "quote", "docs",
    "constraints", "granularity",
)  # fmt: skip
"""What dbt knows of a column."""
TABLE_KEYS = (
    "name", "description", "meta", "config", "columns", "tests", "data_tests", "tags", "identifier", "quoting",
    "freshness", "loaded_at_field", "loaded_at_query", "external", "data_type", "constraints", "docs",
)  # fmt: skip
SOURCE_KEYS = (
    "name", "description", "meta", "config", "tables", "tags", "database", "schema", "loader", "quoting", "freshness",
    "loaded_at_field", "loaded_at_query", "overrides",
)  # fmt: skip
CONFIG_KEYS = (
    "enabled", "event_time", "freshness", "loaded_at_field", "loaded_at_query", "meta", "tags", "static_analysis",
)  # fmt: skip
OF_COLUMNS = ("key", "exclude", "mask", "alias", "personal")
"""Keys of `meta.raw` that name columns."""
PLACES = dict.fromkeys(RawPolicy.model_fields, "config.meta.raw") | dict.fromkeys(TableMeta.model_fields, "config.meta")
MISSPELLED = 0.8
Mistake = tuple[int, str]


def misplaced(source: yaml.MappingNode, tables: Sequence[yaml.MappingNode]) -> Iterator[Mistake]:
    """Keys of a source and its tables that nothing reads where they are; none if it is no source of the lake."""
    if not _is_ours(source, tables):
        return
    entries = [("sources", source, SOURCE_KEYS), *(("tables", table, TABLE_KEYS) for table in tables)]
    for name, entry, known in entries:
        yield from _astray(entry, name, known)
        for config in children(entry, "config"):
            yield from _astray(config, "config", CONFIG_KEYS)
    for table in tables:
        for columns in children(table, "columns"):
            for column in columns.value if isinstance(columns, yaml.SequenceNode) else ():
                yield from _of_column(column)


def unknown_keys(column: yaml.Node) -> Iterator[Mistake]:
    """Keys of a column that dbt does not know."""
    for key, _ in pairs(column):
        if key.value not in (*COLUMN_KEYS, "<<"):
            yield _line(key), f"columns: {unknown(str(key.value), COLUMN_KEYS)}"


def metas(entry: yaml.Node) -> list[yaml.Node]:
    """The meta of an entry, wherever dbt reads it: beside `config` and in it."""
    parts = [entry, *children(entry, "config")]
    return [meta for part in parts for meta in children(part, "meta")]


def children(node: yaml.Node | None, key: str) -> list[yaml.Node]:
    """The values that a mapping has for a key."""
    return [value for name, value in pairs(node) if name.value == key]


def pairs(node: yaml.Node | None) -> list[tuple[yaml.Node, yaml.Node]]:
    """The mapping's own keys, then those of the mappings that are merged in."""
    if not isinstance(node, yaml.MappingNode):
        return []
    merged = (value for key, value in node.value if key.value == "<<")
    parts = (part for value in merged for part in (value.value if isinstance(value, yaml.SequenceNode) else [value]))
    return [*node.value, *(pair for part in parts if part is not node for pair in pairs(part))]


def _is_ours(source: yaml.MappingNode, tables: Sequence[yaml.MappingNode]) -> bool:
    schemas = (str(schema.value).lower() for schema in children(source, "schema"))
    stated = (str(key.value) for entry in (source, *tables) for meta in metas(entry) for key, _ in pairs(meta))
    return any(schema.startswith("raw") for schema in schemas) or not {"raw", "maintenance"}.isdisjoint(stated)


def _astray(mapping: yaml.Node, where: str, known: Sequence[str]) -> Iterator[Mistake]:
    for key, _ in pairs(mapping):
        name = str(key.value)
        if name in PLACES:
            yield _line(key), f"{where}: nothing reads `{name}` here: put it into `{PLACES[name]}`"
        elif name not in (*known, "<<") and (meant := close(name, (*known, *PLACES), MISSPELLED)):
            place = f", in `{PLACES[meant]}`" if meant in PLACES else ""
            yield _line(key), f"{where}: unknown key `{name}`: did you mean `{meant}`{place}?"


def _of_column(column: yaml.Node) -> Iterator[Mistake]:
    for key, _ in (pair for meta in metas(column) for pair in pairs(meta)):
        if key.value in OF_COLUMNS:
            instead = f"name the column in `config.meta.raw.{key.value}` of the table"
            yield _line(key), f"columns: nothing reads `{key.value}` in the meta of a column: {instead}"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
