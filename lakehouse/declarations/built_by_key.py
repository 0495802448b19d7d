"""Marts that are built by key: what is declared of them (`meta.built_by`), checked against what they read.

Pure: reads only the manifest, and YAML to name a line.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lakehouse.declarations.dbt.models import APPENDED, REBUILT, is_view, table_of_model
from lakehouse.declarations.lines import line_in_model, mistakes_in
from lakehouse.declarations.policies import BuiltByKey

Manifest = Mapping[str, Any]
Node = Mapping[str, Any]
TableKey = tuple[str, str]
HASH_KEY = "hk_"
META = "meta.built_by"
LEAVE_OUT = "leave built_by out"


@dataclass(frozen=True)
class Lead:
    """How new rows lead to keys: by their columns `keys`, and by the columns `ends` of rows of `through`.

    `by` pairs a column of theirs with the one of `through` that has the same value.
    """

    keys: tuple[str, ...] = ()
    through: TableKey | None = None
    by: tuple[tuple[str, str], ...] = ()
    ends: tuple[str, ...] = ()


@dataclass(frozen=True)
class ByKey:
    """A mart that is built by key: its tables, and those whose new rows lead to keys. Others change the whole mart.

    `views` are those through which it reads them: another definition changes the whole mart too.
    """

    key: str
    from_rows: int
    leads: Mapping[TableKey, Lead]
    tables: frozenset[TableKey]
    views: frozenset[TableKey] = frozenset()


def built_by_key(manifest: Manifest, project_dir: Path) -> tuple[dict[str, ByKey], dict[str, str]]:
    """By unique id, the marts that are declared so; and where a declaration is wrong, one line with file and line.

    A mart with a wrong one is built whole, which is right for every mart: a mistake in one stops no load.
    """
    found, wrong = dict[str, ByKey](), dict[str, str]()
    for unique_id, node in sorted(manifest["nodes"].items()):
        stated = node.get("config", {}).get("meta", {}).get("built_by") if node["resource_type"] == "model" else None
        if stated is None:
            continue
        mart, problems = _read_mart(manifest, unique_id, stated)
        if mart and not problems:
            found[unique_id] = mart.by_key()
        else:
            where = line_in_model(project_dir, dict(node), ("built_by", *problems[0][0]))
            wrong[unique_id] = f"{where}: {node['name']}: {'; '.join(text for _, text in problems)}"
    return found, wrong


def _read_mart(
    manifest: Manifest, unique_id: str, stated: Any
) -> tuple["_Mart | None", list[tuple[tuple[str, ...], str]]]:
    """The mart, unless what is stated is none of ours, and each problem with its path of keys below `built_by`."""
    try:
        mart = _Mart(manifest, unique_id, BuiltByKey.model_validate(stated))
    except ValidationError as error:
        return None, mistakes_in(error, BuiltByKey, META)
    return mart, [(path, f"{META}: {text}") for path, text in mart.problems()]


class _Mart:
    """A mart with the declaration, and the models that it reads, through views."""

    def __init__(self, manifest: Manifest, unique_id: str, declared: BuiltByKey) -> None:
        self._node, self._tests, self._declared = manifest["nodes"][unique_id], _tests(manifest), declared
        self._hub_keys, self._of_links = _hub_keys(manifest)
        tables, self._views = _read(manifest, unique_id)
        self._read = {node["name"]: node for node in tables}

    def by_key(self) -> ByKey:
        """What is declared, by table."""
        leads = {table_of_model(node): self._lead(name) for name, node in self._read.items() if self._leads(name)}
        tables = frozenset(table_of_model(node) for node in self._read.values())
        views = frozenset(table_of_model(node) for node in self._views)
        return ByKey(self._declared.key, self._declared.from_rows, leads, tables, views)

    def _leads(self, name: str) -> bool:
        return self._has_key(name) or name in self._declared.through

    def _lead(self, name: str) -> Lead:
        through = self._declared.through.get(name)
        if through is None:
            return Lead(self._roles(name))
        table = table_of_model(self._read[through])
        return Lead(self._roles(name), table, self._shared(name, through), self._roles(through))

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Each with the path of keys below `built_by` where it stands."""
        key = self._declared.key
        if self._node["config"]["materialized"] != REBUILT:
            yield (), f"for models that are materialized as {REBUILT}"
        elif not key.startswith(HASH_KEY):
            yield ("key",), f"{key} is no hash key, {HASH_KEY}…"
        for test in sorted({"unique", "not_null"} - self._tests[self._node["unique_id"], key]):
            yield ("key",), f"{key} has no test `{test}`: a row is found again by its key alone"
        for node in self._read.values():
            if node.get("config", {}).get("materialized") != APPENDED:
                yield (), f"it reads {node['name']}, and only tables that are appended to say which rows are new"
        for name, through in self._declared.through.items():
            path = ("through", name)
            if lacking := next((model for model in (name, through) if model not in self._read), None):
                yield path, f"{self._node['name']} does not read {lacking}; it reads {', '.join(sorted(self._read))}"
            elif not self._roles(through):
                yield path, f"{through} has no column {key}"
            elif not self._shared(name, through) and self._has_key(name):
                yield path, f"{name} has {key} itself: leave it out"
            elif not self._shared(name, through):
                yield path, f"{name} and {through} have no hash key in common"
        yield from self._second_paths()

    def _second_paths(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Tables whose rows can change another key's row by a second way to its hub, while nothing says so."""
        links = [name for name in self._read if len(self._roles(name)) > 1]
        for link in links:
            of_both = f"{link} has {' and '.join(self._roles(link))}, of one hub"
            for name in filter(self._leads, self._read):
                if name != link and self._declared.through.get(name) != link:
                    can_be_said = len(links) == 1 and self._shared(name, link)
                    to_do = f"say through: {{{name}: {link}}}, or leave built_by out" if can_be_said else LEAVE_OUT
                    yield ("through", name), f"{of_both}, so {name} leads to other keys too: {to_do}"
        for name in self._read:
            roles = {role: near for near in self._near(name) for role in self._roles(near)}
            for role in set(self._roles(name)) - {self._declared.key}:
                other = next((other for other in sorted(roles) if other != role), None)
                if other and len(self._roles(name)) == 1:
                    of_both = f"{name} has {role}, and {roles[other]} has {other}, of one hub"
                    yield (), f"{of_both}, so one key leads to another in two steps: {LEAVE_OUT}"

    def _near(self, name: str) -> list[str]:
        """The tables that can be joined to one by keys of other hubs, also over further tables, and itself."""
        found = [name]
        for near in found:
            keys = self._other_hubs(near)
            found += [other for other in self._read if other not in found and keys & self._other_hubs(other)]
        return found

    def _other_hubs(self, name: str) -> set[str]:
        """The keys of other hubs than the mart's that a table has, as these call them."""
        of = self._hub_keys[self._read[name]["unique_id"]]
        keys = {of.get(column, column) for column in self._read[name]["columns"] if column.startswith(HASH_KEY)}
        return keys - self._of_links - {self._declared.key}

    def _has_key(self, name: str) -> bool:
        return self._declared.key in self._read[name]["columns"]

    def _roles(self, name: str) -> tuple[str, ...]:
        """The columns that have hash keys of the key's hub, whatever they are called."""
        called = self._hub_keys[self._read[name]["unique_id"]].items()
        roles = {self._declared.key, *(column for column, hub_key in called if hub_key == self._declared.key)}
        return tuple(sorted(roles.intersection(self._read[name]["columns"])))

    def _shared(self, one: str, other: str) -> tuple[tuple[str, str], ...]:
        """The pairs of columns by which rows of one lead to keys by the other that they do not have themselves."""
        mine, theirs = self._roles(one), self._roles(other)
        columns = set(self._read[one]["columns"]) & set(self._read[other]["columns"])
        same = {(column, column) for column in columns.difference(mine, theirs) if column.startswith(HASH_KEY)}
        return tuple(sorted(same.union(product(mine, theirs) if len(theirs) > 1 else ())))


def _read(manifest: Manifest, unique_id: str) -> tuple[list[Node], list[Node]]:
    """What a model reads, and in place of views what they read; and these views."""
    nodes, waiting = {**manifest["sources"], **manifest["nodes"]}, [unique_id]
    found, views = dict[str, Node](), dict[str, Node]()
    while waiting:
        for above in nodes[waiting.pop()]["depends_on"]["nodes"]:
            kind = nodes[above].get("config", {}).get("materialized")
            if is_view(nodes[above]):
                waiting.append(above)
            if kind != "ephemeral":
                (views if kind == "view" else found)[above] = nodes[above]
    return list(found.values()), list(views.values())


def _hub_keys(manifest: Manifest) -> tuple[Mapping[str | None, dict[str, str]], set[str]]:
    """By model, its columns that are called otherwise than the key of their hub, with that key; and the keys of links.

    So the tests of links and satellites say.
    """
    found, of_links = defaultdict[str | None, dict[str, str]](dict), set[str]()
    for node in manifest["nodes"].values():
        given = (node.get("test_metadata") or {}).get("kwargs", {})
        hubs = given.get("hubs") or {}
        called = {column: hub["src_pk"] for column, hub in hubs.items() if isinstance(hub, dict) and "src_pk" in hub}
        found[node.get("attached_node")] |= called
        if hubs and "src_pk" in given:
            of_links.add(given["src_pk"])
        if "parent_pk" in given and "src_pk" in given:
            found[node.get("attached_node")] |= {given["src_pk"]: given["parent_pk"]}
    return found, of_links


def _tests(manifest: Manifest) -> Mapping[tuple[str | None, str | None], set[str]]:
    """By model and column, the generic tests that see each row and fail."""
    found = defaultdict[tuple[str | None, str | None], set[str]](set)
    for node in manifest["nodes"].values():
        config = node.get("config", {})
        fails = config.get("severity", "error").lower() == "error" and not config.get("where")
        if node["resource_type"] == "test" and fails:
            name = (node.get("test_metadata") or {}).get("name", "")
            found[node.get("attached_node"), node.get("column_name")].add(name)
    return found
