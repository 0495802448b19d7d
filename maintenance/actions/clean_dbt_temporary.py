"""Removes dbt's temporary relations and objects, of one model, once they are older than the model's limit.

Nothing younger is dropped and nothing that is referred to: a relation goes only when its metadata is old, no view
names it and no other relation shares its location; objects go only when the newest below their prefix is old and no
table in the lake refers to one of them.
"""

from __future__ import annotations

import re
from datetime import datetime

from lakehouse.catalog.relations import Relation, changed_at, list_relations, read_metadata, view_text
from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.text.sql import relation as sql_relation
from maintenance.actions.action import action
from maintenance.inventory.declared import MaintainedTable
from maintenance.inventory.lake import Lake, list_objects
from maintenance.inventory.outcome import Figures, Outcome, TableName
from maintenance.inventory.session import Session
from maintenance.inventory.temporary import Leftover, files_of_all_tables, leftovers, temporary_relations

NAME = "clean_dbt_temporary"


@action(NAME)
def clean_dbt_temporary(session: Session, table: TableName, policy: MaintenancePolicy) -> Outcome:
    """Drops the temporary relations of a model, then deletes what lies in the store without a relation."""
    rule, lake = policy.clean_dbt_temporary, session.lake()
    if rule is None:
        return Outcome(NAME, table, "skipped", "the policy has no clean_dbt_temporary part")
    all_relations, all_prefixes = temporary_things(session)
    relations, prefixes = all_relations.get(table, []), all_prefixes.get(table, [])
    if not (relations or prefixes):
        return Outcome(NAME, table, "skipped", "nothing temporary")
    limit = session.ago(rule.older_than_hours)
    verdicts: dict[Relation | Leftover, str | None] = {r: _why_kept(session, lake, r, limit) for r in relations}
    verdicts |= {leftover: _why_spared(session, lake, leftover, limit) for leftover in prefixes}
    condemned = [item for item, reason in verdicts.items() if reason is None]
    kept = "; ".join(reason for reason in verdicts.values() if reason)
    if not condemned:
        return Outcome(NAME, table, "skipped", kept)
    if session.dry_run:
        return Outcome(NAME, table, "planned", f"removes {_count(condemned)}" + (f"; {kept}" * bool(kept)))
    gone = [item for item in condemned if _remove(session, item, limit)]
    return _outcome(table, f"removed {_count(gone)}" + (f"; {kept}" * bool(kept)), gone, prefixes)


def strays(session: Session, declared: tuple[MaintainedTable, ...]) -> tuple[MaintainedTable, ...]:
    """Models with temporary things but no declaration (a view, or a model that was removed).

    They follow the policy of their schema's declared model that waits longest; where there is none they stay.
    """
    (relations, prefixes), known = temporary_things(session), {table.name for table in declared}
    longest: dict[str, MaintainedTable] = {}
    for table in declared:
        if table.policy.clean_dbt_temporary is not None:
            current = longest.setdefault(table.name.namespace, table)
            longest[table.name.namespace] = max(current, table, key=_hours)
    found = {*relations, *prefixes} - known
    return tuple(
        MaintainedTable(model, longest[model.namespace].policy) for model in sorted(found) if model.namespace in longest
    )


def temporary_things(session: Session) -> tuple[dict[TableName, list[Relation]], dict[TableName, list[Leftover]]]:
    """Temporary relations and left-over prefixes by model, found once for all models."""
    lake = session.lake()
    return session.once("lake.temporary", lambda: (temporary_relations(lake), leftovers(lake)))


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
    return None


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
    """Drops it unless a dbt run has made it anew since the look."""
    if relation not in list_relations(session.catalog):
        return False
    session.trino(f"DROP {relation.kind.upper()} IF EXISTS {sql_relation(*relation.name)}")
    return True


def _delete(session: Session, leftover: Leftover, limit: datetime) -> bool:
    """Deletes the prefix unless something has been written below it since the look."""
    if any(stored.modified >= limit for stored in list_objects(session.io, leftover.prefix)):
        return False
    scheme, authority, path = session.io.parse_location(leftover.prefix, session.io.properties)
    session.io.fs_by_scheme(scheme, authority).delete_dir(path.rstrip("/"))
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
