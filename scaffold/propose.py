"""A declaration proposed from the database itself: keys are hubs, foreign keys are links, the rest satellites.

A proposal to be read by a person: names, what is personal and what changes together are guesses.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from lakehouse.declarations import NAME
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse.sql import ident
from scaffold.text import flow, scalar

_TABLES = """
SELECT c.oid::bigint, n.nspname, c.relname, coalesce(obj_description(c.oid, 'pg_class'), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname = %s ORDER BY c.relname
"""
# A domain is proposed as its base type, which is what its values become in the lake.
_COLUMNS = """
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


@dataclass(frozen=True)
class Found:
    """A table as the database has it. `foreign`: its columns, in the order of the other table's key, and that table."""

    oid: int
    schema: str
    name: str
    comment: str
    columns: tuple[tuple[str, str, str], ...]
    key: tuple[str, ...]
    foreign: tuple[tuple[tuple[str, ...], int], ...] = field(default=())


def propose(settings: Settings, source: str, schema: str = "public", taken: Iterable[str] = ()) -> str:
    """YAML of models/sources/<source>.yml. `taken`: hubs of other sources. Raises LakehouseError for no tables."""
    if source not in settings.sources:
        known = ", ".join(settings.sources) or "none"
        raise LakehouseError(f"no connection to source {source!r} is set (known: {known}): set LAKEHOUSE_SOURCES")
    place = settings.sources[source]
    url = (place.owner_url or place.url).get_secret_value()
    with psycopg.connect(url) as connection:
        tables = _read(connection, schema)
    if not tables:
        raise LakehouseError(f"source {source!r}: schema {schema!r} has no tables; name another with --schema")
    return proposal(source, tables, set(taken))


def proposal(source: str, tables: Sequence[Found], taken: set[str]) -> str:
    """The YAML for these tables; pure."""
    hubs = {t.oid: _hub_name(t.name, source, taken) for t in tables if t.key}
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
    for table in tables:
        lines += _table(table, hubs, keys)
    return "\n".join(lines) + "\n"


def _table(table: Found, hubs: dict[int, str], keys: dict[int, tuple[str, ...]]) -> Iterator[str]:
    name = lake_name(table.name)
    relation = f"{_part(table.schema)}.{_part(table.name)}"
    yield f"      - name: {name}"
    yield f"        description: {scalar(table.comment or f'Table {table.name}.')}"
    yield "        config:"
    yield "          meta:"
    key = f", key: {flow(table.key)}" if table.key else ""
    alias = {c: lake_name(c) for c, _, _ in table.columns if not NAME.fullmatch(c)}
    yield f"            raw: {{relation: {scalar(relation)}{key}{f', alias: {flow(alias)}' if alias else ''}}}"
    if table.key:
        yield from _vault(table, hubs, keys)
    yield "        data_tests:"
    yield "          - raw_log_is_sound"
    yield "        columns:"
    for column, kind, comment in table.columns:
        described = scalar(comment or f"Column {column}.")
        yield f"          - {{name: {scalar(column)}, data_type: {scalar(kind)}, description: {described}}}"


def _vault(table: Found, hubs: dict[int, str], keys: dict[int, tuple[str, ...]]) -> Iterator[str]:
    hub = hubs[table.oid]
    references = _references(table, hubs, keys)
    referring = {column for columns, _ in references.values() for column in columns}
    rest = [c for c, _, _ in table.columns if c not in referring and c not in table.key]
    personal = [c for c in rest if _PERSONAL.search(c.lower())]
    details = [c for c in rest if c not in personal]
    yield "            vault:"
    yield f"              hub: {hub}"
    if references:
        yield "              references:"
        for role, (columns, target) in references.items():
            of = f", hub: {target}" if target != role else ""
            yield f"                {role}: {{columns: {flow(columns)}{of}}}"
        yield "              links:"
        for role in references:
            yield f"                {hub}_{role}: {{to: [{role}]}}"
    if rest:
        yield "              satellites:"
    if details:
        yield f"                {hub}_details: {flow(details)}"
    if personal:
        yield f"                {hub}_pii: {{columns: {flow(personal)}, personal: true}}"


def _references(
    table: Found, hubs: dict[int, str], keys: dict[int, tuple[str, ...]]
) -> dict[str, tuple[tuple[str, ...], str]]:
    """Role → its columns and its hub. A column serves one reference; only what names a primary key is one."""
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    used: set[str] = set()
    for columns, other in table.foreign:
        if other not in hubs or len(columns) != len(keys[other]) or used & set(columns):
            continue
        role = hubs[other]
        if role in found or role == hubs[table.oid]:
            role = lake_name(re.sub(r"_?(id|no|code|key)$", "", columns[0].lower()) or columns[0])
        if role not in found and role != hubs[table.oid]:
            found[role] = (columns, hubs[other])
            used |= set(columns)
    return found


def _read(connection: psycopg.Connection[Any], schema: str) -> list[Found]:
    rows = connection.execute(_TABLES, (schema,)).fetchall()
    keys = {oid: tuple(row[0] for row in connection.execute(_KEY, (oid,))) for oid, *_ in rows}
    return [
        Found(
            oid, schema, name, comment, tuple(connection.execute(_COLUMNS, (oid,)).fetchall()), keys[oid],
            tuple(_foreign(connection.execute(_FOREIGN, (oid,)).fetchall(), keys)),
        )
        for oid, _, name, comment in rows
    ]  # fmt: skip


def _foreign(rows: list[Any], keys: dict[int, tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], int]]:
    for name, other in dict.fromkeys((row[0], row[1]) for row in rows):
        mine = {row[3]: row[2] for row in rows if row[0] == name}
        if set(mine) == set(keys.get(other, ())):
            yield tuple(mine[column] for column in keys[other]), other


def _hub_name(table: str, source: str, taken: set[str]) -> str:
    name = singular(lake_name(table))
    name = f"{source}_{name}" if name in taken else name
    taken.add(name)
    return name


def singular(name: str) -> str:
    """`categories` → `category`, `stores` → `store`, `status` as it is."""
    if name.endswith("ies") and len(name) > 4:
        return name[:-3] + "y"
    if name.endswith(("sses", "xes", "ches", "shes")):
        return name[:-2]
    return name[:-1] if name.endswith("s") and not name.endswith(("ss", "us", "is")) else name


def lake_name(name: str) -> str:
    """A name that the lake allows."""
    plain = re.sub(r"\W+|_+", "_", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower(), flags=re.ASCII).strip("_")
    return plain if NAME.fullmatch(plain) else f"t_{plain}"


def _part(name: str) -> str:
    return name if NAME.fullmatch(name) else ident(name)
