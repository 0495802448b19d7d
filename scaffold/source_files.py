"""Edits files of declarations as a person would: only the lines of one table change."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from lakehouse.errors import LakehouseError

WRITTEN_AT = 6  # how far a proposal indents an entry of `tables`


def declaring_file(project: Path, source: str) -> Path:
    """The file that lists the source's tables; raises LakehouseError unless there is one."""
    folder = project / "models" / "sources"
    files = sorted(file for file in folder.rglob("*") if file.suffix in (".yml", ".yaml"))
    found = [file for file in files if _tables(file.read_text(), source) is not None]
    if len(found) != 1:
        where = ", ".join(str(file.relative_to(project)) for file in found) or "no file of models/sources"
        raise LakehouseError(f"source {source!r}: its tables are in {where}: edit them by hand")
    return found[0]


def with_table(text: str, source: str, entry: Sequence[str]) -> str:
    """The file's text with one more entry in the source's `tables`, below the last one and indented as it is.

    Raises LakehouseError for a list in brackets.
    """
    tables = _tables(text, source)
    if tables is None or tables.flow_style or not tables.value:
        raise LakehouseError(f"source {source!r}: its `tables` are no block list: add the table by hand")
    lines = text.splitlines(keepends=True)
    last = max(_last_lines(tables.value[-1]))
    shift = tables.start_mark.column - WRITTEN_AT
    before = lines[: last + 1]
    if not before[-1].endswith("\n"):
        before[-1] += "\n"
    return "".join([*before, *(f"{_moved(line, shift)}\n" for line in entry), *lines[last + 1 :]])


def without_table(text: str, source: str, name: str) -> str:
    """The file's text without the entry of a table. Raises LakehouseError for a list in brackets, and the last one."""
    tables = _tables(text, source)
    entries = _entries(tables)
    found = [entry for entry in entries if (named := _value(entry, "name")) is not None and named.value == name]
    if tables is None or tables.flow_style or not found:
        raise LakehouseError(f"source {source!r}: its `tables` are no block list: remove {name} by hand")
    if len(entries) == 1:
        raise LakehouseError(f"{name} is the only table of {source!r}: `lakehouse remove {source}` removes both")
    lines = text.splitlines(keepends=True)
    return "".join([*lines[: found[0].start_mark.line], *lines[max(_last_lines(found[0])) + 1 :]])


def without_source(text: str, source: str) -> str | None:
    """The file's text without the source; None where the file holds nothing else.

    Raises LakehouseError for a list in brackets, and where other things would be left in a file without sources.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    sources = _value(root, "sources")
    entries = _entries(sources)
    found = [entry for entry in entries if (named := _value(entry, "name")) is not None and named.value == source]
    others = {key.value for key, _ in root.value} - {"sources", "version"} if isinstance(root, yaml.MappingNode) else {}
    if len(entries) == 1 and found and not others:
        return None
    if len(entries) == 1 or not found or not isinstance(sources, yaml.SequenceNode) or sources.flow_style:
        raise LakehouseError(f"source {source!r}: its file holds more than a list of sources: remove it there by hand")
    lines = text.splitlines(keepends=True)
    return "".join([*lines[: found[0].start_mark.line], *lines[max(_last_lines(found[0])) + 1 :]])


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
