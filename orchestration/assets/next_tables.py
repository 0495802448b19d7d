"""Which tables dbt builds whole, and which of those that were built may be published. Pure: reads only the manifest."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from lakehouse.declarations.dbt.models import REBUILT, is_view, table_of_model
from orchestration.resources import TableKey

Manifest = Mapping[str, Any]
GOOD = frozenset({"success", "pass", "warn"})


def built_whole(manifest: Manifest) -> dict[TableKey, dict[str, str]]:
    """The tables that are rebuilt and not appended to, with their columns' descriptions.

    They are the marts, and the vault's PITs, bridges and rules.
    """
    return {table_of_model(node): _descriptions(node) for node in built_nodes(manifest).values()}


def hidden(manifest: Manifest, node: Mapping[str, Any], whole: Manifest) -> Iterator[tuple[str, str]]:
    """What stores nothing and is read by a model, each with a table built whole below it."""
    waiting, seen = [*node["depends_on"]["nodes"]], set[str]()
    while waiting:
        view = waiting.pop()
        if view in seen or not is_view(manifest["nodes"].get(view, {})):
            continue
        seen.add(view)
        below = manifest["nodes"][view]["depends_on"]["nodes"]
        yield from ((view, key) for key in below if key in whole)
        waiting += below


def tests_reading(manifest: Manifest, models: Collection[str]) -> dict[str, list[str]]:
    """The tests that read one of these models, each with all that it reads."""
    tests = {key: node for key, node in manifest["nodes"].items() if node["resource_type"] == "test"}
    read = {key: node["depends_on"]["nodes"] for key, node in tests.items()}
    return {key: nodes for key, nodes in read.items() if not set(models).isdisjoint(nodes)}


def late_tests(manifest: Manifest) -> frozenset[str]:
    """The tests that see a table built whole through a view, which shows it as it was until it is published.

    They are run afterwards and refuse nothing: before, they would pass for rows that they have not seen.
    """
    whole = built_nodes(manifest)
    tests = ((key, node) for key, node in manifest["nodes"].items() if node["resource_type"] == "test")
    return frozenset(key for key, test in tests if any(hidden(manifest, test, whole)))


def sound_tables(manifest: Manifest, statuses: Mapping[str, str]) -> set[TableKey]:
    """The tables built whole that dbt has built and found sound; `statuses` are its results by unique id.

    A table is not sound if a test of it has failed or was not run, nor if it was made from one that is not: dbt goes on
    with what reads one of two tables when a test of both has failed.
    """
    whole, unsound = built_nodes(manifest), unsound_nodes(manifest, statuses)
    return {table_of_model(whole[key]) for key in _built(whole, statuses) if key not in unsound}


def unsound_nodes(manifest: Manifest, statuses: Mapping[str, str]) -> set[str]:
    """What was not built or that a test has not found sound, and all that is made of it."""
    unsound = {
        behind
        for unique_id, status in statuses.items()
        if status not in GOOD
        for behind in _behind(manifest, unique_id)
    }
    waiting = list(unsound)
    while waiting:
        children = [child for child in manifest["child_map"].get(waiting.pop(), ()) if child not in unsound]
        unsound.update(children)
        waiting += children
    return unsound


def unsound_tables(manifest: Manifest, statuses: Mapping[str, str]) -> set[TableKey]:
    """The other tables built whole that dbt has built."""
    whole = built_nodes(manifest)
    return {table_of_model(whole[key]) for key in _built(whole, statuses)} - sound_tables(manifest, statuses)


def _built(whole: Manifest, statuses: Mapping[str, str]) -> list[str]:
    return [key for key in whole if statuses.get(key) in GOOD]


def _behind(manifest: Manifest, unique_id: str) -> set[str]:
    """The model itself, or the tables built whole that a test reads."""
    node = manifest["nodes"].get(unique_id, {})
    if node.get("resource_type") != "test":
        return {unique_id}
    return set(node["depends_on"]["nodes"]) & built_nodes(manifest).keys()


def built_nodes(manifest: Manifest) -> dict[str, Any]:
    """The models that are built whole, by unique id."""
    models = ((key, node) for key, node in manifest["nodes"].items() if node["resource_type"] == "model")
    return {key: node for key, node in models if node["config"]["materialized"] == REBUILT}


def _descriptions(node: Mapping[str, Any]) -> dict[str, str]:
    return {name.lower(): column["description"].strip() for name, column in node["columns"].items()}
