"""What a source keeps for the lake, taken back: the slot, the publication, and the rights of the run-time role.

What others may use of it stays: a publication that another slot may read, its tables that are not the project's, and
the rights on tables that another publication carries.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ingestion.sources.postgres import connection as src
from ingestion.sources.postgres.connection import connect_source
from ingestion.sources.postgres.setup.given import (
    Given,
    Relation,
    carried_too,
    of_nobody,
    of_others,
    read_given,
    readable_still,
    taking_back,
)
from ingestion.sources.postgres.setup.owner import as_owner
from ingestion.sources.postgres.setup.readers import possible_readers
from ingestion.state import store
from lakehouse.settings import Settings
from lakehouse.text.sql import typed_ident, typed_relation
from lakehouse.text.urls import parse_url

LISTED = 5  # relations that a line names
# By the oids that the lake knows, which mean something in the database alone whose publication it has read.
_NAMED_NOW = """
SELECT n.nspname::text, c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE EXISTS (SELECT FROM pg_publication WHERE oid = %s) AND c.oid = ANY (%s::oid[])
"""


@dataclass(frozen=True)
class Kept:
    """What a source keeps for the lake: its slot, and what the owner has to run to take back the rest.

    While one of `readers`, slots of others, may read the publication, that is not to be run. `stays` tells of what is
    no part of it.
    """

    slot: str | None = None
    statements: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to take back."""
        return self.slot is None and not self.statements

    @property
    def due(self) -> tuple[str, ...]:
        """What the owner has to run now."""
        return () if self.readers else self.statements


def slot_of(settings: Settings, source: str) -> str | None:
    """The slot that the source keeps for this lake; None where it keeps none."""
    slot, is_there = _slot_of(settings, source)
    return slot if is_there else None


def had_slot(settings: Settings, source: str) -> bool:
    """Whether the source keeps a slot for this lake, or kept one whose removal did not come to its end."""
    slot, _ = _slot_of(settings, source)
    return slot is not None


def _slot_of(settings: Settings, source: str) -> tuple[str | None, bool]:
    """The slot that the lake knows as its own, and whether it is there.

    A slot beyond the lake's position was made again since it was dropped, by somebody else.
    """
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        stream = store.read_stream(states, source)
    if stream is None or not stream.slot:
        return None, False
    with connect_source(settings, source) as connection:
        slot = src.read_slot(connection, stream.slot)
    is_of_another = slot is not None and stream.kind == "postgres" and 0 < stream.position < slot.confirmed_lsn
    return None if is_of_another else stream.slot, slot is not None


def relations_met(settings: Settings, source: str, tables: Collection[str] | None = None) -> set[Relation]:
    """The relations of the tables that the lake has ingested of a source, declared or not, or of those `tables`: by the
    names that they had when they were described, and by those that they have now."""
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        stream, positions = store.read_stream(states, source), store.read_positions(states, source, tables).values()
    described = [position.versions[-1] if position.versions else position.former for position in positions]
    known = [facts for facts in described if facts is not None and any(facts.relation)]
    named = {facts.relation for facts in known}
    if not known or stream is None or stream.kind != "postgres":
        return named
    with connect_source(settings, source) as connection:
        rows = connection.execute(_NAMED_NOW, (stream.publication_oid, [facts.oid for facts in known])).fetchall()
    return named | set(rows)


def drop_slot(settings: Settings, source: str, slot: str) -> None:
    """Drops the slot, for whoever keeps the source from being ingested; raises LakehouseError while something reads it.

    The lake keeps its state: whoever ingests the source again has to `--recover` it.
    """
    with connect_source(settings, source) as connection:
        src.free_slot(connection, source, slot)
        src.drop_slot(connection, slot)


def forget_slot(settings: Settings, source: str) -> None:
    """One of that name that is made from now on is somebody else's. Until then, what is left is known to be ours."""
    with store.connect_catalog(settings) as states:
        store.note_slot(states, source, "")


def kept(
    settings: Settings, source: str, slot: str | None, ours: Collection[Relation] | None = None, *,
    whole: bool = True, beside: Collection[str] = (), others: Collection[Relation] = (),
) -> Kept:  # fmt: skip
    """What the source keeps, of `ours` alone if these are given; `slot` is what `slot_of` found.

    A `whole` publication goes with what it has of ours. Slots `beside` it are this lake's and read none of ours.
    Relations of the project that are not `ours` are `others`: what is neither is told.
    """
    configured = settings.source(source)
    role, publication = parse_url(configured.url.get_secret_value()).user, configured.publication
    with connect_source(settings, source) as connection:
        if connection.execute("SELECT FROM pg_publication WHERE pubname = %s", (publication,)).fetchone() is None:
            return Kept(slot)
        given = read_given(connection, role)
        readers = possible_readers(settings, source, connection, publication, {slot, *beside})
    statements = taking_back(given, publication, role, ours, whole=whole)
    stays = [*_staying(given, publication, ours, whole), *_strange(given, publication, role, ours, others, whole)]
    return Kept(slot, tuple(statements), tuple(readers), tuple(stays))


def named_of(settings: Settings, source: str) -> list[str]:
    """The slot and the publication that the source has by the names in the settings, whoever made them."""
    publication = settings.source(source).publication
    with connect_source(settings, source) as connection:
        slot = settings.source(source).slot or f"lakehouse_{source}"
        found = [f"slot {slot}"] if src.read_slot(connection, slot) else []
        if connection.execute("SELECT FROM pg_publication WHERE pubname = %s", (publication,)).fetchone():
            found.append(f"publication {publication}")
    return found


def run_as_owner(settings: Settings, source: str, statements: Sequence[str]) -> None:
    """Runs all of them, or none: raises LakehouseError naming what failed."""
    with as_owner(settings, source, "publication and rights could not be taken back, and stay") as owner:
        for statement in statements:
            owner.execute(statement)


def _staying(given: Given, publication: str, ours: Collection[Relation] | None, whole: bool) -> Iterator[str]:
    if whole and (tables := of_others(given, publication, ours)):
        listed = ", ".join(typed_relation(*table) for table in tables)
        yield f"publication {publication} stays with {listed}, which is none of the project's"
    if names := carried_too(given, publication, ours):
        yield f"rights stay on what publication {', '.join(names)} carries as well"


def _strange(
    given: Given,
    publication: str,
    role: str,
    ours: Collection[Relation] | None,
    others: Collection[Relation],
    whole: bool,
) -> Iterator[str]:
    """What is of no table that the project knows: renamed before it was ingested, or somebody else's."""
    if ours is None:
        return
    if not whole and (strange := of_nobody(given, publication, {*ours, *others})):
        drop = f"ALTER PUBLICATION {typed_ident(publication)} DROP TABLE"
        yield (
            f"publication {publication} has {_listed(strange)} too, which no table of the project is. If that is the "
            f"table by a new name, run as the owner: {drop} {typed_relation(*strange[0])}; "
            f"REVOKE SELECT ON {typed_relation(*strange[0])} FROM {typed_ident(role)}"
        )
    if still := readable_still(given, set(others) - set(ours)):
        yield (
            f"role {role} has rights on {_listed(still)} still, which no publication carries. If the lake alone needed "
            f"them, run as the owner: REVOKE SELECT ON {typed_relation(*still[0])} FROM {typed_ident(role)}"
        )


def _listed(relations: Sequence[Relation]) -> str:
    more = f" and {len(relations) - LISTED} more" if len(relations) > LISTED else ""
    return ", ".join(typed_relation(*relation) for relation in relations[:LISTED]) + more
