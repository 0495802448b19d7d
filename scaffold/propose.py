"""Proposes a declaration from a database: keys become hubs, foreign keys links, and other columns satellites.

The proposal needs a review: names, personal columns and the split into satellites are guesses.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from ingestion.sources.postgres.setup import unpublishable
from lakehouse.declarations.policies import NAME
from lakehouse.declarations.vault_names import EVENT, VALIDITY
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.servers.unreachable import unreachable_source
from lakehouse.settings import Settings
from lakehouse.text.shown import visible
from lakehouse.text.sql import ident
from scaffold.text import PACKAGE, flow, scalar

_TABLES = """
SELECT c.oid::bigint, n.nspname, c.relname, coalesce(obj_description(c.oid, 'pg_class'), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname = ANY (%s)
ORDER BY array_position(%s::text[], n.nspname::text), c.relname
"""
# A domain is proposed as its base type, because the lake stores its values with that type.
COLUMNS = """
WITH RECURSIVE base AS (
  SELECT a.attnum, a.attname, a.attrelid, a.atttypid AS typid, a.atttypmod AS typmod FROM pg_attribute a
  WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
  UNION ALL
  SELECT b.attnum, b.attname, b.attrelid, t.typbasetype, CASE WHEN b.typmod = -1 THEN t.typtypmod ELSE b.typmod END
  FROM base b JOIN pg_type t ON t.oid = b.typid WHERE t.typtype = 'd')
SELECT b.attname, format_type(b.typid, b.typmod), coalesce(col_description(b.attrelid, b.attnum), '')
FROM base b JOIN pg_type t ON t.oid = b.typid WHERE t.typtype <> 'd' ORDER BY b.attnum
"""
_KEY = """
SELECT a.attname FROM pg_constraint k CROSS JOIN unnest(k.conkey) WITH ORDINALITY c(number, place)
JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = c.number
WHERE k.conrelid = %s AND k.contype = 'p' ORDER BY c.place
"""
_FOREIGN = """
SELECT k.conname, k.confrelid::bigint, mine.attname, theirs.attname
FROM pg_constraint k CROSS JOIN unnest(k.conkey, k.confkey) WITH ORDINALITY c(mine, theirs, place)
JOIN pg_attribute mine ON mine.attrelid = k.conrelid AND mine.attnum = c.mine
JOIN pg_attribute theirs ON theirs.attrelid = k.confrelid AND theirs.attnum = c.theirs
WHERE k.conrelid = %s AND k.contype = 'f' AND k.conparentid = 0 ORDER BY k.conname, c.place
"""
_PERSONAL = re.compile(
    r"(^|_)(first_?name|last_?name|full_?name|surname|e?mail|phone|mobile|address|street|birth\w*|ssn|iban)"
)
_HASH = re.compile(r"h[kd]_")
_RESERVED = {"is_deleted", *EVENT, *VALIDITY}


@dataclass(frozen=True)
class DbTable:
    """A table of the database. `foreign`: columns in the order of the referenced table's key, and that table's oid.

    `unfit` is the reason why it must not be published: UPDATE and DELETE of the application would fail, or rows would
    be missing from the stream.
    """

    oid: int
    schema: str
    name: str
    comment: str
    columns: tuple[tuple[str, str, str], ...]
    key: tuple[str, ...]
    foreign: tuple[tuple[tuple[str, ...], int], ...] = field(default=())
    unfit: str | None = None


def propose(settings: Settings, source: str, schemas: Sequence[str] = ("public",), taken: Iterable[str] = ()) -> str:
    """The YAML of models/sources/<source>.yml. `taken` are hubs of other sources.

    Raises LakehouseError for a schema without tables.
    """
    if source not in settings.sources:
        known = ", ".join(settings.sources) or "none"
        raise LakehouseError(f"no connection to source {source!r} is set (known: {known}): set LAKEHOUSE_SOURCES")
    configured = settings.source(source)
    url = (configured.owner_url or configured.url).get_secret_value()
    try:
        connection = psycopg.connect(url, connect_timeout=10)
    except psycopg.OperationalError as error:
        raise unreachable_source(settings, source, error, "owner_url" if configured.owner_url else "url") from None
    with connection:
        tables = _read(connection, schemas)
    if empty := [schema for schema in schemas if schema not in {table.schema for table in tables}]:
        raise LakehouseError(f"source {source!r}: schema {empty[0]!r} has no tables; name another with --schema")
    return proposal(source, tables, set(taken))


def proposal(source: str, tables: Sequence[DbTable], taken: set[str]) -> str:
    """The YAML for these tables; pure."""
    names = _names(tables)
    hubs = {t.oid: _hub_name(names[t.oid], source, taken) for t in tables if t.key}
    keys = {t.oid: t.key for t in tables}
    lines = [
        f"# Proposed by `lakehouse scaffold {source}` from the database: read it, and name things as people do.",
        "sources:",
        f"  - name: {source}",
        f"    schema: raw_{source}",
        f"    description: Tables of {source}.",
        "    config:",
        "      meta:",
        "        owners: [data-platform@example.com]",
        "        load: {job: shared, trigger: sensor}",
        "        maintenance:",
        "          schedule_group: nightly",
        "          compact: {target_file_size_mb: 128, min_input_files: 5}",
        "          expire_snapshots: {older_than_hours: 72, retain_last: 5, keep_metadata_files: 20}",
        "          remove_orphan_files: {older_than_hours: 72}",
        "          keep_removed_hours: 72",
        "          statistics: {analyze: true, stale_share: 0.1}",
        "    tables:",
    ]
    fit = {t.oid: hubs[t.oid] for t in tables if t.oid in hubs and not t.unfit}
    junctions = _junctions(tables, fit, keys)
    linked = {hubs[oid] for oid in junctions}
    if all(table.unfit for table in tables):
        lines[-1] += " []  # without the [] once one of them is uncommented"
    for table in tables:
        name = names[table.oid]
        proposed = _table(table, name, hubs if table.unfit else fit, keys, junctions, linked)
        lines += _commented(table, proposed) if table.unfit else proposed
    return "\n".join(lines) + "\n"


def _commented(table: DbTable, lines: Iterable[str]) -> Iterator[str]:
    """The declaration of an unfit table as comments, to be uncommented once the reason is removed."""
    yield visible(f"      # {table.schema}.{table.name} is left out: {table.unfit}")
    for line in lines:
        yield f"      # {line[6:]}"


def _names(tables: Sequence[DbTable]) -> dict[int, str]:
    """Each table's name in the lake: its own name, else with its schema, else with a number."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    for table in tables:
        plain = lake_name(table.name)
        names[table.oid] = _free(lake_name(f"{table.schema}_{table.name}") if plain in taken else plain, taken)
    return names


def _table(
    table: DbTable,
    name: str,
    hubs: dict[int, str],
    keys: dict[int, tuple[str, ...]],
    junctions: set[int],
    linked: set[str],
) -> Iterator[str]:
    relation = f"{_quoted_if_needed(table.schema)}.{_quoted_if_needed(table.name)}"
    yield f"      - name: {scalar(name)}"
    yield f"        description: {scalar(table.comment or f'Table {table.name}.')}"
    yield "        config:"
    yield "          meta:"
    key = f", key: {flow(table.key)}" if table.key else ""
    alias = _aliases([column for column, _, _ in table.columns])
    yield f"            raw: {{relation: {scalar(relation)}{key}{f', alias: {flow(alias)}' if alias else ''}}}"
    if table.key:
        yield from _vault(table, hubs, keys, junctions, linked)
    else:
        yield "            vault: {none: it has no key}"
    yield "        data_tests:"
    yield f"          - {PACKAGE}.raw_log_is_sound"
    yield "        columns:"
    for column, kind, comment in table.columns:
        described = scalar(comment or f"Column {column}.")
        yield f"          - {{name: {scalar(column)}, data_type: {scalar(kind)}, description: {described}}}"


def _aliases(columns: Sequence[str]) -> dict[str, str]:
    """Column → its name in the lake, for names that are not plain or that a layer reserves."""
    taken = {name for name in columns if NAME.fullmatch(name)} | _RESERVED
    found: dict[str, str] = {}
    for column in columns:
        if not NAME.fullmatch(column) or column in _RESERVED or _HASH.match(column):
            plain = lake_name(column)
            found[column] = _free(f"t_{plain}" if _HASH.match(plain) else plain, taken)
    return found


def _free(name: str, taken: set[str]) -> str:
    """The name, with a number if it is taken; adds it to `taken`."""
    found = next(n for n in itertools.chain([name], (f"{name}_{i}" for i in itertools.count(2))) if n not in taken)
    taken.add(found)
    return found


def _vault(
    table: DbTable, hubs: dict[int, str], keys: dict[int, tuple[str, ...]], junctions: set[int], linked: set[str]
) -> Iterator[str]:
    """The vault part of a table's declaration; `linked` are the names of links so far."""
    name, references = hubs[table.oid], _references(table, hubs, keys)
    referring = {column for columns, _ in references.values() for column in columns}
    rest = [c for c, _, _ in table.columns if c not in referring and c not in table.key]
    personal = _personal(rest)
    details = [c for c in rest if c not in personal]
    is_junction = table.oid in junctions
    yield "            vault:"
    junction = flow({"name": name, "to": list(references)})
    yield f"              link: {junction}" if is_junction else f"              hub: {_hub(table, name)}"
    if references:
        yield "              references:"
    for role, (columns, target) in references.items():
        reference = {"columns": columns, **({"hub": target} if target != role else {})}
        yield f"                {scalar(role)}: {flow(reference)}"
    if references and not is_junction:
        yield "              links:"
        taken = linked | {name, *references}
        for role in references:
            link = _free(f"{name}_{role}", taken)
            linked.add(link)
            yield f"                {link}: {flow({'to': [role]})}"
    if rest:
        yield "              satellites:"
    if details:
        yield f"                {name}_details: {flow(details)}"
    if personal:
        yield f"                {name}_pii: {{columns: {flow(personal)}, personal: true}}"


def _personal(columns: Iterable[str]) -> list[str]:
    return [column for column in columns if _PERSONAL.search(column.lower())]


def _junctions(tables: Sequence[DbTable], hubs: dict[int, str], keys: dict[int, tuple[str, ...]]) -> set[int]:
    """Tables that only link others: the key consists of all their foreign keys, and no table refers to them."""
    named = {other for table in tables for _, other in table.foreign}
    found = set()
    for table in tables:
        if table.oid not in hubs or table.oid in named or _personal(column for column, _, _ in table.columns):
            continue
        references = _references(table, hubs, keys)
        linked = {column for columns, _ in references.values() for column in columns}
        if len(references) > 1 and linked == set(table.key):
            found.add(table.oid)
    return found


def _hub(table: DbTable, hub: str) -> str:
    """The hub; a key named `id` becomes `<hub>_id` there, unless the table has a column with that name."""
    alias = _aliases([column for column, _, _ in table.columns])
    in_lake = [alias.get(column, column) for column, _, _ in table.columns]
    collides = [alias.get(column, column) for column in table.key] == ["id"] and f"{hub}_id" in in_lake
    return flow({"name": hub, "column": "id"}) if collides else scalar(hub)


def _references(
    table: DbTable, hubs: dict[int, str], keys: dict[int, tuple[str, ...]]
) -> dict[str, tuple[tuple[str, ...], str]]:
    """Role → columns and hub of each foreign key that refers to a primary key.

    The role is the hub's name or, if that is taken, the name of the column that no other foreign key has.
    """
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    foreign = dict.fromkeys(table.foreign)
    fit = [(columns, other) for columns, other in foreign if other in hubs and len(columns) == len(keys[other])]
    for columns, other in fit:
        role = hubs[other]
        if role in found or role == hubs[table.oid]:
            shared = {column for more, _ in fit if more != columns for column in more}
            own = next((column for column in columns if column not in shared), columns[0])
            role = lake_name(re.sub(r"_?(id|no|code|key)$", "", own.lower()) or own)
        role = _free(role, {*found, hubs[table.oid]})
        found[role] = (columns, hubs[other])
    return found


def _read(connection: psycopg.Connection[Any], schemas: Sequence[str]) -> list[DbTable]:
    rows = connection.execute(_TABLES, (list(schemas), list(schemas))).fetchall()
    keys = {oid: tuple(row[0] for row in connection.execute(_KEY, (oid,))) for oid, *_ in rows}
    unfit = {
        oid: reason
        for oid, schema, name, _ in rows
        if (reason := unpublishable(SourceConnection(connection), schema, name))
    }
    return [
        DbTable(
            oid, schema, name, comment, tuple(connection.execute(COLUMNS, (oid,)).fetchall()), keys[oid],
            tuple(_foreign(connection.execute(_FOREIGN, (oid,)).fetchall(), keys)), unfit.get(oid),
        )
        for oid, schema, name, comment in rows
    ]  # fmt: skip


def _foreign(rows: list[Any], keys: dict[int, tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], int]]:
    for name, other in dict.fromkeys((row[0], row[1]) for row in rows):
        mine = {row[3]: row[2] for row in rows if row[0] == name}
        if set(mine) == set(keys.get(other, ())):
            yield tuple(mine[column] for column in keys[other]), other


def _hub_name(table: str, source: str, taken: set[str]) -> str:
    name = singular(lake_name(table))
    return _free(f"{source}_{name}" if name in taken else name, taken)


def singular(name: str) -> str:
    """`categories` → `category`, `stores` → `store`, `status` as it is."""
    if name.endswith("ies") and len(name) > 4:
        return name[:-3] + "y"
    if name.endswith(("sses", "xes", "ches", "shes")):
        return name[:-2]
    return name[:-1] if name.endswith("s") and not name.endswith(("ss", "us", "is")) else name


def lake_name(name: str) -> str:
    """The name in a form that the lake allows."""
    plain = re.sub(r"\W+|_+", "_", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower(), flags=re.ASCII).strip("_")
    return plain if NAME.fullmatch(plain) else f"t_{plain}"


def _quoted_if_needed(name: str) -> str:
    return name if NAME.fullmatch(name) else ident(name)
