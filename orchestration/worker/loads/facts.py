"""What loads ask before they write, answered from metadata and new files, so that a model is one statement of Trino."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, nodes

from orchestration.resources import TableKey
from orchestration.worker.loads.rows import Rows, is_short, texts
from orchestration.worker.plan import Graph, Node, table_of

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from lakehouse.catalog.lake_catalog import LakeCatalog

Tables = Mapping[TableKey, "Table"]
FEW_ROWS = 1000  # of a table: with more of them a statement of each model costs less than handing its rows over
FEW_HANDED = 200  # of a table, whose rows stand in a statement themselves


@dataclass(frozen=True)
class Cut:
    """Up to where a source's tables are read."""

    epoch: int
    cut_lsn: int
    tables: Sequence[str]


@dataclass(frozen=True)
class _Parsed:
    """At this snapshot a parsed table has all rows that raw has at that one; the newest moment among them."""

    snapshot: int
    raw: int
    newest: str


class Facts:
    """Remembers what parsed tables have, from load to load; what it does not know, the macros ask."""

    def __init__(self, catalog: "LakeCatalog", graph: Graph) -> None:
        self._catalog, self._graph = catalog, graph
        self._stages = {stage["name"]: table_of(parsed) for stage, parsed in stages_of(graph)}
        self.stages = {stage["unique_id"]: parsed["unique_id"] for stage, parsed in stages_of(graph)}
        self._parsed: dict[TableKey, _Parsed] = {}

    def of_parsed(
        self, tables: Tables, models: Iterable[str], cuts: Mapping[str, Cut]
    ) -> tuple[dict[str, Any], dict[str, Rows]]:
        """By parsed table, what the macro `given_raw_facts` gives; by parsed model, the rows of raw to hand over.

        Of `tables` as they were after `cuts` were read.
        """
        from lakehouse.catalog.loads.load_facts import LANDED_LATE, LEFT_OUT, raw_facts

        given, handed = dict[str, Any](), dict[str, Rows]()
        for model, parsed, raw, cut in self._with_raw(models, cuts):
            known, table = self._parsed.get(parsed), tables.get(parsed)
            if not known or not table or raw not in tables or table.metadata.current_snapshot_id != known.snapshot:
                continue
            if tables[raw].properties.get(LANDED_LATE, "") <= known.newest:
                added, rows = new_in_raw(tables[raw], known.raw)
                facts = raw_facts(added, known.newest, cut.epoch, cut.cut_lsn) if added is not None else None
                if facts is not None:
                    noted = table.properties.get(LEFT_OUT)
                    given[".".join(parsed)] = {"newest": known.newest, "facts": facts, "left_out": noted}
                    handed |= {model: rows} if rows is not None else {}
        return given, handed

    def loaded(
        self, before: Tables, after: Tables, models: Iterable[str], cuts: Mapping[str, Cut], given: Mapping[str, Any]
    ) -> None:
        """Remembers what these parsed models have after a load that was `given` those facts."""
        for _, parsed, raw, cut in self._with_raw(models, cuts):
            known = self._parsed.pop(parsed, None)
            was, now, read = before.get(parsed), after.get(parsed), before.get(raw)
            newest = newest_moment(was, now, known.newest if known else "") if was and now else ""
            if now and read and newest and (".".join(parsed) in given or not holds_beyond(read, cut)):
                at, of = now.metadata.current_snapshot_id, read.metadata.current_snapshot_id
                if at is not None and of is not None:
                    self._parsed[parsed] = _Parsed(at, of, newest)

    def of_vault(self, tables: Tables) -> dict[str, dict[str, Any]]:
        """By the name of the variable, what the macros `given_metadata` and `facts_of_stages` give; of `tables`."""
        from lakehouse.catalog.loads.remembered import loaded_inputs

        facts: dict[str, list[Any]] = {}
        for load in {load for table in tables.values() for load in loaded_inputs(table.metadata)}:
            parsed = tables.get(self._stages.get(load.stage, ("", "")))
            found = facts_since(parsed, load.mark) if parsed and load.read.isdecimal() else None
            facts |= {"|".join((load.stage, *load.mark)): found} if found else {}
        states = {".".join(name): state_of(table) for name, table in tables.items()}
        return {"LAKEHOUSE_TABLE_STATES": states, "LAKEHOUSE_STAGE_FACTS": facts}

    def below(self, models: Iterable[str]) -> set[str]:
        """The parsed models of the stages that these models read."""
        read = {node for model in models for node in self._graph.nodes[model]["depends_on"]["nodes"]}
        return {parsed for stage, parsed in self.stages.items() if stage in read}

    def few_in_parsed(self, models: Iterable[str], given: Mapping[str, Any]) -> set[str]:
        """The models whose new rows are known, and few."""
        rows = {name: known["facts"][0] for name, known in given.items()}
        tables = {model: ".".join(table_of(self._graph.nodes[model])) for model in models}
        return {model for model, name in tables.items() if rows.get(name, FEW_ROWS + 1) <= FEW_ROWS}

    def few_in_vault(self, models: Iterable[str], facts: Mapping[str, Mapping[str, Any]]) -> set[str]:
        """The models that read nothing but stages whose new rows are known, and few."""
        later = [(key.partition("|")[0], found[2]) for key, found in facts["LAKEHOUSE_STAGE_FACTS"].items()]
        few = {stage for stage, _ in later} - {stage for stage, rows in later if rows > FEW_ROWS}
        names = {model: self._names_read(model) for model in models}
        return {model for model, read in names.items() if read and read <= few}

    def _names_read(self, model: str) -> set[str]:
        return {
            self._graph.nodes.get(node, {}).get("name", "") for node in self._graph.nodes[model]["depends_on"]["nodes"]
        }

    def _with_raw(
        self, models: Iterable[str], cuts: Mapping[str, Cut]
    ) -> Iterator[tuple[str, TableKey, TableKey, Cut]]:
        """Each model that reads one raw table of a cut, with both tables and the cut."""
        for model in models:
            node = self._graph.nodes[model]
            sources = [self._graph.nodes[id] for id in node["depends_on"]["nodes"] if id in self._graph.nodes]
            if len(sources) == 1 and sources[0]["resource_type"] == "source":
                cut = cuts.get(sources[0]["source_name"])
                if cut is not None and sources[0]["name"] in cut.tables:
                    yield model, table_of(node), table_of(sources[0]), cut


def stages_of(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Each stage that leaves no row of its parsed model out, and that model."""
    for node in graph.nodes.values():
        below = node.get("depends_on", {}).get("nodes", [])
        parsed = graph.nodes.get(below[0], {}) if len(below) == 1 else {}
        if parsed.get("config", {}).get("materialized") == "append_only" and is_stage(node):
            yield node, parsed


def is_stage(node: Node) -> bool:
    """Whether the model is a view and nothing but a call of the macro `stage`; one with SQL of its own may filter."""
    if node.get("config", {}).get("materialized") != "view":
        return False
    written = Environment().parse(node["raw_code"]).body
    parts = [part for output in written if isinstance(output, nodes.Output) for part in output.nodes]
    calls = [part for part in parts if not (isinstance(part, nodes.TemplateData) and not part.data.strip())]
    called = calls[0].node if len(calls) == 1 and isinstance(calls[0], nodes.Call) else None
    return len(written) == 1 and isinstance(called, nodes.Getattr) and called.attr == "stage"


def state_of(table: "Table") -> dict[str, Any]:
    """Its snapshot, what it remembers of loads, which snapshots named there it descends from, when it was revised."""
    from lakehouse.catalog.loads.remembered import LOADED, REVISED
    from lakehouse.catalog.open import history

    loads = {key: value for key, value in table.properties.items() if key.startswith(LOADED)}
    named = {value.rpartition("|")[2] for value in loads.values()}
    ancestors = named.intersection(str(s.snapshot_id) for s in history(table.metadata)) if named else set()
    snapshot = table.metadata.current_snapshot_id
    revised = table.properties.get(REVISED)
    return {"snapshot": snapshot and str(snapshot), "loads": loads, "ancestors": sorted(ancestors), "revised": revised}


def facts_since(parsed: "Table", mark: Sequence[str]) -> list[Any] | None:
    """What a stage of the table has after a watermark; None where Trino has to be asked."""
    from lakehouse.catalog.added_rows import added_rows
    from lakehouse.catalog.loads.load_facts import PARSED_COLUMNS, stage_facts

    added = added_rows(parsed, int(mark[3]), PARSED_COLUMNS)
    return stage_facts(added, mark) if added is not None else None


def new_in_raw(raw: "Table", since: int) -> tuple[list[dict[str, Any]] | None, Rows | None]:
    """What facts are made of, of the rows that a raw table got since a snapshot; and, of a few rows, all of them.

    Without the rows where there is a value among them that Python cannot hold.
    """
    from lakehouse.catalog.added_rows import added_rows
    from lakehouse.catalog.loads.load_facts import RAW_COLUMNS

    columns = typed_columns(raw)
    if columns is not None:
        try:
            added = added_rows(raw, since, [name for name, _ in columns], FEW_HANDED)
            if added is not None and is_short(rows := texts(columns, added)):
                return added, Rows(columns, rows)
        except (ValueError, ArithmeticError):
            pass
    return added_rows(raw, since, RAW_COLUMNS), None


def typed_columns(table: "Table") -> list[tuple[str, str]] | None:
    """Name and type of each column as Trino calls it; None if it is not known of one of them."""
    from lakehouse.catalog.trino_types import trino_type

    found = [(field.name, trino_type(str(field.field_type))) for field in table.schema().fields]
    return [(name, kind) for name, kind in found if kind] if all(kind for _, kind in found) else None


def covered(facts: Mapping[str, Sequence[Any]], stages: Mapping[str, Rows]) -> list[str]:
    """Those watermarks (`stage|watermark`) after which the stages have nothing but these rows."""
    marks = {key: key.split("|") for key in facts}
    return [
        key
        for key, (stage, *mark) in marks.items()
        if stage in stages and covers(facts[key], mark, len(stages[stage].rows))
    ]


def covers(found: Sequence[Any], mark: Sequence[str], rows: int) -> bool:
    """Whether so many rows that a stage just got are all that it has after a watermark; `found` are its facts."""
    later, at_mark = found[2], found[3]
    return bool(later == rows and at_mark == int(mark[1]))


def newest_moment(before: "Table", after: "Table", known: str) -> str:
    """The newest moment in a parsed table after a load; empty if it is not known."""
    from lakehouse.catalog.added_rows import added_rows
    from lakehouse.catalog.loads.load_facts import moment

    since = before.metadata.current_snapshot_id
    added = added_rows(after, since, ("_loaded_at",)) if since is not None else None
    return "" if added is None else max([known, *(moment(row["_loaded_at"]) for row in added)])


def holds_beyond(raw: "Table", cut: Cut) -> bool:
    """Whether a raw table may hold rows beyond the cut, which a load up to it leaves out. Reads statistics of files."""
    beyond = f"_epoch > {cut.epoch} or (_epoch = {cut.epoch} and _commit_lsn > {cut.cut_lsn})"
    return any(True for _ in raw.scan(row_filter=beyond).plan_files())
