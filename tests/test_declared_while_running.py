"""What is declared while `lakehouse dev` runs: nobody has to restart anything."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from trino.exceptions import TrinoUserError

from lakehouse.settings import Settings
from tests.orchestrated import make_orchestrated
from tests.test_dev import Dev, running_dev, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(3600)]
JOBS = "{ repositoriesOrError { ... on RepositoryConnection { nodes { jobs { name } } } } }"


@pytest.fixture
def dev(settings: Settings, tmp_path: Path) -> Iterator[Dev]:
    with running_dev(make_orchestrated(settings, tmp_path, 20261128, count=1), tmp_path / "dev.log") as running:
        yield running


def jobs(dev: Dev) -> set[str]:
    """Those that the UI shows."""
    return {job["name"] for node in dev.graphql(JOBS)["repositoriesOrError"]["nodes"] for job in node["jobs"]}


def processes(dev: Dev) -> set[int]:
    """Those that `lakehouse dev` keeps running."""
    return {process.pid for process in psutil.Process(dev.process.pid).children()}


def rows(dev: Dev, schema: str, table: str) -> int:
    """Rows of a table of the lake, none before it is there."""
    try:
        return dev.o.count(schema, table)
    except TrinoUserError:
        return 0


def test_a_table_and_a_mart_that_are_added_arrive_without_a_restart(dev: Dev) -> None:
    """The follower did not know the table, nor a job of Dagster's the mart, until somebody restarted both."""
    o = dev.o
    project = Path(o.environment["LAKEHOUSE_PROJECT_DIR"]) / "dbt_project"
    wait_for(lambda: rows(dev, "parsed", f"current_{o.name}__{o.tables[0].name}") == 500)
    began = processes(dev)
    assert "build_marts" not in jobs(dev)

    o.world.sql("CREATE TABLE tolls (toll_id int PRIMARY KEY, euros int)")
    o.world.sql("INSERT INTO tolls SELECT n, n FROM generate_series(1, 70) AS n")
    o.command("lakehouse", "add", f"{o.name}.tolls", "--no-vault", "--yes")
    o.command("lakehouse", "prepare", o.name)
    marts = project / "models" / "marts"
    marts.mkdir()
    mart = f"select toll_id, euros from {{{{ ref('current_{o.name}__tolls') }}}}\n"
    (marts / "mart_tolls.sql").write_text(mart)
    wait_for(lambda: rows(dev, f"raw_{o.name}", "tolls") == 70, 300)
    wait_for(lambda: "build_marts" in jobs(dev), 300)
    wait_for(lambda: rows(dev, "parsed", f"current_{o.name}__tolls") == 70, 600)
    wait_for(lambda: rows(dev, "marts", "mart_tolls") == 70, 600)

    # A declaration that is refused changes nothing.
    declared = project / "models" / "sources" / f"{o.name}.yml"
    sound = declared.read_text()
    declared.write_text(sound.replace("name: tolls", "nome: tolls"))
    log = o.settings.home / "logs" / "ingest.log"
    wait_for(lambda: "goes on with what was declared before" in log.read_text(), 120)
    o.world.sql("INSERT INTO tolls SELECT n, n FROM generate_series(71, 100) AS n")
    wait_for(lambda: rows(dev, f"raw_{o.name}", "tolls") == 100, 120)
    assert "build_marts" in jobs(dev)
    declared.write_text(sound)
    wait_for(lambda: rows(dev, "marts", "mart_tolls") == 100, 600)
    assert began <= processes(dev)
