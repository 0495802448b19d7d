"""Reading what another release has written down: JSON objects that stand for dataclasses."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known_fields(kind: type, stored: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored of a dataclass's fields; keys that this release does not know are passed over."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in stored.items() if name in names}
