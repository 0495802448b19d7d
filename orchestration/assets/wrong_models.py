"""Models that would mean something wrong without a word: they are refused. Pure: reads the manifest and the YAML.

Marts are built beside the tables that readers see, tested there and published, and loads come before them. What is
built in another way, or at another time, would be of a former state, or be seen before its tests have passed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lakehouse.catalog.next_names import is_next
from lakehouse.declarations.checks.profiles import other_timezones
from lakehouse.declarations.dbt.models import APPENDED, REBUILT, is_view, table_of_model
from lakehouse.declarations.lines import PROJECT_FILE, configures, refuse
from lakehouse.settings import DBT_PACKAGE
from orchestration.assets.groups import STORED
from orchestration.assets.next_tables import built_nodes, hidden
from orchestration.assets.translator import BUILT_WITH_MARTS, MARTS, layer

Manifest = Mapping[str, Any]
Node = Mapping[str, Any]
PACKAGE = DBT_PACKAGE.name
REF = DBT_PACKAGE.parent / "template" / "dbt_project" / "macros" / "ref.sql"
READS_NEXT = f"macro.{PACKAGE}.next_of_ref"
PLANS = (f"macro.{PACKAGE}.plan_header", f"macro.{PACKAGE}.parsed_table")
FROM_BEFORE = "let it read parsed or the vault"  # what a snapshot of dbt can do: nothing makes one beside readers


def refuse_wrong_models(manifest: Manifest, project_dir: Path) -> None:
    """Raises LakehouseError, with the file, for a project that neither a worker nor Dagster may build."""
    refuse_marts_without_ref(manifest, project_dir)
    refuse_untagged_marts(manifest, project_dir)
    refuse_marts_in_place(manifest, project_dir)
    refuse_early_readers(manifest, project_dir)
    refuse_models_as_sources(manifest, project_dir)
    refuse_hidden_marts(manifest, project_dir)
    refuse_next_schemas(manifest, project_dir)
    refuse_repeated_rows(manifest, project_dir)
    refuse(other_timezones(project_dir))


def refuse_marts_without_ref(manifest: Manifest, project_dir: Path) -> None:
    """Raises LakehouseError where there are marts, and no `ref` of the project finds them where they are being built.

    Marts and tests would read what readers see, so that marts were published which no test has seen.
    """
    own = f"macro.{manifest['metadata']['project_name']}.ref"
    if not built_nodes(manifest) or own in _callers(manifest, READS_NEXT):
        return
    file = manifest["macros"][own]["original_file_path"] if own in manifest["macros"] else PROJECT_FILE
    refuse(
        [
            f"{project_dir.name}/{file}: the project has no macro `ref` that calls {PACKAGE}.next_of_ref, so marts "
            f"would be published before their tests have seen them: copy {REF} to its macros"
        ]
    )


def refuse_untagged_marts(manifest: Manifest, project_dir: Path) -> None:
    """Raises LakehouseError, with the file, for what is in the schema of the marts and has not their tag.

    The worker would build it with the marts, and no job of Dagster's ever.
    """
    refuse(
        [
            f"{_file(project_dir, node)} is in the schema {MARTS} without the tag {BUILT_WITH_MARTS}, so no job would "
            f"build it: give it the tag, or another schema"
            for _, node in sorted(manifest["nodes"].items())
            if node["resource_type"] in ("model", "snapshot")
            and layer(node) == MARTS
            and node["config"]["materialized"] != "ephemeral"
            and BUILT_WITH_MARTS not in node["tags"]
        ]
    )


def refuse_marts_in_place(manifest: Manifest, project_dir: Path) -> None:
    """Raises LakehouseError, with the file, where dbt would write into a table that readers see while it builds marts.

    They would see it before its tests have passed, and it would be made of the former state of marts that it reads.
    """
    refuse(
        [
            f"{_file(project_dir, node)} has the tag {BUILT_WITH_MARTS} and is materialized as "
            f"{node['config']['materialized']}, so readers would see it before its tests have passed, made of marts as "
            f"they were before the build: {_instead(node, f'materialize it as {REBUILT} or view', 'without that tag')}"
            for node in _stored(manifest).values()
            if layer(node) == MARTS and node["config"]["materialized"] != REBUILT
        ]
    )


def refuse_early_readers(manifest: Manifest, project_dir: Path) -> None:
    """Raises LakehouseError, with the file, where a load would store what it reads of a mart, also through views.

    The mart is built after the load.
    """
    stored = _stored(manifest)
    marts = {key: node for key, node in stored.items() if layer(node) == MARTS}
    refuse(
        [
            f"{_file(project_dir, node)} reads the mart {marts[mart]['name']} and is made before that, of its former "
            f"state: {_instead(node, f'give it the tag {BUILT_WITH_MARTS}, and materialize it as {REBUILT} or view')}"
            for key, node in stored.items()
            if key not in marts and (mart := next(_read(manifest, node, marts), ""))
        ]
    )


def refuse_models_as_sources(manifest: Manifest, project_dir: Path) -> None:
    """Raises LakehouseError, with the file, where what the project itself makes is declared as a source.

    What reads it so does not wait for it, is not loaded after it, and is built of what readers see of it.
    """
    made = {
        (node["database"].lower(), *table_of_model(node)): node["name"]
        for node in manifest["nodes"].values()
        if node["resource_type"] in STORED and node["config"]["materialized"] != "ephemeral"
    }
    refuse(
        [
            f"{project_dir.name}/{source['original_file_path']}: the source {source['source_name']}.{source['name']} "
            f"is {'.'.join(table[1:])}, which this project makes: remove it there, and read it by ref('{made[table]}')"
            for _, source in sorted(manifest["sources"].items())
            if (table := tuple(source[part].lower() for part in ("database", "schema", "identifier"))) in made
        ]
    )


def refuse_hidden_marts(manifest: Manifest, project_dir: Path) -> None:
    """Raises LakehouseError, with the file, where a table built whole reads another one through a view.

    A view goes on showing the table that readers see, so that the first would be made of the other's former state.
    """
    whole = built_nodes(manifest)
    refuse(
        [
            f"{_file(project_dir, node)} reads {manifest['nodes'][below]['name']} "
            f"through {manifest['nodes'][view]['name']}, which shows it as it was before the build: read it itself"
            for _, node in sorted(whole.items())
            for view, below in hidden(manifest, node, whole)
        ]
    )


def refuse_next_schemas(manifest: Manifest, project_dir: Path) -> None:
    """Raises LakehouseError, with the file, where dbt would make something of its own in a schema of copies.

    A build drops what has the name of a copy there, and pins and readers of the catalog service pass the others over.
    """
    refuse(
        [
            f"{_file(project_dir, node)} is made in the schema {node['schema']}, "
            "which is for copies of tables that are being built: give it another schema"
            for _, node in sorted(manifest["nodes"].items())
            if node["resource_type"] in STORED and is_next(node["schema"].lower())
        ]
    )


def refuse_repeated_rows(manifest: Manifest, project_dir: Path) -> None:
    """Raises LakehouseError, with the file, where a folder's default has all rows of a query appended at each load.

    The package's macros plan what is new. Whoever writes such a query says that it finds that itself.
    """
    planned = set[str]().union(*(_callers(manifest, macro) for macro in PLANS))
    refuse(
        [
            f"{_file(project_dir, node)} is {APPENDED} by its folder's default, so each load would append all rows of "
            f"its query again: use a macro of {PACKAGE}, move it to models/business, where it is built whole, or, if "
            f"the query itself finds only new rows, write `{{{{ config(materialized='{APPENDED}') }}}}` into it"
            for _, node in sorted(manifest["nodes"].items())
            if node["resource_type"] == "model"
            and node["config"]["materialized"] == APPENDED
            and planned.isdisjoint(node["depends_on"]["macros"])
            and not configures(project_dir, node, "materialized")
        ]
    )


def _stored(manifest: Manifest) -> dict[str, Node]:
    """The models and snapshots that store rows, in order."""
    nodes = ((key, node) for key, node in sorted(manifest["nodes"].items()) if not is_view(node))
    return {key: node for key, node in nodes if node["resource_type"] in ("model", "snapshot")}


def _read(manifest: Manifest, node: Node, marts: Manifest) -> Iterator[str]:
    """Those of the marts that a model reads, itself or through what stores nothing."""
    yield from (key for key in node["depends_on"]["nodes"] if key in marts)
    yield from (below for _, below in hidden(manifest, node, marts))


def _callers(manifest: Manifest, macro: str) -> set[str]:
    """The macro and those that call it, also through others."""
    callers: dict[str, list[str]] = {}
    for key, node in manifest["macros"].items():
        for called in node["depends_on"]["macros"]:
            callers.setdefault(called, []).append(key)
    found, waiting = set[str](), [macro]
    while waiting:
        if (key := waiting.pop()) not in found:
            found.add(key)
            waiting += callers.get(key, ())
    return found


def _instead(node: Node, model: str, *more: str) -> str:
    return model if node["resource_type"] == "model" else ", ".join((FROM_BEFORE, *more))


def _file(project_dir: Path, node: Node) -> str:
    return f"{project_dir.name}/{node['original_file_path']}: {node['name']}"
