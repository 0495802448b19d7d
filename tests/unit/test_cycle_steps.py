"""How a backlog is cut into publishes."""

import pytest

from ingestion.sources.postgres.source import WAL_PAGE_BYTES, next_stop

PAGE = WAL_PAGE_BYTES


@pytest.mark.parametrize(
    ("reached", "end", "max_bytes", "expected"),
    [
        (10, 500, 1 << 30, 500),
        (10, 10, 1 << 30, 10),
        (10, 5, 1 << 30, 10),
        (10, 100 * PAGE + 7, 3 * PAGE, 3 * PAGE),
        (3 * PAGE, 100 * PAGE, PAGE, 4 * PAGE),
        (3 * PAGE + 1, 100 * PAGE, 1, 4 * PAGE),
        (3 * PAGE + 1, 3 * PAGE + 9, 1, 3 * PAGE + 9),
    ],
)
def test_a_publish_stops_at_the_end_or_at_a_pages_boundary(
    reached: int, end: int, max_bytes: int, expected: int
) -> None:
    assert next_stop(reached, end, max_bytes) == expected


def test_every_backlog_comes_to_its_end() -> None:
    for max_bytes in (1, PAGE - 1, PAGE, 5 * PAGE + 3):
        reached, end = 12345, 12345 + 40 * PAGE + 17
        for _ in range(50):
            reached = next_stop(reached, end, max_bytes)
        assert reached == end
