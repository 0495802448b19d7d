"""A mart that casts a moment to a date has the same days whoever builds it: dbt's sessions are in UTC, or refused."""

from datetime import UTC, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from typer.testing import CliRunner

from lakehouse.declarations.checks.profiles import other_timezones
from lakehouse.errors import LakehouseError
from lakehouse.settings import DBT_PACKAGE
from lakehouse_cli.commands import command_line
from lakehouse_cli.machine import upgrade
from orchestration.assets import wrong_models

PROFILES = """\
other:
  outputs: {{a: {{type: trino}}}}
shop:
  target: dev
  outputs:
    dev: &dev
      type: trino
{line}
    ldap:
      <<: *dev
      method: ldap
    local:
      type: duckdb
"""


def project(folder: Path, line: str = "      schema: parsed") -> Path:
    """One of that profile."""
    folder = folder / "dbt_project"
    folder.mkdir(exist_ok=True)
    (folder / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    (folder / "profiles.yml").write_text(PROFILES.format(line=line))
    return folder


@pytest.fixture(params=["Europe/Berlin", "UTC"])
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The zone of this machine."""
    monkeypatch.setattr("tzlocal.get_localzone_name", lambda: request.param)
    return str(request.param)


def test_a_profile_without_a_time_zone_is_refused_where_the_machine_is_not_in_utc(here: str, tmp_path: Path) -> None:
    """A mart had the days of UTC from the worker, and those of Berlin from a run of Dagster's."""
    found = other_timezones(project(tmp_path))
    if here == "UTC":
        assert not found
        return
    [told] = found
    assert told.startswith("dbt_project/profiles.yml:6: output 'dev' has no time zone")
    assert "(Europe/Berlin), the worker in UTC" in told and "`timezone: UTC`" in told
    assert other_timezones(project(tmp_path, "      timezone: ''")), "dbt takes the machine's for an empty one"


UTC_ZONES = ("UTC", "Etc/UTC", "utc", "Z", "+00:00", "Etc/GMT+0", "GMT0", "Greenwich", "\"{{ env_var('ZONE') }}\"")


@pytest.mark.parametrize("zone", UTC_ZONES)
def test_a_profile_in_utc_is_taken(zone: str, here: str, tmp_path: Path) -> None:
    assert not other_timezones(project(tmp_path, f"      timezone: {zone}"))


def test_another_zone_is_refused_with_what_to_do_for_its_days(here: str, tmp_path: Path) -> None:
    [told] = other_timezones(project(tmp_path, "      timezone: Europe/Paris"))
    assert told.startswith("dbt_project/profiles.yml:8: output 'dev' has the time zone Europe/Paris")
    assert "at_timezone(moment, 'Europe/Paris')" in told


@pytest.mark.parametrize("zone", ["Europe/London", "+01:00", "Mars/Olympus", "../etc/passwd"])
def test_a_zone_that_is_utc_in_winter_alone_or_none_at_all_is_refused(zone: str, tmp_path: Path) -> None:
    assert len(other_timezones(project(tmp_path, f"      timezone: {zone}"))) == 1


@pytest.mark.parametrize(("zone", "told"), [(UTC, 0), (ZoneInfo("Etc/UTC"), 0), (ZoneInfo("Europe/Berlin"), 1)])
def test_where_the_machines_zone_has_no_name_its_clock_counts(
    zone: tzinfo, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container in UTC has none, and was refused as one in the zone `None`."""
    monkeypatch.setattr("tzlocal.get_localzone_name", lambda: None)
    monkeypatch.setattr("tzlocal.get_localzone", lambda: zone)
    found = other_timezones(project(tmp_path))
    assert len(found) == told and not any("None" in line for line in found)


def test_a_machine_whose_zone_cannot_be_told_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def conflicting() -> str:
        raise ZoneInfoNotFoundError("Multiple conflicting time zone configurations found:\n/etc/timezone: UTC\n")

    monkeypatch.setattr("tzlocal.get_localzone_name", conflicting)
    [told] = other_timezones(project(tmp_path))
    assert "cannot be told (Multiple conflicting time zone configurations found): add `timezone: UTC`" in told


@pytest.mark.parametrize(
    ("target", "set_to", "told"),
    [
        ("ldap", "", ["ldap"]), ("local", "", []), ("local", "dev", ["dev"]), ("dev", "local", []),
        ("\"{{ env_var('TARGET') }}\"", "", ["dev", "ldap"]),
    ],
)  # fmt: skip
def test_only_the_output_that_dbt_takes_is_looked_at(
    target: str, set_to: str, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path, "      timezone: Europe/Paris")
    file = folder / "profiles.yml"
    file.write_text(file.read_text().replace("target: dev", f"target: {target}"))
    monkeypatch.setenv("DBT_TARGET", set_to)
    assert [line.split("'")[1] for line in other_timezones(folder)] == told


def test_what_dbt_itself_refuses_is_left_to_it(tmp_path: Path) -> None:
    assert not other_timezones(tmp_path)
    folder = project(tmp_path)
    (folder / "profiles.yml").write_text("shop: [")
    assert not other_timezones(folder)


def test_the_profiles_of_the_product_are_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tzlocal.get_localzone_name", lambda: "Europe/Berlin")
    for folder in (DBT_PACKAGE.parent / "template" / "dbt_project", DBT_PACKAGE.parents[1] / "dbt_project"):
        assert (folder / "profiles.yml").exists() and not other_timezones(folder)


def test_dagster_and_the_worker_refuse_it_and_an_upgrade_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path, "      timezone: Europe/Paris")
    for name in [name for name in vars(wrong_models) if name.startswith("refuse_") and name != "refuse_wrong_models"]:
        monkeypatch.setattr(wrong_models, name, lambda *_: None)
    with pytest.raises(LakehouseError, match=r"profiles.yml:8: output 'dev' has the time zone"):
        wrong_models.refuse_wrong_models({}, folder)
    (tmp_path / "lakehouse.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_PROJECT_DIR", str(tmp_path))
    monkeypatch.setattr(upgrade, "planned", lambda _: [])
    monkeypatch.setattr(upgrade, "sources_to_recover", lambda _: [])
    done = CliRunner().invoke(command_line(["upgrade"]), ["upgrade"])
    assert done.exit_code == 1 and "left for you: dbt_project/profiles.yml:8: output 'dev'" in done.output
