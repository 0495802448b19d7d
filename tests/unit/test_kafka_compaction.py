"""A delete that compaction took before it was read: nothing in the topic shows it, and its row stays current."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import psycopg
import pytest
from debezium_recorded import ITEMS, settings, table
from held_topics import PARTITIONS, Broker, declared, make_lake

from ingestion.schema.offsets import Offsets
from ingestion.sources.debezium import check as of_debezium
from ingestion.sources.kafka.history import a_time, added, read_late
from ingestion.sources.kinds import check_source
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.declarations import Source
from lakehouse.declarations.policies import LoadPolicy
from lakehouse.settings import Settings

NOW, DAY = datetime(2026, 11, 28, tzinfo=UTC), 24 * 3_600_000
OF = ("clicks", 0)


@dataclass
class Cluster:
    """One partition; `young` is the offset of its first event that is not older than deletes are kept."""

    kept: int | None
    start: int
    young: int

    def compacted(self, names: Any) -> dict[str, int]:
        return {} if self.kept is None else dict.fromkeys(names, self.kept)

    def starts(self, partitions: Any) -> dict[Any, int]:
        return dict.fromkeys(partitions, self.start)

    def since(self, partitions: Any, moment: datetime) -> dict[Any, int]:
        assert self.kept is not None and moment == NOW - timedelta(milliseconds=self.kept)
        return dict.fromkeys(partitions, self.young)


@pytest.mark.parametrize(
    ("hours", "cluster", "at", "end", "is_late"),
    [
        (30, Cluster(DAY, 0, 9), 7, 12, True),  # 7 and 8 are old, or were compacted away
        (30, Cluster(DAY, 0, -1), 7, 12, True),  # all that is unread is old
        (30, Cluster(DAY, 0, 7), 7, 12, False),  # nothing came for a day, and a follower may have looked
        (30, Cluster(DAY, 0, -1), 12, 12, False),  # nothing is unread
        (30, Cluster(DAY, 7, 9), 7, 12, False),  # nothing of it was read: no row of it can be left behind
        (30, Cluster(2 * DAY, 0, 9), 7, 12, False),  # deletes are still there
        (30, Cluster(None, 0, 9), 7, 12, False),  # it is not compacted
        (0.01, Cluster(0, 0, 9), 7, 12, False),  # a follower is at work
        (1, Cluster(60_000, 0, 9), 7, 12, True),
    ],
)
def test_deletes_may_be_lost_where_events_waited_for_longer_than_they_are_kept(
    hours: float, cluster: Cluster, at: int, end: int, is_late: bool
) -> None:
    read_at = NOW - timedelta(hours=hours)
    found = read_late(cast(Any, cluster), ["clicks"], Offsets.of({OF: at}), Offsets.of({OF: end}), read_at, NOW)
    assert [says.partition(" is ")[0] for says in found] == ["topic clicks"] * is_late


def test_new_partitions_of_a_topic_with_a_key_are_told_as_its_keys_have_moved() -> None:
    """Within a read the partition with the higher number wins, which may be the one that had the key before."""

    def says(reached: dict[int, int], end: dict[int, int]) -> list[str]:
        of = (Offsets.of({("clicks", number): offset for number, offset in o.items()}) for o in (reached, end))
        return [*added(["clicks", "others"], *of)]

    [told] = says({0: 5, 2: 7}, {0: 5, 1: 1, 2: 9, 3: 4, 4: 1})
    assert told.startswith("topic clicks, partition 3, 4: read for the first time, after others: if it was added")
    assert not says({}, {0: 5, 3: 4}), "a first read"
    assert not says({0: 5, 3: 7}, {0: 6, 1: 2, 3: 9}), "one that had no event so far"


@pytest.mark.stack
def test_a_read_that_comes_late_says_so_once(
    catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    lake = make_lake(catalog_settings, postgres_catalog, monkeypatch)
    lake.source = keyed(declared("clicks", flush=None))
    lake.broker.compact = {"clicks": DAY}
    lake.broker.send("clicks", 10)
    lake.once()
    assert "compacted" not in caplog.text
    lake.broker.send("clicks", 10)
    lake.broker.old = 7
    with psycopg.connect(catalog_settings.catalog_dsn(), autocommit=True) as connection:
        connection.execute("UPDATE lakehouse.streams SET updated_at = now() - interval '25 hours'")
    lake.once()
    says = "source 'web': topic clicks is compacted and keeps deletes for 24 h (delete.retention.ms), and had events"
    assert caplog.text.count(says) == 1
    lake.broker.send("clicks", PARTITIONS)
    lake.once()
    assert caplog.text.count(says) == 1


@pytest.mark.stack
def test_a_compacted_topic_of_rows_with_a_key_is_told_before(
    catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(catalog_settings, postgres_catalog, monkeypatch)
    monkeypatch.setattr("ingestion.sources.kafka.check.Brokers", lambda *_: lake.broker)
    lake.broker.compact = {"clicks": DAY // 4}
    assert check_source(lake.settings, declared("clicks")) == [], "without a key each event is a row of its own"
    [finding] = check_source(lake.settings, keyed(declared("clicks")))
    assert (finding.weight, finding.table) == ("warning", "clicks") and "within 6 h (delete.ret" in finding.says


def test_a_compacted_topic_of_debezium_is_told_before_whether_transactions_count_its_events_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = Broker(compact={"public.items": DAY}, names={"public.items", "transaction"}, partitions=1)
    monkeypatch.setattr(of_debezium, "Brokers", lambda *_: topics)
    source = Source(name="shop", description="", load=LoadPolicy(), tables=(table("items", ITEMS),))
    for transactions in ("transaction", None):
        of = settings().model_copy(update={"transactions": transactions})
        mine = Settings().model_copy(update={"sources": {"shop": of}, "catalog_url": None})
        told = [f for f in of_debezium.check_source(mine, source) if f.about == "compaction"]
        assert ["min.compaction.lag.ms" in finding.remedy for finding in told] == [True]


def keyed(source: Source) -> Source:
    [of] = source.tables
    return source.model_copy(
        update={"tables": (of.model_copy(update={"raw": of.raw.model_copy(update={"key": ("id",)})}),)}
    )


@pytest.mark.parametrize(
    ("milliseconds", "says"),
    [(0, "0 s"), (500, "0.5 s"), (1000, "1 s"), (90_000, "1.5 min"), (21_600_000, "6 h"), (86_400_000, "24 h")],
)
def test_a_time_is_told_in_a_unit_that_fits(milliseconds: int, says: str) -> None:
    """A second was 0.0002778 h."""
    assert a_time(milliseconds) == says
