"""How a location is read, and told from others.

PyIceberg reads a location as a URL: it leaves out what follows `#` or `?`, and tabs and newlines. In an object's name
these are characters like any other, and the name without them may be another object's, or that of a folder above.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.typedef import Properties

SPELLINGS = ("s3", "s3a", "s3n")
_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)
_OTHER = re.compile(r"s3[an]://")


def parse_location(location: str, properties: Properties) -> tuple[str, str, str]:
    """Scheme, authority and path of a location, as PyIceberg has them, with every character of the path."""
    found = _PARTS.fullmatch(location)
    if found is None:  # a path without a scheme, which PyIceberg takes as it is
        from pyiceberg.io.pyarrow import PyArrowFileIO

        return PyArrowFileIO.parse_location(location, properties)
    scheme, authority, path = found[1].lower(), found[2] or "", found[3]
    return scheme, authority, path if scheme in ("hdfs", "viewfs") else f"{authority}{path}"


def one_spelling(location: str) -> str:
    """The location as it is compared with others: Hadoop's `s3a` and `s3n` are other spellings of `s3`."""
    return location if (other := _OTHER.match(location)) is None else f"s3://{location[other.end() :]}"


def spellings(location: str) -> list[str]:
    """All spellings of a location, to find it where it was written down."""
    scheme, found, place = location.partition("://")
    return [f"{other}://{place}" for other in SPELLINGS] if found and scheme in SPELLINGS else [location]
