"""Cuts that are pinned by themselves: real runs on an ephemeral instance with a lake that pins nothing."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakehouse.declarations import Declarations, Source
from lakehouse.declarations.policies import LoadPolicy, PinPolicy
from lakehouse.declarations.project import project_pins
from lakehouse.errors import LakehouseError
from maintenance.inventory.outcome import TableName
from maintenance.inventory.pins import Pin
from orchestration.jobs.pins import pin_definitions, pin_name
from orchestration.resources import Lake
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

    def bring_up(self, source: str) -> Any:
        DONE.append(source)

    def pin_cut(self, name: str, moment: datetime, until: datetime) -> tuple[list[Pin], tuple[str, ...]]:
        DONE.append((name, moment, (until - moment).days))
        made = [Pin(name, TableName("raw_shop", "t"), 1, moment, until, "shop=1:0/1")] if len(DONE) < 3 else []
        return made, ("mirrors of shop are not in it",)


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
    with dg.DagsterInstance.ephemeral() as instance:
        tick = dg.build_schedule_context(instance, scheduled_execution_time=MIDNIGHT)
        [request] = schedule.evaluate_tick(tick).run_requests or []
        assert request.tags[tags.MOMENT] == MIDNIGHT.isoformat()
        for _ in range(2):
            run = defs.resolve_job_def("pin_month_end").execute_in_process(instance=instance, tags=request.tags)
            assert run.success
    assert DONE == ["shop", ("month_end_20261130", MIDNIGHT, 400)] * 2


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
    ):
        (tmp_path / "dbt_project.yml").write_text(PROJECT.replace(old, new))
        with pytest.raises(LakehouseError, match=message):
            project_pins(tmp_path)
