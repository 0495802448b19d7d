"""Cuts that are pinned by themselves: real runs on an ephemeral instance with a lake that pins nothing."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from lakehouse.declarations import Declarations, Source
from lakehouse.declarations.dbt.project import project_pins
from lakehouse.declarations.policies import LoadPolicy, PinPolicy
from lakehouse.errors import LakehouseError
from maintenance.inventory.outcome import TableName
from maintenance.inventory.pins import Pin
from orchestration.jobs.pins import LAUNCHED_BY, missed_moments, pin_definitions, pin_name
from orchestration.resources import Lake, PinnedCut
from orchestration.runs import tags

PROJECT = """\
vars:
  pins:
    month_end: {cron: "0 0 1 * *", timezone: Europe/Berlin, keep_days: 400}
"""
MIDNIGHT = datetime(2026, 11, 30, 23, tzinfo=UTC)  # in Berlin

DONE: list[Any] = []


class InventedLake(Lake):
    """One source; notes what it is asked to do."""

    def declarations(self) -> Declarations:
        return Declarations(sources=(Source(name="shop", description="", load=LoadPolicy(), tables=()),))

    def bring_up_within(self, source: str, seconds: float) -> Any:
        DONE.append(source)

    def pin_cut(self, name: str, moment: datetime, until: datetime) -> PinnedCut:
        DONE.append((name, moment, (until - moment).days))
        made = [Pin(name, TableName("raw_shop", "t"), 1, moment, until, "shop=1:0/1")] if len(DONE) < 3 else []
        return PinnedCut(made, ("mirrors of shop are not in it",), {"shop": "is as of then"})

    def lacking(self, pin: str, moment: datetime) -> list[str]:
        return []


class LakeWithoutMirrors(InventedLake):
    """Nobody had refreshed them."""

    def lacking(self, pin: str, moment: datetime) -> list[str]:
        return [f"mirror_shop.t{number}" for number in range(7)]


class HalfLake(InventedLake):
    """Two more sources: a follower of one hangs, and the other does not answer."""

    def declarations(self) -> Declarations:
        names = ("hung", "away", "shop")
        return Declarations(
            sources=tuple(Source(name=name, description="", load=LoadPolicy(), tables=()) for name in names)
        )

    def bring_up_within(self, source: str, seconds: float) -> Any:
        DONE.append((source, seconds))
        if source == "hung":
            CLOCK[0] += seconds
            raise LakehouseError("source 'hung': the writer did not reach 0/1 within 60 s: look at its log")
        if source == "away":
            raise OSError("no route to away")


CLOCK = [0.0]


@pytest.fixture(autouse=True)
def forgotten() -> None:
    DONE.clear()


def definitions(tmp_path: Path, text: str = PROJECT) -> dg.Definitions:
    (tmp_path / "dbt_project.yml").write_text(text)
    return pin_definitions(tmp_path)


def test_each_midnight_pins_the_cut_of_the_day_before_once_its_commits_are_there(tmp_path: Path) -> None:
    found = definitions(tmp_path)
    lake = dg.Definitions(resources={"lake": InventedLake()}, executor=dg.in_process_executor)
    defs = dg.Definitions.merge(found, lake)
    [schedule] = found.schedules or []
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 0 1 * *", "Europe/Berlin")
    with dg.instance_for_test() as instance:
        with dg.build_schedule_context(instance, scheduled_execution_time=MIDNIGHT) as tick:  # it enters the instance
            [request] = schedule.evaluate_tick(tick).run_requests or []
        assert request.tags[tags.MOMENT] == MIDNIGHT.isoformat()
        for _ in range(2):
            run = defs.resolve_job_def("pin_month_end").execute_in_process(instance=instance, tags=request.tags)
            assert run.success
            [output] = [event for event in run.all_events if event.is_successful_output]
            told = {name: value.value for name, value in output.step_output_data.metadata.items()}
            assert told == {"reaches": {"shop": "is as of then"}, "not_in_it": ["mirrors of shop are not in it"]}
    assert DONE == ["shop", ("month_end_20261130", MIDNIGHT, 400)] * 2


def test_a_source_that_is_away_does_not_cost_the_pin_of_the_others_and_the_run_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was pinned at all, and by the morning what was to be pinned had expired."""
    monkeypatch.setattr("orchestration.jobs.pins.time", SimpleNamespace(monotonic=lambda: CLOCK[0]))
    lake = dg.Definitions(resources={"lake": HalfLake()}, executor=dg.in_process_executor)
    job = dg.Definitions.merge(definitions(tmp_path), lake).resolve_job_def("pin_month_end")
    with dg.DagsterInstance.ephemeral() as instance:
        given = {tags.MOMENT: MIDNIGHT.isoformat()}
        run = job.execute_in_process(instance=instance, tags=given, raise_on_error=False)
    assert not run.success
    assert DONE == [("hung", 60.0), ("away", 10.0), ("shop", 10.0), ("month_end_20261130", MIDNIGHT, 400)]
    [failed] = [event for event in run.all_events if event.is_step_failure]
    told = failed.step_failure_data.user_failure_data
    assert told is not None and told.description is not None and "\n" not in told.description
    assert told.description.startswith("month_end_20261130 is pinned, but hung, away could not be brought up to it: ")
    assert told.description.endswith(": look at its log; no route to away)")
    assert set(told.metadata) == {"reaches", "not_in_it"}


def test_a_pin_that_lacks_mirrors_or_marts_is_made_and_the_run_fails_and_names_them(tmp_path: Path) -> None:
    """It succeeded, and a line in its log said that the year's end was without mirrors."""
    lake = dg.Definitions(resources={"lake": LakeWithoutMirrors()}, executor=dg.in_process_executor)
    job = dg.Definitions.merge(definitions(tmp_path), lake).resolve_job_def("pin_month_end")
    with dg.DagsterInstance.ephemeral() as instance:
        given = {tags.MOMENT: MIDNIGHT.isoformat()}
        run = job.execute_in_process(instance=instance, tags=given, raise_on_error=False)
    assert DONE[-1] == ("month_end_20261130", MIDNIGHT, 400)
    [failed] = [event for event in run.all_events if event.is_step_failure]
    told = failed.step_failure_data.user_failure_data
    assert told is not None and told.description is not None and "\n" not in told.description
    assert told.description.startswith(
        "month_end_20261130 is pinned without mirror_shop.t0, mirror_shop.t1, mirror_shop.t2, mirror_shop.t3, "
        "mirror_shop.t4 and 2 more: "
    )
    assert told.description.endswith("or once this one is deleted in Dagster")
    assert told.metadata["not_in_it"].value == ["mirrors of shop are not in it"]


def test_moments_that_passed_without_a_daemon_are_caught_up_with(tmp_path: Path) -> None:
    """Dagster ticks for the last of them alone: the others were never pinned, and nobody was told."""
    text = PROJECT.replace('"0 0 1 * *"', '"0 */8 * * *"').replace("Europe/Berlin", "UTC")
    found = definitions(tmp_path, text)
    lake = dg.Definitions(resources={"lake": InventedLake()})
    job = dg.Definitions.merge(found, lake).resolve_job_def("pin_month_end")
    [schedule] = found.schedules or []
    assert isinstance(schedule, dg.ScheduleDefinition)
    policy, now = project_pins(tmp_path)["month_end"], datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    last, newest = (now.replace(hour=8) - timedelta(days=days) for days in (2, 1))
    with dg.instance_for_test() as instance:

        def requested() -> list[str | None]:
            with dg.build_schedule_context(instance, scheduled_execution_time=newest) as tick:
                return [request.run_key for request in schedule.evaluate_tick(tick).run_requests or []]

        assert requested() == [newest.isoformat()], "the first tick of all"
        by_hand = {tags.MOMENT: (newest - timedelta(hours=1)).isoformat()}
        launched = {tags.MOMENT: last.isoformat(), LAUNCHED_BY: "pin_month_end"}
        instance.create_run_for_job(job, tags={**launched, tags.EVERY: "0 0 1 * * UTC"})
        assert requested() == [newest.isoformat()], "it was declared otherwise then: nothing was missed"
        for given in ({**launched, tags.EVERY: "0 */8 * * * UTC"}, by_hand):
            instance.create_run_for_job(job, tags=given)
        between = [(last + timedelta(hours=hours)).isoformat() for hours in (8, 16)]
        assert requested() == [*between, newest.isoformat()]
        short = policy.model_copy(update={"keep_days": 0.01})
        assert missed_moments(instance, "pin_month_end", short, newest) == [], "they would be over already"


def test_a_pin_does_not_wait_behind_maintenance(tmp_path: Path) -> None:
    """Behind one of hours, the raw snapshots of midnight had left the metadata: a follower publishes each second."""
    [job] = definitions(tmp_path).jobs or []
    assert job.tags == tags.PROMPT and not tags.PROMPT.keys() - {"dagster/priority"}


def test_a_pin_is_named_by_the_last_day_that_is_in_it() -> None:
    daily = PinPolicy(cron="0 0 * * *", keep_days=1)
    assert pin_name("day", datetime(2026, 12, 1, tzinfo=UTC), daily) == "day_20261130"
    assert pin_name("noon", datetime(2026, 12, 1, 12, tzinfo=UTC), daily) == "noon_20261201"


@pytest.mark.parametrize("cron", ["0 6,14,22 * * *", "0,30 6 * * *", "0 */8 * * *", "0 * * * *", "0 6-7 * * *"])
def test_a_pin_of_several_moments_a_day_has_a_name_for_each(cron: str) -> None:
    """All but the first of a day were taken to be there already."""
    policy = PinPolicy(cron=cron, timezone="Europe/Berlin", keep_days=1)
    twice = [datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1)]  # both are 2:30 in Berlin
    assert [pin_name("shift", moment, policy) for moment in twice] == ["shift_20261025_0030", "shift_20261025_0130"]


def test_a_project_without_pins_has_no_such_jobs_and_a_wrong_one_is_refused_where_it_stands(tmp_path: Path) -> None:
    assert not definitions(tmp_path, "name: lake\n").jobs
    for old, new, message in (
        ("Europe/Berlin", "Europe/Nowhere", r"yml:3: vars\.pins\.month_end\.timezone: .*is not known"),
        ('"0 0 1 * *"', '"0 0 32 * *"', r"yml:3: vars\.pins\.month_end\.cron: .*day of month"),
        (", keep_days: 400", "", r"yml:3: vars\.pins\.month_end\.keep_days"),
        ("month_end:", "month-end:", r"yml:3: vars\.pins\.month-end"),
        ("month_end:", "Month_End:", r"yml:3: vars\.pins\.Month_End.*'Month_End' cannot name a pin: use a-z"),
        ('"0 0 1 * *"', '"0 0 31 2 *"', r"yml:3: vars\.pins\.month_end\.cron: .*month '2' has no day 31"),
        ("pins:", "pin:", r"yml:2: vars: unknown key `pin`: did you mean `pins`\?"),
        ("month_end:", "_month_end:", r"yml:3: vars\.pins\._month_end.*cannot name a pin"),
    ):
        (tmp_path / "dbt_project.yml").write_text(PROJECT.replace(old, new))
        with pytest.raises(LakehouseError, match=message):
            project_pins(tmp_path)
    (tmp_path / "dbt_project.yml").write_text("vars:\n  pin: 4711\n")
    assert not project_pins(tmp_path), "a variable of somebody's own"
