"""The only module that prints, so that text of a source cannot control a terminal or forge a log line.

A name, a comment or a value may contain line breaks, terminal sequences, characters that reverse the direction of text,
and markup of rich.
"""

from __future__ import annotations

import io
import json
import logging
import math
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

# Controls, formats (which turn text around or hide it), lone surrogates, line and paragraph separators.
ACTIVE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
CUT = "…"
LEAST = 8  # letters of a column that wraps on a terminal; with fewer a value cannot be read
GAP = 2
JOINERS = "\u200c\u200d"  # of letters and emoji; they do nothing else


def visible(text: str) -> str:
    """The text on one line, with all that would do something spelled out: `\\n`, `\\x1b`, `\\u202e`."""
    return text if text.isascii() and text.isprintable() else "".join(map(_spelled, text))


def lines(text: str) -> str:
    """The same of each line of a text that has several by right."""
    return "\n".join(map(visible, text.split("\n")))


def _spelled(character: str) -> str:
    if unicodedata.category(character) not in ACTIVE or character in JOINERS:
        return character
    return character.encode("unicode_escape").decode("ascii")


def shortened(text: str, longest: int) -> str:
    """The text, or its beginning and CUT: whoever hides secrets knows by the mark that it may end within one."""
    return text if len(text) <= longest else f"{text[: longest - 1]}{CUT}"


def say(*words: object, error: bool = False, flush: bool = False) -> None:
    """Prints one line; on stderr if it is not a result."""
    print(visible(" ".join(map(str, words))), file=sys.stderr if error else sys.stdout, flush=flush)


def say_json(value: Any, indent: int | None = None) -> None:
    """Prints JSON in ASCII, on one line without `indent`; what JSON does not know as its text.

    Bytes are hexadecimal digits. Numbers that JSON does not have are `NaN`, `Infinity` and `-Infinity`, as texts.
    """
    print(json.dumps(_of_json(value), default=str, indent=indent, allow_nan=False).replace("\x7f", "\\u007f"))


def _of_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(key): _of_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_of_json(each) for each in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _key(key: Any) -> Any:
    """JSON has texts alone as names."""
    plain = _of_json(key)
    return plain if plain is None or isinstance(plain, (str, int, float)) else str(plain)


def console(error: bool = False, width: int | None = None) -> Console:
    """A console for tables and progress; strings are never markup on it."""
    from rich.console import Console

    return Console(stderr=error, width=width, markup=False, emoji=False, highlight=False)


def line_by_line() -> None:
    """Has whoever reads this command's output from a pipe see each line at once, and not all of them at its end."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


@contextmanager
def busy(on: Console, what: str) -> Iterator[Callable[[str], None]]:
    """Shows the current work on a terminal during the block; yields a function that changes the text."""
    with on.status(cell(what), spinner="line") as status:
        yield lambda now: status.update(cell(now))


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says on stderr what the block waits for: on a terminal while it runs, else in a line."""
    on = console(error=True)
    if not on.is_terminal:
        say(what, error=True, flush=True)
    with busy(on, what):
        yield


def cell(value: object) -> Text:
    """A cell of a table, or what a progress bar says."""
    from rich.text import Text

    return Text(visible(str(value)))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], kept_whole: Collection[str] = ()) -> Table:
    """A table without lines; columns named in `kept_whole` do not wrap, the others fold where a terminal is narrow."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False)
    for heading in headings:
        whole = heading in kept_whole
        made.add_column(cell(heading), overflow="ellipsis" if whole else "fold", no_wrap=whole)
    for row in rows:
        made.add_row(*(value if isinstance(value, Text) else cell(value) for value in row))
    return made


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    kept_whole: Collection[str] = (),
    right: Collection[str] = (),
) -> None:
    """Prints a table with all columns and values, whole where nobody watches, as in a pipe, and as wide as that takes.

    On a terminal that is too narrow, columns wrap, but for those in `kept_whole`; where even that leaves no room, each
    row is a block with a line for each column.
    """
    if not headings:
        return
    on, cells = console(), [tuple(map(cell, row)) for row in rows]
    natural = [max(text.cell_len for text in column) for column in zip(map(cell, headings), *cells, strict=True)]
    if not on.is_terminal or not cells:
        on.width = max(on.width, sum(natural) + GAP * len(natural))
    widths = _fitted(headings, natural, on.width, kept_whole)
    if widths is None:
        _print_blocks(headings, cells)
        return
    made = table(headings, cells, kept_whole)
    for heading, column, width in zip(headings, made.columns, widths, strict=True):
        column.width, column.justify = width, "right" if heading in right else "left"
    on.print(made)


def _fitted(
    headings: Sequence[str], natural: Sequence[int], width: int, kept_whole: Collection[str]
) -> list[int] | None:
    """The width of each column: as wide as it is, or as the widest may be; None where that is too narrow to read."""
    for most in range(max(LEAST, min(width, max(natural))), LEAST - 1, -1):
        found = [
            whole if heading in kept_whole else min(whole, most)
            for heading, whole in zip(headings, natural, strict=True)
        ]
        if sum(found) + GAP * len(found) <= width:
            return found
    return None


def _print_blocks(headings: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
    names = [cell(heading) for heading in headings]
    widest = max(name.cell_len for name in names)
    for number, row in enumerate(rows, start=1):
        print(f"-[ row {number:,} ]-")
        for name, value in zip(names, row, strict=True):
            print(f"{name.plain}{' ' * (widest - name.cell_len)}  {value.plain}")


class LineFormatter(logging.Formatter):
    """A record is one line; only a traceback adds others, which are indented: none looks like a record."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The record's own line."""
        return visible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        """The traceback."""
        return "  " + lines(super().formatException(ei)).replace("\n", "\n  ")
