"""The text of a proposal: the YAML of a source, with comments on what is a guess and what is left out; pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from lakehouse.errors import LakehouseError
from lakehouse.text.names import NAME
from lakehouse.text.shown import visible
from lakehouse.text.sql import ident
from scaffold.key_types import UNLIKE, is_comparable
from scaffold.propose.columns import Parts, is_secret, parts
from scaffold.propose.database import DbTable
from scaffold.propose.names import aliases, free, lake_name, singular
from scaffold.propose.remarks import of_columns, of_names, of_shape
from scaffold.propose.shapes import Shape, shapes
from scaffold.text import PACKAGE, flow, scalar

_HEAD = """\
sources:
  - name: {name}
    schema: raw_{source}
    description: Tables of {source}.
    config:
      meta:
        owners: [data-platform@example.com]
        load: {{job: shared, trigger: sensor}}
        maintenance:
          schedule_group: nightly
          compact: {{target_file_size_mb: 128, min_input_files: 5}}
          expire_snapshots: {{older_than_hours: 72, retain_last: 5, keep_metadata_files: 20}}
          remove_orphan_files: {{older_than_hours: 72}}
          keep_removed_hours: 72
          statistics: {{analyze: true, stale_share: 0.1}}
    tables:"""


def proposal(
    source: str, tables: Sequence[DbTable], taken: set[str], left_out: Iterable[str] = (), vault: bool = True
) -> str:
    """The YAML for these tables, with their vault or without. `taken` are names of other sources."""
    tables = _comparable([_fit(table) for table in tables])
    names = _names(tables)
    found = shapes(tables, names, source, taken) if vault else {}
    lines = [
        *map(visible, _opening(source, tables, left_out)),
        *_HEAD.format(source=source, name=scalar(source)).split("\n"),
    ]
    if all(table.unfit for table in tables):
        lines[-1] += " []  # without the [] once one of them is uncommented"
    links = taken | {shape.name for shape in found.values() if shape.form == "link"}
    known = {table.oid: table for table in tables}
    for table in tables:
        shape = found.get(table.oid)
        name = names[table.oid]
        remarks = [*of_names(table, name), *of_columns(table, shape)]
        remarks += of_shape(table, shape, known, found) if shape else ()
        proposed = _table(table, name, shape, remarks, links)
        lines += _commented(table, proposed) if table.unfit else proposed
    return "\n".join(lines) + "\n"


def addition(
    source: str, table: DbTable, hubs: Mapping[DbTable, str], taken: set[str], names: Iterable[str], vault: bool = True
) -> list[str]:
    """The lines of one more table of a source that has tables with these hubs, and `names` in the lake.

    Raises LakehouseError for a table that must not be published.
    """
    if (table := _fit(table)).unfit:
        raise LakehouseError(f"{table.relation} of source {source!r} must not be published: {table.unfit}")
    lake = {other.oid: lake_name(other.name) for other in hubs}
    lake[table.oid] = _name(table, set(names))
    known = {other.oid: other for other in (*hubs, table)}
    oids = {other.oid: hub for other, hub in hubs.items()}
    found = shapes([*hubs, table], lake, source, taken, oids) if vault else {}
    shape = found.get(table.oid)
    remarks = [*of_names(table, lake[table.oid]), *of_columns(table, shape)]
    remarks += of_shape(table, shape, known, found) if shape else ()
    return list(_table(table, lake[table.oid], shape, remarks, set(taken)))


def _fit(table: DbTable) -> DbTable:
    """The table, unfit if it could only land with a secret in it."""
    secret = [column for column, kind, _ in table.columns if column in table.key and is_secret(column, kind)]
    if not secret or table.unfit:
        return table
    return replace(
        table, unfit=f"{secret[0]} is called like a secret, and a key always lands; uncomment it if it is none"
    )


def _comparable(tables: Sequence[DbTable]) -> list[DbTable]:
    """The tables without foreign keys of another type than the key, of which the vault cannot tell what they name."""
    keys = {t.oid: [kind for k in t.key for column, kind, _ in t.columns if column == k] for t in tables}
    places = {table.oid: table.relation for table in tables}
    found = []
    for table in tables:
        kinds = {column: kind for column, kind, _ in table.columns}
        unlike = [
            (columns, other) for columns, other in table.foreign
            if not all(is_comparable(kinds[c], key) for c, key in zip(columns, keys.get(other, ()), strict=False))
        ]  # fmt: skip
        what = [
            (columns, f"{places[other]}, whose key is {', '.join(keys[other])}: {UNLIKE}") for columns, other in unlike
        ]
        foreign = tuple(one for one in table.foreign if one not in unlike)
        found.append(replace(table, foreign=foreign, loose=(*table.loose, *what)))
    return found


def _opening(source: str, tables: Sequence[DbTable], left_out: Iterable[str]) -> Iterator[str]:
    yield f"# Proposed by `lakehouse scaffold {source}` from the database: read it, and name things as people do."
    without = [f"table {table.relation}, for the reason that stands beside it" for table in tables if table.unfit]
    if missing := [*without, *left_out]:
        yield "# Left out:"
        yield from (f"#   {one}" for one in missing)
    if keyless := [table.relation for table in tables if not table.key and not table.unfit]:
        yield f"# Without a key, so they stay in raw: {', '.join(keyless)}"


def _commented(table: DbTable, lines: Iterable[str]) -> Iterator[str]:
    """The declaration of an unfit table as comments, to be uncommented once the reason is removed."""
    yield visible(f"      # {table.relation} is left out: {table.unfit}")
    for line in lines:
        yield f"      # {line[6:]}"


def _names(tables: Sequence[DbTable]) -> dict[int, str]:
    """Each table's name in the lake: its own name, else with its schema, else with a number."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    for table in tables:
        names[table.oid] = _name(table, taken)
    return names


def _name(table: DbTable, taken: set[str]) -> str:
    plain = lake_name(table.name)
    return free(lake_name(f"{table.schema}_{table.name}") if plain in taken else plain, taken)


def _table(table: DbTable, name: str, shape: Shape | None, remarks: Iterable[str], links: set[str]) -> Iterator[str]:
    yield f"      - name: {scalar(name)}"
    yield from (f"        # {visible(remark)}" for remark in remarks)
    yield f"        description: {scalar(table.comment or f'Table {table.name}.')}"
    yield "        config:"
    yield "          meta:"
    yield f"            raw: {{{', '.join(f'{key}: {flow(value)}' for key, value in _raw(table, shape).items())}}}"
    if shape:
        yield from _vault(table, shape, links)
    elif not table.key:
        yield "            vault: {none: it has no key}"
    yield "        data_tests:"
    yield f"          - {PACKAGE}.raw_log_is_sound"
    yield "        columns:"
    for column, kind, comment in table.columns:
        described = scalar(comment or f"Column {column}.")
        yield f"          - {{name: {scalar(column)}, data_type: {scalar(kind)}, description: {described}}}"


def _raw(table: DbTable, shape: Shape | None) -> dict[str, object]:
    """Personal columns stand in a satellite of their own, if there is one."""
    found = shape.parts if shape else _parts(table)
    personal = found.personal if shape is None or shape.form == "event" else ()
    relation = ".".join(n if NAME.fullmatch(n) else ident(n) for n in (table.schema, table.name))
    said = {
        "relation": relation, "key": table.key, "exclude": found.secret, "personal": personal,
        "alias": aliases([column for column, _, _ in table.columns]),
    }  # fmt: skip
    return {key: value for key, value in said.items() if value}


def _parts(table: DbTable) -> Parts:
    """The columns of a table without a vault."""
    return parts(singular(lake_name(table.name)), [(c, kind) for c, kind, _ in table.columns if c not in table.key])


def _vault(table: DbTable, shape: Shape, links: set[str]) -> Iterator[str]:
    """The vault part of a table's declaration; `links` are the names of links so far."""
    yield "            vault:"
    yield f"              {shape.form}: {_what(table, shape)}"
    if shape.references:
        yield "              references:"
    for reference in shape.references:
        target = {"hub": reference.hub} if reference.hub != reference.role else {}
        yield f"                {scalar(reference.role)}: {flow({'columns': reference.columns, **target})}"
    if shape.form == "hub" and shape.linked:
        yield "              links:"
        yield from (f"                {scalar(name)}: {flow({'to': to})}" for name, to in _links(shape, links))
    if satellites := _satellites(shape):
        yield "              satellites:"
        yield from (f"                {scalar(name)}: {flow(columns)}" for name, columns in satellites.items())
    if shape.parts.technical:
        yield f"              ignored: {flow(shape.parts.technical)}"


def _what(table: DbTable, shape: Shape) -> str:
    if shape.form == "hub":
        return _hub(table, shape.name)
    if shape.form == "link":
        return flow({"name": shape.name, "to": shape.linked})
    if shape.form == "event":
        found = shape.parts
        said = {*found.personal, *found.activity, *found.details}
        columns = [column for column, _, _ in table.columns if column in said]
        return flow({"name": shape.name, "to": shape.linked, **({"columns": columns} if columns else {})})
    return scalar(shape.linked[0] if shape.form == "children_of" else shape.name)


def _hub(table: DbTable, hub: str) -> str:
    """The hub; a key named `id` becomes `<hub>_id` there, unless the table has a column with that name."""
    alias = aliases([column for column, _, _ in table.columns])
    in_lake = [alias.get(column, column) for column, _, _ in table.columns]
    collides = [alias.get(column, column) for column in table.key] == ["id"] and f"{hub}_id" in in_lake
    return flow({"name": hub, "column": "id"}) if collides else scalar(hub)


def _links(shape: Shape, links: set[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """One link of all where the row relates them, else one each: what changes on its own has validity of its own."""
    taken = links | {shape.name, *(reference.role for reference in shape.references)}
    groups = {"parts": shape.linked} if shape.together else {role: (role,) for role in shape.linked}
    for suffix, to in groups.items():
        name = free(f"{shape.name}_{suffix}", taken)
        links.add(name)
        yield name, to


def _satellites(shape: Shape) -> Mapping[str, object]:
    found = shape.parts
    if shape.form == "event":
        return {}
    if shape.form in ("reference_table", "children_of"):
        return {shape.name: [*found.activity, *found.details]}
    said: dict[str, object] = {"details": found.details, "activity": found.activity}
    if found.personal:
        said["pii"] = {"columns": found.personal, "personal": True}
    return {f"{shape.name}_{name}": columns for name, columns in said.items() if columns}
