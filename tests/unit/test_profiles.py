"""A mart that casts a moment to a date has the same days whoever builds it: dbt's sessions are in UTC, or refused."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakehouse.declarations.profiles import other_timezones
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
    assert [line.partition(":")[2].partition(" has")[0] for line in found] == ["6: output 'dev'", "9: output 'ldap'"]
    assert all("(Europe/Berlin), the worker in UTC" in line and "`timezone: UTC`" in line for line in found)


@pytest.mark.parametrize("zone", ["UTC", "Etc/UTC", "\"{{ env_var('ZONE') }}\""])
def test_a_profile_in_utc_is_taken(zone: str, here: str, tmp_path: Path) -> None:
    assert not other_timezones(project(tmp_path, f"      timezone: {zone}"))


def test_another_zone_is_refused_with_what_to_do_for_its_days(here: str, tmp_path: Path) -> None:
    first, second = other_timezones(project(tmp_path, "      timezone: Europe/Paris"))
    assert first.startswith("dbt_project/profiles.yml:8: output 'dev' has the time zone Europe/Paris")
    assert "at_timezone(moment, 'Europe/Paris')" in first and "'ldap'" in second


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
    with pytest.raises(LakehouseError, match=r"profiles.yml:8: output 'dev' has the time zone .* \(and 1 more\)"):
        wrong_models.refuse_wrong_models({}, folder)
    (tmp_path / "lakehouse.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_PROJECT_DIR", str(tmp_path))
    monkeypatch.setattr(upgrade, "planned", lambda _: [])
    monkeypatch.setattr(upgrade, "sources_to_recover", lambda _: [])
    done = CliRunner().invoke(command_line(["upgrade"]), ["upgrade"])
    assert done.exit_code == 1 and "left for you: dbt_project/profiles.yml:8: output 'dev'" in done.output
