"""A table that fails in parsed or in the vault fails alone, in a run by hand and in those of the sensors."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from trino.exceptions import TrinoUserError

from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.readers import BIN, Declared, Project, declared_as_is, project_of
from tests.world import World, make_world

pytestmark = [pytest.mark.stack, pytest.mark.timeout(3000)]

TABLES = ("good", "named", "valued", "unmatched", "unsound")
DDL = "CREATE TABLE {0} (id int PRIMARY KEY, v numeric(20,2)); INSERT INTO {0} VALUES (1, 1), (2, 2)"
Rows = list[tuple[Any, ...]]
Load = Callable[["Shop"], tuple[bool, str]]


@dataclass(frozen=True)
class Shop:
    """A source with a hub, a satellite and a current view of each table, and three marts."""

    project: Project
    tables: tuple[str, ...]

    @property
    def world(self) -> World:
        """The source's database."""
        return self.project.world

    @property
    def name(self) -> str:
        """The source."""
        return self.project.name

    @property
    def models(self) -> Path:
        """The project's models."""
        return self.project.settings.dbt_project_dir / "models"

    @property
    def environment(self) -> dict[str, str]:
        """In which commands see the source and the project."""
        prefix, settings = f"LAKEHOUSE_SOURCES__{self.name.upper()}__", self.project.settings
        return {
            **os.environ,
            "LAKEHOUSE_PROJECT_DIR": str(settings.project_dir),
            "DAGSTER_HOME": str(settings.dagster_home),
            "PYTHONPATH": str(Path(__file__).parents[1]),
            f"{prefix}URL": settings.sources[self.name].url.get_secret_value(),
            f"{prefix}OWNER_URL": self.world.owner_url,
        }

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command that sees the source and the project."""
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.project.settings.project_dir,
            capture_output=True,
            text=True,
            timeout=900,
        )

    @contextmanager
    def working(self, log: Path) -> Iterator[None]:
        """A worker, with what it says in the log."""
        with log.open("ab") as output:
            worker = subprocess.Popen(
                [str(BIN / "lakehouse"), "worker"], env=self.environment, stdout=output, stderr=output, cwd=log.parent
            )
        try:
            yield
        finally:
            worker.kill()
            worker.wait(timeout=60)

    def follow(self) -> None:
        """What a follower does: raw is up to date, but for a table that is parked."""
        done = self.call(str(BIN / "lakehouse"), "ingest", self.name, "--once")
        assert done.returncode == 0 or "on_unrepresentable" in done.stderr, done.stderr

    def tick(self, sensor: str, pause_seconds: float = 3600) -> dict[str, Any]:
        """One tick of a sensor, with the run it asks for; what has failed rests for so long."""
        done = self.call(sys.executable, "-m", "tests.sensor_driver", sensor, str(pause_seconds))
        found = [line for line in done.stdout.splitlines() if line.startswith("OUTCOME ")]
        assert found, done.stdout[-3000:] + done.stderr[-3000:]
        return dict(json.loads(found[0].removeprefix("OUTCOME ")))

    def declare(self, breaking: bool, digits: int = 4, without_models: str | None = None) -> None:
        """Declares the tables and writes their models, right or so that they fail; of one table none.

        `digits` is how many `valued` is declared to have, less than its column has.
        """
        declared = {}
        for table in self.tables:
            as_is = declared_as_is(self.world, table)
            columns = dict(as_is.columns)
            if table == "valued":
                columns["v"] = f"numeric({digits},2)"
            if not breaking:
                columns.pop("_valid_from", None)
            hub = f"{self.name}_{table}"
            ignored = [name for name in columns if name == "_valid_from"]
            vault = {"hub": hub, "satellites": {f"{hub}_details": ["v"]}, "ignored": ignored}
            declared[table] = Declared(columns, as_is.raw, None if table == without_models else vault)
        for wrapped in (self.parsed("unmatched"), self.hub("unsound")):
            wrapped.unlink(missing_ok=True)
        self.project.declare(declared)
        for model in self.models.glob(f"*/{self.name}/*__{without_models}.*"):
            model.unlink()
        if breaking:
            raw = f"{{{{ source('{self.name}', 'unmatched') }}}}"
            _wrap(self.parsed("unmatched"), f"where id not in (select max(id) from {raw})")
            _wrap(self.hub("unsound"), "cross join (values 1, 2)")

    def parsed(self, table: str) -> Path:
        """The model of a parsed table."""
        return self.models / f"parsed/{self.name}/parsed_{self.name}__{table}.sql"

    def hub(self, table: str) -> Path:
        """The model of a hub."""
        return self.models / f"vault/{self.name}/hub_{self.name}_{table}.sql"

    def write_marts(self) -> None:
        """One of a table that fails, one of a table that does not, and one of both."""
        folder = self.models / "marts" / self.name
        folder.mkdir(parents=True)
        for mart, tables in (("good", ("good",)), ("valued", ("valued",)), ("both", ("good", "valued"))):
            reads = [f"select id, v from {{{{ ref('current_{self.name}__{table}') }}}}" for table in tables]
            (folder / f"mart_{self.name}_{mart}.sql").write_text(" union all ".join(reads) + "\n")

    def add_rows(self, *tables: str) -> None:
        """Two more rows for each."""
        self.world.sql(
            *(
                f"INSERT INTO {table} SELECT top + n, n FROM (SELECT max(id) AS top FROM {table}) t,"
                " generate_series(1, 2) AS n"
                for table in tables
            )
        )

    def break_all(self, digits: int) -> None:
        """A name that parsed keeps, a value that does not fit, a row that parsed loses, a key that a hub has twice."""
        self.add_rows(*self.tables)
        self.world.sql(
            "ALTER TABLE named ADD IF NOT EXISTS _valid_from text", f"UPDATE valued SET v = 1e{digits} WHERE id = 2"
        )
        self.declare(breaking=True, digits=digits)

    def mend_all(self, digits: int) -> None:
        """Everything as it should be; what wrong models have made is dropped."""
        self.declare(breaking=False, digits=digits)
        for made in (f"parsed.parsed_{self.name}__unmatched", f"vault.hub_{self.name}_unsound"):
            self.project.rows(f"DROP TABLE IF EXISTS {made}")

    def source(self, table: str) -> Rows:
        """The oracle."""
        return [(row[0], str(row[1])) for row in self.world.rows(f"SELECT id, v FROM {table} ORDER BY id")]

    def lake(self, relation: str) -> Rows | None:
        """Rows of a relation of the lake; None where it is not there."""
        schema, name = relation.split(".")
        there = f"SELECT 1 FROM information_schema.tables WHERE table_schema = '{schema}' AND table_name = '{name}'"
        if not self.project.rows(there):
            return None
        return [(row[0], str(row[1])) for row in self.project.rows(f"SELECT id, v FROM {relation} ORDER BY id, v")]

    def current(self, table: str) -> Rows | None:
        """The current view of a table."""
        return self.lake(f"parsed.current_{self.name}__{table}")

    def mart(self, name: str) -> Rows | None:
        """A mart."""
        return self.lake(f"marts.mart_{self.name}_{name}")


def _wrap(model: Path, rest: str) -> None:
    model.write_text(f"select * from (\n{model.read_text()}\n) {rest}\n")


def by_hand(shop: Shop) -> tuple[bool, str]:
    """`lakehouse run load_… build_marts`."""
    done = shop.call(str(BIN / "lakehouse"), "run", f"load_{shop.name}", "build_marts")
    return done.returncode == 0, done.stdout + done.stderr


def by_sensors(shop: Shop) -> tuple[bool, str]:
    """What the daemon does, of everything that is due."""
    shop.follow()
    load, marts = shop.tick(f"new_data_{shop.name}", 0), shop.tick("new_data_marts", 0)
    return load["success"] and marts.get("success", True), json.dumps([load, marts], indent=1)


@pytest.fixture
def shop(settings: Settings, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A source of two tables, or of those that the test asks for."""
    tables = getattr(request, "param", ("good", "valued"))
    policies = {name: RawPolicy(relation=f"public.{name}", key=("id",)) for name in tables}
    ddl = ";".join(DDL.format(name) for name in tables)
    with project_of(make_world(settings, ddl, policies), tmp_path) as project:
        yield Shop(project, tables)


def assert_all_loaded(shop: Shop, said: str) -> None:
    for table in shop.tables:
        assert shop.current(table) == shop.source(table), f"{table}: {said}"
    assert shop.mart("good") == shop.source("good"), said
    both = shop.mart("both")
    assert both is not None and sorted(both) == sorted([*shop.source("good"), *shop.source("valued")]), said


@pytest.mark.slow
@pytest.mark.parametrize("load", [by_hand, by_sensors])
@pytest.mark.parametrize("shop", [TABLES], indirect=True)
def test_whatever_fails_of_a_table_the_others_and_their_marts_are_loaded(shop: Shop, load: Load) -> None:
    """In the first load of a source and in a later one: a name, a value, a check of parsed, a check of a hub."""
    shop.break_all(4)
    shop.write_marts()
    succeeded, said = load(shop)
    assert not succeeded
    for table in ("good", "unsound"):  # of the last one the hub alone has failed
        assert shop.current(table) == shop.source(table), said
    for table in ("named", "valued", "unmatched"):
        assert shop.current(table) is None, said
    assert shop.mart("good") == shop.source("good"), said
    assert shop.mart("both") is None and shop.mart("valued") is None, said

    shop.mend_all(8)
    succeeded, said = load(shop)
    assert succeeded, said
    assert_all_loaded(shop, said)

    before = {table: shop.source(table) for table in ("named", "valued")}
    both = shop.mart("both")
    shop.break_all(8)
    succeeded, said = load(shop)
    assert not succeeded
    for table in ("good", "unsound"):
        assert shop.current(table) == shop.source(table), said
    for table, rows in before.items():
        assert shop.current(table) == rows, said
    assert shop.mart("good") == shop.source("good") and shop.mart("both") == both, said


@pytest.mark.slow
def test_while_a_table_rests_the_sensors_load_the_others_and_it_comes_in_its_turn(shop: Shop) -> None:
    shop.declare(breaking=False)
    shop.write_marts()
    sensor = f"new_data_{shop.name}"
    assert shop.tick(sensor)["success"] and shop.tick("new_data_marts", 0)["success"]
    assert_all_loaded(shop, "")
    both = shop.mart("both")

    shop.add_rows("good")
    shop.world.sql("UPDATE valued SET v = 1e4 WHERE id = 2")
    shop.follow()
    failed = shop.tick(sensor)
    parsed = f"parsed.parsed_{shop.name}__valued"
    assert not failed["success"] and parsed in failed["failed"], failed
    assert f"parsed.current_{shop.name}__good" in failed["materialized"] and parsed not in failed["materialized"]
    assert shop.current("good") == shop.source("good")
    marts = shop.tick("new_data_marts", 0)
    assert marts["success"] and marts["materialized"] == [f"marts.mart_{shop.name}_good"], marts
    assert shop.mart("good") == shop.source("good") and shop.mart("both") == both

    skipped = shop.tick(sensor)["skipped"]
    assert f"{parsed} has failed 1 times, next attempt in" in skipped, skipped
    shop.add_rows("good")
    shop.follow()
    loaded = shop.tick(sensor)
    assert loaded["success"] and parsed not in loaded["selected"], loaded
    assert shop.current("good") == shop.source("good")

    shop.declare(breaking=False, digits=8)
    mended = shop.tick(sensor, 0)
    assert mended["success"] and mended["why"].startswith(f"another attempt at {parsed} (failed 1 times)"), mended
    marts = shop.tick("new_data_marts", 0)
    assert marts["success"], marts
    assert_all_loaded(shop, "")


@pytest.mark.slow
def test_a_run_tests_marts_with_those_that_are_held_back_and_through_views_once_they_are_published(shop: Shop) -> None:
    """A test of a view passed for the former state of its mart, and a mart was published without the rows of another
    one that it refers to.
    """
    shop.declare(breaking=False)
    shop.write_marts()
    succeeded, said = by_hand(shop)
    assert succeeded, said
    good, valued = (f"mart_{shop.name}_{name}" for name in ("good", "valued"))
    folder, shown = shop.models / "marts" / shop.name, f"mart_{shop.name}_shown"
    (folder / f"{shown}.sql").write_text(
        f"{{{{ config(materialized='view') }}}} select id, v from {{{{ ref('{good}') }}}}\n"
    )
    (folder / "tests.yml").write_text(
        f"models: [{{name: {shown}, columns: [{{name: v, data_tests: [not_null]}}]}},"
        f" {{name: {good}, columns: [{{name: id, data_tests: ["
        f"{{relationships: {{arguments: {{to: ref('{valued}'), field: id}}}}}}]}}]}}]\n"
    )
    succeeded, said = by_hand(shop)
    assert succeeded, said

    shop.world.sql("UPDATE good SET v = NULL WHERE id = 2")
    succeeded, said = by_hand(shop)
    assert not succeeded and f"test not_null of marts.{shown}.v found 1 failing row" in said, said
    assert shop.mart("good") == shop.source("good"), "it is told and refuses nothing"
    shop.world.sql("UPDATE good SET v = 2 WHERE id = 2")
    succeeded, said = by_hand(shop)
    assert succeeded and shop.mart("good") == shop.source("good"), said

    before = shop.mart("good")
    shop.add_rows("good", "valued")
    shop.world.sql("UPDATE valued SET v = 1e4 WHERE id = 2")
    succeeded, said = by_hand(shop)
    assert not succeeded and f"test relationships of marts.{good}.id found 2 failing rows" in said, said
    assert shop.current("good") == shop.source("good") and shop.mart("good") == before
    shop.declare(breaking=False, digits=8)
    succeeded, said = by_hand(shop)
    assert succeeded and shop.mart("good") == shop.source("good"), said


def wait_for(condition: Callable[[], bool], log: Path, seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.5)


@pytest.mark.slow
def test_the_worker_builds_no_mart_of_a_table_that_it_leaves_behind(shop: Shop, tmp_path: Path) -> None:
    """It published marts of the new rows of one table and the former rows of the other, at each cut."""
    shop.declare(breaking=False)
    shop.write_marts()
    succeeded, said = by_hand(shop)
    assert succeeded, said
    both, valued, log = shop.mart("both"), shop.mart("valued"), tmp_path / "worker.log"
    shop.add_rows("good")
    shop.world.sql("UPDATE valued SET v = 1e4 WHERE id = 2")
    shop.follow()
    for _ in range(2):  # the second one knows what Dagster was told
        with shop.working(log):
            wait_for(lambda: shop.mart("good") == shop.source("good"), log)
            wait_for(lambda: "marts wait: " in log.read_text(), log)
            assert f"load_{shop.name} is left to Dagster" in log.read_text()
            assert shop.mart("both") == both and shop.mart("valued") == valued
        log.write_text("")
        shop.add_rows("good")
        shop.follow()
    shop.declare(breaking=False, digits=8)
    with shop.working(log):
        wait_for(lambda: shop.mart("valued") == shop.source("valued"), log)
        wait_for(lambda: len(shop.mart("both") or []) == len(shop.source("good")) + 2, log)
    assert_all_loaded(shop, log.read_text())


@pytest.mark.slow
def test_a_failed_value_keeps_no_other_table_of_a_sensors_run(shop: Shop) -> None:
    shop.world.sql("UPDATE valued SET v = 1e4 WHERE id = 2")
    shop.declare(breaking=False)
    failed = shop.tick(f"new_data_{shop.name}")
    parsed = f"parsed.parsed_{shop.name}__valued"
    assert not failed["success"] and parsed in failed["failed"] and parsed in failed["error"], failed
    for table in shop.tables:
        assert shop.current(table) == (None if table == "valued" else shop.source(table)), failed
    again = shop.tick(f"new_data_{shop.name}")
    assert f"parsed.parsed_{shop.name}__valued has failed 1 times" in again["skipped"], again


@pytest.mark.slow
def test_a_backfill_derives_the_days_of_the_other_tables(shop: Shop) -> None:
    """What is new is loaded before the days: a table that failed there ended the whole run."""
    shop.world.sql("UPDATE valued SET v = 1e4 WHERE id = 2")
    shop.declare(breaking=False)
    today = datetime.now(UTC).date().isoformat()
    done = shop.call(str(BIN / "lakehouse"), "run", f"load_{shop.name}", "--partition", today)
    assert done.returncode != 0 and f"parsed.parsed_{shop.name}__valued" in done.stderr, done.stderr
    assert f"parsed.current_{shop.name}__good" not in done.stderr
    for table in shop.tables:
        assert shop.current(table) == (None if table == "valued" else shop.source(table)), done.stdout


@pytest.mark.slow
def test_marts_of_tables_that_were_never_loaded_are_left_out(shop: Shop) -> None:
    """In a project that had none of the samples' tables `build_marts` failed."""
    shop.declare(breaking=False)
    no_marts = shop.call(str(BIN / "lakehouse"), "run", "build_marts")
    assert no_marts.returncode == 0 and "nothing to build: the project has no marts" in no_marts.stdout, no_marts
    shop.write_marts()
    done = shop.call(str(BIN / "lakehouse"), "run", "build_marts")
    assert done.returncode == 0, done.stderr
    assert f"raw_{shop.name}.valued was never loaded" in done.stdout
    assert shop.mart("valued") is None


@pytest.mark.slow
@pytest.mark.parametrize(("load", "rows"), [(by_hand, 2), (by_sensors, 0)])
def test_a_table_that_has_never_arrived_is_refused_and_not_shown_as_empty(shop: Shop, load: Load, rows: int) -> None:
    """Parked in its first load, it had a view and marts without rows, where the source had two."""
    shop.world.sql("UPDATE valued SET v = 'NaN' WHERE id = 2")
    shop.declare(breaking=False)
    shop.write_marts()
    _, said = load(shop)
    assert shop.current("good") == shop.source("good"), said
    with pytest.raises(TrinoUserError, match=rf"raw_{shop.name}\.valued has never arrived .*`lakehouse status`"):
        shop.current("valued")
    assert shop.mart("good") == shop.source("good"), said
    assert shop.mart("valued") is None and shop.mart("both") is None, said
    again = shop.call(str(BIN / "lakehouse"), "run", "build_marts").stdout
    assert f"check in_the_cut of raw_{shop.name}.valued fails" in again, again

    shop.world.sql("UPDATE valued SET v = 2 WHERE id = 2" if rows else "DELETE FROM valued")
    resumed = shop.call(str(BIN / "lakehouse"), "ingest", "--resume", f"{shop.name}.valued")
    assert resumed.returncode == 0, resumed.stderr
    succeeded, said = load(shop)
    assert succeeded, said
    assert_all_loaded(shop, said)
    shop.world.sql("UPDATE valued SET v = 'NaN' WHERE id = 1" if rows else "INSERT INTO valued VALUES (1, 'NaN')")
    before = [shop.current("valued"), shop.mart("both")]
    by_hand(shop)  # a sensor sees nothing new
    assert [shop.current("valued"), shop.mart("both")] == before, "it is as of the cut before"


@pytest.mark.slow
def test_a_load_says_which_table_no_model_reads(shop: Shop) -> None:
    shop.declare(breaking=False, without_models="valued")
    done = shop.call(str(BIN / "lakehouse"), "run", f"load_{shop.name}")
    assert done.returncode == 0, done.stderr
    told = f"check read_by_a_model of raw_{shop.name}.valued: WARN: no model reads {shop.name}.valued"
    assert done.stdout.count(told) == 1, done.stdout
    assert shop.current("good") == shop.source("good")
