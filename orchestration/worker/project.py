"""What a worker reads of dbt's project, once for each state of it: its tasks, their tests, and who may write them."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakehouse.declarations import declarations_from
from lakehouse.declarations.dbt.manifest import load_manifest
from orchestration.assets.blocking_checks import blocking_tests, check_keys
from orchestration.assets.groups import groups_read, load_groups, sources_of
from orchestration.assets.wrong_models import refuse_wrong_models
from orchestration.resources import TableKey
from orchestration.runs.arrivals import Read, raw_read
from orchestration.worker.plan import Graph, Task, all_loads, tasks

if TYPE_CHECKING:
    from lakehouse.settings import Settings


@dataclass(frozen=True)
class Project:
    """`sources` are those of each group that one writer writes, `reads` the groups that a model is made of, `tested`
    those that a test reads. `checks` are of the tests that hold marts back, `mart_checks` of all."""

    manifest: dict[str, Any]
    graph: Graph
    tasks: tuple[Task, ...]
    all_loads: tuple[Task, ...]
    raw: Sequence[Read]
    mirrored: Sequence[TableKey]
    sources: Mapping[str, Sequence[str]]
    reads: Mapping[str, frozenset[str]]
    tested: Mapping[str, frozenset[str]]
    checks: Mapping[str, dg.AssetCheckKey]
    mart_checks: Mapping[str, dg.AssetCheckKey]

    def groups_of(self, task: Task) -> dict[str, Sequence[str]]:
        """The groups whose tables a task loads, or makes marts of, with their sources."""
        reads = map(self.reads.__getitem__, self.graph.models_of(task, task.tables))
        return {group: self.sources[group] for group in frozenset[str]().union(*reads)}

    def reads_only(self, test: str, groups: AbstractSet[str]) -> bool:
        """Whether the test reads nothing but what these groups of sources are loaded into."""
        return self.tested[test] <= groups


def read_project(settings: "Settings") -> Project:
    """Raises LakehouseError if the project does not parse or is refused."""
    manifest = load_manifest(settings)
    refuse_wrong_models(manifest, settings.dbt_project_dir)
    declared = declarations_from(manifest, settings.dbt_project_dir).among(settings.sources)
    graph, groups = Graph(manifest), load_groups(manifest)
    return Project(
        manifest=manifest,
        graph=graph,
        tasks=tasks(declared, manifest),
        all_loads=all_loads(declared),
        raw=raw_read(declared, manifest),
        mirrored=[table.mirror_identifier for source in declared.sources for table in source.mirrored],
        sources=sources_of(manifest, groups),
        reads=groups_read(manifest, graph.nodes, groups),
        tested=groups_read(manifest, graph.tests, groups),
        checks=blocking_tests(manifest),
        mart_checks=check_keys(manifest, graph.tests),
    )
