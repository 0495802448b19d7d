"""Tables and folders that dbt's project does not know: the model was renamed or removed, or the catalog lost the table.
An erasure cannot tell whose rows they hold. It reports them and does not change them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from erasure.proof import Trace
from erasure.targets import STORED, lake_names, of_the_vault, undeclared_in_raw
from lakehouse.catalog.next_names import next_name
from lakehouse.declarations import RawTable
from lakehouse.declarations.vault.names import EVENT
from maintenance.inventory.lake import Lake, directory
from maintenance.inventory.outcome import TableName

DROP = "dbt's project does not know this table, which may hold the subject: drop it, or declare it as a source of dbt"
MADE_BY_DBT = STORED | {"seed", "test"}  # a test may store the rows that fail it
OF_SNAPSHOTS = "dbt_scd_id"  # a column that each snapshot of dbt's has, unless the project names it otherwise
DELETE = "no table owns these files, which may hold the subject: delete the folder, unless a load is writing it now"


def strays(
    lake: Lake, warehouse: str, manifest: Mapping[str, Any], table: RawTable, targets: Collection[tuple[str, str]]
) -> list[Trace]:
    """Unknown tables with personal columns, and folders of data files without a table, in the schemas of the raw table
    and of what dbt makes. `targets` are known too. Pure."""
    nodes = [node for node in manifest.get("nodes", {}).values() if node["resource_type"] in MADE_BY_DBT]
    schemas = {table.identifier[0], table.mirror_identifier[0], *(node["schema"] for node in nodes)}
    schemas |= {next_name((schema, ""))[0] for schema in schemas}  # a build that broke off may have left files there
    known = {*targets, *((node["schema"], node["alias"]) for node in nodes)}
    known |= {(source["schema"], source["identifier"]) for source in manifest.get("sources", {}).values()}
    known |= {(f"mirror_{s.removeprefix('raw_')}", name) for s, name in known if s.startswith("raw_")}
    known |= set(map(next_name, known))
    return [*_tables(lake, table, schemas, known), *_folders(lake, warehouse, schemas)]


def _tables(
    lake: Lake, table: RawTable, schemas: Collection[str], known: Collection[tuple[str, str]]
) -> Iterator[Trace]:
    raw = lake.tables.get(TableName(*table.identifier))
    unknown = undeclared_in_raw(table, (field.name for field in raw.schema().fields) if raw else ())
    personal = {name.lower() for name in lake_names(table, table.personal)} | (unknown - of_the_vault(table))
    of_snapshots = personal | unknown.difference(EVENT)
    for relation in lake.relations:
        if relation.kind != "table" or relation.name.namespace not in schemas or relation.name in known:
            continue
        loaded = lake.tables.get(relation.name)  # None: it cannot be read, so its columns are unknown
        columns = {field.name.lower() for field in loaded.schema().fields} if loaded else set()
        if loaded is None or columns & (of_snapshots if OF_SNAPSHOTS in columns else personal):
            yield Trace(str(relation.name), relation.location, 0, DROP)


def _folders(lake: Lake, warehouse: str, schemas: Collection[str]) -> Iterator[Trace]:
    root = directory(warehouse)
    folders: Counter[str] = Counter()
    for stored in lake.unowned:
        parts = stored.path.removeprefix(root).split("/")
        is_data = stored.path.endswith(".parquet") and not lake.is_staged(stored.path)
        if is_data and len(parts) > 2 and parts[0].removesuffix(".db") in schemas:
            folders["/".join(parts[:2])] += 1
    for folder in sorted(folders):
        yield Trace(folder, f"{root}{folder}/", 0, f"{folders[folder]} data files: {DELETE}")
