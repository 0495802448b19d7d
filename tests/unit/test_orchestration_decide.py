"""When a sensor launches a job, and why it does not: every case from facts alone."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from lakehouse.catalog import SnapshotFact
from orchestration.decide import MAX_ATTEMPTS, PULL_BYTES, Launch, Seen, Skip, decide, fingerprint
from orchestration.history import JobHistory, PastRun

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
STORES = "raw_retail.stores"


@dataclass(frozen=True)
class Source:
    follower_alive: bool = True
    slot_lag_bytes: int = 0
    position_lsn: int | None = 100


def snapshot(snapshot_id: int = 1) -> SnapshotFact:
    return SnapshotFact(snapshot_id, NOW - timedelta(minutes=5), total_rows=10, added_rows=2)


def past(
    status: str = "SUCCESS", trigger: str | None = None, ago: timedelta = timedelta(hours=2), **loaded: int
) -> PastRun:
    snapshots = {f"raw_retail.{table}": snapshot_id for table, snapshot_id in loaded.items()}
    return PastRun(f"{status.lower()}-0123456789", status, trigger, snapshots, NOW - ago, NOW - ago)


def after(success: PastRun | None = None, failures: int = 0, seen: Seen | None = None, ago: float = 7200) -> JobHistory:
    history = JobHistory(last_success=success)
    trigger = fingerprint(seen, history) if seen else None
    failed = tuple(past("FAILURE", trigger, timedelta(seconds=ago)) for _ in range(failures))
    return replace(history, failures=failed)


def look(snapshot_id: int = 1, source: Source | None = None) -> Seen:
    return Seen({STORES: snapshot(snapshot_id)}, source)


def test_a_snapshot_that_no_successful_run_has_loaded_launches_the_job() -> None:
    decision = decide("load_retail", look(2), after(past(stores=1)), NOW)
    assert isinstance(decision, Launch)
    assert decision.attempt == 1
    assert "raw_retail.stores (snapshot 2, 2 rows added)" in decision.why


def test_a_loaded_snapshot_is_no_news_and_the_reason_names_the_run() -> None:
    decision = decide("load_retail", look(1, Source()), after(past(stores=1)), NOW)
    assert isinstance(decision, Skip)
    assert "run success-" in decision.why and "a follower is alive" in decision.why


def test_a_job_that_never_ran_loads_what_is_there() -> None:
    assert isinstance(decide("load_retail", look(1, Source()), JobHistory(), NOW), Launch)


def test_nothing_is_launched_beside_a_queued_or_running_run() -> None:
    for status in ("QUEUED", "STARTED", "CANCELING"):
        decision = decide("load_retail", look(2), JobHistory(unfinished=(past(status),)), NOW)
        assert isinstance(decision, Skip) and status in decision.why


def test_a_failed_load_is_tried_three_times_in_all_and_then_says_what_to_do() -> None:
    seen, success = look(2), past(stores=1)
    for failures in range(MAX_ATTEMPTS):
        decision = decide("load_retail", seen, after(success, failures, seen), NOW)
        assert isinstance(decision, Launch) and decision.attempt == failures + 1
    decision = decide("load_retail", seen, after(success, MAX_ATTEMPTS, seen), NOW)
    assert isinstance(decision, Skip) and "launch load_retail by hand" in decision.why


def test_attempts_have_one_trigger_and_different_run_keys() -> None:
    seen, success = look(2), past(stores=1)
    decisions = [decide("load_retail", seen, after(success, failures, seen), NOW) for failures in (0, 1)]
    assert len({d.trigger for d in decisions if isinstance(d, Launch)}) == 1
    assert len({(d.trigger, d.attempt) for d in decisions if isinstance(d, Launch)}) == 2


def test_a_source_that_goes_on_is_tried_again_after_three_failures_that_left_the_lake_as_it_was() -> None:
    success = past(stores=1)
    behind = look(1, Source(follower_alive=False, slot_lag_bytes=PULL_BYTES))
    failed = after(success, MAX_ATTEMPTS, behind)
    assert isinstance(decide("load_retail", behind, failed, NOW), Skip)
    further = look(1, Source(follower_alive=False, slot_lag_bytes=PULL_BYTES + 2**20))
    assert isinstance(decide("load_retail", further, failed, NOW), Launch)


def test_new_data_after_three_failures_is_tried_again() -> None:
    history = after(past(stores=1), MAX_ATTEMPTS, look(2))
    assert isinstance(decide("load_retail", look(3), history, NOW), Launch)


def test_a_broken_job_waits_longer_and_longer_however_much_news_there_is() -> None:
    success = past(stores=1)
    for failures, wait in ((1, 30), (2, 60), (5, 480), (20, 3600)):
        early, late = after(success, failures, look(2), wait - 5), after(success, failures, look(2), wait + 5)
        assert isinstance(decide("load_retail", look(3), early, NOW), Skip)
        assert isinstance(decide("load_retail", look(3), late, NOW), Launch)


def test_without_a_follower_the_slot_is_watched() -> None:
    behind = look(1, Source(follower_alive=False, slot_lag_bytes=PULL_BYTES))
    decision = decide("load_retail", behind, after(past(stores=1)), NOW)
    assert isinstance(decision, Launch) and "no follower is alive" in decision.why


def test_a_follower_is_left_to_do_its_work() -> None:
    behind = look(1, Source(follower_alive=True, slot_lag_bytes=PULL_BYTES * 100))
    assert isinstance(decide("load_retail", behind, after(past(stores=1)), NOW), Skip)
    empty = Seen({}, Source(position_lsn=None))
    assert isinstance(decide("load_retail", empty, JobHistory(), NOW), Skip)


def test_noise_in_the_slot_waits_a_quarter_of_an_hour() -> None:
    noise = look(1, Source(follower_alive=False, slot_lag_bytes=56))
    recent, old = past(stores=1, ago=timedelta(minutes=5)), past(stores=1, ago=timedelta(minutes=20))
    assert isinstance(decide("load_retail", noise, after(recent), NOW), Skip)
    assert isinstance(decide("load_retail", noise, after(old), NOW), Launch)


def test_without_a_follower_the_first_load_ingests() -> None:
    nothing = Seen({}, Source(follower_alive=False, position_lsn=None))
    decision = decide("load_retail", nothing, JobHistory(), NOW)
    assert isinstance(decision, Launch) and "nothing was ever ingested" in decision.why


def test_silence_is_confirmed_when_freshness_is_declared() -> None:
    history = after(past(stores=1, ago=timedelta(hours=13)))
    assert isinstance(decide("load_retail", look(1), history, NOW), Skip)
    decision = decide("load_retail", look(1), history, NOW, confirm_after=timedelta(hours=12))
    assert isinstance(decision, Launch) and "no news for 13 h" in decision.why


def test_a_table_added_to_the_source_is_news() -> None:
    seen = Seen({STORES: snapshot(1), "raw_retail.coupons": snapshot(7)})
    decision = decide("load_retail", seen, after(past(stores=1)), NOW)
    assert isinstance(decision, Launch) and "coupons" in decision.why and "stores" not in decision.why
