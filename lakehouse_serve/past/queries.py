"""Rewrites a query so that it reads the lake as of cuts of its sources.

Views are replaced by their text, and tables by those of their rows that come from commits until the cut: `_epoch` and
`_commit_lsn` tell in raw and parsed, `source_seq` and `record_source` in the vault. A mirror is read at its snapshot of
the cut, or made of parsed. Any other table that is rebuilt with each load has a past only where its snapshot is known,
and is refused otherwise. Only names of relations are replaced in the text; the rest of it stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from types import MappingProxyType

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from lakehouse.catalog.relations import TableName, raw_tables_of
from lakehouse.errors import LakehouseError
from lakehouse.text.shown import shortened
from lakehouse.text.sql import ident, literal, relation
from lakehouse_serve.past.cuts import Cut
from lakehouse_serve.past.mirrors import MIRROR, newest_versions, parsed_of
from lakehouse_serve.past.states import MARTS

BY_COMMIT, BY_POSITION = frozenset({"_epoch", "_commit_lsn"}), frozenset({"source_seq", "record_source"})
GHOSTS = "ghost"  # the record source of ghost records, which are there at any time
DEEPEST = 20


@dataclass(frozen=True)
class Kind:
    """What a relation is: a table with these columns, or a view with this text; of a raw table, when it was begun.

    `types` are those of the columns, in their order; `key` names those that tell a mirror's rows apart, if it says so.
    """

    columns: frozenset[str]
    view: str | None = None
    begun_at: datetime | None = None
    types: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    key: tuple[str, ...] = ()

    @property
    def is_awaited(self) -> bool:
        """Whether this is a stage of before the first load of its table, which it does not read: see `stage.sql`."""
        return self.view is not None and "_lh_awaited" in self.view


@dataclass
class AsOfCuts:
    """The lake at one cut of each source, for one role. `kind_of` says what a relation is; None where it is none.

    `hidden` are the columns that the role may not read, by relation: the text of a view asks for all of them.
    `snapshots` are those of tables that are known at the cuts, such as mirrors; `has_snapshot` says whether a mirror is
    read at its own. `is_of_all`: a source that has no cut there was not in the lake yet; else its position was not
    given. `mentioned` are conditions of further rows of hubs and links, whose keys were there (`earlier_mentions`).
    `tables` are those that were read by rewritten queries so far, by commit; `versions` those that were read at their
    snapshot alone.
    """

    cuts: Mapping[str, Cut]
    catalog: str
    kind_of: Callable[[TableName], Kind | None]
    hidden: Mapping[TableName, Collection[str]] = field(default_factory=dict)
    snapshots: Mapping[TableName, int] = field(default_factory=dict)
    is_of_all: bool = False
    has_snapshot: Callable[[TableName, int], bool] = lambda *_: True
    mentioned: dict[TableName, str] = field(default_factory=dict)
    tables: set[TableName] = field(default_factory=set)
    versions: set[TableName] = field(default_factory=set)

    def rewrite(self, sql: str) -> str:
        """The query at the cuts. Raises LakehouseError for what has no past, or cannot be told apart."""
        return self._rewritten(sql, ())

    def _rewritten(self, sql: str, within: tuple[TableName, ...]) -> str:
        query = parsed(sql)
        self._refuse_unseen(sql, query)
        text, end, explicit = [], 0, explicit_tables(sql)
        for table in sorted(named_tables(query), key=lambda found: found.parts[0].meta["start"]):
            name = self._name(table)
            if name is None:
                if not is_with_query(table):
                    raise LakehouseError(f"{table.name}: name its schema, as in parsed.{table.name}")
                continue
            alias = "" if table.alias else f" AS {ident(name.name)}"
            first, last = table.parts[0].meta["start"], table.parts[-1].meta["end"] + 1
            before = f"{sql[end : explicit[first]]}SELECT * FROM " if first in explicit else sql[end:first]
            text += [before, f"({self._relation(name, within)}){alias}"]
            end = last
        return "".join([*text, sql[end:]])

    def _refuse_unseen(self, sql: str, query: exp.Query) -> None:
        """Raises LakehouseError for a relation that the text names and the query as it was read does not: it would be
        read as it is now. sqlglot drops the arguments of a function that are more than it knows of."""
        for parts in unseen_names(sql, query):
            for schema, name in pairwise(parts[1:] if parts[0].lower() == self.catalog else parts):
                if self.kind_of(relation_ := TableName(schema.lower(), name.lower())) is not None:
                    raise LakehouseError(
                        f"query: {relation_} stands where it cannot be read as of a moment, as in an argument that a "
                        "function does not have: name it in a WITH query"
                    )

    def _name(self, table: exp.Table) -> TableName | None:
        """The relation that is meant; None for a name without a schema."""
        if table.args.get("version") or table.args.get("when"):
            raise LakehouseError(f"{table.name}: leave out FOR … AS OF, the whole query is as of one moment")
        if not table.db:
            return None
        name = TableName(table.db.lower(), table.name.lower())
        if table.catalog and table.catalog.lower() != self.catalog:
            raise LakehouseError(f"{table.catalog}.{name} is not of the lake, and has no past in it")
        return name

    def _relation(self, name: TableName, within: tuple[TableName, ...]) -> str:
        kind = self.kind_of(name)
        if kind is None:
            raise LakehouseError(f"there is no table or view {name}")
        if kind.is_awaited:
            raise LakehouseError(f"{name} is a stage whose table was never loaded: run the load of its source first")
        rows = f"SELECT * FROM {ident(self.catalog)}.{relation(*name)}"
        version = f" FOR VERSION AS OF {self.snapshots[name]}" if name in self.snapshots else ""
        is_mirror = name.namespace.startswith(MIRROR)
        if is_mirror and not (version and self.has_snapshot(name, self.snapshots[name])):
            return self._of_parsed(name, kind, within)
        if version and not tells(name, kind.columns):
            self.versions.add(name)
            return f"{rows}{version}"
        if kind.view is None:
            self.tables.add(name)
            kept = version if name.namespace.startswith("raw_") else ""  # without what landed late, as its mirror is
            further = f" OR {self.mentioned[name]}" if name in self.mentioned else ""
            return f"{rows}{kept} WHERE {self.condition(name, kind.columns)}{further}"
        if name in within or len(within) > DEEPEST:
            raise LakehouseError(f"{name} is a view that reads itself")
        return self._rewritten(without_columns(kind.view, self.hidden.get(name, ())), (*within, name)) + "\n"

    def _of_parsed(self, mirror: TableName, kind: Kind, within: tuple[TableName, ...]) -> str:
        """A mirror's rows at the cut, whatever it has a snapshot of."""
        there = self.kind_of(parsed := parsed_of(mirror))
        if there is None:
            raise LakehouseError(
                f"{mirror} has no snapshot of that cut, and there is no {parsed}, of which its past is made: run the "
                "load of its source, or ask with --as-of-cut for a cut that meta.mirrors lists"
            )
        rows, hidden = self._relation(parsed, within), self.hidden.get(mirror, ())
        return newest_versions(mirror, rows, kind.types, there.types, kind.key, hidden)

    def condition(self, name: TableName, columns: Collection[str]) -> str:
        """Which rows of a table were there. Raises LakehouseError where it has none that tells."""
        if set(columns) >= BY_COMMIT and (source := self.source_of(name)):
            cut = self.cut_of(source, name)
            if name.namespace != "parsed" and self.begun_since(name):
                raise LakehouseError(f"{name} was begun again after the cut {cut.position}: it has no row of before")
            return below(cut)
        if tells(name, columns) and set(columns) >= BY_POSITION:
            return of_sources({source: position_after(cut) for source, cut in self.cuts.items()})
        is_pin = any(not kept.namespace.startswith(MIRROR) for kept in self.snapshots)  # it keeps raw tables too
        raise LakehouseError(
            f"{name} has no past: it is rebuilt with each load, or says nothing of commits. Query mirrors, current_… "
            "views, parsed, and hubs, links, satellites and their _v1 views; or "
            + ("another pin, as this one was made without it" if is_pin else "a pin, with --as-of-cut")
        )

    def source_of(self, name: TableName) -> str | None:
        """The source of a raw or parsed table, or of a mirror."""
        for own in ("raw_", MIRROR):
            if name.namespace.startswith(own):
                return name.namespace.removeprefix(own)
        if name.namespace != "parsed" or not name.name.startswith("parsed_"):
            return None
        meant = raw_tables_of(name.name.removeprefix("parsed_"))
        if len(meant) > 1:  # a parsed table is made of a raw one
            meant = [*(raw for raw in meant if self.kind_of(raw) is not None), *meant]
        return meant[0].namespace.removeprefix("raw_") if meant else None

    def cut_of(self, source: str, name: TableName) -> Cut:
        """The source's cut, which has to cover the table. Raises LakehouseError."""
        cut, table = self.cuts.get(source), raw_of(source, name).name
        if cut is None:
            raise LakehouseError(f"{name}: no cut of {source} was published until then, or its position is not given")
        if table not in cut.snapshots:
            raise LakehouseError(
                f"{name}: the cut {cut.position} does not cover {table}, which was not loaded yet, or was parked, "
                "paused or being resynced: ask for another moment"
            )
        return cut

    def covers(self, name: TableName) -> bool:
        """Whether a raw or parsed table was in the lake at its source's cut; also if that is not known."""
        source = self.source_of(name)
        cut = self.cuts.get(str(source))
        if cut is None:
            return source is None or not self.is_of_all
        return raw_of(cut.source, name).name in cut.snapshots

    def begun_since(self, name: TableName) -> datetime | None:
        """When a raw table, or that of a parsed one, was begun again after its source's cut; None if it was not."""
        source = str(self.source_of(name))
        cut, kind = self.cuts.get(source), self.kind_of(raw_of(source, name))
        begun, published = kind.begun_at if kind else None, cut.published_at if cut else None
        return begun if begun and published and published < begun else None

    def tables_below(self, name: TableName) -> set[TableName]:
        """The tables that a view reads, through other views too; a table reads itself."""
        kind = self.kind_of(name)
        if kind is None or kind.view is None:
            return {name}
        read = (self._name(table) for table in named_tables(parsed(kind.view)))
        return set().union(*(self.tables_below(found) for found in read if found is not None))


def tells(name: TableName, columns: Collection[str]) -> bool:
    """Whether the rows say of which commit they are, and those of earlier commits are there, too.

    A mart may have kept the columns that say it, and a source may have columns of these names itself: a mart and a
    mirror are made of the newest rows alone.
    """
    is_of_now = name.namespace == MARTS or name.namespace.startswith(MIRROR)
    return not is_of_now and (set(columns) >= BY_COMMIT or set(columns) >= BY_POSITION)


def raw_of(source: str, name: TableName) -> TableName:
    """The raw table of a parsed table of the source; a raw table is its own."""
    return TableName(f"raw_{source}", name.name.removeprefix(f"parsed_{source}__"))


def of_sources(before: Mapping[str, str | None]) -> str:
    """The rows of the vault that are of these sources, before a position of each where one is given, and ghosts."""
    parts = [f"record_source = {literal(GHOSTS)}"]
    for source, position in sorted(before.items()):
        of = f"starts_with(record_source, {literal(source + '.')})"
        parts.append(f"({of} AND source_seq < {literal(position)})" if position is not None else of)
    return " OR ".join(parts)


def below(cut: Cut) -> str:
    """The rows of raw or parsed that a cut has."""
    return f"(_epoch < {cut.epoch} OR (_epoch = {cut.epoch} AND _commit_lsn <= {cut.lsn}))"


def position_after(cut: Cut) -> str:
    """A `source_seq` above every row of the cut, and below all others: `~` comes after every digit."""
    return f"{cut.epoch:010d}.{cut.lsn:019d}.~"


def parsed(sql: str) -> exp.Query:
    """The one query of the text. Raises LakehouseError for another statement, several, or a function over tables."""
    try:
        statements = [found for found in sqlglot.parse(sql, dialect="trino") if found is not None]
        tokens = sqlglot.tokenize(sql, dialect="trino")
    except SqlglotError as error:
        raise LakehouseError(f"query: {shortened(' '.join(str(error).split()), 300)}") from None
    except Exception as error:  # for functions without the arguments that it expects there
        raise LakehouseError(
            f"query: it cannot be read ({type(error).__name__}): see that each function has all of its arguments"
        ) from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise LakehouseError("query: only one SELECT has a past")
    if any(is_table(token) and following.token_type == TokenType.L_PAREN for token, following in pairwise(tokens)):
        raise LakehouseError("query: functions that return tables have no past")
    return statements[0]


def unseen_names(sql: str, query: exp.Query) -> Iterator[list[str]]:
    """The names with dots in the text that the query as it was read does not have, by their parts."""
    seen = {found.meta.get("start") for found in query.find_all(exp.Identifier)}
    tokens, parts = sqlglot.tokenize(sql, dialect="trino"), list[Token]()
    for token, following in pairwise([*tokens, None]):
        assert token is not None
        if token.token_type == TokenType.DOT:
            continue
        parts.append(token)
        if following is None or following.token_type != TokenType.DOT:
            if len(parts) > 1 and parts[-1].start not in seen and parts[0].start not in seen:
                yield [part.text for part in parts]
            parts = []


def is_table(token: Token) -> bool:
    """Whether it is the word TABLE."""
    return token.text.upper() == "TABLE" and token.token_type != TokenType.STRING


def explicit_tables(sql: str) -> dict[int, int]:
    """Of queries such as `TABLE marts.dim_store`: where the name begins → where the query does."""
    tokens = sqlglot.tokenize(sql, dialect="trino")
    return {following.start: token.start for token, following in pairwise(tokens) if is_table(token)}


def named_tables(query: exp.Query) -> Iterator[exp.Table]:
    """Every mention of a relation. Raises LakehouseError for one whose place in the text is not known."""
    for table in query.find_all(exp.Table):
        if not all(isinstance(part, exp.Identifier) and "start" in part.meta for part in table.parts):
            raise LakehouseError(f"query: {table.sql(dialect='trino')} has no past")
        yield table


def is_with_query(table: exp.Table) -> bool:
    """Whether a name without a schema is that of a WITH query which is visible where it stands.

    A WITH query sees those before it, and itself in WITH RECURSIVE alone. A name that means something else in a view
    must not get into the reach of a WITH query of whoever asks.
    """
    name, below, node = table.name.lower(), id(table), table.parent
    while node is not None:
        if isinstance(node, exp.With):
            places = [id(cte) for cte in node.expressions]
            before = places.index(below) if below in places else 0
            found = node.expressions[: before + 1 if node.recursive and below in places else before]
            above = node.parent  # the query of this WITH, which shows no more of it
        else:
            found, above = node.args["with_"].expressions if node.args.get("with_") else [], node
        if any(cte.alias.lower() == name for cte in found):
            return True
        below, node = id(above), above.parent if above else None
    return False


def without_columns(sql: str, hidden: Collection[str]) -> str:
    """A query that does not select these columns at its outermost level; as it is where its rows depend on them."""
    query = parsed(sql)
    if not isinstance(query, exp.Select) or not hidden or any(map(query.args.get, ("distinct", "group", "order"))):
        return sql
    names = [found.alias_or_name.lower() for found in query.expressions]
    places = select_list(sqlglot.tokenize(sql, dialect="trino"))
    if not set(names) & set(hidden) or len(places) != len(names):
        return sql
    kept = [sql[first:end].strip() for name, (first, end) in zip(names, places, strict=True) if name not in hidden]
    return f"{sql[: places[0][0]]} {', '.join(kept)}{sql[places[-1][1] :]}"


def select_list(tokens: list[Token]) -> list[tuple[int, int]]:
    """Where each expression of the outermost SELECT begins, and where it ends."""
    found: list[tuple[int, int]] = []
    depth, first, last = 0, None, 0
    for token in tokens:
        if token.token_type == TokenType.R_PAREN:
            depth -= 1
        if depth == 0 and first is not None and token.token_type in (TokenType.COMMA, TokenType.FROM):
            found.append((first, last))
            first = token.end + 1
            if token.token_type == TokenType.FROM:
                return found
        if depth == 0 and first is None and token.token_type == TokenType.SELECT:
            first = token.end + 1
        if token.token_type == TokenType.L_PAREN:
            depth += 1
        last = token.end + 1
    return found
