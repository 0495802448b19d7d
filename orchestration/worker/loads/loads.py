"""Loads parsed and the vault. What the worker knows or can do at once, dbt does not ask of Trino for each model."""

import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from psycopg.rows import dict_row

from lakehouse.catalog.trino_types import trino_type
from lakehouse.declarations.dbt.models import is_view
from orchestration.assets.translator import layer
from orchestration.resources import TableKey
from orchestration.worker.dbt.warm_dbt import NodeResult, WarmDbt
from orchestration.worker.loads.facts import Cut, Facts, covered
from orchestration.worker.loads.handed import Handed
from orchestration.worker.loads.small_loads import Loaded, SmallLoads
from orchestration.worker.plan import Graph, table_of

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from lakehouse.catalog.lake_catalog import LakeCatalog
    from lakehouse.servers.database import CatalogConnection
    from lakehouse.settings import Settings

CUTS = "SELECT source, epoch, cut_lsn, cut_tables AS tables FROM lakehouse.streams WHERE cut_lsn IS NOT NULL"


class Loads:
    """Runs models in two steps: parsed first, and then the vault, which is told what parsed has got."""

    def __init__(
        self, settings: "Settings", catalog: "LakeCatalog", connection: "CatalogConnection", dbt: WarmDbt, graph: Graph
    ) -> None:
        self._catalog, self._connection, self._dbt, self._graph = catalog, connection, dbt, graph
        self._facts = Facts(catalog, graph)
        self._small = SmallLoads(settings, catalog, connection, dbt, graph)

    def run(self, models: Sequence[str]) -> list[NodeResult]:
        """The results of models that ran; those downstream of one that failed are left out."""
        parsed = [model for model in models if self._is_parsed(model)]
        cuts = self._cuts()  # before the tables: a load reads up to the cut, so what it reads has been looked at
        before = self.stored([*parsed, *self._graph.sources_of(parsed)])
        given, raw = self._facts.of_parsed(before, parsed, cuts)
        few = self._facts.few_in_parsed(parsed, given)
        handed = Handed({self._graph.nodes[model]["name"]: rows for model, rows in raw.items()})
        results, stages = self._step(parsed, few, before, {"LAKEHOUSE_RAW_FACTS": given}, cuts, handed)
        loaded = [result.unique_id for result in results if result.unique_id in parsed and result.status == "success"]
        late = self._graph.downstream_of(set(parsed) - set(loaded))
        vault = [model for model in models if model not in parsed and model not in late]
        after = self.stored({*parsed, *vault, *self._facts.below(vault)})
        self._facts.loaded(before, after, loaded, cuts, given)
        facts = self._facts.of_vault(after)
        handed = Handed(stages=stages, marks=covered(facts["LAKEHOUSE_STAGE_FACTS"], stages))
        few = self._facts.few_in_vault(vault, facts)
        return [*results, *self._step(vault, few, after, facts, cuts, handed).results]

    def stored(self, models: Iterable[str]) -> dict[TableKey, "Table"]:
        """The tables that these models or sources are, as they are now."""
        return self._catalog.load_tables([table_of(self._graph.nodes[model]) for model in models])

    def _step(
        self,
        models: Sequence[str],
        few: AbstractSet[str],
        tables: Mapping[TableKey, "Table"],
        facts: Mapping[str, Any],
        cuts: Mapping[str, Cut],
        handed: Handed,
    ) -> Loaded:
        """Runs the models; those with a `few` new rows all at once, and handed what is known of them."""
        from lakehouse.catalog.loads.remembered import remember

        columns = columns_of(tables)
        variables = {
            "LAKEHOUSE_CUTS": json.dumps({source: vars(cut) for source, cut in cuts.items()}),
            "LAKEHOUSE_TABLE_COLUMNS": json.dumps(columns),
            "LAKEHOUSE_REMEMBERS": "1",
            **{name: json.dumps(value) for name, value in facts.items()},
        }
        stages = {
            stage: parsed
            for stage, parsed in self._facts.stages.items()
            if parsed in few and self._graph.nodes[parsed]["name"] in handed.raw
        }
        loaded, got = self._small.run(sorted(few), tables, columns, variables, handed, stages)
        rest = [model for model in models if model not in {result.unique_id for result in loaded}]
        results = self._dbt.run("run", [self._graph.nodes[model]["name"] for model in rest], variables)
        remember(
            self._connection,
            self._catalog,
            {table_of(self._graph.nodes[r.unique_id]): r.load for r in results if r.load},
        )
        return Loaded([*loaded, *results], got)

    def _cuts(self) -> dict[str, Cut]:
        with self._connection.cursor(row_factory=dict_row) as cursor:
            found = cursor.execute(CUTS).fetchall()
        return {row.pop("source"): Cut(**row) for row in found}

    def _is_parsed(self, model: str) -> bool:
        node = self._graph.nodes[model]
        return layer(node) == "parsed" and not is_view(node)


def columns_of(tables: Mapping[TableKey, "Table"]) -> dict[str, list[list[str]]]:
    """Name, type and comment of each column as Trino describes them, of tables whose types are all known."""
    found = {}
    for key, table in tables.items():
        columns = [(f.name, trino_type(str(f.field_type)), f.doc or "") for f in table.schema().fields]
        if all(kind for _, kind, _ in columns):
            found[".".join(key)] = [[name, str(kind), doc] for name, kind, doc in columns]
    return found
