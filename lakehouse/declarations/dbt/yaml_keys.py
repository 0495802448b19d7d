"""Keys of sources, tables and columns that dbt takes without a word, and that nobody reads where they are written.

dbt keeps a key of an entry to itself if it does not know it, and lets anybody have keys of their own in `config` and
`meta`. So only keys that are ours are refused, and those that are spelled like one that is read. Sources that are not
the lake's are left alone: there a key may be another program's.
"""

import re
from collections.abc import Iterator, Sequence

import yaml

from lakehouse.declarations.policies import AccessPolicy, ModelPolicy, RawPolicy
from lakehouse.declarations.table_meta import TableMeta
from lakehouse.text.spelling import MISSPELLED, close, unknown

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
OF_MODELS = frozenset({*ModelPolicy.model_fields, *AccessPolicy.model_fields})
OF_MODELS_ALONE = OF_MODELS - {"access"}
"""Those that dbt has no key of the same name for."""
OF_PROJECT = ("maintenance", "pins")
"""Our `vars` in dbt_project.yml."""
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
        raws = _raws(table) or _raws(source)
        for columns in children(table, "columns"):
            for column in columns.value if isinstance(columns, yaml.SequenceNode) else ():
                yield from _of_column(column, raws)


def misplaced_of_models(root: yaml.Node | None) -> Iterator[Mistake]:
    """Keys of models, snapshots and seeds that are ours and not in their meta: dbt drops them without a word."""
    for kind in ("models", "snapshots", "seeds"):
        lists = (listed.value for listed in children(root, kind) if isinstance(listed, yaml.SequenceNode))
        for entry in (entry for listed in lists for entry in listed):
            for where, part in ((kind, entry), *(("config", config) for config in children(entry, "config"))):
                for key in (key for key, _ in pairs(part) if key.value in OF_MODELS_ALONE):
                    yield _line(key), f"{where}: nothing reads `{key.value}` here: put it into `config.meta`"


def unknown_keys(column: yaml.Node) -> Iterator[Mistake]:
    """Keys of a column that dbt does not know."""
    for key, _ in pairs(column):
        if key.value not in (*COLUMN_KEYS, "<<"):
            yield _line(key), f"columns: {unknown(str(key.value), COLUMN_KEYS)}"


def odd_numbers(root: yaml.Node | None) -> Iterator[Mistake]:
    """Values of ours that YAML 1.1 reads as another number than they say: 1:30 as 90, and 010 as 8."""
    variables = [pair for stated in children(root, "vars") for pair in pairs(stated)]
    stated = [pair for meta in _all_metas(root, set()) for pair in pairs(meta)]
    ours = [value for key, value in variables if key.value in OF_PROJECT]
    ours += [value for key, value in stated if key.value in OF_MODELS or key.value in TableMeta.model_fields]
    for scalar in (scalar for value in ours for scalar in _scalars(value, set())):
        is_number = scalar.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
        odd = is_number and re.search(r":|^[-+]?0[0-9_]", scalar.value)
        if odd and (reads := yaml.safe_load(scalar.value)):  # zero is zero, however it is spelled
            yield _line(scalar), f"YAML reads {scalar.value} as {reads}: put it into quotes, or write the number"


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


def _all_metas(node: yaml.Node | None, seen: set[int]) -> Iterator[yaml.Node]:
    """All that stands below a key `meta`, or `+meta` as folders of models have it."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    for part in _parts(node):
        yield from _all_metas(part, seen)
    yield from (value for key, value in pairs(node) if key.value in ("meta", "+meta"))


def _scalars(node: yaml.Node, seen: set[int]) -> Iterator[yaml.ScalarNode]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        yield node
    for part in _parts(node):
        yield from _scalars(part, seen)


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [value for _, value in node.value]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _is_ours(source: yaml.MappingNode, tables: Sequence[yaml.MappingNode]) -> bool:
    schemas = (str(schema.value).lower() for schema in children(source, "schema"))
    stated = [pair for entry in (source, *tables) for meta in metas(entry) for pair in pairs(meta)]
    is_stated = any(k.value == "maintenance" or (k.value == "raw" and not _is_flag(v)) for k, v in stated)
    return is_stated or any(schema.startswith("raw") for schema in schemas)


def _is_flag(node: yaml.Node) -> bool:
    """As another tool marks its own layers with `raw: true`."""
    return isinstance(node, yaml.ScalarNode)


def _astray(mapping: yaml.Node, where: str, known: Sequence[str]) -> Iterator[Mistake]:
    for key, _ in pairs(mapping):
        name = str(key.value)
        if name in PLACES:
            yield _line(key), f"{where}: nothing reads `{name}` here: put it into `{PLACES[name]}`"
        elif name not in (*known, "<<") and (meant := close(name, (*known, *PLACES), MISSPELLED)):
            place = f", in `{PLACES[meant]}`" if meant in PLACES else ""
            yield _line(key), f"{where}: unknown key `{name}`: did you mean `{meant}`{place}?"


def _raws(entry: yaml.Node) -> list[yaml.Node]:
    return [raw for meta in metas(entry) for raw in children(meta, "raw")]


def _of_column(column: yaml.Node, raws: Sequence[yaml.Node]) -> Iterator[Mistake]:
    """What its meta says to nobody. Where the table's `raw` says it of the column too, it is a note for people."""
    names = {name.value for name in children(column, "name")}
    for key, _ in (pair for meta in metas(column) for pair in pairs(meta)):
        if key.value in OF_COLUMNS and names.isdisjoint(_named(raws, key.value)):
            instead = f"name the column in `config.meta.raw.{key.value}` of the table"
            yield _line(key), f"columns: nothing reads `{key.value}` in the meta of a column: {instead}"


def _named(raws: Sequence[yaml.Node], key: str) -> Iterator[str]:
    """The columns that a key of `raw` names: in a list, or as keys of a mapping."""
    for value in (value for raw in raws for value in children(raw, key)):
        listed = value.value if isinstance(value, yaml.SequenceNode) else [name for name, _ in pairs(value)]
        yield from (str(name.value) for name in listed)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
