"""A clock that is put back, at any moment of a cycle, has no load pass over rows that come later."""

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from held_topics import FLUSH, Broker, Lake, declared, make_lake

from ingestion.state import store
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.settings import Settings

pytestmark = pytest.mark.stack
CLOCK = store.INGESTION_CLOCK


@pytest.mark.parametrize("flush", [None, FLUSH], ids=["each second", "held"])
def test_rows_are_later_than_all_that_was_published_whatever_the_clock_says(
    catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch, flush: Any
) -> None:
    lake, dice = make_lake(catalog_settings, postgres_catalog, monkeypatch), random.Random(7)
    lake.source = declared("clicks", flush=flush)
    fetched = Broker.fetched

    def put(back: int) -> None:
        clock = CLOCK.replace("clock_timestamp()", f"clock_timestamp() - interval '{back} hours'")
        monkeypatch.setattr(store, "INGESTION_CLOCK", clock)

    def put_back_while_reading(self: Broker, reader: Any) -> Any:
        put(back=24)
        return fetched(self, reader)

    monkeypatch.setattr(Broker, "fetched", put_back_while_reading)
    put(back=48)
    lake.once()
    follower, loaded, watermark = lake.start(), set[int](), datetime.min.replace(tzinfo=UTC)
    for number in range(12):
        lake.broker.send("clicks", 2)
        put(back=dice.randrange(24))
        lake.now += 0 if number % 3 else 601
        follower.read()
        later = {row["id"]: row["_ingested_at"] for row in rows(lake) if row["id"] not in loaded}
        assert all(moment > watermark for moment in later.values()), "a load would pass over it"
        loaded, watermark = loaded | later.keys(), max([watermark, *later.values()])
    lake.kill()
    cuts = lake.catalog.load_table(("meta", "cuts")).scan().to_arrow().to_pylist()
    assert max(row["published_at"] for row in cuts) >= max(row["_ingested_at"] for row in rows(lake))
    assert loaded == set(lake.committed()) != set()


def rows(lake: Lake) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lake.catalog.load_table(("raw_web", "clicks")).scan().to_arrow().to_pylist()
    return found
