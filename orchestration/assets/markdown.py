"""Escapes text from a source for Dagster's UI, which renders Markdown: a column comment must not become HTML."""

import re

from lakehouse.text.shown import visible

_ACTIVE = re.compile(r"[\\`*\[\]<~&|]|(?<!\w)_|_(?!\w)|^[#>+-]")
_NUMBER = re.compile(r"^(\d+)([.)])")


def escape_markdown(text: str) -> str:
    """Markdown that displays the text literally, on one line. The UI still links a bare URL."""
    line = " ".join(visible(part) for part in text.split())
    return _NUMBER.sub(r"\1\\\2", _ACTIVE.sub(r"\\\g<0>", line))
