"""Tests that nobody has run since their tables changed: those of a worker that has ended before, and new ones."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse.declarations.dbt.models import is_view
from orchestration.resources import TableKey
from orchestration.runs.state.evaluations import newest_evaluations
from orchestration.worker.plan import Graph, table_of

if TYPE_CHECKING:
    from lakehouse.catalog.lake_catalog import LakeCatalog


def untested(
    instance: dg.DagsterInstance, catalog: "LakeCatalog", graph: Graph, checks: Mapping[str, dg.AssetCheckKey]
) -> list[str]:
    """Those of the tests in `checks` whose tables are all there, and one of which is newer than their evaluation."""
    from lakehouse.catalog.open import newest_data_snapshots

    read = {test: _tables_of(graph, test) for test in checks}
    wanted = frozenset[TableKey]().union(*read.values())
    there, newest = catalog.locations(list(wanted)), newest_data_snapshots(catalog, list(wanted))
    evaluated = newest_evaluations(instance, list(checks.values()))
    changed = {name: fact.committed_at for table in wanted if (fact := newest.get(name := ".".join(table)))}
    found = []
    for test, tables in read.items():
        last = max((changed[name] for table in tables if (name := ".".join(table)) in changed), default=None)
        known = evaluated.get(checks[test])
        if last is not None and tables <= there.keys() and (known is None or known.at < last):
            found.append(test)
    return sorted(found)


def _tables_of(graph: Graph, test: str) -> frozenset[TableKey]:
    nodes = (graph.nodes[node] for node in graph.seen_through_views(graph.tests[test]) if node in graph.nodes)
    return frozenset(table_of(node) for node in nodes if not is_view(node))
