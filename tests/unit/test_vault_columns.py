"""Columns of a source may be called as the vault's macros call what they work with."""

from datetime import timedelta
from typing import Any

import pytest

from tests.marks import slow
from tests.unit import embedded_vault
from tests.unit.embedded_vault import START, Vault

NAMES = (
    "is_active", "is_new", "driving", "link", "link_now", "link_before", "nth", "is_stored", "hashdiff_before",
    "event_before", "state_before", "batch", "incoming", "stored", "timeline", "compared", "statements", "changes",
)  # fmt: skip


def renamed(part: Any, name: str) -> Any:
    """The same with another name in the place of column `a`."""
    if isinstance(part, dict):
        return {key: renamed(value, name) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return type(part)(renamed(value, name) for value in part)
    return name if part == "a" else part


def loaded(monkeypatch: pytest.MonkeyPatch, name: str) -> list[list[tuple[Any, ...]]]:
    """What each table and timeline holds where the column `a` is called otherwise."""
    monkeypatch.setattr(embedded_vault, "COLUMNS", [(name if c == "a" else c, k) for c, k in embedded_vault.COLUMNS])
    for part in ("STAGE", "MODELS", "TIMELINES"):
        monkeypatch.setattr(embedded_vault, part, renamed(getattr(embedded_vault, part), name))
    vault = Vault()
    vault.models["hub_named"] = ("hub", {"src_pk": "hk_row", "src_nk": ["id", name]})
    states = [("p", 1, "x"), ("p", 1, "y"), ("q", 1, "y"), ("p", 1, "x")]
    events = [
        {"id": 7, "line": 1, "owner": owner, name: a, "b": b, "gone": False, "at": START + timedelta(hours=n),
         "lsn": n, "seq": 1}
        for n, (a, b, owner) in enumerate(states)
    ]  # fmt: skip
    for day, load in enumerate((events[:2], events[2:], events)):
        vault.load(load, START + timedelta(days=day + 1))
    vault.make_timelines()
    views = [f"{name}_v1" for name in embedded_vault.TIMELINES]
    return [vault.rows(f"select columns(* exclude (hd_row)) from {t} order by all" if "hd_row" in str(
        vault.rows(f"describe {t}")) else f"from {t} order by all") for t in [*vault.models, *views]]  # fmt: skip


@pytest.mark.parametrize("name", [name if number % 9 == 0 else slow(name) for number, name in enumerate(NAMES)])
def test_a_column_may_be_called_as_what_the_macros_work_with(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with monkeypatch.context() as plain:
        expected = loaded(plain, "zz")
    assert loaded(monkeypatch, name) == expected
