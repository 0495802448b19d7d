"""Whether a table has all that was committed until a cut, so that a query of the past answers with nothing missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lakehouse.catalog.loads.remembered import LoadedInput
from lakehouse.catalog.relations import TableName
from lakehouse.errors import LakehouseError
from lakehouse.text.sql import relation
from lakehouse_serve.past.cuts import Cut
from lakehouse_serve.past.queries import BY_COMMIT, BY_POSITION, AsOfCuts, below, of_sources, raw_of

NEVER = "0001-01-01 00:00:00 UTC"
Ask = Callable[[str], list[list[Any]]]


@dataclass(frozen=True)
class FirstSight:
    """How a hub or a link, which has each key once, gets to know of keys: its key, and the stages that mention it, each
    with the name of the key there; `of_deletes` says that a delete mentions it, too."""

    key: str
    mentions: tuple[tuple[str, str], ...]
    of_deletes: bool


@dataclass(frozen=True)
class Model:
    """A model of the project: its relation, and the models that it reads; `loads` says that it remembers its loads."""

    relation: TableName
    reads: tuple[str, ...] = ()
    loads: bool = False
    first_sight: FirstSight | None = None


@dataclass(frozen=True)
class Loaded:
    """What tells how far tables are loaded: Trino, what loads remember, and the models of the project by name.

    `stands_since` says a moment since which a table has kept what was loaded; None if that is not known.
    """

    ask: Ask
    remembered: Callable[[TableName], Collection[LoadedInput]]
    stands_since: Callable[[TableName], datetime | None]
    models: Callable[[], Mapping[str, Model]]
    lake: AsOfCuts

    def check(self, table: TableName) -> None:
        """Raises LakehouseError where the table lacks what was committed until its cut."""
        kind = self.lake.kind_of(table)
        assert kind is not None
        if not kind.columns >= BY_COMMIT:
            loads = self._loads(table)
            self._check_sources(table)
            known = [load for load in loads if load.newest != NEVER]
            for load in loads:
                self._check_load(table, load, has_others=len(loads if load.newest == NEVER else known) > 1)
        elif table.namespace == "parsed" and (source := self.lake.source_of(table)):
            self._check_parsed(self.lake.cut_of(source, table), table)

    def _check_sources(self, table: TableName) -> None:
        """Rows of a source whose position is not given are in no answer: those of one that was removed, too."""
        if self.lake.is_of_all:
            return
        others = f"NOT ({of_sources(dict.fromkeys(self.lake.cuts))})"
        named = f"SELECT split_part(record_source, '.', 1) FROM {relation(*table)} WHERE {others} LIMIT 1"
        for (source,) in self.ask(named):
            raise LakehouseError(
                f"{table} has rows of {source} too, of which there is no cut: its position is not given, or the pin "
                f"is without it: name it too, as in --as-of-lsn {source}=0/3C87757, or ask as of a time"
            )

    def _check_parsed(self, cut: Cut, table: TableName) -> None:
        """As `new_raw_rows.sql` knows new rows: by the newest moment that is there, and by their number at it."""
        if self._has_begun_since(table):
            raise LakehouseError(f"{table} was begun again after the cut {cut.position}: it has no row of before")
        raw, parsed = relation(*raw_of(cut.source, table)), relation(*table)
        [[newest]] = self.ask(f"SELECT cast(coalesce(max(_loaded_at), timestamp '{NEVER}') AS varchar) FROM {parsed}")
        here = f"SELECT count(*) FROM {parsed} WHERE {below(cut)} AND _op <> 't' AND _loaded_at >= timestamp '{newest}'"
        [[rows, truncates, loaded]] = self.ask(
            f"SELECT count_if(_op <> 't'), count_if(_op = 't' AND _ingested_at > timestamp '{newest}'), ({here})"
            f" FROM {raw} WHERE {below(cut)} AND _ingested_at >= timestamp '{newest}'"
        )
        if truncates and rows == loaded:  # of an empty table there is nothing to load
            current = TableName("parsed", "current" + table.name.removeprefix("parsed"))
            [[truncates]] = self.ask(self.lake.rewrite(f"SELECT count(*) FROM {relation(*current)}"))
        _refuse_other(table, rows - loaded, truncates)

    def _has_begun_since(self, parsed: TableName) -> bool:
        """Whether a parsed table was begun again after its cut, with nothing of before: then it knows nothing of it."""
        begun = self.lake.begun_since(parsed)
        return begun is not None and not self._has_rows(parsed, f"_loaded_at < {moment(begun)}")

    def _has_rows(self, table: TableName, condition: str) -> bool:
        return bool(self.ask(f"SELECT 1 FROM {relation(*table)} WHERE {condition} LIMIT 1"))

    def _loads(self, table: TableName) -> Collection[LoadedInput]:
        """What was loaded of each stage; nothing of those that the table remembers nothing of, which had no rows then.

        Raises LakehouseError where nothing says so, as of a table of one's own.
        """
        remembered = self.remembered(table)
        known = {load.stage for load in remembered}
        models = (model for model in self.models().values() if model.relation == table and model.loads)
        stages = (stage for model in models for stage in model.reads if stage not in known)
        loads = (*remembered, *(LoadedInput(stage, NEVER, 0, "") for stage in stages))
        if not loads:
            raise LakehouseError(f"{table} has no past: nothing says how far it is loaded")
        return loads

    def _check_load(self, table: TableName, load: LoadedInput, has_others: bool) -> None:
        """A stage over tables that came into the lake after the cut has nothing to give yet, nor has one that is gone.

        A parsed table that was begun again has rows of after the cut alone, and the table has those of before. Where
        the stage has no rows of the newest moment any more, none of them lack, and no load would count them anew.
        """
        self._refuse_unmade(table, load)
        stage = self.stage_of(table, load.stage)
        if stage is None:
            return
        read = self.lake.tables_below(stage)
        if has_others and not any(self.lake.covers(name) or self._had_rows(name) for name in read):
            return
        outlived = {name for name in read if self._outlives(table, name)}
        for parsed in sorted(read - outlived):
            self.check(parsed)
        [[later, at_newest]] = self.ask(
            f"SELECT count_if(load_date > timestamp '{load.newest}' AND ({self.lake.condition(stage, BY_POSITION)})),"
            f" count_if(load_date = timestamp '{load.newest}')"
            f" FROM {relation(*stage)} WHERE load_date >= timestamp '{load.newest}'"
        )
        unloaded = at_newest - load.rows
        _refuse_other(table, later, unloaded if at_newest and not outlived else max(unloaded, 0))

    def _outlives(self, table: TableName, parsed: TableName) -> bool:
        """Whether a parsed table was begun again after its cut, and the table has what was loaded of it before.

        It has where it stands since before the cut. Rows of before say so too, but a hub may have none of the table's
        own, where another one has always brought its keys first.
        """
        begun = self.lake.begun_since(parsed)
        if begun is None or not self._has_begun_since(parsed):
            return False
        published, since = self.lake.cuts[str(self.lake.source_of(parsed))].published_at, self.stands_since(table)
        if published and since and since <= published:
            return True
        of = f"record_source IN (SELECT _record_source FROM {relation(*parsed)})"
        return self._has_rows(table, f"{of} AND load_date < {moment(begun)}")

    def stage_of(self, table: TableName, name: str) -> TableName | None:
        """A stage is where its table is, unless the project has it elsewhere: in another schema, or under an alias.

        None where it is not in the lake, or what it reads is not, nor was when its view was made.
        """
        stage = self._place(table, name)
        there = stage is not None and all(self.lake.kind_of(read) for read in self.lake.tables_below(stage))
        return stage if there else None

    def _place(self, table: TableName, name: str) -> TableName | None:
        model = self.models().get(name)
        places = [TableName(table.namespace, name), *([model.relation] if model else [])]
        kinds = ((place, self.lake.kind_of(place)) for place in places)
        return next((place for place, kind in kinds if kind is not None and not kind.is_awaited), None)

    def _refuse_unmade(self, table: TableName, load: LoadedInput) -> None:
        """Raises LakehouseError where a stage of the project has yet to be made, and has rows."""
        models = self.models()
        model = models.get(load.stage)
        if model is None or self._place(table, load.stage) is not None:
            return
        parsed = [models[name].relation for name in model.reads if name in models]
        if load.newest == NEVER and not any(map(self._had_rows, parsed)):
            return
        raise LakehouseError(f"{table}: its stage {model.relation} is not loaded: run the load of its source first")

    def _had_rows(self, parsed: TableName) -> bool:
        """Whether raw has rows of a parsed table until its source's cut, as of one that was parked there."""
        source = str(self.lake.source_of(parsed))
        raw, cut = raw_of(source, parsed), self.lake.cuts.get(source)
        return cut is not None and self.lake.kind_of(raw) is not None and self._has_rows(raw, below(cut))


def moment(at: datetime) -> str:
    """A literal of Trino."""
    return f"timestamp '{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC'"


def _refuse_other(table: TableName, *lacking: int) -> None:
    """Each of these counts by itself: rows that the table lacks, or that it has and nothing else any more."""
    if count := sum(max(found, 0) for found in lacking):
        raise LakehouseError(
            f"{table} lacks {count:,} changes that are not loaded yet: run its load (`lakehouse run`, or the worker "
            "does), or ask for an earlier moment"
        )
    if count := -sum(lacking):
        raise LakehouseError(
            f"{table} has {count:,} rows of its newest load more than what it is loaded from: run its load once more "
            "(`lakehouse run`, or the worker does)"
        )
