"""Edits files of declarations as a person would: only the lines of one table change."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from lakehouse.errors import LakehouseError

WRITTEN_AT = 6  # how far a proposal indents an entry of `tables`


@dataclass(frozen=True)
class SourceFile:
    """A file of declarations as it was read."""

    path: Path
    text: str


def declaring_file(project: Path, source: str) -> SourceFile:
    """The file that lists the source's tables; raises LakehouseError unless there is one."""
    folder = project / "models" / "sources"
    paths = sorted(path for path in folder.rglob("*") if path.suffix in (".yml", ".yaml"))
    files = [SourceFile(path, path.read_text()) for path in paths]
    found = [file for file in files if _tables(file.text, source) is not None]
    if len(found) != 1:
        where = ", ".join(str(file.path.relative_to(project)) for file in found) or "no file of models/sources"
        raise LakehouseError(f"source {source!r}: its tables are in {where}: edit them by hand")
    return found[0]


def with_table(file: SourceFile, source: str, entry: Sequence[str]) -> str:
    """The file's text with one more entry in the source's `tables`, below the last one and indented as it is.

    Raises LakehouseError for a list in brackets, and for a file with aliases.
    """
    _refuse_aliases(file, "add the table by hand")
    tables = _tables(file.text, source)
    if tables is None or tables.flow_style or not tables.value:
        raise LakehouseError(f"source {source!r}: its `tables` are no block list: add the table by hand")
    lines = file.text.splitlines(keepends=True)
    last = max(_last_lines(tables.value[-1]))
    shift = _dash(file.text, tables.value[-1]).column - WRITTEN_AT
    before = lines[: last + 1]
    if not before[-1].endswith("\n"):
        before[-1] += "\n"
    return "".join([*before, *(f"{_moved(line, shift)}\n" for line in entry), *lines[last + 1 :]])


def without_table(file: SourceFile, source: str, name: str) -> str:
    """The file's text without the entry of a table.

    Raises LakehouseError for a list in brackets, for the last one, and for a file with aliases.
    """
    tables = _tables(file.text, source)
    entries = _entries(tables)
    found = [entry for entry in entries if (named := _value(entry, "name")) is not None and named.value == name]
    if tables is None or tables.flow_style or not found:
        raise LakehouseError(f"source {source!r}: its `tables` are no block list: remove {name} by hand")
    if len(entries) == 1:
        raise LakehouseError(f"{name} is the only table of {source!r}: `lakehouse remove {source}` removes both")
    _refuse_aliases(file, f"remove {name} by hand")
    return _without(file.text, found[0])


def without_source(file: SourceFile, source: str) -> str | None:
    """The file's text without the source; None where the file holds nothing else.

    Raises LakehouseError for a list in brackets, where other things would be left in a file without sources, and for a
    file with aliases.
    """
    root = yaml.compose(file.text, Loader=yaml.SafeLoader)
    sources = _value(root, "sources")
    entries = _entries(sources)
    found = [entry for entry in entries if (named := _value(entry, "name")) is not None and named.value == source]
    others = {key.value for key, _ in root.value} - {"sources", "version"} if isinstance(root, yaml.MappingNode) else {}
    if len(entries) == 1 and found and not others:
        return None
    if len(entries) == 1 or not found or not isinstance(sources, yaml.SequenceNode) or sources.flow_style:
        raise LakehouseError(f"source {source!r}: its file holds more than a list of sources: remove it there by hand")
    _refuse_aliases(file, f"remove source {source!r} by hand")
    return _without(file.text, found[0])


def _refuse_aliases(file: SourceFile, instead: str) -> None:
    """An alias is known by the lines of its anchor, not by its own; and an anchor may go while its aliases stay."""
    for token in yaml.scan(file.text):
        if isinstance(token, yaml.AliasToken):
            raise LakehouseError(
                f"{file.path}:{token.start_mark.line + 1}: a file with aliases (*{token.value}) is not edited for you: "
                f"write out what it stands for, or {instead}"
            )


def _without(text: str, entry: yaml.Node) -> str:
    lines = text.splitlines(keepends=True)
    return "".join([*lines[: _dash(text, entry).line], *lines[max(_last_lines(entry)) + 1 :]])


def _dash(text: str, entry: yaml.Node) -> yaml.Mark:
    """Where the dash of a block list's entry is; a comment, a tag or an anchor may be between it and the entry."""
    dashes = [token.start_mark for token in yaml.scan(text) if isinstance(token, yaml.BlockEntryToken)]
    return max((mark for mark in dashes if mark.index < entry.start_mark.index), key=lambda mark: mark.index)


def _moved(line: str, shift: int) -> str:
    return " " * shift + line if shift > 0 else re.sub(rf"^ {{0,{-shift}}}", "", line)


def _tables(text: str, source: str) -> yaml.SequenceNode | None:
    """The list of the source's tables as the file has it; None where it has none."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return None
    for entry in _entries(_value(root, "sources")):
        name, tables = _value(entry, "name"), _value(entry, "tables")
        if name is not None and name.value == source and isinstance(tables, yaml.SequenceNode):
            return tables
    return None


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for name, value in pairs if name.value == key), None)


def _entries(node: yaml.Node | None) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _last_lines(node: yaml.Node) -> Iterator[int]:
    """The lines on which parts of the node end; a block ends where the next token begins, so its own end is too far."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        for part in node.value:
            for each in part if isinstance(part, tuple) else (part,):
                yield from _last_lines(each)
    else:
        yield node.end_mark.line - (node.end_mark.column == 0 and node.end_mark.line > node.start_mark.line)
