"""Where something stands in the dbt project: `dbt_project/models/sources/retail.yml:12`.

dbt's manifest has no lines, so they are looked up in the YAML when there is something to report. Paths are those of
keys below `config.meta`, such as `("maintenance", "compact", "sort_by")`; an item of a list is named by its position or
its text. One that begins with OF_TABLE or OF_SOURCE is a path in the entry of the table, or of its source, itself.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from lakehouse.errors import LakehouseError
from lakehouse.text.spelling import keys_at, unknown, without_kinds

PROJECT_FILE = "dbt_project.yml"
PROFILES_FILE = "profiles.yml"
Keys = tuple[str, ...]
OF_TABLE, OF_SOURCE = "(table)", "(source)"
_SET = r"(?:\b{key}\s*=(?!=)|['\"]{key}['\"]\s*:)"
_CONFIG_WITH = r"\{{[{{%]-?\s*(?:do\s+)?config\s*\((?:(?!\)\s*-?[}}%]\}}).)*" + _SET  # in the parentheses of one call
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


def refuse(problems: Sequence[str]) -> None:
    """Raises LakehouseError with the first problem and the number of further ones; nothing when there is none."""
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise LakehouseError(f"{problems[0]}{more}")


def mistakes_in(
    error: ValidationError, model: type[BaseModel], root: str = "meta", below: Keys = ()
) -> list[tuple[Keys, str]]:
    """Each mistake as its path of keys and one line that begins with it; `below` is where the validated value lies.

    Unknown keys come first, with the known one that is meant: a misspelled one is also missing.
    """
    found = []
    for problem in sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden"):
        *outer, key = without_kinds(model, problem["loc"]) or ("",)
        if problem["type"] == "extra_forbidden":
            path = (*below, *outer, key)
            text = f"{'.'.join((root, *path[:-1]))}: {unknown(key, keys_at(model, problem['loc'][:-1]))}"
        else:
            path = (*below, *without_kinds(model, problem["loc"]))
            text = f"{'.'.join((root, *path))}: {_in_words(problem, path[-1] if path else root)}"
        found.append((path, text))
    return found


def _in_words(problem: ErrorDetails, key: str) -> str:
    """The error text for a value, with what to write if its kind is wrong."""
    given, kind = problem["input"], problem["type"]
    if kind in ("tuple_type", "list_type"):
        one = given if isinstance(given, str) and re.fullmatch(r"\w+", given) else "…"
        return f"a list is wanted, not {given!r}: write `{key}: [{one}]`"
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        return f"keys with values are wanted, not {given!r}: write `{key}: {{name: value}}`"
    if given is None and "'null'" in problem["msg"]:
        return f'{problem["msg"]}: YAML reads null without quotes as nothing: write `{key}: "null"`'
    if kind == "string_type":
        return f"a text is wanted, not {given!r}: put it into quotes"
    return problem["msg"].removeprefix("Value error, ")


def line_in_source(project_dir: Path, node: dict[str, Any], path: Keys) -> str:
    """The offending key in the source table's entry, or inherited from the source's, or the entry itself."""
    root = _read(project_dir / node["original_file_path"])
    entries = _source_entries(root, node["source_name"], node["name"])
    return f"{project_dir.name}/{node['original_file_path']}:{_line_in_entries(entries, path)}"


def _line_in_entries(entries: Sequence[yaml.Node], path: Keys) -> int:
    if not entries:
        return 1
    table, source = entries
    if path[:1] in ((OF_TABLE,), (OF_SOURCE,)):
        return _deepest(table if path[0] == OF_TABLE else source, path[1:])[1]
    (depth, own), (depth_of_source, inherited) = _in_meta(table, path), _in_meta(source, path)
    return inherited if path and depth < 1 <= depth_of_source else own


def _in_meta(entry: yaml.Node, path: Keys) -> tuple[int, int]:
    """How many keys of the path its meta has, below 0 where it has no meta; and the line of the last of them."""
    found = []
    for keys in (("config", "meta"), ("meta",)):
        depth, line = _deepest(entry, (*keys, *path))
        found.append((depth - len(keys), line))
    return max(found, key=lambda at: at[0])


def line_in_model(project_dir: Path, node: dict[str, Any], path: Keys) -> str:
    """The offending key where the model's meta has it: in its own YAML, its SQL, or the nearest folder's `+meta`."""
    for file, entry, keys in _model_entries(project_dir, node):
        depth, line = _deepest(entry, (*keys, *path))
        if depth > len(keys):
            return f"{project_dir.name}/{file}:{line}"
    return f"{project_dir.name}/{node['original_file_path']}:{_line_in_sql(project_dir, node, path)}"


def configures(project_dir: Path, node: Mapping[str, Any], key: str) -> bool:
    """Whether a model's own SQL or YAML sets a key of its config; the manifest has that and its folder's as one."""
    if re.search(_CONFIG_WITH.format(key=key), _COMMENT.sub("", node["raw_code"]), re.DOTALL):
        return True
    file = (node["patch_path"] or "").partition("://")[2]
    entries = _named(_child(_read(project_dir / file), f"{node['resource_type']}s"), node["name"]) if file else []
    return any(_deepest(entry, ("config", key))[0] == 2 for entry in entries)


def line_in_project(project_dir: Path, path: Keys) -> str:
    """The offending key of dbt_project.yml itself."""
    return line_in_file(project_dir, PROJECT_FILE, path)


def line_in_file(project_dir: Path, file: str, path: Keys) -> str:
    """The offending key of a file of the project, or the last key on the way to it that is there."""
    root = _read(project_dir / file)
    return f"{project_dir.name}/{file}:{_deepest(root, path)[1] if root else 1}"


def _read(file: Path) -> yaml.Node | None:
    return yaml.compose(file.read_text()) if file.exists() else None


def _source_entries(root: yaml.Node | None, source: str, table: str) -> list[yaml.Node]:
    """The table's entry, then its source's."""
    for source_node in _named(_child(root, "sources"), source):
        for table_node in _named(_child(source_node, "tables"), table):
            return [table_node, source_node]
    return []


def _model_entries(project_dir: Path, node: dict[str, Any]) -> Iterator[tuple[str, yaml.Node, Keys]]:
    """File, entry and keys down to its meta, wherever dbt may have a model's meta from, the strongest first."""
    kind = f"{node['resource_type']}s"
    if patch := node.get("patch_path"):
        file = patch.partition("://")[2]
        for entry in _named(_child(_read(project_dir / file), kind), node["name"]):
            yield file, entry, ("config", "meta")
            yield file, entry, ("meta",)
    folders = _folders(_child(_read(project_dir / PROJECT_FILE), kind), node.get("fqn", ()))
    for folder in reversed(folders):
        yield PROJECT_FILE, folder, ("+meta",)
        yield PROJECT_FILE, folder, ("meta",)


def _folders(root: yaml.Node | None, fqn: Iterable[str]) -> list[yaml.Node]:
    """The mappings on the way from `models:` to the model's folder."""
    found = [root] if root else []
    for name in fqn:
        if (child := _child(found[-1], name) if found else None) is None:
            break
        found.append(child)
    return found


def _line_in_sql(project_dir: Path, node: dict[str, Any], keys: Keys) -> int:
    """The line of the last key that is there, each looked for from the one before it."""
    file = project_dir / node["original_file_path"]
    lines = file.read_text().splitlines() if file.exists() else []
    last = 1
    for key in keys:
        line = next((number for number, text in enumerate(lines[last - 1 :], start=last) if key in text), None)
        if line is None:
            break
        last = line
    return last


def _deepest(node: yaml.Node, path: Keys) -> tuple[int, int]:
    """How many keys of the path there are, and the line of the last of them.

    A key that a short form leaves out, such as the `columns` of `satellites: {name: [id, name]}`, is passed over.
    """
    depth, line = 0, node.start_mark.line + 1
    for key in path:
        found = _item(node, key) if isinstance(node, yaml.SequenceNode) else _pair(node, key)
        if found is not None:
            depth, line, node = depth + 1, found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.MappingNode):
            break
    return depth, line


def _item(node: yaml.SequenceNode, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """The item of a list at that position, with that text, or of that name."""
    if key.isdecimal() and int(key) < len(node.value):
        return node.value[int(key)], node.value[int(key)]
    scalars = (item for item in node.value if isinstance(item, yaml.ScalarNode) and item.value == key)
    found = next(scalars, None) or next(iter(_named(node, key)), None)
    return None if found is None else (found, found)


def _pair(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """Key and value in a mapping, or in one that it merges in by `<<`."""
    if not isinstance(node, yaml.MappingNode):
        return None
    merged = [value for name, value in node.value if name.value == "<<"]
    merged = [one for value in merged for one in (value.value if isinstance(value, yaml.SequenceNode) else [value])]
    own = (pair for pair in node.value if pair[0].value == key)
    return next(own, None) or next((pair for value in merged if (pair := _pair(value, key))), None)


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    pair = _pair(node, key)
    return pair[1] if pair else None


def _named(node: yaml.Node | None, name: str) -> list[yaml.Node]:
    """The entries of a sequence that bear that name."""
    items = node.value if isinstance(node, yaml.SequenceNode) else []
    return [item for item in items if (value := _child(item, "name")) is not None and value.value == name]
