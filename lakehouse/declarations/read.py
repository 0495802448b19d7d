"""The declarations: one dbt source entry per raw table, read from dbt's manifest.

Ingestion, maintenance and orchestration read only these models. What is wrong in a declaration is reported with
the file and line it stands on.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lakehouse.declarations.access.rules import write_rules
from lakehouse.declarations.checks.aliases import alias_problems
from lakehouse.declarations.checks.among_tables import mistakes_among
from lakehouse.declarations.checks.elsewhere import declared_elsewhere, is_raw
from lakehouse.declarations.dbt.lineage import meta_of
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.declared import Column, Declarations, RawTable, Source
from lakehouse.declarations.kinds import kind_problems
from lakehouse.declarations.lines import OF_SOURCE, OF_TABLE, line_in_source, mistakes_in, refuse
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.declarations.table_meta import TableMeta
from lakehouse.declarations.vault.problems import Problem, problems_among, problems_of
from lakehouse.settings import Settings
from lakehouse.text.names import NAME


class _Mistakes(ValueError):
    """What is wrong within one declaration, with the path of each mistake."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems[0][1])
        self.problems = problems


def load_declarations(settings: Settings) -> Declarations:
    """Reads the declarations of `settings.dbt_project_dir`, parsing the dbt project when it has changed.

    Sources that are optional are left out while they have no connection.
    The rules of our own Trino follow them at once: a table that is declared is closed before it is made.
    Raises LakehouseError with file and line for the first mistake, and the number of further ones.
    """
    manifest = load_manifest(settings)
    refuse(declared_elsewhere(manifest, settings.dbt_project_dir, settings.trino.catalog, settings.sources))
    declarations = declarations_from(manifest, settings.dbt_project_dir)
    if settings.trino.access is not None:
        write_rules(settings.trino.access, manifest, declarations, settings.dbt_project_dir)
    return declarations.among(settings.sources)


def declarations_from(manifest: dict[str, Any], project_dir: Path) -> Declarations:
    """Builds the models from a dbt manifest; pure but for reading YAML to name a line."""
    grouped: dict[str, list[RawTable]] = {}
    descriptions: dict[str, str] = {}
    problems: list[str] = []
    nodes: dict[tuple[str, str], dict[str, Any]] = {}
    for node in _raw_nodes(manifest):
        nodes[node["source_name"], node["name"]] = node
        descriptions[node["source_name"]] = node.get("source_description") or ""
        try:
            grouped.setdefault(node["source_name"], []).append(_raw_table(node))
        except (ValidationError, _Mistakes) as error:
            problems += [f"{line_in_source(project_dir, node, path)}: {text}" for path, text in _problems(error)]
    for table, (path, text) in problems_among(table for tables in grouped.values() for table in tables):
        assert isinstance(table, RawTable)
        problems.append(f"{line_in_source(project_dir, nodes[table.source, table.name], path)}: {text}")
    for table, path, text in mistakes_among(grouped, manifest):
        problems.append(f"{line_in_source(project_dir, nodes[table.source, table.name], path)}: {text}")
    refuse(problems)
    return Declarations(
        sources=tuple(
            Source(name=name, description=descriptions[name], load=tables[0].load, tables=tuple(tables))
            for name, tables in sorted(grouped.items())
        )
    )


def _raw_nodes(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for _, node in sorted(manifest["sources"].items()):
        if is_raw(node):
            yield node


def _raw_table(node: dict[str, Any]) -> RawTable:
    if mistakes := list(_name_problems(node)):
        raise _Mistakes(mistakes)
    meta = TableMeta.model_validate(meta_of(node))
    columns = tuple(
        Column(name=c["name"], data_type=c.get("data_type"), description=c.get("description") or "")
        for c in node["columns"].values()
    )
    if mistakes := list(kind_problems(meta.kind, meta.raw, columns, flushes=meta.flush is not None)):
        raise _Mistakes(mistakes)
    if mistakes := [*_column_problems(meta.raw, columns), *alias_problems(meta.kind, meta.raw, columns)]:
        raise _Mistakes(mistakes)
    table = RawTable(
        source=node["source_name"],
        name=node["name"],
        description=node.get("description") or "",
        columns=columns,
        raw=meta.raw,
        load=meta.load or LoadPolicy(),
        maintenance=meta.maintenance,
        owners=meta.owners,
        lag=meta.lag,
        vault=meta.vault,
        mirror=meta.mirror,
        flush=meta.flush,
        kind=meta.kind,
        optional=meta.optional,
    )
    if mistakes := list(problems_of(table)):
        raise _Mistakes(mistakes)
    return table


def _name_problems(node: dict[str, Any]) -> Iterator[Problem]:
    for name, entry in ((node["source_name"], OF_SOURCE), (node["name"], OF_TABLE)):
        if not NAME.fullmatch(name):
            yield (
                (entry, "name"),
                f"name {name!r} must match {NAME.pattern} (put the source's spelling in meta.raw.relation)",
            )
    if node["schema"] != f"raw_{node['source_name']}":
        yield (OF_SOURCE, "schema"), f"schema of source {node['source_name']!r} must be raw_{node['source_name']}"
    if (stated := node.get("identifier", node["name"])).lower() != node["name"]:
        yield (
            (OF_TABLE, "identifier"),
            f"identifier {stated!r}: the raw table is called {node['name']!r}, by its name, and dbt would read another "
            "one: leave out `identifier`, and put the source's spelling in meta.raw.relation",
        )


def _column_problems(raw: RawPolicy, columns: tuple[Column, ...]) -> Iterator[Problem]:
    declared = {column.name for column in columns}
    for part in ("key", "exclude", "mask", "alias", "personal"):
        if unknown := sorted(set(getattr(raw, part)) - declared - set(raw.exclude)):
            yield (
                ("raw", part, unknown[0]),
                f"meta.raw.{part} names {', '.join(unknown)}, which is not among the declared columns",
            )
    if lost := sorted(set(raw.key) & (set(raw.exclude) | set(raw.mask))):
        yield ("raw", "key", lost[0]), f"key column {', '.join(lost)} cannot be excluded or masked"


def _problems(error: "ValidationError | _Mistakes") -> list[Problem]:
    return error.problems if isinstance(error, _Mistakes) else mistakes_in(error, TableMeta)
