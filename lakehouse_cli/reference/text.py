"""Markdown of the reference pages."""

from collections.abc import Iterable, Sequence


def markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a cell's text is on one line, and its bars do not end the cell."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def code(text: str) -> str:
    """Text as code; nothing for no text."""
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
