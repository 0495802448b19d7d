"""When a follower publishes next."""

from ingestion.run.follow import Last, flush_in
from lakehouse.settings import IngestionSettings

LIMITS = IngestionSettings(flush_interval_seconds=0.5, flush_bytes=1000)


def test_a_source_in_steady_work_leaves_publishing_half_of_the_time() -> None:
    last = Last()
    for begun in (0.0, 4.0):
        last.passed(begun, 2.0, had_rows=True)
    assert flush_in(LIMITS, 10, since_begun=2.0, took=last.took) == 2.0
    assert flush_in(LIMITS, 10, since_begun=4.5, took=last.took) == 0.0
    assert flush_in(LIMITS, 1000, since_begun=2.0, took=last.took) == 0.0, "much has gathered"


def test_one_slow_publish_does_not_delay_the_next() -> None:
    last = Last()
    for begun, took in ((0.0, 0.4), (1.0, 3.0)):
        last.passed(begun, took, had_rows=True)
    assert flush_in(LIMITS, 10, since_begun=3.0, took=last.took) == 0.0


def test_a_cycle_without_rows_holds_nothing_up() -> None:
    last = Last()
    last.passed(0.0, 0.1, had_rows=True)
    last.passed(10.0, 5.0, had_rows=False)
    assert (last.begun, last.published, last.took) == (10.0, 0.0, 0.1)
