"""The histories of key_histories.yml, for every implementation of what becomes of left-out values and of keys."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestion.tasks.shared_keys.positions import ranked

UNKNOWN = "unknown"


@dataclass(frozen=True)
class RawEvent:
    """One row of the raw table; `values` are `v`, `_unchanged` and the key before, where there are any."""

    lsn: int
    seq: int
    op: str
    key: int | None
    values: dict[str, Any]

    @property
    def old_key(self) -> int | None:
        """The key before a key change."""
        return self.values.get("_old_key")

    @property
    def row(self) -> dict[str, Any]:
        """`v` and the metadata that raw has of it."""
        old_key = {} if self.old_key is None else {"_old_key": json.dumps({"id": str(self.old_key)})}
        return {key: value for key, value in self.values.items() if key in ("v", "_unchanged")} | old_key


@dataclass(frozen=True)
class KeyHistory:
    """Events, and what they mean."""

    name: str
    events: tuple[RawEvent, ...]
    values: tuple[Any, ...]
    current: dict[int, Any]
    periods: dict[int, list[list[Any]]]


def key_histories() -> list[KeyHistory]:
    """All of them."""
    found = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text())
    return [
        KeyHistory(
            h["name"], tuple(map(_event, h["events"])), tuple(h["values"]), h["current"],
            {key: [_period(period) for period in periods] for key, periods in h.get("periods", {}).items()},
        )
        for h in found
    ]  # fmt: skip


def _event(given: list[Any]) -> RawEvent:
    lsn, seq, op, key, *values = given
    return RawEvent(lsn, _seq(seq), op, key, values[0] if values else {})


def _period(given: list[Any]) -> list[Any]:
    key, *ends = given
    return [key, *(None if end is None else (1, end[0], _seq(end[1])) for end in ends)]


def _seq(given: int | str) -> int:
    return ranked(*map(int, given.split(":"))) if isinstance(given, str) else given


each_history = pytest.mark.parametrize("history", key_histories(), ids=lambda history: history.name)
