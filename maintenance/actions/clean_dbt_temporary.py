"""Removes a model's temporary relations and objects of dbt once they are older than the model's limit.

A relation is dropped only if its metadata is old, no view names it, no other relation shares its location, no pin keeps
a snapshot of it, and no other table names its files: a backup relation is the model's table as it was. Objects
are deleted only if the newest below their prefix is old and no table in the lake refers to any of them.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakehouse.catalog.locations import one_spelling
from lakehouse.catalog.objects import list_objects
from lakehouse.catalog.pins import TAG
from lakehouse.catalog.relations import Relation, changed_at, list_relations, read_metadata, view_text
from lakehouse.catalog.writing.bulk_delete import delete_objects
from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.text.sql import relation as sql_relation
from maintenance.actions.action import action
from maintenance.actions.need import Need, Rate, Work
from maintenance.inventory.declared import MaintainedTable
from maintenance.inventory.health import Health
from maintenance.inventory.in_use import named
from maintenance.inventory.lake import Lake
from maintenance.inventory.outcome import Figures, Outcome, TableName
from maintenance.inventory.session import Session
from maintenance.inventory.temporary import Leftover, files_of_all_tables, leftovers, temporary_relations

if TYPE_CHECKING:
    from pyiceberg.table import Table

NAME = "clean_dbt_temporary"
READING = "read_metadata"  # of a table that keeps this action from all
RATE = Rate(0.5, 1e9, 0.002)


@action(NAME)
def clean_dbt_temporary(session: Session, table: TableName, policy: MaintenancePolicy) -> Outcome:
    """Drops the temporary relations of a model, then deletes temporary objects without a relation."""
    rule, lake = policy.clean_dbt_temporary, session.lake()
    assert rule is not None
    all_relations, all_prefixes = temporary_leftovers(session)
    relations, prefixes = all_relations.get(table, []), all_prefixes.get(table, [])
    if not (relations or prefixes):
        return Outcome(NAME, table, "skipped", "nothing temporary")
    limit = session.ago(rule.older_than_hours)
    verdicts: dict[Relation | Leftover, str | None] = {r: _why_kept(session, lake, r, limit) for r in relations}
    verdicts |= {leftover: _why_spared(session, lake, leftover, limit) for leftover in prefixes}
    removable = [item for item, reason in verdicts.items() if reason is None]
    kept = "; ".join(reason for reason in verdicts.values() if reason)
    if not removable:
        return Outcome(NAME, table, "skipped", kept)
    if session.dry_run:
        return Outcome(NAME, table, "planned", f"removes {_count(removable)}" + (f"; {kept}" * bool(kept)))
    gone = [item for item in removable if _remove(session, item, limit)]
    return _outcome(table, f"removed {_count(gone)}" + (f"; {kept}" * bool(kept)), gone, prefixes)


def inspect(session: Session, name: TableName, table: Table | None, policy: MaintenancePolicy) -> dict[str, Any]:
    """The model's temporary relations and objects older than the limit; the model itself may be missing."""
    if policy.clean_dbt_temporary is None:
        return {}
    lake, limit = session.lake(), session.ago(policy.clean_dbt_temporary.older_than_hours)
    all_relations, all_prefixes = temporary_leftovers(session)
    young = [r for r in all_relations.get(name, []) if _changed_since(lake, r.name, limit)]
    objects = [o for prefix in all_prefixes.get(name, []) if prefix.newest < limit for o in prefix.objects]
    count = len(all_relations.get(name, [])) - len(young) + len(objects)
    return {"temporary": count, "temporary_bytes": sum(stored.size for stored in objects)}


def _changed_since(lake: Lake, name: TableName, limit: datetime) -> bool:
    """Whether a table is younger than the limit; only the action checks a view's age."""
    table = lake.tables.get(name)
    return table is not None and table.metadata.last_updated_ms >= limit.timestamp() * 1000


def need(health: Health, policy: MaintenancePolicy) -> Need | None:
    """The bytes of the objects."""
    rule = policy.clean_dbt_temporary
    if rule is None or not health.temporary:
        return None
    reason = f"{health.temporary} temporary relations and objects older than {rule.older_than_hours:g} h"
    return Need(NAME, reason, Work(0, health.temporary), gain_bytes=health.temporary_bytes)


def strays(session: Session, declared: tuple[MaintainedTable, ...], group: str | None) -> tuple[MaintainedTable, ...]:
    """Undeclared models (views, removed models) with temporary relations or objects, of this group or of all.

    They get the policy with the longest limit in their schema; without one they are kept.
    """
    (relations, prefixes), known = temporary_leftovers(session), {table.name for table in declared}
    longest: dict[str, MaintainedTable] = {}
    for table in declared:
        if table.policy.clean_dbt_temporary is not None:
            current = longest.setdefault(table.name.namespace, table)
            longest[table.name.namespace] = max(current, table, key=_hours)
    found = {*relations, *prefixes} - known
    stray = (MaintainedTable(model, longest[model.namespace].policy) for model in sorted(found) if model[0] in longest)
    return tuple(table for table in stray if group in (None, table.policy.schedule_group))


def hindrances(session: Session) -> list[Outcome]:
    """Tables that cannot be read, while there are temporary objects: what these tables refer to is unknown, so the
    objects of all models stay."""
    _, prefixes = temporary_leftovers(session)
    error = (
        "its metadata cannot be read, so what it refers to is unknown, and temporary objects of dbt stay: bring its "
        "metadata file back, or drop the table"
    )
    return [Outcome(READING, name, "failed", error=error) for name in session.lake().unreadable if prefixes]


def temporary_leftovers(session: Session) -> tuple[dict[TableName, list[Relation]], dict[TableName, list[Leftover]]]:
    """Temporary relations and object prefixes by model, found once for all models."""
    lake = session.lake()

    def found() -> dict[TableName, list[Leftover]]:
        return leftovers(lake, session.settings.warehouse)

    return session.once("lake.temporary", lambda: (temporary_relations(lake), found()))


def _hours(table: MaintainedTable) -> float:
    rule = table.policy.clean_dbt_temporary
    return rule.older_than_hours if rule else -1


def _why_kept(session: Session, lake: Lake, relation: Relation, limit: datetime) -> str | None:
    metadata = read_metadata(session.io, relation.metadata_location)
    if metadata is None:
        return f"{relation.name} kept: its metadata file is gone, so its age is unknown; drop it by hand"
    if changed_at(metadata) >= limit:
        return f"{relation.name} kept: changed {changed_at(metadata):%Y-%m-%d %H:%M} UTC"
    if view := _view_naming(session, lake, relation):
        return f"{relation.name} kept: view {view} refers to it"
    neighbours = [r.name for r in lake.relations if r.location.startswith(relation.location) and r != relation]
    if neighbours:
        return f"{relation.name} kept: {neighbours[0]} shares its location"
    if pins := sorted(name.removeprefix(TAG) for name in metadata.get("refs", {}) if name.startswith(TAG)):
        return f"{relation.name} kept: pin {', '.join(pins)} keeps a snapshot of it"
    if other := _reading_files(session, relation):
        return f"{relation.name} kept: {other} refers to its files"
    return None


def _reading_files(session: Session, relation: Relation) -> TableName | None:
    """Another table that names files below the relation's location, such as a restored copy of what it was once."""
    others = ((name, files) for name, files in named(session).items() if name != relation.name)
    return next((name for name, files in others if any(path.startswith(relation.location) for path in files)), None)


def _view_naming(session: Session, lake: Lake, relation: Relation) -> TableName | None:
    word = re.compile(rf"\b{re.escape(relation.name.name)}\b")
    for view in lake.relations:
        if view.kind == "view" and view != relation:
            metadata = read_metadata(session.io, view.metadata_location)
            if metadata and word.search(view_text(metadata)):
                return view.name
    return None


def _why_spared(session: Session, lake: Lake, leftover: Leftover, limit: datetime) -> str | None:
    if leftover.newest >= limit:
        return f"{leftover.prefix} kept: written {leftover.newest:%Y-%m-%d %H:%M} UTC"
    if lake.unreadable:
        return f"{leftover.prefix} kept: {lake.unreadable[0]} is unreadable, so what it refers to is unknown"
    used = session.once("lake.files", lambda: files_of_all_tables(lake))
    if any(stored.path in used for stored in leftover.objects):
        return f"{leftover.prefix} kept: a table refers to it"
    return None


def _remove(session: Session, item: Relation | Leftover, limit: datetime) -> bool:
    return _drop(session, item) if isinstance(item, Relation) else _delete(session, item, limit)


def _drop(session: Session, relation: Relation) -> bool:
    """Drops it unless a dbt run has replaced it since."""
    if relation not in list_relations(session.catalog):
        return False
    session.trino(f"DROP {relation.kind.upper()} IF EXISTS {sql_relation(*relation.name)}")
    return True


def _delete(session: Session, leftover: Leftover, limit: datetime) -> bool:
    """Deletes the objects unless something has been written beside them since."""
    known, there = {stored.path for stored in leftover.objects}, list_objects(session.io, leftover.prefix)
    if any(stored.modified >= limit or one_spelling(stored.path) not in known for stored in there):
        return False
    delete_objects(session.io, known)
    return True


def _count(items: list[Relation | Leftover]) -> str:
    relations = sum(isinstance(item, Relation) for item in items)
    objects = sum(len(item.objects) for item in items if isinstance(item, Leftover))
    return f"{relations} relations, {objects} objects"


def _outcome(table: TableName, reason: str, gone: list[Relation | Leftover], prefixes: list[Leftover]) -> Outcome:
    there = [stored for prefix in prefixes for stored in prefix.objects]
    removed = [stored for item in gone if isinstance(item, Leftover) for stored in item.objects]
    before = Figures(files=len(there), bytes=sum(stored.size for stored in there))
    freed = sum(stored.size for stored in removed)
    after = Figures(files=len(there) - len(removed), bytes=(before.bytes or 0) - freed)
    return Outcome(
        NAME, table, "done", reason, before=before, after=after, removed_files=len(removed), removed_bytes=freed
    )
