"""Text of a source where Dagster's UI reads Markdown: a comment of a database is no link, no image and no HTML."""

import re

from lakehouse.text.shown import visible

_ACTIVE = re.compile(r"[\\`*\[\]<~&|]|(?<!\w)_|_(?!\w)|^[#>+-]")
_NUMBER = re.compile(r"^(\d+)([.)])")


def plain(text: str) -> str:
    """Markdown that shows the text as it is, on one line; an address in it is a link to itself."""
    line = " ".join(visible(part) for part in text.split())
    return _NUMBER.sub(r"\1\\\2", _ACTIVE.sub(r"\\\g<0>", line))
