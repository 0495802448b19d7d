"""Bringing a source up while another writer is at work."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ingestion.run import api


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
