"""The kinds of sources: what the declaration of a raw table says in each of them."""

from collections.abc import Iterator
from typing import Literal, Protocol

from lakehouse.declarations.lines import OF_TABLE
from lakehouse.declarations.policies import RawPolicy
from lakehouse.declarations.vault.problems import Problem

Kind = Literal["postgres", "kafka", "debezium"]
OF_POSTGRES = frozenset({"exclude", "changes"})


class _Column(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def data_type(self) -> str | None: ...


NO_FLUSH = {
    "postgres": "the slot would retain its WAL until the flush",
    "debezium": "transactions would be joined again from the last publish with each read",
}


def kind_problems(
    kind: Kind, raw: RawPolicy, columns: tuple[_Column, ...], *, flushes: bool = False
) -> Iterator[Problem]:
    """Mistakes of a table of this kind, each with the path of the key below `meta` that is wrong."""
    if flushes and kind in NO_FLUSH:
        yield ("flush",), f"meta.flush: only for sources of kind kafka: of kind {kind}, {NO_FLUSH[kind]}"
    if kind == "postgres":
        if not raw.relation:
            yield ("raw", "relation"), "meta.raw.relation: Field required"
        for key in sorted({"topic", "format"} & raw.model_fields_set):
            yield ("raw", key), f"meta.raw.{key}: only for sources that declare meta.kind: kafka or debezium"
        return
    if not raw.topic:
        yield ("raw", "topic"), f"meta.raw.topic: Field required in a source of kind {kind}"
    for key in sorted(({"relation", "exclude", "changes"} if kind == "kafka" else OF_POSTGRES) & raw.model_fields_set):
        says = f"not in a source of kind {kind}, where exactly the declared columns land"
        yield ("raw", key), f"meta.raw.{key}: {says}"
    if untyped := [column.name for column in columns if column.data_type is None]:
        yield (
            (OF_TABLE, "columns", untyped[0]),
            f"column {', '.join(untyped)} needs a data_type: the events of a topic do not tell it",
        )
