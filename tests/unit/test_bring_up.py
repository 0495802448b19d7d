"""Bringing a source up while another writer is at work."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ingestion.run import api
from ingestion.schema.positions import Lsn
from lakehouse.errors import LakehouseError


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


def test_a_table_that_the_writer_has_not_heard_of_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads waited for minutes, and then said that the writer had not come as far as it had."""
    stream = SimpleNamespace(position=Lsn(120), cut_position=Lsn(120), cut_tables=["orders"])
    streaming = SimpleNamespace(state="streaming", reason=None, point=Lsn(90))
    monkeypatch.setattr(api, "NOTICED_SECONDS", 0.0)
    monkeypatch.setattr(api, "_committed", lambda *_: Lsn(110))
    monkeypatch.setattr(api.store, "connect_catalog", lambda _: nullcontext())
    monkeypatch.setattr(api.store, "ensure_state", lambda _: None)
    monkeypatch.setattr(api.store, "read_stream", lambda *_: stream)
    monkeypatch.setattr(api.store, "read_positions", lambda *_: {"orders": streaming})
    for name in ("check_kind", "check_same_kind"):
        monkeypatch.setattr(api, name, lambda *_: None)
    monkeypatch.setattr(api.leases, "acquire", lambda *_: None)
    monkeypatch.setattr(api.leases, "holder_of", lambda *_: ("vm:7:1", "follow"))
    tables = [SimpleNamespace(name="orders"), SimpleNamespace(name="tolls")]
    declared = SimpleNamespace(name="shop", flush=None, kind="postgres", tables=tables)
    settings = SimpleNamespace(
        ingestion=SimpleNamespace(wait_seconds=60.0, lease_seconds=1.0), connection=lambda _: declared
    )
    with pytest.raises(LakehouseError, match=r"^source 'shop': the writer vm:7:1 does not know of tolls, which"):
        api.bring_up(cast(Any, settings), cast(Any, SimpleNamespace(source=lambda _: declared)), "shop")


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
