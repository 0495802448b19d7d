"""Which role reads what in Trino: its rules, made from the declarations and dbt's graph. Pure, but for the file.

`writer` is the pipeline. `reader` sees marts, current views, mirrors, parsed and the vault, without personal data;
`privacy` sees that too. Raw, stages and the lake's own tables are the writer's. What no rule names is closed. A login
that reads some namespaces only is in groups of its role and theirs, `reader@marts`, which the rules name as well.

Personal data goes where a column of its name goes: a relation hides every personal name of the raw tables above it,
whether it has such a column or not. A model that renames personal data has to declare it. Hubs and links as the
scaffold writes them pass nothing on, because no key is personal (V8).

Tables keep columns that are declared no more, and their snapshots keep the former names. So a name that was personal
once stays hidden, until a column of that name is declared, and lands, that is not personal. What a relation was made of
once counts like what it is made of. Both are remembered beside the rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lakehouse.declarations.access.keys_alone import keys_alone
from lakehouse.declarations.access.model_policies import Policies, described, making, policies_of
from lakehouse.declarations.dbt.lineage import parents, place
from lakehouse.declarations.declared import Declarations, RawTable
from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_shared
from lakehouse.servers.logins import WRITER, Role

CATALOG = "lake"
OPEN = frozenset({"parsed", "vault", "marts"})  # schemas whose relations readers may read, unless one says otherwise
PREPARED = "stage"  # folder of views with all columns of a source, between parsed and the vault
RULES, RELATIONS = "rules.json", "relations.json"
REMEMBERED, ABOVE = "personal.json", "personal_above.json"
READERS = "(reader|privacy)(@.+)?"
"""The groups of all logins that read, be it everywhere or in some namespaces."""
ALL = ("SELECT", "INSERT", "DELETE", "UPDATE", "OWNERSHIP", "GRANT_SELECT")
ANY_ROW = "true"
"""A filter that drops nothing. Trino asks no rule whether somebody may run `ALTER TABLE … EXECUTE`, which can roll a
table back; but it refuses that on a table with a row filter."""


class Relation(NamedTuple):
    """A table or view, the least role that reads it, and the columns that it hides from `reader`."""

    schema: str
    name: str
    least: Role
    personal: frozenset[str] = frozenset()


Names = Mapping[str, frozenset[str]]
"""Raw table (`raw_shop.orders`) or model (`marts.report`) → its own columns that are not for readers; or relation → the
raw tables and models with such columns that it is made of, itself too."""
OWN = (Relation("meta", "cuts", "reader"), Relation("meta", "mirrors", "reader"))
"""Those of the lake's own tables that say nothing of anybody."""


def write_rules(folder: Path, manifest: Mapping[str, Any], declarations: Declarations, project_dir: Path) -> None:
    """Writes the rules where they differ; Trino reads them within seconds. Raises LakehouseError for a wrong policy."""
    policies = policies_of(manifest, project_dir)
    hidden = not_for_readers(manifest, declarations, policies, read_remembered(folder / REMEMBERED))
    above = personal_above(manifest, declarations, hidden, read_remembered(folder / ABOVE))
    found = relations(manifest, declarations, policies, hidden, above)
    write_remembered(folder / REMEMBERED, hidden)
    write_remembered(folder / ABOVE, above)
    _write(folder / RULES, rules(found))
    _write(folder / RELATIONS, {"relations": [{**r._asdict(), "personal": sorted(r.personal)} for r in found]})


def read_remembered(file: Path) -> Names:
    """What such a file holds; nothing where there is none yet."""
    listed = json.loads(file.read_text()) if file.exists() else {}
    return {table: frozenset(names) for table, names in listed.items()}


def write_remembered(file: Path, names: Names) -> None:
    """Writes it down where it differs."""
    _write(file, {name: sorted(found) for name, found in sorted(names.items())})


def read_relations(folder: Path) -> tuple[Relation, ...]:
    """The relations that the rules were made from, for servers other than Trino; none where there is no file yet.

    Raises LakehouseError for a file that is cut off, or otherwise not one of ours.
    """
    file = folder / RELATIONS
    try:
        listed = json.loads(file.read_text())["relations"] if file.exists() else ()
        return tuple(Relation(r["schema"], r["name"], r["least"], frozenset(r["personal"])) for r in listed)
    except (ValueError, LookupError, TypeError):
        raise LakehouseError(f"{file} cannot be read: `lakehouse doctor` writes it anew") from None


def namespaces_read(folder: Path, role: Role) -> frozenset[str]:
    """The namespaces in which the role reads something by the rules as they are; raises as `read_relations`."""
    return frozenset(found.schema for found in read_relations(folder) if found.least in {"reader", role})


def ensure_rules(folder: Path) -> None:
    """Rules by which nobody but the writer reads anything, until the declarations have been read."""
    if not (folder / RULES).exists():
        _write(folder / RULES, rules(()))


def not_for_readers(
    manifest: Mapping[str, Any], declarations: Declarations, policies: Policies, before: Names
) -> dict[str, frozenset[str]]:
    """The columns of each raw table that are personal or were so once, as Trino calls them, and those of each model."""
    found = dict(before)

    def note(name: str, personal: frozenset[str], declared: frozenset[str]) -> None:
        found[name] = personal | (before.get(name, frozenset()) - declared)

    for table in declarations.tables:
        personal = _names(table, (*table.personal, *table.raw.personal))  # also those that land no more
        note(".".join(table.identifier), personal, _names(table, table.landed))
    nodes = making(manifest)
    for key, policy in policies.items():
        note(_name(nodes[key]), frozenset(name.lower() for name in policy.personal), described(nodes[key]))
    return {name: columns for name, columns in found.items() if columns}


def personal_above(
    manifest: Mapping[str, Any], declarations: Declarations, hidden: Names, before: Names
) -> dict[str, frozenset[str]]:
    """What has columns that are not for readers and is above each of dbt's relations, or was so once."""
    models, nodes, made_of = _models(manifest), making(manifest), parents(manifest)
    renamed = frozenset[str]().union(*(hidden.get(_name(node), ()) for node in nodes.values()))
    alone = keys_alone(models, declarations, renamed, frozenset[str]().union(*hidden.values()))
    named = {**manifest["sources"], **nodes}

    def above(key: str) -> frozenset[str]:
        seen, waiting = set[str](), [key]
        while waiting:
            at = waiting.pop()
            if at not in seen:
                seen.add(at)
                waiting += () if at in alone else made_of.get(at, ())
        names = {_name(named[at]) for at in seen & named.keys()}
        return frozenset(names & hidden.keys()).union(*(before.get(name, ()) for name in names))

    made = {_name(node): above(key) for key, node in models.items()}
    return {**before, **{name: names for name, names in made.items() if names}}


def relations(
    manifest: Mapping[str, Any], declarations: Declarations, policies: Policies, hidden: Names, above: Names
) -> tuple[Relation, ...]:
    """Every relation that dbt makes, and the lake's own that are not the writer's alone."""
    models = _models(manifest)
    satellites = _personal_satellites(declarations)
    made = [
        Relation(
            node["schema"],
            node["alias"],
            policies[key].access or _least(node, satellites),
            frozenset[str]().union(*(hidden.get(name, ()) for name in above.get(_name(node), ()))),
        )
        for key, node in models.items()
    ]
    return (*OWN, *sorted((*made, *_mirrors(declarations, made))))


def _models(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {key: node for key, node in manifest["nodes"].items() if node["resource_type"] == "model"}


def _name(node: Mapping[str, Any]) -> str:
    """Of a model or a source."""
    return ".".join(place(node))


def _mirrors(declarations: Declarations, made: Iterable[Relation]) -> Iterator[Relation]:
    """Mirrors are read by whom the current view is read; without one they are the writer's."""
    views = {relation.name: relation for relation in made if relation.schema == "parsed"}
    for table in (table for source in declarations.sources for table in source.mirrored):
        if (view := views.get(f"current_{table.source}__{table.name}")) is not None:
            yield Relation(*table.mirror_identifier, view.least, view.personal)


def rules(found: Iterable[Relation]) -> dict[str, Any]:
    """The text of Trino's rules.json. The first rule that fits decides."""
    return {
        "catalogs": [
            {"group": "writer", "allow": "all"},
            {"group": READERS, "catalog": CATALOG, "allow": "read-only"},
            {"group": READERS, "catalog": "system", "allow": "read-only"},
        ],
        "schemas": [{"group": "writer", "owner": True}, {"owner": False}],
        "tables": [
            {"group": "writer", "privileges": ALL},
            {"group": READERS, "catalog": "system", "schema": "jdbc|metadata", "privileges": ["SELECT"]},
            {"group": READERS, "catalog": "system", "schema": "runtime", "table": "queries", "privileges": ["SELECT"]},
            *(rule for relation in found for rule in _table_rules(relation)),
            {"privileges": [], "filter": ANY_ROW},
        ],
        "queries": [
            {"group": "writer", "allow": ["execute", "view", "kill"]},
            {"group": READERS, "allow": ["execute"]},
            {"allow": []},
        ],
        "procedures": [{"group": "writer", "privileges": ["EXECUTE", "GRANT_EXECUTE"]}, {"privileges": []}],
        "functions": [{"group": "writer", "privileges": ["EXECUTE", "GRANT_EXECUTE", "OWNERSHIP"]}, {"privileges": []}],
        "system_information": [{"user": WRITER, "allow": ["read"]}],
    }


def _table_rules(relation: Relation) -> list[dict[str, Any]]:
    """Names are regular expressions there, and columns that are not there do no harm."""
    place = {"catalog": CATALOG, "schema": re.escape(relation.schema), "table": re.escape(relation.name)}
    reads = {**place, "privileges": ["SELECT"], "filter": ANY_ROW}
    here = f"(@{place['schema']})?"
    privacy = {"group": f"privacy{here}", **reads}
    if relation.least == "writer":
        return [{**place, "privileges": [], "filter": ANY_ROW}]
    if relation.least == "privacy":
        return [privacy]
    if not relation.personal:
        return [{"group": f"(reader|privacy){here}", **reads}]
    hidden = [{"name": name, "allow": False} for name in sorted(relation.personal)]
    return [privacy, {"group": f"reader{here}", **reads, "columns": hidden}]


def _least(node: Mapping[str, Any], personal_satellites: frozenset[str]) -> Role:
    if node["schema"] not in OPEN or node["fqn"][1] == PREPARED:
        return "writer"
    if node["schema"] == "vault" and node["name"].removesuffix("_v1") in personal_satellites:
        return "privacy"  # as a whole: a hashdiff is a fingerprint of what it was made of
    return "reader"


def _personal_satellites(declarations: Declarations) -> frozenset[str]:
    return frozenset(
        f"{'ref' if table.vault and table.vault.reference_table else 'sat'}_{name}"
        for table in declarations.tables
        for name, satellite in (table.vault.satellites if table.vault else {}).items()
        if satellite.personal
    )


def _names(table: RawTable, columns: Iterable[str]) -> frozenset[str]:
    return frozenset(table.raw.alias.get(name, name).lower() for name in columns)


def _write(file: Path, wanted: Mapping[str, Any]) -> None:
    text = json.dumps(wanted, indent=1) + "\n"
    if not file.exists() or file.read_text() != text:
        write_shared(file, text)
