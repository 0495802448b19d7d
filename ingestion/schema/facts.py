"""A table as its source describes it: columns, key, partitions, and what tells that one of them was altered."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from lakehouse.files.stored import known_fields
from lakehouse.text.sql import ident

TOPIC = "k"  # the relkind of a topic


@dataclass(frozen=True)
class ColumnFacts:
    """A published column: its base type behind any domain, the type that the stream names, its name in the lake.

    `prints` is what of the type's definition decides how values print: labels by the oids of enums' values, attributes
    by those of composites, and what tells of an alteration that was taken back. Descriptions of earlier versions have
    None there. `has_default_for_earlier_rows` holds for a partitioned table when it does for one of its partitions.
    `mask` is how its values were declared to land, "" as they are; None of an earlier version, which does not tell.
    """

    name: str
    number: int
    declared_type: str
    type_oid: int
    type_name: str
    type_kind: str
    typmod: int
    stream_oid: int
    stream_typmod: int
    output_function: str
    has_default_for_earlier_rows: bool = False
    lake: str = ""
    prints: tuple[tuple[str, str], ...] | None = None
    mask: str | None = None

    @property
    def printed(self) -> str:
        """SQL for the column's values as their type's output function prints them, which is what the stream carries.

        A cast to text is not the same: it strips the padding of char(n) and spells booleans and addresses differently.
        Of an enum it is, and no other type's output function refuses a domain over it.
        """
        if self.type_kind == "e":
            return f"{ident(self.name)}::pg_catalog.text"
        return f"pg_catalog.textin({self.output_function}({ident(self.name)}))"


@dataclass(frozen=True)
class Leaf:
    """A partition that holds rows itself; `changed_by` is the transaction that last wrote its pg_class row."""

    oid: int
    name: str
    filenode: int
    changed_by: int
    has_rows: bool = True


@dataclass(frozen=True)
class TableFacts:
    """A table as the source has it, in the columns that are published and not excluded.

    `member` is the oid of its membership in the publication (0: published otherwise), `publishes` what the publication
    says beside that, `hidden` are number and name of the columns that do not land, `gone` the raw table's columns that
    the source has no more, `lsn` is a position at which the table surely was as described: what the stream carries from
    there on is of this form or a newer one. `edges` are the oid of each partition below the root and the transaction
    that attached it, `attribute_rows` the number of every column there ever was and the transaction that last altered
    it; descriptions of earlier versions have None there. `enforced_by` are the oids of unique indexes that keep every
    row from another one's declared key at once; a description of an earlier version names none.
    `format` is how the values of a topic are written; a table of a database has none, and it says nothing there.
    `is_partition` says that it is one of another table.
    `captured` is the relation whose changes Debezium writes to a topic, as `split_relation` reads it.
    `keyed_by` are the numbers of the columns that rows were last declared to be told apart by, in their order: none
    where they never were; None of an earlier version, which does not tell.
    """

    oid: int
    filenode: int | None
    relkind: str
    replica_identity: str
    key: tuple[str, ...]
    columns: tuple[ColumnFacts, ...]
    relation: tuple[str, str] = ("", "")
    changed_by: int = 0
    member: int = 0
    leaves: tuple[Leaf, ...] = ()
    hidden: tuple[tuple[int, str], ...] = ()
    lsn: int = 0
    publishes: str = ""
    gone: tuple[str, ...] = ()
    edges: tuple[tuple[int, int], ...] | None = None
    enforced_by: tuple[int, ...] = ()
    attribute_rows: tuple[tuple[int, int], ...] | None = None
    format: str = "json"
    is_partition: bool = False
    captured: str = ""
    keyed_by: tuple[int, ...] | None = None

    @property
    def names(self) -> frozenset[str]:
        """The names of its columns, also of those that do not land."""
        return frozenset({column.name for column in self.columns} | {name for _, name in self.hidden})

    @property
    def identity(self) -> frozenset[str]:
        """The columns of its replica identity."""
        return self.names if self.replica_identity == "f" else frozenset(self.key)

    @property
    def told_apart_by(self) -> tuple[str, ...]:
        """The columns that rows were last declared to be told apart by."""
        return tuple(column.name for column in self.columns if column.number in (self.keyed_by or ()))

    @property
    def oids(self) -> frozenset[int]:
        """The oids of the relation and of its partitions that hold rows."""
        return frozenset({self.oid, *(leaf.oid for leaf in self.leaves)})

    @property
    def without_columns(self) -> "TableFacts":
        """What a table goes on from whose earlier description is not kept: all of its columns are new."""
        return replace(self, columns=())

    def to_json(self) -> dict[str, Any]:
        """A JSON form that `facts_from_json` reads back."""
        return asdict(self)


def facts_from_json(stored: Mapping[str, Any]) -> TableFacts:
    """The facts that were kept with the table's position."""
    columns = tuple(column_facts(column) for column in stored["columns"])
    leaves = tuple(Leaf(**known_fields(Leaf, leaf)) for leaf in stored.get("leaves", ()))
    hidden = tuple((number, name) for number, name in stored.get("hidden", ()))
    edges = None if stored.get("edges") is None else tuple((oid, attached_by) for oid, attached_by in stored["edges"])
    rows = stored.get("attribute_rows")
    attribute_rows = None if rows is None else tuple((number, altered_by) for number, altered_by in rows)
    names = ("key", "relation", "gone", "enforced_by", "keyed_by")
    lists = {name: tuple(stored[name]) for name in names if stored.get(name) is not None}
    nested = {"columns": columns, "leaves": leaves, "hidden": hidden, "edges": edges, "attribute_rows": attribute_rows}
    return TableFacts(**(known_fields(TableFacts, stored) | lists | nested))


def column_facts(given: Mapping[str, Any]) -> ColumnFacts:
    """The facts of a column from its JSON form, or from a row of the source's catalog."""
    prints = given.get("prints")
    printed = None if prints is None else tuple((part, says) for part, says in prints)
    return ColumnFacts(**known_fields(ColumnFacts, given) | {"prints": printed})
