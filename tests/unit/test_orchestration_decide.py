"""When a sensor launches a job, and the reasons when it does not; pure unit tests."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse.catalog.open import SnapshotFact
from lakehouse.servers.worker_sessions import RESTART_SECONDS
from orchestration.runs.state.history import JobHistory, PastRun
from orchestration.runs.state.load_state import HeldTable, LoadState, loaded_since, pack_state, unpack_state
from orchestration.sensors import new_data
from orchestration.sensors.decide import LONGEST_START_WAIT, PULL_BYTES, Launch, Observed, Skip, decide, fingerprint
from orchestration.sensors.new_data import Absence, Watch

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
STORES = "raw_retail.stores"


@dataclass(frozen=True)
class Source:
    follower_alive: bool = True
    slot_lag_bytes: int = 0
    position: str | None = "0/64"


def snapshot(snapshot_id: int = 1) -> SnapshotFact:
    return SnapshotFact(snapshot_id, NOW - timedelta(minutes=5), total_rows=10, added_rows=2)


def past(
    status: str = "SUCCESS", trigger: str | None = None, ago: timedelta = timedelta(hours=2), **loaded: int
) -> PastRun:
    snapshots = {f"raw_retail.{table}": snapshot_id for table, snapshot_id in loaded.items()}
    return PastRun(f"{status.lower()}-0123456789", status, trigger, snapshots, NOW - ago, NOW - ago)


def after(
    success: PastRun | None = None, failures: int = 0, seen: Observed | None = None, ago: float = 7200
) -> JobHistory:
    history = JobHistory(last_load=success)
    trigger = fingerprint(seen, history) if seen else None
    failed = tuple(past("FAILURE", trigger, timedelta(seconds=ago)) for _ in range(failures))
    return replace(history, failures=failed)


def observe(snapshot_id: int = 1, source: Source | None = None) -> Observed:
    return Observed({STORES: snapshot(snapshot_id)}, source)


def test_a_snapshot_that_no_successful_run_has_loaded_launches_the_job() -> None:
    decision = decide("load_retail", observe(2), after(past(stores=1)), NOW)
    assert isinstance(decision, Launch)
    assert decision.after is None and decision.run_key == decision.trigger
    assert "raw_retail.stores (snapshot 2, 2 rows added)" in decision.why


def test_a_loaded_snapshot_is_no_news_and_the_reason_names_the_run() -> None:
    decision = decide("load_retail", observe(1, Source()), after(past(stores=1)), NOW)
    assert isinstance(decision, Skip)
    assert "run success-" in decision.why and "a follower is alive" in decision.why


def test_positions_that_have_the_same_number_trigger_runs_of_their_own() -> None:
    """The number of a vector of offsets need not change with each of its parts, and a run key launches one run only."""
    one, other = (
        Source(follower_alive=False, position=text) for text in ("topic/0:3,topic/1:1", "topic/0:3,topic/1:2")
    )
    assert fingerprint(observe(1, one), after()) != fingerprint(observe(1, other), after())


def test_a_mart_that_somebody_has_replaced_in_place_launches_the_job_that_builds_it_once() -> None:
    """A dbt by hand that began before the last load set it back, and no table that it reads had news."""
    lake: Any = SimpleNamespace(
        newest_snapshots=lambda _: {STORES: snapshot()}, worker=lambda: "none", is_served=lambda _: False,
        unpublished_snapshots=lambda tables: {".".join(table): snapshot(7) for table in tables},
    )  # fmt: skip
    watch = Watch("new_data_marts", (("raw_retail", "stores"),), built=(("marts", "fct"),))
    seen, loaded = new_data.observe(lake, watch, "build_marts"), past(stores=1)
    decision = decide("build_marts", seen, after(loaded), NOW)
    assert isinstance(decision, Launch) and "marts.fct (snapshot 7" in decision.why
    looked_at = replace(loaded, snapshots={**loaded.snapshots, "marts.fct": 7})
    assert isinstance(decide("build_marts", seen, after(looked_at), NOW), Skip)


def test_a_job_that_never_ran_loads_what_is_there() -> None:
    assert isinstance(decide("load_retail", observe(1, Source()), JobHistory(), NOW), Launch)


def test_nothing_is_launched_beside_a_queued_or_running_run() -> None:
    for status in ("QUEUED", "STARTED", "CANCELING"):
        decision = decide("load_retail", observe(2), JobHistory(unfinished=(past(status),)), NOW)
        assert isinstance(decision, Skip) and status in decision.why


def failed(ago: float, number: int = 0, code: str | None = None, in_step: bool = True) -> PastRun:
    run = past("FAILURE", ago=timedelta(seconds=ago))
    return replace(run, run_id=f"{number:08}-failed", code=code, failed_in_step=in_step)


def test_a_failed_load_is_tried_again_and_again_at_least_every_hour() -> None:
    """After three failures it stopped for good: once the cause was mended nothing ran until a person launched it."""
    seen, success = observe(2), past(stores=1)
    for failures in (1, 3, 8, 50):
        runs = tuple(failed(3601 + number) for number in range(failures))
        assert isinstance(decide("load_retail", seen, JobHistory(success, runs), NOW), Launch)


def test_a_run_that_failed_is_tried_again_though_nothing_is_new() -> None:
    """The source was down, came back, and was quiet: the run's tables stayed red. A canceled run was meant to end."""
    seen, loaded = observe(1, Source()), past(stores=1)
    decision = decide("load_retail", seen, after(loaded, 1, seen), NOW)
    assert isinstance(decision, Launch) and "nothing was loaded since run failure-" in decision.why
    assert isinstance(decide("load_retail", seen, after(loaded, 1, seen, ago=1), NOW), Skip), "not at once"
    assert isinstance(decide("load_retail", replace(seen, served=True), after(loaded, 1, seen), NOW), Launch)
    canceled = replace(after(loaded), failures=(past("CANCELED"),))
    assert isinstance(decide("load_retail", seen, canceled, NOW), Skip)


def test_each_attempt_has_its_own_run_key_and_a_second_tick_the_same() -> None:
    """Dagster launches a key once for ever; the number of failures is bounded by what is read of the history."""
    seen, success = observe(2), past(stores=1)
    histories = [JobHistory(success, tuple(failed(7200, n) for n in range(first, 8))) for first in (0, 1, 2)]
    decisions = [decide("load_retail", seen, history, NOW) for history in (*histories, histories[0])]
    keys = [decision.run_key for decision in decisions if isinstance(decision, Launch)]
    assert len(keys) == 4 and len(set(keys)) == 3 and keys[0] == keys[3]
    assert len({decision.trigger for decision in decisions if isinstance(decision, Launch)}) == 1


def test_runs_that_failed_in_no_step_delay_a_load_by_minutes_however_many() -> None:
    """A code server that was away for an afternoon used up the attempts of every job."""
    success, wait = past(stores=1), LONGEST_START_WAIT.total_seconds()
    for ago, launches in ((wait - 5, False), (wait + 5, True)):
        history = JobHistory(success, tuple(failed(ago + n, in_step=False) for n in range(20)))
        assert isinstance(decide("load_retail", observe(2), history, NOW), Launch) == launches
    mixed = JobHistory(
        success, (failed(400, in_step=False), *(failed(500, in_step=False) for _ in range(6)), failed(600))
    )
    assert isinstance(decide("load_retail", observe(2), mixed, NOW), Launch), "one step failure alone counts once"


def test_other_code_is_tried_at_once() -> None:
    seen, success = replace(observe(2), code="new"), past(stores=1)
    for code, launches in (("old", True), ("new", False), (None, False)):
        history = JobHistory(success, (failed(5, code=code),))
        assert isinstance(decide("load_retail", seen, history, NOW), Launch) == launches


def test_a_table_that_failed_with_other_code_is_tried_at_once() -> None:
    history = resting(8, 5, stores=1, sales=1)
    assert history.last_load is not None
    history = replace(history, last_load=replace(history.last_load, code="old"))
    for code, launches in (("new", True), ("old", False), (None, False)):
        decision = decide("load_retail", replace(two(1, 1), code=code), history, NOW)
        assert isinstance(decision, Launch) == launches, code


def test_a_broken_job_waits_longer_and_longer_however_much_news_there_is() -> None:
    success = past(stores=1)
    for failures, wait in ((1, 30), (2, 60), (5, 480), (20, 3600)):
        early, late = after(success, failures, observe(2), wait - 5), after(success, failures, observe(2), wait + 5)
        assert isinstance(decide("load_retail", observe(3), early, NOW), Skip)
        assert isinstance(decide("load_retail", observe(3), late, NOW), Launch)


def test_without_a_follower_the_slot_is_watched() -> None:
    behind = observe(1, Source(follower_alive=False, slot_lag_bytes=PULL_BYTES))
    decision = decide("load_retail", behind, after(past(stores=1)), NOW)
    assert isinstance(decision, Launch) and "no follower is alive" in decision.why


def test_a_follower_is_left_to_do_its_work() -> None:
    behind = observe(1, Source(follower_alive=True, slot_lag_bytes=PULL_BYTES * 100))
    assert isinstance(decide("load_retail", behind, after(past(stores=1)), NOW), Skip)
    empty = Observed({}, Source(position=None))
    assert isinstance(decide("load_retail", empty, JobHistory(), NOW), Skip)


def test_a_follower_that_starts_with_all_else_is_waited_for() -> None:
    """The first tick of `lakehouse dev` came before its follower, and launched a load of what that then read."""
    behind = Source(follower_alive=False, slot_lag_bytes=PULL_BYTES * 100)
    seen = replace(observe(1, behind), starting=True)
    decision = decide("load_retail", seen, after(past(stores=1)), NOW)
    assert isinstance(decision, Skip) and "no follower is alive yet" in decision.why
    assert isinstance(decide("load_retail", replace(seen, starting=False), after(past(stores=1)), NOW), Launch)
    assert isinstance(
        decide("load_retail", replace(observe(2, behind), starting=True), after(past(stores=1)), NOW), Launch
    )


def test_new_data_are_left_to_a_worker_that_was_killed_a_moment_ago_and_to_no_other() -> None:
    """A tick between its end and its return launched a whole run, for which it then waited."""
    seen, loaded = replace(observe(2, Source()), returning=True), after(past(stores=1))
    decision = decide("load_retail", seen, loaded, NOW)
    assert isinstance(decision, Skip) and "if it is back in a moment" in decision.why
    assert isinstance(decide("load_retail", replace(seen, returning=False), loaded, NOW), Launch)
    assert isinstance(decide("load_retail", seen, JobHistory(), NOW), Launch), "no worker loads for the first time"
    absence = Absence()
    assert not absence.may_end(False, 0.0)
    assert absence.may_end(True, 10.0) and absence.may_end(True, 10.0 + RESTART_SECONDS / 2)
    assert not absence.may_end(True, 10.0 + RESTART_SECONDS), "it is gone for good"
    assert not absence.may_end(False, 90.0) and absence.may_end(True, 95.0), "another one was killed"


@pytest.mark.parametrize("is_restless", [False, True])
@pytest.mark.parametrize("worker", ["alive", "killed"])
def test_a_job_is_not_left_to_a_worker_that_is_killed_again_and_again(
    worker: str, is_restless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had too little memory for marts, was back within seconds each time, and no mart was built again."""
    monkeypatch.setattr(new_data, "ABSENCE", Absence())
    lake: Any = SimpleNamespace(
        newest_snapshots=lambda _: {STORES: snapshot(2)}, worker=lambda: worker, is_served=lambda _: worker == "alive",
        is_restless=lambda: is_restless,
    )  # fmt: skip
    seen = new_data.observe(lake, Watch("new_data_marts", (("raw_retail", "stores"),)), "build_marts")
    assert isinstance(decide("build_marts", seen, after(past(stores=1)), NOW), Launch) == is_restless


def test_noise_in_the_slot_waits_a_quarter_of_an_hour() -> None:
    noise = observe(1, Source(follower_alive=False, slot_lag_bytes=56))
    recent, old = past(stores=1, ago=timedelta(minutes=5)), past(stores=1, ago=timedelta(minutes=20))
    assert isinstance(decide("load_retail", noise, after(recent), NOW), Skip)
    assert isinstance(decide("load_retail", noise, after(old), NOW), Launch)


def test_wal_of_other_databases_is_not_pulled_again_at_once() -> None:
    """Without a follower, another database that writes all the time launched a load each minute, in vain."""
    behind = observe(1, Source(follower_alive=False, slot_lag_bytes=PULL_BYTES))  # its snapshot is five minutes old
    pulled, before = past(stores=1, ago=timedelta(minutes=2)), past(stores=1, ago=timedelta(minutes=6))
    assert isinstance(decide("load_retail", behind, after(pulled), NOW), Skip)
    assert isinstance(decide("load_retail", behind, after(before), NOW), Launch), "the last one found something"
    assert isinstance(decide("load_retail", behind, after(replace(pulled, ingested=False)), NOW), Launch)
    assert isinstance(decide("load_retail", behind, after(pulled), NOW + timedelta(minutes=14)), Launch)


def test_without_a_follower_the_first_load_ingests() -> None:
    nothing = Observed({}, Source(follower_alive=False, position=None))
    decision = decide("load_retail", nothing, JobHistory(), NOW)
    assert isinstance(decision, Launch) and "nothing was ever ingested" in decision.why


def test_silence_is_confirmed_when_freshness_is_declared() -> None:
    history = after(past(stores=1, ago=timedelta(hours=13)))
    assert isinstance(decide("load_retail", observe(1), history, NOW), Skip)
    decision = decide("load_retail", observe(1), history, NOW, confirm_after=timedelta(hours=12))
    assert isinstance(decision, Launch) and "no new data for 13 h" in decision.why


def test_a_table_added_to_the_source_is_news() -> None:
    seen = Observed({STORES: snapshot(1), "raw_retail.coupons": snapshot(7)})
    decision = decide("load_retail", seen, after(past(stores=1)), NOW)
    assert isinstance(decision, Launch) and "coupons" in decision.why and "stores" not in decision.why


PARSED, OTHER = "parsed.stores", "parsed.sales"
MADE = {
    STORES: frozenset({STORES, PARSED, "vault.hub_store"}),
    "raw_retail.sales": frozenset({"raw_retail.sales", OTHER, "vault.hub_store"}),
    PARSED: frozenset({PARSED, "vault.hub_store"}),
}


def resting(tries: int = 1, seconds_ago: float = 5, **loaded: int) -> JobHistory:
    """A load in which parsed.stores failed."""
    held = HeldTable(tries, NOW - timedelta(seconds=seconds_ago), None)
    return JobHistory(
        last_load=replace(past("FAILURE", **loaded), end_state=LoadState("failure", None, {PARSED: held}))
    )


def two(stores: int, sales: int) -> Observed:
    newest = {STORES: snapshot(stores), "raw_retail.sales": snapshot(sales)}
    return Observed(newest, Source(), derived=MADE)


def test_a_table_that_failed_does_not_hold_up_the_others() -> None:
    """Formerly one failed table made the whole load count as failed, so that the other tables waited too."""
    decision = decide("load_retail", two(1, 2), resting(stores=1, sales=1), NOW)
    assert isinstance(decision, Launch) and "raw_retail.sales" in decision.why
    assert decision.without == {PARSED, "vault.hub_store"}


def test_what_loaded_beside_a_table_that_failed_is_loaded() -> None:
    decision = decide("load_retail", two(1, 1), resting(stores=1, sales=1), NOW)
    assert isinstance(decision, Skip) and "of 1 tables" in decision.why
    assert "parsed.stores has failed 1 times, next attempt in 25 s" in decision.why


def test_new_data_of_a_table_that_rests_alone_launches_nothing() -> None:
    assert isinstance(decide("load_retail", two(7, 1), resting(stores=1, sales=1), NOW), Skip)


def test_a_table_that_failed_is_tried_again_after_a_pause_that_doubles() -> None:
    for tries, wait in ((1, 30), (2, 60), (5, 480), (20, 3600)):
        early = decide("load_retail", two(1, 1), resting(tries, wait - 5, stores=1, sales=1), NOW)
        late = decide("load_retail", two(1, 1), resting(tries, wait + 5, stores=1, sales=1), NOW)
        assert isinstance(early, Skip)
        assert isinstance(late, Launch) and not late.without
        assert late.why == f"another attempt at parsed.stores (failed {tries} times)"


def test_what_waits_for_another_job_is_left_out_and_comes_when_nothing_holds_it_back() -> None:
    waits = {OTHER: "parsed.x has failed 1 times in load_x"}
    seen = replace(two(1, 2), waiting=waits, derived={**MADE, "raw_retail.sales": frozenset({OTHER})})
    held = JobHistory(
        last_load=replace(past(stores=1, sales=1), end_state=LoadState("s", None, {OTHER: HeldTable(0, NOW, None)}))
    )
    waiting = decide("build_marts", seen, held, NOW)
    assert isinstance(waiting, Skip) and "parsed.sales waits: parsed.x has failed 1 times in load_x" in waiting.why
    released = decide("build_marts", replace(two(1, 1), waiting={}), held, NOW)
    assert isinstance(released, Launch) and released.why == "nothing holds back parsed.sales any more"


def test_silence_of_tables_that_all_rest_is_not_confirmed() -> None:
    seen = Observed({STORES: snapshot(1)}, derived=MADE)
    assert isinstance(decide("build_marts", seen, resting(stores=1), NOW, timedelta(minutes=1)), Skip)


def test_a_run_leaves_what_failed_and_what_it_left_out() -> None:
    """Failures in a row are counted, and the start of the table's last load determines the days of the next one."""
    loaded = NOW - timedelta(days=1)
    before = LoadState(
        "run1",
        loaded,
        {"a": HeldTable(2, loaded, None), "b": HeldTable(1, loaded, NOW), "c": HeldTable(0, loaded, NOW)},
    )
    after_it = before.after("run2", {"b", "c", "d"}, {"b", "d"}, NOW)
    assert after_it.tables == {
        "a": HeldTable(2, loaded, None),
        "b": HeldTable(2, NOW, NOW),
        "d": HeldTable(1, NOW, loaded),
    }
    assert unpack_state(pack_state(after_it)) == after_it and unpack_state("nonsense") == LoadState()
    assert loaded_since(before, {"a"}) == loaded and loaded_since(before, ()) is None
