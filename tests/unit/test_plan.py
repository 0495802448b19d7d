"""What maintenance plans from policies and health: pure, so no table is needed."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lakehouse.declarations.policies import MaintenancePolicy, ProjectMaintenance
from maintenance.inventory.declared import MaintainedTable
from maintenance.inventory.outcome import TableName
from maintenance.planning.health import Health
from maintenance.planning.history import Act
from maintenance.planning.plan import Allowance, Case, Plan, allowances, make_plan
from maintenance.planning.rates import Rates, Work, learn
from maintenance.runner.maintain import by_table

NOW = datetime(2026, 1, 1, 2, 0, tzinfo=UTC)
PARTS: dict[str, Any] = {
    "compact": {"target_file_size_mb": 128, "min_input_files": 5},
    "expire_snapshots": {"older_than_hours": 72, "retain_last": 5, "keep_metadata_files": 20},
    "remove_orphan_files": {"older_than_hours": 72},
    "keep_removed_hours": 72,
    "statistics": {"analyze": True, "stale_share": 0.1},
    "clean_dbt_temporary": {"older_than_hours": 24},
}
PROJECT = ProjectMaintenance.model_validate(
    {
        "longest_write_hours": 6,
        "max_failed_share": 0.1,
        "groups": {
            "hourly": {"cron": "17 * * * *", "budget_minutes": 10},
            "nightly": {"cron": "30 1 * * *", "budget_minutes": 120, "window": "01:00-05:00"},
        },
    }
)
HEALTHY = Health(rows=1000, files=3, bytes=3 * 10**8, snapshots=4, manifests=1, needed_manifests=1, objects=20)
FRAGMENTED = Health(
    rows=10**6, files=5000, bytes=10**9, small_files=5000, small_bytes=10**9, rewritable_files=5000,
    rewritable_bytes=10**9, rewritable_partitions=3, snapshots=5000,
    expirable_snapshots=4990, manifests=120, needed_manifests=1, metadata_bytes=5 * 10**6, metadata_files=20,
    objects=20000, object_bytes=2 * 10**9, orphans=10, orphan_bytes=10**6, unanalyzed_share=1.0,
)  # fmt: skip


def case(name: str, health: Health | None, group: str = "hourly", **parts: Any) -> Case:
    policy = MaintenancePolicy.model_validate({"schedule_group": group, **(parts or PARTS)})
    return Case(MaintainedTable(TableName("vault", name), policy), health)


def planned(*cases: Case, rates: Rates | None = None, minutes: float | None = None, now: datetime = NOW) -> Plan:
    return make_plan(cases, allowances(PROJECT, now, minutes), rates or Rates())


def test_a_healthy_table_is_left_alone_and_the_reason_is_its_figures() -> None:
    plan = planned(case("hub", HEALTHY))
    assert plan.steps == ()
    assert plan.skipped[0].reason.startswith("healthy: 3 files, 0% small, 0 delete files, 4 snapshots, 1 manifests")


def test_a_table_that_spark_cannot_read_is_in_the_plan_with_the_reason_and_its_other_steps() -> None:
    alone, with_steps = replace(HEALTHY, reserved_column="_pos"), replace(FRAGMENTED, reserved_column="_pos")
    plan = planned(case("hub", alone), case("sat", with_steps))
    reasons = {(passed.table.name, passed.action): passed.reason for passed in plan.skipped}
    assert reasons.keys() == {("hub", "compact"), ("sat", "compact")}
    assert all(reason.startswith("not compacted: column '_pos' has a name") for reason in reasons.values())
    assert "expire_snapshots" in {step.action for step in plan.steps}


def test_each_step_has_a_reason_an_effort_and_a_gain() -> None:
    steps = {step.action: step for step in planned(case("hub", FRAGMENTED)).steps}
    assert list(steps) == sorted(steps, key=lambda action: -steps[action].score), "the most worthwhile first"
    assert set(steps) == {"compact", "expire_snapshots", "remove_orphan_files", "drop_extended_stats"}
    assert steps["compact"].reason == "5000 of 5000 files below 128 MB, 120 manifests"
    assert steps["compact"].expected_bytes == 2 * 10**9
    assert steps["compact"].gain_seconds > 20
    assert steps["expire_snapshots"].gain_bytes > 0.9 * 10**9
    assert steps["remove_orphan_files"].gain_bytes == 10**6
    assert steps["drop_extended_stats"].reason == "no statistics"


def test_what_the_policy_leaves_out_is_not_planned() -> None:
    plan = planned(case("hub", FRAGMENTED, remove_orphan_files={"older_than_hours": 72}, keep_removed_hours=72))
    assert [step.action for step in plan.steps] == ["remove_orphan_files"]


def test_a_table_that_opts_out_is_skipped_with_its_own_words() -> None:
    plan = planned(case("hub", None, opt_out="the archive is read by nobody"))
    assert (plan.steps, plan.skipped[0].reason) == ((), "opted out: the archive is read by nobody")


def test_a_table_that_is_missing_or_unreadable_says_so() -> None:
    broken = Case(case("sat", None).table, None, "its metadata cannot be read")
    reasons = [passed.reason for passed in planned(case("hub", None), broken).skipped]
    assert reasons == ["not in the lake yet", "could not be measured: its metadata cannot be read"]


def test_the_most_worthwhile_comes_first_and_what_does_not_fit_is_put_off() -> None:
    slightly = Health(**{**vars(FRAGMENTED), "files": 6, "small_files": 6, "rewritable_files": 6, "snapshots": 4,
                         "expirable_snapshots": 0, "orphans": 0, "unanalyzed_share": 0.0})  # fmt: skip
    compact_only = {"compact": PARTS["compact"]}
    slight, bad = case("slight", slightly, **compact_only), case("bad", FRAGMENTED, **compact_only)
    assert [step.table.name.name for step in planned(slight, bad).steps] == ["bad", "slight"]
    plan = planned(slight, bad, minutes=2)
    assert [step.table.name.name for step in plan.steps] == ["bad"]
    assert plan.put_off[0].reason == "put off: needs 69 s, 26 s are left of the budget of 2 min"


def test_groups_have_budgets_of_their_own_and_minutes_said_by_hand_are_shared() -> None:
    allowed = allowances(PROJECT, NOW)
    assert (allowed["hourly"].seconds, allowed["nightly"].seconds) == (600, 7200)
    assert len({allowance.pool for allowance in allowed.values()}) == 2
    by_hand = allowances(PROJECT, NOW, 5)
    assert len({allowance.pool for allowance in by_hand.values()}) == 1


def test_nothing_begins_outside_of_the_window_and_its_end_bounds_the_run() -> None:
    noon, late = NOW + timedelta(hours=10), NOW + timedelta(hours=2, minutes=59)
    plan = planned(case("hub", FRAGMENTED, "nightly"), now=noon)
    assert plan.steps == ()
    assert plan.put_off[0].reason == "put off: the window of nightly, 01:00-05:00 UTC, is closed"
    assert allowances(PROJECT, late)["nightly"].seconds == 60
    assert planned(case("hub", FRAGMENTED, "nightly"), now=noon, minutes=60).steps, "minutes said by hand go first"


def test_delete_files_count_where_there_are_enough_to_be_dealt_with() -> None:
    few, enough = (Health(**{**vars(HEALTHY), "delete_files": 5, "due_delete_files": due}) for due in (0, 5))
    assert planned(case("hub", few)).steps == ()
    assert planned(case("hub", enough)).steps[0].reason == "5 delete files"


def test_partitions_that_are_out_of_their_declared_order_are_a_reason() -> None:
    unsorted = Health(**{**vars(HEALTHY), "rewritable_partitions": 2, "rewritable_bytes": 10**8})
    [step] = planned(case("hub", unsorted)).steps
    assert (step.reason, step.expected_bytes) == ("2 partitions out of order", 2 * 10**8)


def test_statistics_are_due_from_the_declared_share_on() -> None:
    def health(share: float) -> Health:
        return Health(**{**vars(HEALTHY), "unanalyzed_share": share, "statistics_age_hours": 30.0})

    assert planned(case("hub", health(0.09))).steps == ()
    reason = planned(case("hub", health(0.1))).steps[0].reason
    assert reason == "10% of the rows changed since the statistics, 30 h ago"


@pytest.mark.parametrize(
    ("files", "reason"),
    [(100, "80 metadata files more than 20"), (10, "the log of metadata files is not kept as declared (20)")],
)
def test_metadata_beyond_the_declared_number_asks_for_expiry_and_so_does_a_log_that_is_too_short(
    files: int, reason: str
) -> None:
    plan = planned(case("hub", Health(**{**vars(HEALTHY), "metadata_files": files, "properties_to_set": 1})))
    assert [step.reason for step in plan.steps] == [f"0 of 4 snapshots older than 72 h, {reason}"]
    assert planned(case("hub", Health(**{**vars(HEALTHY), "metadata_files": 10}))).steps == ()


def act(table: str, seconds: float, stated: float | None, status: str = "done", action: str = "compact") -> Act:
    return Act(table, action, status, NOW, seconds, stated)


def test_time_is_learned_from_the_table_then_from_the_action_then_from_what_is_stated() -> None:
    rates, work = learn([act("vault.hub", 4, 2), act("vault.hub", 100, 2, "failed"), act("vault.sat", 1, None)]), Work()
    assert rates.expected("vault.hub", "compact", work).seconds == 4
    assert rates.expected("vault.hub", "compact", work).source == "history of the table"
    assert rates.expected("vault.sat", "compact", work).source == "history of the action"
    assert rates.expected("vault.sat", "expire_snapshots", work).source == "stated rate"


@pytest.mark.parametrize(("seconds", "factor"), [(1e6, 20.0), (0.0, 0.05)])
def test_one_odd_run_does_not_stop_an_action_for_ever(seconds: float, factor: float) -> None:
    assert learn([act("vault.hub", seconds, 2)]).of_table["vault.hub", "compact"] == factor


def test_the_steps_of_a_table_keep_the_order_of_the_actions() -> None:
    steps = planned(case("hub", FRAGMENTED), case("sat", FRAGMENTED)).steps
    for group in by_table(steps):
        actions = [step.action for step in group]
        assert actions == ["compact", "expire_snapshots", "remove_orphan_files", "drop_extended_stats"]


def test_a_budget_that_is_used_up_says_how_much_was_needed() -> None:
    allowance = Allowance("nightly", 60, "the budget of nightly, 1 min")
    assert allowance.why_put_off(80, -3) == "put off: needs 80 s, 0 s are left of the budget of nightly, 1 min"


def test_a_budget_of_nothing_is_no_closed_window() -> None:
    (put_off, *_) = planned(case("hub", FRAGMENTED), minutes=0).put_off
    assert re.fullmatch(r"put off: needs \d+ s, 0 s are left of the budget of 0 min", put_off.reason)
