"""What a page of the documentation tells its reader to copy, so that a test runs the page's own text."""

import re
import shlex
import textwrap
from collections.abc import Iterator

from lakehouse.settings import PROJECT_DIR

DOCS = PROJECT_DIR / "docs"
Value = tuple[str, str]  # what the page has, and what is put in its place
FENCED = re.compile(r"^([ \d.]*)```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def fenced(text: str) -> Iterator[tuple[str, str]]:
    """The fenced blocks of a text with their languages; a block without one has ""."""
    for indent, language, block in FENCED.findall(text):
        yield language, textwrap.dedent(block) if indent else block


def block(page: str, language: str, *values: Value, number: int = 0, below: str = "") -> str:
    """A block of a page below docs/: the first of that language, or the one of that number, also below a heading.

    An AssertionError where the page has no such block, or the block nothing of what a value takes the place of.
    """
    found = [text for of, text in fenced(_part(page, below)) if of == language]
    assert len(found) > number, f"{page}: no block {number} of {language or 'commands'} below {below!r}"
    return put(found[number], *values)


def put(text: str, *values: Value) -> str:
    """The text with these values put in place; an AssertionError where one has none."""
    for old, new in values:
        assert old in text, f"{old!r} is no more in {text!r}"
        text = text.replace(old, new)
    return text


def commands(page: str, *values: Value, below: str = "") -> list[list[str]]:
    """The arguments of each `lakehouse` command in a page's blocks, without what the shell does next."""
    texts = [text for language, text in fenced(_part(page, below)) if language in ("", "bash")]
    lines = [line for line in put("\n".join(texts), *values).splitlines() if line.startswith("lakehouse ")]
    assert lines, f"{page}: no commands below {below!r}"
    return [shlex.split(line.partition(" && ")[0], comments=True)[1:] for line in lines]


def inline(page: str, begins: str, *values: Value) -> str:
    """The code within a page's sentences that begins so; an AssertionError where there is none."""
    found = re.findall(rf"(?<!`)`({re.escape(begins)}[^`]*)`", (DOCS / page).read_text())
    assert found, f"{page}: nothing begins with {begins!r}"
    return put(found[0], *values)


def _part(page: str, below: str) -> str:
    text = (DOCS / page).read_text()
    if not below:
        return text
    found = re.search(rf"^#+ {re.escape(below)}\n(.*?)(?=^#+ |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"{page}: no heading {below!r}"
    return found[1]
