"""Mistakes in YAML files that dbt accepts silently or reports unclearly, with file, line and remedy.

Of a key that is there twice dbt takes the last, and a key of an entry that it does not know it keeps to itself.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from lakehouse.declarations.dbt.folders import project_folders
from lakehouse.declarations.dbt.yaml_keys import (
    Mistake,
    metas,
    misplaced,
    misplaced_of_models,
    odd_numbers,
    pairs,
    unknown_keys,
)
from lakehouse.declarations.lines import PROJECT_FILE, refuse


def check_yaml(project_dir: Path) -> None:
    """Raises LakehouseError with the first mistake in a YAML file of the project, and the number of further ones."""
    found = []
    for file in _files(project_dir):
        where = f"{project_dir.name}/{file.relative_to(project_dir)}"
        try:
            found += [f"{where}:{line}: {text}" for line, text in mistakes(file.read_bytes())]
        except RecursionError:
            found.append(f"{where}:1: lists and mappings are nested too deeply to be read: take brackets out")
    refuse(found)


def _files(project_dir: Path) -> Iterator[Path]:
    yield from (file for file in [project_dir / PROJECT_FILE] if file.exists())
    for folder in project_folders(project_dir):
        files = (project_dir / folder).rglob("*")
        yield from sorted(file for file in files if file.suffix in (".yml", ".yaml") and file.is_file())


def declared_sources(project_dir: Path) -> set[str] | None:
    """The names of the sources that the project's files list, without dbt; None where there is none to be read."""
    if not (project_dir / PROJECT_FILE).exists():
        return None
    try:
        roots = [_composed(file.read_bytes()) for file in _files(project_dir)]
    except (OSError, yaml.YAMLError):
        return None
    sources = [source for root in roots for source in _entries(root, "sources", [])]
    return {value.value for source in sources for key, value in pairs(source) if key.value == "name"}


def mistakes(content: bytes) -> Iterator[Mistake]:
    """Line and text of each mistake in a file, in their order."""
    try:
        root = _composed(content)
    except yaml.YAMLError as error:
        yield _broken(content, error)
        return
    found = [*_repeated(root, set()), *odd_numbers(root), *misplaced_of_models(root)]
    for source in _entries(root, "sources", found):
        tables = list(_entries(source, "tables", found))
        found += _unread(source, tables)
        found += misplaced(source, tables)
        for table in tables:
            for column in _entries(table, "columns", found):
                found += unknown_keys(column)
    yield from sorted(set(found))


def _composed(content: bytes) -> yaml.Node | None:
    """Parses with libyaml if available; on an error parses again in Python, whose messages the remedies match."""
    try:
        return yaml.compose(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return yaml.compose(content, Loader=yaml.SafeLoader)


def _broken(content: bytes, error: yaml.YAMLError) -> Mistake:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        line, problem = error.problem_mark.line + 1, str(error.problem)
        if error.context_mark is not None and error.context_mark.line + 1 != line:
            problem += f" ({error.context}, which begins on line {error.context_mark.line + 1})"
    else:
        before = content[: getattr(error, "position", 0) or 0]
        line, problem = before.count(b"\n") + 1, " ".join(str(getattr(error, "reason", error)).split())
    remedy = next((remedy for part, remedy in _REMEDIES.items() if part in problem), "correct it")
    return line, f"this is no YAML: {problem}: {remedy}"


_REMEDIES = {
    "'\\t'": "indent with spaces",
    "mapping values are not allowed": "align keys that belong together, and quote a value with a colon and a space",
    "could not find expected ':'": "write `key: value`",
    "',' or ']'": "close the list with `]`",
    "',' or '}'": "close the braces with `}`",
    "<block end>": "align what belongs together",
    "unexpected end of stream": "close the quote",
    "cannot start any token": "put the value into quotes",
    "single document": "take out the line `---`",
    "special characters": "take out the control character",
    "byte": "write the file in UTF-8",
}


def _repeated(node: yaml.Node | None, seen: set[int]) -> Iterator[Mistake]:
    """Duplicate keys of mappings at any depth; an aliased node is checked once."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated(item, seen)
    elif isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value != "<<" and (name := str(key.value)) in first:
                yield line, f"key `{name}` is there twice, first on line {first[name]}: keep one, or put both into one"
            first.setdefault(str(key.value), line)
            yield from _repeated(value, seen)


def _entries(node: yaml.Node | None, key: str, found: list[Mistake]) -> Iterator[yaml.MappingNode]:
    """The entries of a list of named things; one that is no such list, and a name that is there twice, are mistakes."""
    for value in (value for name, value in pairs(node) if name.value == key and not _is_empty(value)):
        if not isinstance(value, yaml.SequenceNode):
            found.append((value.start_mark.line + 1, f"`{key}` is a list: write `- name: …` for each"))
            continue
        first: dict[str, int] = {}
        for item in value.value:
            line = item.start_mark.line + 1
            name = next((value.value for name, value in pairs(item) if name.value == "name"), None)
            if not isinstance(name, str) or not isinstance(item, yaml.MappingNode):
                found.append((line, f"an entry of `{key}` has no name: write `- name: …`"))
                continue
            if key != "sources" and name in first:
                found.append((line, f"{name!r} is twice among `{key}`, first on line {first[name]}: keep one"))
            first.setdefault(name, line)
            yield item


def _unread(source: yaml.MappingNode, tables: Sequence[yaml.MappingNode]) -> Iterator[Mistake]:
    """A source's `meta.raw` that each of its tables replaces by one of its own, and none merges in."""
    shared, own = _raw(source), [_raw(table) for table in tables]
    if shared and own and all(raw is not None and not _takes(raw[1], shared[1]) for raw in own):
        yield (
            shared[0].start_mark.line + 1,
            "meta.raw: nothing reads it, as each table of the source has a `raw` of its own, which replaces it as a "
            "whole: put its keys into those of the tables",
        )


def _raw(entry: yaml.MappingNode) -> tuple[yaml.Node, yaml.Node] | None:
    """The key `raw` of an entry's meta, and its value."""
    return next((pair for meta in metas(entry) for pair in pairs(meta) if pair[0].value == "raw"), None)


def _takes(node: yaml.Node, other: yaml.Node) -> bool:
    """Whether a mapping is the other one, or merges it in."""
    merged = (value for key, value in node.value if key.value == "<<") if isinstance(node, yaml.MappingNode) else ()
    parts = (part for value in merged for part in (value.value if isinstance(value, yaml.SequenceNode) else [value]))
    return node is other or any(part is other for part in parts)


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"
