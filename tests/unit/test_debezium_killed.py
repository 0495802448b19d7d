"""A resume and a replay of topics that are killed before each of their statements: nothing twice, nothing lost."""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from killed import kills
from test_debezium_pipeline import PLAIN, TABLES, Lake, grown, lake

from ingestion.run import operate
from ingestion.sources.debezium.message import opened
from ingestion.state import store
from lakehouse.catalog.lake_catalog import LakeCatalog

__all__ = ["lake"]
pytestmark = [pytest.mark.stack, pytest.mark.slow]
BROKEN = (30, 31, 40)
OF_ITEMS = {("public.items", offset) for offset in BROKEN}
EVENTS = sorted(m["offset"] for m in PLAIN if m["topic"] == "public.items" and m["value"])


def spooled(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Most events are in the spool."""
    first, *_, last = grown(30)
    lake.visible.messages = first
    lake.cycle()
    operate.pause(lake.settings, TABLES[0])
    lake.visible.messages = last
    lake.cycle()
    assert len(lake.kept("spool")) > 30
    operate.resume(lake.settings, TABLES[0])
    return lake.cycle


def quarantined(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Some events could not be read, and can be now."""
    *_, messages = grown(30)
    good = {b'{"n": %d' % m["offset"]: m["value"] for m in messages if (m["topic"], m["offset"]) in OF_ITEMS}
    text = {int(key.split()[1]): key.decode() for key in good}
    lake.visible.messages = [
        m | {"value": text[m["offset"]]} if (m["topic"], m["offset"]) in OF_ITEMS else m for m in messages
    ]
    lake.cycle()
    assert [r["offset"] for r in lake.kept("quarantine")] == list(BROKEN)
    known = opened.parsed
    monkeypatch.setattr(opened, "parsed", lambda message: known(good.get(message, message.decode()).encode()))
    return lambda: lake.replay("items")


@pytest.mark.parametrize("begin", [spooled, quarantined])
def test_killed_before_each_statement_each_event_is_there_once(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Callable[..., Callable[[], None]]
) -> None:
    work, number = begin(lake, monkeypatch), 0

    def alone() -> None:
        uri = lake.settings.catalog_dsn().replace("postgresql://", "postgresql+psycopg://")
        lake.catalog = LakeCatalog(lake.settings.catalog_name, uri=uri, warehouse=f"file://{tmp_path}")
        work()

    for number in kills(alone, tmp_path):
        assert_once(lake, f"killed after {number} effects")
        with psycopg.connect(lake.settings.catalog_dsn(), autocommit=True) as connection:
            connection.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp()")
    assert_once(lake, "at the end")
    assert number > 10 and lake.kept("spool") == [] and lake.kept("quarantine") == []
    with store.connect_catalog(lake.settings) as states:
        assert store.read_positions(states, "shop")["items"].state == "streaming"


def assert_once(lake: Lake, when: str) -> None:
    rows = lake.rows("items")
    kept = [r["offset"] for where in ("spool", "quarantine") for r in lake.kept(where)]
    assert sorted([*{r["_offset"] for r in rows}, *kept]) == EVENTS, when
    assert len({(r["_commit_lsn"], r["_seq"]) for r in rows}) == len(rows), when
