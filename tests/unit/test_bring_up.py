"""Bringing a source up while another writer is at work."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ingestion.run import api
from ingestion.schema.positions import Lsn


def test_who_waits_for_another_writer_closes_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections stayed open for as long as the process lived, with each time that somebody waited."""
    done: list[str] = []
    catalog = SimpleNamespace(close=lambda: done.append("closed"))
    monkeypatch.setattr(api, "check_kind", lambda *_: None)
    monkeypatch.setattr(api, "_committed", lambda *_: 5)
    monkeypatch.setattr(api.store, "connect_catalog", lambda _: nullcontext())
    monkeypatch.setattr(api.store, "ensure_state", lambda _: None)
    monkeypatch.setattr(api.store, "read_stream", lambda *_: None)
    monkeypatch.setattr(api.leases, "acquire", lambda *_: None)
    monkeypatch.setattr(api, "_has_reached", lambda *_: True)
    monkeypatch.setattr(api, "open_catalog", lambda _: catalog)
    monkeypatch.setattr(api, "_report", lambda *given: done.append("reported" if given[-1] is catalog else "another"))
    declared = SimpleNamespace(flush=None, kind="postgres")
    settings = SimpleNamespace(
        ingestion=SimpleNamespace(wait_seconds=1.0, lease_seconds=1.0), connection=lambda _: declared
    )
    api.bring_up(cast(Any, settings), cast(Any, SimpleNamespace(source=lambda _: declared)), "shop")
    assert done == ["reported", "closed"]


@pytest.mark.parametrize(
    ("state", "reason", "point", "reached"),
    [
        ("streaming", None, 90, True),
        ("streaming", None, 100, True),
        ("streaming", None, 101, False),
        ("new", None, 90, False),
        ("loading", None, 90, False),
        ("stale", "a row of no form", 90, False),
        ("resuming", None, 90, False),
        ("new", "it was dropped", 90, True),
        ("parked", "it was dropped", 90, True),
    ],
)
def test_a_table_that_is_to_be_read_anew_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, state: str, reason: str | None, point: int, reached: bool
) -> None:
    """Beside a follower, `--resnapshot` ended before anything had begun: the newest cut named the table still."""
    stream = SimpleNamespace(position=Lsn(120), cut_position=Lsn(100), cut_tables=["orders"])
    position = SimpleNamespace(state=state, reason=reason, point=Lsn(point))
    monkeypatch.setattr(api.store, "read_stream", lambda *_: stream)
    monkeypatch.setattr(api.store, "read_positions", lambda *_: {"orders": position})
    declared = SimpleNamespace(name="shop", tables=[SimpleNamespace(name="orders")])
    assert api._has_reached(cast(Any, None), cast(Any, declared), Lsn(110)) is reached
