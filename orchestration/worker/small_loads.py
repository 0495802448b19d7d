"""Loads of a few rows: Trino reads them for many models with one statement, and the worker writes them.

dbt renders the SQL, as of any load, and each model's header says what its load is. A MERGE of each model costs Trino
many times what its rows cost. What is out of the ordinary, such as a table without a column of its model, is left to
dbt.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.servers.trino import answering, query
from orchestration.resources import TableKey
from orchestration.worker.plan import Graph, Node, table_of
from orchestration.worker.plans import as_written
from orchestration.worker.rows import Row, one_statement, values
from orchestration.worker.warm_dbt import NodeResult, WarmDbt, header_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

    from lakehouse.catalog.lake_catalog import LakeCatalog
    from lakehouse.servers.database import CatalogConnection
    from lakehouse.settings import Settings

STATEMENTS = 2  # at once: planning one keeps a core busy
MOST_MODELS = 12  # of one statement: a model has up to ten stages, and Trino takes 150 of a statement
Columns = Mapping[str, Sequence[Sequence[str]]]
"""By table the name, type and comment of each column, as Trino describes them."""


@dataclass(frozen=True)
class Load:
    """What a model's load is: its table as it was planned on, the query of its new rows, and what it remembers.

    The query is empty where nothing is new.
    """

    table: "Table"
    columns: Sequence[tuple[str, str]]
    query: str
    remember: Mapping[str, str]


class SmallLoads:
    """Loads models whose tables are there, and which have few new rows."""

    def __init__(
        self, settings: "Settings", catalog: "LakeCatalog", connection: "CatalogConnection", dbt: WarmDbt, graph: Graph
    ) -> None:
        self._settings, self._catalog, self._connection = settings, catalog, connection
        self._dbt, self._graph = dbt, graph

    def run(
        self,
        models: Sequence[str],
        tables: Mapping[TableKey, "Table"],
        columns: Columns,
        variables: Mapping[str, str],
    ) -> list[NodeResult]:
        """The results of the models that were loaded, all at one moment. The others are for dbt."""
        from lakehouse.catalog.appending import Append, append_all

        if not models:
            return []
        begun = time.monotonic()
        compiled = self._dbt.compiled([self._graph.nodes[model]["name"] for model in models], variables)
        loads = dict(self._planned(compiled, tables, columns))
        rows = self._rows({model: load for model, load in loads.items() if load.query})
        rows |= {model: _made(load, []) for model, load in loads.items() if not load.query}
        appends = {m: Append(loads[m].table, new, loads[m].remember) for m, new in rows.items() if new is not None}
        if not append_all(self._connection, self._catalog, list(appends.values())):
            return []
        seconds = (time.monotonic() - begun) / max(1, len(appends))
        return [NodeResult(m, "success", seconds, 0, f"{append.rows.num_rows} rows") for m, append in appends.items()]

    def _planned(
        self, compiled: Mapping[str, str], tables: Mapping[TableKey, "Table"], columns: Columns
    ) -> Iterator[tuple[str, Load]]:
        for model, sql in compiled.items():
            node, header = self._graph.nodes[model], header_of(sql)
            table, there = tables.get(table_of(node)), columns.get(".".join(table_of(node)))
            if table and there and header and not header["anew"] and fits(node, header["columns"], there):
                typed = [(name, kind) for name, kind, _ in there]
                yield model, Load(table, typed, sql if header["new_data"] else "", header["remember"])

    def _rows(self, loads: Mapping[str, Load]) -> "dict[str, pa.Table | None]":
        lots = lots_of(list(loads))
        with ThreadPoolExecutor(STATEMENTS) as pool:
            found = list(pool.map(self._ask, [{model: loads[model] for model in lot} for lot in lots]))
        return {model: _made(loads[model], rows) for lot in found for model, rows in lot.items()}

    def _ask(self, loads: Mapping[str, Load]) -> dict[str, list[Row]]:
        """By model its new rows; nothing where the statement fails: dbt then says of each model what is wrong."""
        from trino.exceptions import TrinoQueryError

        rows: dict[str, list[Row]] = {model: [] for model in loads}
        statement = one_statement({model: (load.query, load.columns) for model, load in loads.items()})
        try:
            with answering(self._settings):
                for model, row in query(self._settings, statement, session=as_written(self._settings)):
                    rows[model].append(row)
        except TrinoQueryError:
            return {}
        return rows


def lots_of(models: Sequence[str]) -> list[list[str]]:
    """The models of each statement: as few statements as are asked at once, unless one would have too many models."""
    most = max(1, min(MOST_MODELS, -(-len(models) // STATEMENTS)))
    return [list(models[at : at + most]) for at in range(0, len(models), most)]


def fits(node: Node, stated: Sequence[Mapping[str, str]] | None, there: Sequence[Sequence[str]]) -> bool:
    """Whether a table has the columns of its model, no others, and their comments; else the materialization acts.

    It also runs the hooks of a model that has any. The columns are `stated` in the model's header, or in its YAML where
    each has a type, or are those of its first query.
    """
    documented = node["columns"].values()
    typed = [{"name": c["name"], "type": c["data_type"]} for c in documented if c.get("data_type")]
    wanted = stated if stated is not None else typed if len(typed) == len(documented) else []
    comments = {c["name"]: (c.get("description") or "").strip() for c in documented}
    hooks = node["config"].get("pre-hook") or node["config"].get("post-hook")
    return not hooks and (not wanted or _are_there(wanted, there, comments))


def _are_there(
    wanted: Sequence[Mapping[str, str]], there: Sequence[Sequence[str]], comments: Mapping[str, str]
) -> bool:
    found = {name: (kind, comment) for name, kind, comment in there}
    return len(wanted) == len(found) and all(
        (known := found.get(column["name"].lower()))
        and known[0] == column["type"].replace(", ", ",")
        and comments.get(column["name"], "") in ("", known[1])
        for column in wanted
    )


def _made(load: Load, rows: Sequence[Row]) -> "pa.Table | None":
    """The rows as the table's; None where there is a value among them that Python cannot hold."""
    import pyarrow as pa

    try:
        return pa.Table.from_pydict(values(load.columns, rows), schema=load.table.schema().as_arrow())
    except (ValueError, ArithmeticError):
        return None
