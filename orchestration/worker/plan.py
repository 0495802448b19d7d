"""Which models a change reaches. Pure: reads only dbt's manifest, so that each case is a unit test."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse.declarations import Declarations
from lakehouse.declarations.dbt.models import is_view
from orchestration.assets.groups import STORED
from orchestration.assets.next_tables import built_whole
from orchestration.assets.translator import MARTS, layer
from orchestration.jobs.loads import loads_of
from orchestration.jobs.marts import JOB as MARTS_JOB
from orchestration.jobs.marts import mirrors_read, tables_read
from orchestration.resources import TableKey

Manifest = Mapping[str, Any]
Node = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """What one Dagster job loads: the tables it watches, and whether it builds the marts or parsed and vault of a
    source. Marts watch the mirrors of current views, too: by mirror, the view. `built` are those that are built whole:
    somebody may replace one in place."""

    job: str
    tables: tuple[TableKey, ...]
    marts: bool = False
    source: str = ""
    mirrors: Mapping[TableKey, TableKey] = field(default_factory=dict)
    built: tuple[TableKey, ...] = ()

    @property
    def watched(self) -> list[TableKey]:
        """All that may have news."""
        return [*self.tables, *self.mirrors]


def tasks(declared: Declarations, manifest: dict[str, Any]) -> tuple[Task, ...]:
    """The load of each source that a sensor triggers, then the marts. A load with a schedule keeps to its schedule."""
    loads = (load for source in declared.sources for load in loads_of(source) if isinstance(load.trigger, str))
    found = [Task(load.job, load.tables, source=load.source) for load in loads]
    reads, built = tables_read(manifest), tuple(sorted(built_whole(manifest)))
    marts = Task(MARTS_JOB, reads, marts=True, mirrors=mirrors_read(manifest), built=built)
    return (*found, *([marts] if reads else []))


def all_loads(declared: Declarations) -> tuple[Task, ...]:
    """The loads of each source, also those with a schedule."""
    loads = (load for source in declared.sources for load in loads_of(source))
    return tuple(Task(load.job, load.tables, source=load.source) for load in loads)


def table_of(node: Node) -> TableKey:
    """Schema and name by which the catalog knows a source or model."""
    return node["schema"], node["identifier"] if node["resource_type"] == "source" else node["alias"]


class Graph:
    """The manifest's models, seeds and snapshots, and what is downstream of what."""

    def __init__(self, manifest: Manifest) -> None:
        nodes = {**manifest["sources"], **manifest["nodes"]}
        self.nodes: dict[str, Node] = {
            unique_id: node for unique_id, node in nodes.items() if node["resource_type"] in ("source", *STORED)
        }
        self.tests: dict[str, Node] = {
            unique_id: node for unique_id, node in nodes.items() if node["resource_type"] == "test"
        }
        self._children: Mapping[str, list[str]] = manifest["child_map"]
        self._by_table = {table_of(node): unique_id for unique_id, node in self.nodes.items()}

    def models_of(self, task: Task, changed: Iterable[TableKey], with_views: bool = False) -> list[str]:
        """The models of a task downstream of changed tables; without views, whose definitions data does not change."""
        return self._models(task, self._downstream(self.ids_of(changed)), with_views)

    def tables_of(self, task: Task) -> list[TableKey]:
        """The tables that a task's job reads and makes, and its views."""
        made = self.models_of(task, task.tables, with_views=True)
        return sorted({*task.tables, *(table_of(self.nodes[model]) for model in made)})

    def ids_of(self, tables: Iterable[TableKey]) -> list[str]:
        """The nodes that these tables are."""
        return [self._by_table[table] for table in tables if table in self._by_table]

    def made_by_dbt_alone(self, task: Task) -> list[str]:
        """The snapshots of dbt among what the task's job makes: a run takes them, the worker would not."""
        reached = {node for node in self._downstream(self.ids_of(task.tables)) if self._is_of(node, task)}
        return sorted(node for node in reached if self.nodes[node]["resource_type"] == "snapshot")

    def models_of_days(self, task: Task) -> list[str]:
        """The models of a task that are made of no table, such as the ends of days, and those downstream of them."""
        models = (node for node in self.nodes.values() if node["resource_type"] == "model")
        return self._models(task, self._downstream(n["unique_id"] for n in models if not n["depends_on"]["nodes"]))

    def _models(self, task: Task, reached: Iterable[str], with_views: bool = False) -> list[str]:
        own = (unique_id for unique_id in reached if self._is_of(unique_id, task))
        return sorted(
            unique_id
            for unique_id in own
            if self.nodes[unique_id]["resource_type"] == "model" and (with_views or not is_view(self.nodes[unique_id]))
        )

    def _is_of(self, node: str, task: Task) -> bool:
        return (layer(self.nodes[node]) == MARTS) == task.marts

    def views(self, models: Iterable[str]) -> set[str]:
        """Those of the nodes that are views."""
        return {model for model in models if model in self.nodes and is_view(self.nodes[model])}

    def views_read(self, models: Iterable[str]) -> set[str]:
        """The views that models read themselves: of a hub that sources share, the stages of all of them."""
        return self.views(node for model in models for node in self.nodes[model]["depends_on"]["nodes"])

    def sources_of(self, models: Iterable[str]) -> list[str]:
        """The raw tables that models read themselves."""
        read = {node for model in models for node in self.nodes[model]["depends_on"]["nodes"]}
        return sorted(node for node in read if self.nodes.get(node, {}).get("resource_type") == "source")

    def downstream_of(self, models: Iterable[str]) -> set[str]:
        """These models, and all that is made from them."""
        return self._downstream(models)

    def tests_of(self, models: Collection[str]) -> list[str]:
        """The tests that read these models, or views of them, and no mart: a mart's tests run when it is built."""
        reached = set(models).union(*(self._views_of(model) for model in models))
        found = {unique_id for model in reached for unique_id in self._children.get(model, ())}
        return sorted(unique_id for unique_id in found if unique_id in self.tests and not self._reads_marts(unique_id))

    def tests_of_marts(self, models: Collection[str], without: Collection[str]) -> list[str]:
        """The tests that read one of these models, and nothing `without` which they are to be run.

        dbt would leave out a test that reads a mart which does not change as well.
        """
        reached = set(models).union(*(self._views_of(model) for model in models))
        reads = {test: set(node["depends_on"]["nodes"]) for test, node in self.tests.items()}
        return sorted(test for test, nodes in reads.items() if nodes & reached and not nodes & set(without))

    def of_readers(self) -> set[str]:
        """The marts that are published first: those of schemas in which nothing is appended to, what they are made of,
        and what a test reads together with one of these. PITs, bridges and rules that no mart reads come after them.
        """
        models = {key: node for key, node in self.nodes.items() if node["resource_type"] in ("source", "model")}
        marts = {key for key, node in models.items() if layer(node) == MARTS}
        appended = {node["schema"] for key, node in models.items() if key not in marts}
        found, waiting = set[str](), [key for key in marts if self.nodes[key]["schema"] not in appended]
        read = {test: self.seen_through_views(node) & marts for test, node in self.tests.items()}
        together = [nodes for nodes in read.values() if len(nodes) > 1]
        while waiting:
            model = waiting.pop()
            if model not in found:
                found.add(model)
                waiting += marts.intersection(self.nodes[model]["depends_on"]["nodes"])
                waiting += set[str]().union(*(nodes for nodes in together if model in nodes))
        return found

    def together(self, models: Collection[str]) -> set[str]:
        """The first of the models, with those that are made of one another or that one test reads."""
        wanted = set(models)
        read = [self.seen_through_views(node) & wanted for node in self.tests.values()]
        read += [(self.seen_through_views(self.nodes[model]) | {model}) & wanted for model in wanted]
        found = set(sorted(wanted)[:1])
        while more := set[str]().union(*(nodes for nodes in read if nodes & found)) - found:
            found |= more
        return found

    def seen_through_views(self, node: Node) -> set[str]:
        """What a node reads, and what the views among it read."""
        read = set(node["depends_on"]["nodes"])
        views = [self.nodes[key] for key in read if key in self.nodes and is_view(self.nodes[key])]
        return read.union(*map(self.seen_through_views, views))

    def _views_of(self, model: str) -> set[str]:
        views = {child for child in self._children.get(model, ()) if child in self.nodes and is_view(self.nodes[child])}
        return views.union(*map(self._views_of, views))

    def _reads_marts(self, test: str) -> bool:
        return any(
            layer(self.nodes[node]) == MARTS for node in self.tests[test]["depends_on"]["nodes"] if node in self.nodes
        )

    def _downstream(self, start: Iterable[str]) -> set[str]:
        seen: set[str] = set()
        waiting = list(start)
        while waiting:
            unique_id = waiting.pop()
            if unique_id not in seen and unique_id in self.nodes:
                seen.add(unique_id)
                waiting += self._children.get(unique_id, ())
        return seen
