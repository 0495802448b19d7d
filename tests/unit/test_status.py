"""`lakehouse status` lists what this project uses: the embedded stack has databases of samples that it may not."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from lakehouse.settings import Settings, SourceSettings
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
