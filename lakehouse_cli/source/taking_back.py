"""What a source keeps for the lake, found, and taken back: as the owner where its URL is known."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from lakehouse.errors import LakehouseError
from lakehouse.servers.embedded import embedded_sources
from lakehouse.settings import Settings
from lakehouse.text.shown import say
from lakehouse.text.sql import literal
from lakehouse.text.urls import parse_url
from lakehouse_cli.slots_left import slots_left

if TYPE_CHECKING:
    from ingestion.sources.postgres.setup import Kept
    from lakehouse.declarations import Declarations

Relation = tuple[str, str]
Relations = Mapping[str, Collection[Relation]]


def relations_of(declarations: "Declarations") -> Relations:
    """The relations that are declared of each source."""
    return {source.name: [table.relation for table in source.tables] for source in declarations.sources}


def kept_by(
    settings: Settings, source: str, declared: Relations, only: Relation | None = None, table: str = ""
) -> "Kept":
    """What the source keeps for the lake, or of `only` one relation; a source of topics keeps nothing.

    A relation that was renamed since the lake read it, as that `table`, is known by its oid.
    Of its publication, relations that are `declared` or were ingested are its own; where none is, all of them if the
    lake has, or had, a slot of the source, else none: another project may have prepared it. What other sources of the
    project have of the same database stays theirs.
    """
    from ingestion.sources.postgres.setup import Kept, had_slot, kept, relations_met, slot_of

    def known(name: str) -> set[Relation]:
        return {*declared.get(name, ()), *relations_met(settings, name)}

    if (kind := settings.connection(source).kind) != "postgres":
        _refuse_slot_of_former_kind(settings, source, kind)
        return Kept()
    beside = [
        name for name in settings.databases if name != source and _place(settings, name) == _place(settings, source)
    ]
    theirs = set[Relation]().union(*map(known, beside))
    if only is None:
        ours, others = known(source) - theirs, theirs
    else:
        rest = {*declared.get(source, ()), *theirs} - {only}
        ours = {only, *relations_met(settings, source, [table])} - rest - theirs
        others = (known(source) | theirs) - ours
    slots = {slot for name in beside if (slot := slot_of(settings, name))}
    is_all = not (ours or theirs) and had_slot(settings, source)
    return kept(
        settings, source, slot_of(settings, source), None if is_all else ours,
        whole=only is None and not slots, beside=slots, others=others,
    )  # fmt: skip


def _refuse_slot_of_former_kind(settings: Settings, source: str, kind: str) -> None:
    """Raises LakehouseError where a source was read by a slot, which its connection of another kind does not reach."""
    from ingestion.state.store import connect_catalog, kind_of

    if slot := (slots_left(settings) or {}).get(source):
        with connect_catalog(settings) as states:
            was = kind_of(states, source)
        if was == "postgres":
            raise LakehouseError(
                f"source {source!r} was read by the slot {slot}, and its connection is of kind {kind} now, by which no "
                "slot can be dropped: set the former connection, then run this again"
            )


def take_back(settings: Settings, source: str, declared: Relations, dry_run: bool) -> "Kept":
    """Drops the slot, and runs or prints what the owner takes back, for whoever keeps the source from being ingested;
    returns what the source kept."""
    from ingestion.sources.postgres.setup import drop_slot, forget_slot, had_slot

    keeps = kept_by(settings, source, declared)
    if keeps.slot is not None:
        if not dry_run:
            drop_slot(settings, source, keeps.slot)
        say(f"{source}: slot {keeps.slot} {'would be dropped' if dry_run else 'dropped'}")
    by_owner(settings, source, keeps, dry_run)
    if not dry_run and settings.connection(source).kind == "postgres" and had_slot(settings, source):
        forget_slot(settings, source)  # last: whoever is interrupted can run all of it again
    return keeps


def tell_of_connector(settings: Settings, source: str) -> None:
    """Says what stays of a source in topics of Debezium: the lake has made none of it, and asks no broker."""
    from ingestion.sources.debezium.connector import slots_behind
    from ingestion.state import store
    from lakehouse_stack.control.inspect import connect_address

    if settings.connection(source).kind != "debezium":
        return
    stays = "its topics stay, and the connector that fills them, with its slot and publication: whoever declares the"
    say(f"{source}: {stays} source again reads on. To end it, remove the connector from Kafka Connect first")
    if (connect := connect_address(settings)) is not None and source in embedded_sources(settings):
        say(f"curl -X DELETE {connect}/connectors/{source}")
    if settings.debezium(source).url is None:
        return
    try:
        with store.connect_catalog(settings) as states:
            store.ensure_state(states)
            own = store.read_slots(states).values()
        slots = slots_behind(settings, source, own)
    except LakehouseError as error:
        say(f"{source}: then drop its slot: which one it is cannot be asked ({error})")
        return
    for slot, is_read in slots.items():
        now = "which is being read" if is_read else "which nobody reads: its server keeps WAL for it"
        say(f"{source}: then drop its slot, if it is {slot}, {now}: SELECT pg_drop_replication_slot({literal(slot)})")


def by_owner(settings: Settings, source: str, keeps: "Kept", dry_run: bool) -> None:
    """Runs what is due as the owner, if its URL is known, and prints it; tells what stays, and why."""
    from ingestion.sources.postgres.setup import run_as_owner

    if keeps.due and settings.source(source).owner_url is None:
        say(f"-- {source}: run this as the owner of its tables")
    elif keeps.due and not dry_run:
        run_as_owner(settings, source, keeps.due)
    if keeps.statements and keeps.readers:
        drops = "; ".join(f"SELECT pg_drop_replication_slot({literal(slot)})" for slot in keeps.readers)
        say(
            f"-- {source}: this stays, because slot {', '.join(keeps.readers)} may read the publication; if nobody "
            f"reads by that any more, drop it ({drops}), and run this as the owner of the tables"
        )
    for statement in keeps.statements:
        say(f"{statement};")
    for line in keeps.stays:
        say(f"{source}: {line}")


def _place(settings: Settings, source: str) -> tuple[str, int, str]:
    return parse_url(settings.source(source).url.get_secret_value()).place
