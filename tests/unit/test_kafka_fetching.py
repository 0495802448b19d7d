"""How many messages a read has in memory: as many as their sizes allow, whatever the client would hand over."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from ingestion.sources.kafka.fetching import MESSAGES, TAKEN_BYTES, Fetch, Range, table_of
from lakehouse.errors import LakehouseError

AT = datetime(2026, 11, 26, tzinfo=UTC)


@dataclass
class Sent:
    """A message, as the client gives it."""

    at: int
    sizes: tuple[int, int] = (0, 1)
    moment: tuple[int, int] = (1, 1_764_000_000_000)

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return self.moment

    def key(self) -> bytes | None:
        return b"k" * self.sizes[0] or None

    def value(self) -> bytes | None:
        return b"v" * self.sizes[1] or None


@dataclass
class Client:
    """It has all messages at hand, and hands over as many as it is asked for."""

    sizes: list[tuple[int, int]]
    at: int = 0
    taken: list[int] = field(default_factory=list)  # bytes, each time

    def assign(self, partitions: Any) -> None: ...

    def incremental_unassign(self, partitions: Any) -> None: ...

    def consume(self, count: int, timeout: float) -> list[Sent]:
        found = [Sent(n, self.sizes[n]) for n in range(self.at, min(self.at + count, len(self.sizes)))]
        self.at += len(found)
        self.taken.append(sum(sum(message.sizes) for message in found))
        return found


def fetched(client: Client, batch_bytes: int) -> list[int]:
    """The bytes of each batch."""
    ranges = [Range("t", 0, 0, len(client.sizes), 0)]
    fetch = Fetch("s", client, ranges, AT, batch_bytes, lambda error: AssertionError(error))  # type: ignore[arg-type,return-value]
    return [events.column("key").nbytes + events.column("value").nbytes for _, events in fetch.events()]


@pytest.mark.parametrize("size", [(0, 500_000), (500_000, 0), (250_000, 250_000)])
def test_of_large_messages_a_few_are_taken_at_a_time(size: tuple[int, int]) -> None:
    client = Client([(1, 20)] * 3_000 + [size] * 100 + [(1, 20)] * 3_000)
    batches = fetched(client, TAKEN_BYTES)
    assert client.at == 6_100
    met = next(number for number, taken in enumerate(client.taken) if taken >= 500_000)
    assert max(client.taken[met + 1 :]) <= TAKEN_BYTES, "all but the first time that they come"
    assert max(batches) <= client.taken[met] + TAKEN_BYTES


def test_of_small_messages_as_many_are_taken_as_ever() -> None:
    client = Client([(0, 100)] * 50_000)
    fetched(client, 1 << 24)
    assert len(client.taken) <= 2 + 50_000 // MESSAGES


def test_a_message_that_is_larger_than_all_bounds_is_taken() -> None:
    client = Client([(0, 3 * TAKEN_BYTES)] * 3)
    assert len(fetched(client, 1)) == len(client.taken) == 1, "the first time, nobody knows"
    client = Client([(0, 3 * TAKEN_BYTES)] * 80)
    fetched(client, 1)
    assert client.taken[1:] == [3 * TAKEN_BYTES] * 16


@pytest.mark.parametrize("offsets", [[[0, 1, 2], [1, 2, 3, 4]], [[0, 1, 2, 1, 2, 3, 4]], [[0, 1, 1, 2, 3, 4]]])
def test_a_partition_that_goes_back_while_it_is_read_is_refused(offsets: list[list[int]]) -> None:
    """What came again would have landed twice, or would be another event than the one that had come."""
    client, batches = Client([]), iter(offsets)
    client.consume = lambda count, timeout: [Sent(offset) for offset in next(batches)]  # type: ignore[method-assign]
    fetch = Fetch("s", client, [Range("t", 0, 0, 5, 0)], AT, 1, lambda error: AssertionError(error))  # type: ignore[arg-type,return-value]
    with pytest.raises(LakehouseError, match=r"topic t, partition 0 went back to an offset that was read before"):
        list(fetch.events())


MOMENTS = [(1, 0), (1, 253_402_300_799_999), (0, 5), (1, -1), (1, 253_402_300_800_000), (2, 1_764_000_000_000_000),
           (1, 1_764_000_000_000_000_000), (1, (1 << 63) - 1)]  # fmt: skip


def test_a_moment_that_no_calendar_has_is_that_of_the_read() -> None:
    """Its day was the partition of a file whose path could not be made: the event held its source up."""
    found = table_of([Sent(number, moment=moment) for number, moment in enumerate(MOMENTS)], AT)  # type: ignore[misc]
    told = found.column("at").to_pylist()
    assert [at.year for at in told[:2]] == [1970, 9999] and told[2:] == [AT] * 6
