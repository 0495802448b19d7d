"""Loads of a few rows: Trino makes them for many models with one statement, and the worker writes them.

dbt renders the SQL, as of any load, and each model's header says what its load is. A MERGE of each model costs Trino
many times what its rows cost. What is out of the ordinary, such as a table without a column of its model, is left to
dbt.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import answering, query
from lakehouse.text.log_lines import as_here
from orchestration.resources import TableKey
from orchestration.worker.dbt.plans import as_written
from orchestration.worker.dbt.warm_dbt import NodeResult, WarmDbt, header_of
from orchestration.worker.loads.handed import NOTHING, PARSED, STORED, VARIABLE, Handed, parsed_rows, stored_rows
from orchestration.worker.loads.rows import Row, Rows, is_short, one_statement, values
from orchestration.worker.plan import Graph, Node, table_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

    from lakehouse.catalog.lake_catalog import LakeCatalog
    from lakehouse.servers.database import CatalogConnection
    from lakehouse.settings import Settings

log = logging.getLogger(__name__)
NO_STAGES: Mapping[str, str] = MappingProxyType({})
STATEMENTS = 2  # at once: planning one keeps a core busy
MOST_MODELS = 12  # of one statement: a model has up to ten stages, and Trino takes 150 of a statement
Columns = Mapping[str, Sequence[Sequence[str]]]
"""By table the name, type and comment of each column, as Trino describes them."""


@dataclass(frozen=True)
class Load:
    """What a model's load is: its table as it was planned on, the query of its new rows, and what it remembers.

    The query is empty where nothing is new. `stored` says which rows of the table itself it is handed.
    """

    table: "Table"
    columns: Sequence[tuple[str, str]]
    query: str
    remember: Mapping[str, str]
    stored: Mapping[str, Any] | None = None
    checks: Mapping[str, Any] | None = None


class Loaded(NamedTuple):
    """The results of the models that were loaded, and by name the rows that stages of parsed models have got."""

    results: list[NodeResult]
    stages: dict[str, Rows]


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
        handed: Handed = NOTHING,
        stages: Mapping[str, str] = NO_STAGES,
    ) -> Loaded:
        """What was loaded, all at one moment. The other models are for dbt, which is handed nothing.

        `stages` are those whose rows are asked for as well, by the parsed model that each is made of.
        """
        from lakehouse.catalog.writing.appending import Append, append_all

        if not models:
            return Loaded([], {})
        begun = time.monotonic()
        compiled = self._compiled(models, variables, handed, stages)
        loads = dict(self._planned({m: sql for m, sql in compiled.items() if m not in stages}, tables, columns))
        views = {s: sql for s, sql in compiled.items() if s in stages and (load := loads.get(stages[s])) and load.query}
        answers = self._answers({m: load for m, load in loads.items() if load.query}, views, stages, handed)
        answers |= {model: [] for model, load in loads.items() if not load.query}
        _refuse_broken(loads, answers)
        rows = {model: _made(load, answers[model]) for model, load in loads.items() if model in answers}
        appends = {m: Append(loads[m].table, new, loads[m].remember) for m, new in rows.items() if new is not None}
        if not append_all(self._connection, self._catalog, list(appends.values())):
            return Loaded([], {})
        seconds = (time.monotonic() - begun) / max(1, len(appends))
        results = [NodeResult(m, "success", seconds, 0, f"{a.rows.num_rows} rows") for m, a in appends.items()]
        got = {s: answers[s] for s in views if s in answers and stages[s] in appends and is_short(answers[s])}
        return Loaded(results, {self._name(s): Rows(stated(compiled[s]), found) for s, found in got.items()})

    def _name(self, node: str) -> str:
        return str(self._graph.nodes[node]["name"])

    def _compiled(
        self, models: Sequence[str], variables: Mapping[str, str], handed: Handed, stages: Mapping[str, str]
    ) -> dict[str, str]:
        names = handed.names(self._name(parsed) for parsed in set(stages.values()))
        try:
            return self._dbt.compiled(
                [self._name(node) for node in (*models, *stages)], {**variables, VARIABLE: json.dumps(names)}
            )
        except LakehouseError as error:  # dbt compiles all or nothing, and one model may refuse its load
            log.warning("%d models are left to dbt: %s", len(models), error)
            return {}

    def _planned(
        self, compiled: Mapping[str, str], tables: Mapping[TableKey, "Table"], columns: Columns
    ) -> Iterator[tuple[str, Load]]:
        for model, sql in compiled.items():
            node, header = self._graph.nodes[model], header_of(sql)
            table, there = tables.get(table_of(node)), columns.get(".".join(table_of(node)))
            acts = header and (header["anew"] or header.get("left_out"))
            if table and there and header and not acts and fits(node, header["columns"], there):
                typed = [(name, kind) for name, kind, _ in there]
                query = sql if header["new_data"] else ""
                yield model, Load(table, typed, query, header["remember"], header.get("stored"), header.get("checks"))

    def _answers(
        self, loads: Mapping[str, Load], views: Mapping[str, str], stages: Mapping[str, str], handed: Handed
    ) -> dict[str, list[Row]]:
        """By model and stage its new rows. A stage is asked with its parsed model, whose rows are handed to it."""
        relations = handed.relations()
        relations |= {
            STORED + self._name(model): stored_rows(
                table_of(self._graph.nodes[model]), load.stored, handed.keys(load.stored)
            )
            for model, load in loads.items()
            if load.stored
        }
        relations |= {
            PARSED + self._name(m): parsed_rows(loads[m].query, loads[m].columns) for m in {stages[s] for s in views}
        }
        queries = {model: (load.query, load.columns) for model, load in loads.items()}
        queries |= {stage: (sql, stated(sql)) for stage, sql in views.items()}
        lots = [[*lot, *(stage for stage in views if stages[stage] in lot)] for lot in lots_of(list(loads))]
        with ThreadPoolExecutor(STATEMENTS) as pool:
            asked = [{node: queries[node] for node in lot} for lot in lots]
            found = list(pool.map(as_here(partial(self._ask, relations)), asked))
        return {node: rows for lot in found for node, rows in lot.items()}

    def _ask(
        self, relations: Mapping[str, str], queries: Mapping[str, tuple[str, Sequence[tuple[str, str]]]]
    ) -> dict[str, list[Row]]:
        """The rows of each query; nothing where the statement fails: dbt then says of each model what is wrong."""
        from trino.exceptions import TrinoQueryError

        rows: dict[str, list[Row]] = {node: [] for node in queries}
        statement = one_statement(queries, relations)
        try:
            with answering(self._settings):
                for node, row in query(self._settings, statement, session=as_written(self._settings)):
                    rows[node].append(row)
        except TrinoQueryError as error:
            log.warning("%d models are left to dbt: %s", len(queries), str(error.message).partition("\n")[0])
            return {}
        return rows


def _refuse_broken(loads: Mapping[str, Load], answers: Mapping[str, Sequence[Row]]) -> None:
    """Raises LakehouseError if new rows break the checks of their batch; nothing of the step gets into a table then."""
    for model, load in loads.items():
        problem = broken(load.columns, answers.get(model, ()), load.checks) if load.checks else None
        if problem:
            raise LakehouseError(f"no new row gets into {'.'.join(load.table.name())}, because one has {problem}")


def broken(columns: Sequence[tuple[str, str]], rows: Sequence[Row], checks: Mapping[str, Any]) -> str | None:
    """What the rows break of what the macro `batch_checks` says, with an example; None if they break nothing."""
    places = {name: at for at, (name, _) in enumerate(columns)}

    def values(names: Sequence[str]) -> list[tuple[str | None, ...]]:
        at = [places.get(name.strip('"').lower()) for name in names]
        return [tuple(row[place] for place in at if place is not None) for row in rows] if None not in at else []

    for name in checks["given"]:
        if (None,) in values([name]):
            return f"{name} is not given: NULL"
    for names in checks["once"]:
        found = Counter(key for key in values(names) if None not in key)
        twice = next((key for key, times in found.items() if times > 1), None)
        if twice:
            return f"{', '.join(names)} twice: {', '.join(map(str, twice))}"
    return None


def stated(sql: str) -> list[tuple[str, str]]:
    """Name and type of each column that a stage's header states."""
    header = header_of(sql)
    assert header is not None  # a stage whose parsed rows are handed over has one
    return [(column["name"], column["type"]) for column in header["columns"]]


def lots_of(models: Sequence[str]) -> list[list[str]]:
    """The models of each statement: as few statements as are asked at once, unless one would have too many models."""
    most = max(1, min(MOST_MODELS, -(-len(models) // STATEMENTS)))
    return [list(models[at : at + most]) for at in range(0, len(models), most)]


def fits(node: Node, stated: Sequence[Mapping[str, str]] | None, there: Sequence[Sequence[str]]) -> bool:
    """Whether a table has the columns of its model, no others, and their comments; else the materialization acts.

    It also runs the hooks of a model that has any, and replaces the table of one that is always refreshed. The columns
    are `stated` in the model's header, or in its YAML where each has a type, or are those of its first query.
    """
    documented = node["columns"].values()
    typed = [{"name": c["name"], "type": c["data_type"]} for c in documented if c.get("data_type")]
    wanted = stated if stated is not None else typed if len(typed) == len(documented) else []
    comments = {c["name"]: (c.get("description") or "").strip() for c in documented}
    acts = any(node["config"].get(name) for name in ("pre-hook", "post-hook", "full_refresh"))
    return not acts and (not wanted or _are_there(wanted, there, comments))


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
