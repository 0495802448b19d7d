"""`lakehouse status` lists what this project uses: the embedded stack has databases of samples that it may not."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from pydantic import SecretStr

from lakehouse.settings import Settings, SourceSettings
from lakehouse.text.shown import console
from lakehouse_cli.machine import stack
from lakehouse_cli.machine.lag import source_lags

NOWHERE = "postgresql://x:y@127.0.0.1:1"
SOURCE = """\
sources:
  - name: {name}
    schema: raw_{name}
    tables: [{{name: things, columns: [{{name: id, data_type: int}}],
      config: {{meta: {{raw: {{relation: public.things, key: [id]}}}}}}}}]
"""


def listed(settings: Settings) -> list[str]:
    return [lag["source"] for lag in source_lags(settings)]


@pytest.mark.slow
def test_a_sample_that_is_not_declared_is_not_listed(tmp_path: Path) -> None:
    """`shop` is a source of the user's own, declared or not; `retail` is a sample by name alone, at another place."""
    samples, project = ("bank", "payroll"), tmp_path / "dbt_project"
    urls = {name: f"{NOWHERE}/{name}" for name in (*samples, "shop", "retail")}
    settings = Settings(
        home=tmp_path, project_dir=tmp_path, catalog_url=SecretStr(f"{NOWHERE}/catalog"),
        sources={name: SourceSettings(url=SecretStr(url)) for name, url in urls.items()},
    )  # fmt: skip
    places = [*((name, urls[name]) for name in samples), ("retail", f"{NOWHERE}/elsewhere")]
    (tmp_path / "endpoints.toml").write_text("".join(f'[sources.{name}]\nurl = "{url}"\n' for name, url in places))
    assert listed(settings) == ["bank", "payroll", "retail", "shop"], "without a project nothing can be told"
    (project / "models").mkdir(parents=True)
    (project / "dbt_project.yml").write_text("name: lake\nprofile: lake\nversion: 1.0.0\n")
    output = "{type: trino, method: none, host: localhost, port: 1, user: x, database: lake, schema: x}"
    (project / "profiles.yml").write_text(f"lake: {{target: lake, outputs: {{lake: {output}}}}}\n")
    (project / "models" / "bank.yml").write_text(SOURCE.format(name="bank"))
    assert listed(settings) == ["bank", "retail", "shop"]


REASON = "the publication lacks the table: " + "run `lakehouse prepare clinic`, as the owner of its tables " * 4
SERVED = {
    "follower_alive": True, "holder": "follow", "followers": 1, "unclaimed": (), "progress": None, "slot_lag_bytes": 0,
    "behind_bytes": 0, "lag_seconds": 3.0, "trouble": None,
}  # fmt: skip


def test_a_long_reason_is_a_line_below_the_table_and_json_has_it_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its column, a terminal of 80 letters had a few words of it in each line."""
    tables = [
        {"name": "visits", "state": "streaming", "reason": None},
        {"name": "beds", "state": "parked", "reason": REASON},
    ]
    lags = [{"source": "clinic", "trouble": REASON}, {**SERVED, "source": "shop", "tables": tables}]
    server = SimpleNamespace(
        name="trino", healthy=False, trouble=REASON, pid=7, port=8443, uptime_seconds=9, log=tmp_path / "trino.log"
    )
    monkeypatch.setattr(stack, "load_settings", lambda: Settings(home=tmp_path, project_dir=tmp_path))
    monkeypatch.setattr("lakehouse_stack.control.inspect.inspect", lambda _: [server])
    monkeypatch.setattr("lakehouse_cli.machine.lag.source_lags", lambda _: lags)
    monkeypatch.setattr(stack, "console", lambda width: console(width=80))
    for name, found in (("_mirrors", []), ("_exports", ()), ("_has_worker", False)):
        monkeypatch.setattr(stack, name, lambda _, found=found: found)
    with pytest.raises(typer.Exit):
        stack.status()
    lines = capsys.readouterr().out.splitlines()
    reasons = [f"trino: {REASON}", f"clinic: {REASON}", f"shop.beds parked: {REASON}"]
    assert [line for line in lines if "prepare" in line] == reasons
    [clinic] = [line for line in lines if line.startswith("clinic ")]
    [shop] = [line for line in lines if line.startswith("shop ")]
    assert clinic.split() == ["clinic", "trouble,", "see", "below"] and shop.endswith("1 streaming; beds parked")
    monkeypatch.setattr(stack, "asdict", vars)
    with pytest.raises(typer.Exit):
        stack.status(as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert said["sources"][1]["tables"][1]["reason"] == REASON and said["sources"][0]["trouble"] == REASON
