"""Which promotions the lake follows: those whose past it has, and no more than that."""

import pytest

from ingestion.schema.positions import Lsn
from ingestion.sources.postgres.history.timelines import ended_at, lost_by_promotion

HISTORY = "1\t0/3000158\tno recovery target specified\n\n2\t0/50000A0\tbefore 2026-11-20 10:00:00+00\n"


@pytest.mark.parametrize(
    ("timeline", "reached", "why"),
    [
        (2, "0/50000A0", None),
        (1, "0/3000158", None),
        (1, "0/100", None),
        (2, "0/50000A1", "it went on from 0/50000A0, without the changes up to 0/50000A1 that the lake has"),
        (1, "0/3000159", "it went on from 0/3000158, without the changes up to 0/3000159 that the lake has"),
        (3, "0/100", "it did not go on from that timeline"),
    ],
)
def test_what_the_lake_has_must_be_the_past_of_the_new_primary(timeline: int, reached: str, why: str | None) -> None:
    assert lost_by_promotion(HISTORY, timeline, Lsn.parse(reached)) == why


def test_a_timeline_that_begins_with_the_same_digit_is_another() -> None:
    assert ended_at("11\t0/30\tx\n1\t0/20\tx\n", 1) == Lsn.parse("0/20")
    assert ended_at("", 1) is None
