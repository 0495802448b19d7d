"""Reads JSON objects that another release has written from dataclasses."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known_fields(kind: type, stored: Mapping[str, Any]) -> dict[str, Any]:
    """The stored fields of a dataclass, without keys that this release does not know."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in stored.items() if name in names}
