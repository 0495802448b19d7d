"""What a source keeps for the lake, found, and taken back: as the owner where its URL is known."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from lakehouse.errors import LakehouseError
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


def kept_by(settings: Settings, source: str, declared: Relations, only: Relation | None = None) -> "Kept":
    """What the source keeps for the lake, or of `only` one relation; a source of topics keeps nothing.

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
    ours = ({only} if only else known(source)) - theirs
    slots = {slot for name in beside if (slot := slot_of(settings, name))}
    is_all = not (ours or theirs) and had_slot(settings, source)
    return kept(
        settings, source, slot_of(settings, source), None if is_all else ours,
        whole=only is None and not slots, beside=slots,
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
    url = parse_url(settings.source(source).url.get_secret_value())
    return url.host, url.port, url.database
