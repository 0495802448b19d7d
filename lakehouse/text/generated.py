"""Texts that the product writes and the user may edit: the first line has a checksum of the rest."""

import hashlib
import re

_LINE = re.compile(r"^(?:\{#-|#) Written by `lakehouse scaffold`, its own while unchanged: ([0-9a-f]{16})(?: -#\})?\n")


def stamped(name: str, body: str) -> str:
    """The text with the checksum line."""
    line = f"Written by `lakehouse scaffold`, its own while unchanged: {_checksum(body)}"
    return (f"{{#- {line} -#}}\n" if name.endswith(".sql") else f"# {line}\n") + body


def is_own(text: str) -> bool:
    """Whether the text is unchanged since the scaffold wrote it, but for the line ends that git gives it on Windows."""
    text = text.replace("\r\n", "\n")  # dbt keeps them
    found = _LINE.match(text)
    return found is not None and found[1] == _checksum(text[found.end() :])


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]
