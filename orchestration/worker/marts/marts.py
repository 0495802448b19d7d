"""Builds marts beside the ones that readers see, tests them there, and publishes those that passed.

First those of readers, and then what no mart reads, such as PITs: a reader waits for nothing that he does not see.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lakehouse.catalog.next_names import next_name
from lakehouse.catalog.relations import list_views
from lakehouse.catalog.views.view_versions import definitions
from lakehouse.catalog.writing.next_tables import BUILT_FROM, building_next
from lakehouse.declarations.built_by_key import built_by_key
from lakehouse.settings import Settings
from orchestration.assets.next_tables import (
    GOOD,
    built_whole,
    late_tests,
    sound_tables,
    unsound_nodes,
)
from orchestration.resources import TableKey
from orchestration.runs.arrivals import not_there
from orchestration.worker.dbt.many_tests import run_tests
from orchestration.worker.dbt.plans import of_marts
from orchestration.worker.dbt.warm_dbt import NodeResult, WarmDbt
from orchestration.worker.marts.by_key import BuiltAt, changes
from orchestration.worker.plan import Graph, table_of

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from lakehouse.catalog.lake_catalog import LakeCatalog
    from lakehouse.catalog.open import SnapshotFact

log = logging.getLogger(__name__)
LEFT_ALONE = "no new data"  # what rebuilt_table.sql says
SELECTED_ALONE = {"DBT_INDIRECT_SELECTION": "empty"}  # models and tests that are named, and no other tests


class Marts:
    """The marts of a project, and what builds them; `first` are those that are published before the others."""

    def __init__(
        self, settings: Settings, catalog: "LakeCatalog", dbt: WarmDbt, manifest: dict[str, Any], graph: Graph
    ) -> None:
        self._settings, self._catalog, self._dbt, self._manifest, self._graph = settings, catalog, dbt, manifest, graph
        self.first = frozenset(graph.of_readers())
        self._late = late_tests(manifest)
        self._by_key, wrong = built_by_key(manifest, settings.dbt_project_dir)
        for line in wrong.values():
            log.error("%s; it is built whole", line)

    def build(
        self,
        models: Sequence[str],
        without: Collection[str],
        newest: "Mapping[str, SnapshotFact]",
        results: list[NodeResult],
    ) -> None:
        """Builds and publishes the marts of readers, then the others, without those made of one that is not sound.

        Adds to `results` as it goes. `without` are marts that stay as they are, `newest` what the build is made of.
        """
        results += self._build_next([model for model in models if model in self.first], without, newest)
        unsound = unsound_nodes(self._manifest, {result.unique_id: result.status for result in results})
        others = [model for model in models if model not in self.first and model not in unsound]
        results += self._build_next(others, {*without, *unsound}, newest)

    def _build_next(
        self, models: Sequence[str], without: Collection[str], newest: "Mapping[str, SnapshotFact]"
    ) -> list[NodeResult]:
        if not models:
            return []
        sizes = {name: f"{fact.total_rows}/{fact.snapshot_id}" for name, fact in newest.items()}
        session = of_marts(self._settings, sum(fact.total_rows for fact in newest.values()))
        tested = dict[TableKey, str]()
        with building_next(self._catalog, built_whole(self._manifest), tested) as sound:
            tables = [table_of(self._graph.nodes[model]) for model in models]
            copies = self._catalog.load_tables(list(map(next_name, tables)))
            stored = {name: copies[next_name(name)] for name in tables if next_name(name) in copies}
            changed, notes = self._changes(models, stored)
            built = {".".join(name): table.properties.get(BUILT_FROM) for name, table in stored.items()}
            variables = {
                "LAKEHOUSE_NEXT": "1", "LAKEHOUSE_CUTS": "{}", "LAKEHOUSE_TABLE_SIZES": json.dumps(sizes),
                **SELECTED_ALONE, "LAKEHOUSE_BUILT_FROM": json.dumps(built), "LAKEHOUSE_CHANGES": json.dumps(changed),
                "LAKEHOUSE_VIEWS": json.dumps(self._views(models)), "LAKEHOUSE_SESSION_PROPERTIES": json.dumps(session),
            }  # fmt: skip
            results = self._dbt.run("run", [self._graph.nodes[model]["name"] for model in models], variables)
            tested |= self._built(tables, stored, results)
            tests = self._tests(models, without)
            results += self.test([test for test in tests if test not in self._late], results, variables)
            sound |= sound_tables(self._manifest, {result.unique_id: result.status for result in results})
            self._note({name: note for name, note in notes.items() if name in sound}, stored, tested)
        late = [test for test in tests if test in self._late]
        return [*results, *self.test(late, results, {**variables, "LAKEHOUSE_NEXT": ""})]

    def _tests(self, models: Sequence[str], without: Collection[str]) -> list[str]:
        """The tests of the marts: also those that read one which stays as it is, but for one that was never built."""
        tests = self._graph.tests_of_marts(models, ())
        read = frozenset[str]().union(*(self._graph.tests[test]["depends_on"]["nodes"] for test in tests)) & {*without}
        tables = {model: table_of(self._graph.nodes[model]) for model in read}
        missing = not_there(self._catalog, list(tables.values())) if tables else []
        return self._graph.tests_of_marts(models, [model for model, table in tables.items() if table in missing])

    def _views(self, models: Collection[str]) -> dict[str, str]:
        """The checksums of the views that are read, but for those that the build makes: see rebuilt_table.sql."""
        read = frozenset[str]().union(*(self._graph.seen_through_views(self._graph.nodes[model]) for model in models))
        views = [table_of(self._graph.nodes[view]) for view in self._graph.views(read) - set(models)]
        return {".".join(view): text for view, text in definitions(self._catalog, views).items()}

    def _changes(
        self, models: Sequence[str], stored: "Mapping[TableKey, Table]"
    ) -> tuple[dict[str, Any], dict[TableKey, BuiltAt]]:
        """Of the marts that are built by key, by table the keys that change, and what to note of each."""
        marts = {table_of(self._graph.nodes[model]): self._by_key[model] for model in models if model in self._by_key}
        tables = self._catalog.load_tables(frozenset[TableKey]().union(*(mart.tables for mart in marts.values())))
        views = list_views(self._catalog, frozenset[TableKey]().union(*(mart.views for mart in marts.values())))
        today, given, notes = datetime.now(UTC).date(), dict[str, Any](), dict[TableKey, BuiltAt]()
        for name, mart in marts.items():
            found, notes[name] = changes(stored.get(name), mart, tables, views, today)
            if found:
                given[".".join(name)] = found
        return given, notes

    def _built(
        self, tables: Sequence[TableKey], stored: "Mapping[TableKey, Table]", results: Sequence[NodeResult]
    ) -> dict[TableKey, str]:
        """The metadata files of the copies as dbt has built them or left them alone: see `building_next`."""
        built = self._catalog.locations(list(map(next_name, tables)))
        found = {name: built[next_name(name)] for name in tables if next_name(name) in built}
        alone = [table_of(self._graph.nodes[result.unique_id]) for result in results if result.message == LEFT_ALONE]
        return found | {name: stored[name].metadata_location for name in alone if name in stored}

    def _note(
        self,
        notes: Mapping[TableKey, BuiltAt],
        stored: "Mapping[TableKey, Table]",
        tested: dict[TableKey, str],
    ) -> None:
        """Writes into the copies what they were built of, except where dbt has found no new data and left one alone."""
        copies = self._catalog.load_tables(list(map(next_name, notes)))
        for name, note in notes.items():
            copy, before = copies[next_name(name)], stored.get(name)
            was = copy.metadata_location
            if was == tested.get(name) and (before is None or was != before.metadata_location):
                copy.transaction().set_properties(note.of(copy)).commit_transaction()
                if copy.metadata.metadata_log[-1].metadata_file == was:  # else another was between, and is not tested
                    tested[name] = copy.metadata_location

    def test(self, tests: Sequence[str], built: Sequence[NodeResult], variables: Mapping[str, str]) -> list[NodeResult]:
        """The results of tests; one that reads a mart which was not built is skipped, as dbt does."""
        missing = {result.unique_id for result in built if result.status not in GOOD}
        nodes = {test: self._graph.tests[test] for test in tests}
        able = {test: node for test, node in nodes.items() if not missing.intersection(node["depends_on"]["nodes"])}
        skipped = [NodeResult(test, "skipped", 0.0, 0, "") for test in tests if test not in able]
        return [*skipped, *run_tests(self._settings, self._dbt, able, variables, self._graph.nodes)]
