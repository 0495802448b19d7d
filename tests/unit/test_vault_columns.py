"""Columns of a source may be called as the vault's macros call what they work with."""

from datetime import timedelta
from typing import Any

import pytest

from tests.unit import embedded_vault
from tests.unit.embedded_vault import START, Vault

NAMES = (
    "is_active", "is_new", "driving", "link", "link_now", "link_before", "nth", "is_stored", "hashdiff_before",
    "event_before", "state_before", "batch", "incoming", "stored", "timeline", "compared", "statements", "changes",
)  # fmt: skip


def loaded(monkeypatch: pytest.MonkeyPatch, name: str) -> list[list[tuple[Any, ...]]]:
    """What each table and timeline holds where the column `a` is called otherwise."""
    called = {"a": name}
    monkeypatch.setattr(embedded_vault, "COLUMNS", [(called.get(c, c), kind) for c, kind in embedded_vault.COLUMNS])
    payload = {"src_payload": [name, "b"]}
    timelines = {n: a | (payload if "a" in a["src_payload"] else {}) for n, a in embedded_vault.TIMELINES.items()
                 if "src_payload" in a}  # fmt: skip
    monkeypatch.setattr(embedded_vault, "TIMELINES", timelines)
    monkeypatch.setitem(embedded_vault.STAGE, "hd_row", {"is_hashdiff": True, "columns": ["b", name]})
    vault = Vault()
    vault.models = {n: (kind, a | payload if "src_payload" in a else a) for n, (kind, a) in vault.models.items()}
    vault.models["hub_named"] = ("hub", {"src_pk": "hk_row", "src_nk": ["id", name]})
    states = [("p", 1, "x"), ("p", 1, "y"), ("q", 1, "y"), ("p", 1, "x")]
    events = [
        {"id": 7, "line": 1, "owner": owner, "a": a, "b": b, "gone": False, "at": START + timedelta(hours=n),
         "lsn": n, "seq": 1}
        for n, (a, b, owner) in enumerate(states)
    ]  # fmt: skip
    for day, load in enumerate((events[:2], events[2:], events)):
        vault.load(load, START + timedelta(days=day + 1))
    vault.make_timelines()
    views = [f"{name}_v1" for name in timelines]
    return [vault.rows(f"select columns(* exclude (hd_row)) from {t} order by all" if "hd_row" in str(
        vault.rows(f"describe {t}")) else f"from {t} order by all") for t in [*vault.models, *views]]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_column_may_be_called_as_what_the_macros_work_with(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with monkeypatch.context() as plain:
        expected = loaded(plain, "zz")
    assert loaded(monkeypatch, name) == expected
