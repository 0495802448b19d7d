"""A source of somebody else's that is down, and two projects on one home: one line that is right, in every command."""

import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ingestion.sources.postgres.connection import connect_source, publication_oid
from ingestion.sources.postgres.setup import check_source, prepare
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.orchestrated import BIN, Orchestrated, make_orchestrated
from tests.ports import free_port
from tests.world import make_world

pytestmark = pytest.mark.stack


@pytest.fixture
def down(settings: Settings, tmp_path: Path) -> Orchestrated:
    """A declared source at an address where nobody listens."""
    o = make_orchestrated(settings, tmp_path, 7, count=1)
    port = free_port()
    prefix = f"LAKEHOUSE_SOURCES__{o.name.upper()}__"
    urls = {f"{prefix}URL": f"postgresql://reader:secret-1@127.0.0.1:{port}/shop"}
    urls[f"{prefix}OWNER_URL"] = f"postgresql://owner:secret-1@127.0.0.1:{port}/shop"
    return replace(o, environment={**o.environment, **urls, "PORT": str(port)})


def printed(o: Orchestrated, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(BIN / "lakehouse"), *arguments], capture_output=True, text=True, timeout=240, env=o.environment,
        cwd=o.environment["LAKEHOUSE_PROJECT_DIR"],
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def assert_told(o: Orchestrated, output: str, key: str = "URL") -> None:
    assert f"source '{o.name}': no connection to 127.0.0.1:{o.environment['PORT']} (" in output, output
    assert f"start that server, or correct LAKEHOUSE_SOURCES__{o.name.upper()}__{key}" in output
    assert "lakehouse up" not in output and "Traceback" not in output and "secret-1" not in output


def assert_refused(down: Orchestrated, *arguments: str, key: str = "URL") -> None:
    status, output = printed(down, *arguments)
    assert_told(down, output, key)
    assert status == 1 and sum(line.startswith("error: ") for line in output.splitlines()) == 1, output


@pytest.mark.slow
def test_a_foreign_source_that_is_down_is_named_with_its_address_in_every_command(down: Orchestrated) -> None:
    assert_refused(down, "prepare", down.name)
    assert_refused(down, "ingest", down.name, "--once")
    assert_refused(down, "scaffold", down.name, "--propose", key="OWNER_URL")
    _, output = printed(down, "status", "--json")
    assert_told(down, output)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("reconcile",), ("ingest", "--recover")], ids=" ".join)
def test_commands_that_start_spark_first_name_it_too(down: Orchestrated, arguments: tuple[str, ...]) -> None:
    assert_refused(down, *arguments, down.name)


@pytest.mark.slow
def test_a_load_of_a_foreign_source_that_is_down_ends_with_its_address(down: Orchestrated) -> None:
    status, output = printed(down, "run", f"load_{down.name}")
    assert_told(down, output)
    last = output.splitlines()[-1]
    assert status == 1 and last.startswith(f"error: load_{down.name}: run ") and "lakehouse.retry" not in last


@pytest.mark.slow
def test_a_follower_goes_on_asking_a_foreign_source_that_is_down(down: Orchestrated) -> None:
    follower = subprocess.Popen(
        [str(BIN / "lakehouse"), "ingest", down.name, "--follow"], text=True, env=down.environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert follower.stderr is not None
    try:
        told = next(line for line in follower.stderr if "next try in" in line)
    finally:
        follower.send_signal(signal.SIGTERM)
        follower.communicate(timeout=120)
    assert_told(down, told)


def test_lakehouse_up_is_the_remedy_where_the_embedded_stack_has_the_source(settings: Settings) -> None:
    bank = settings.sources["bank"]
    wrong = bank.url.get_secret_value().rsplit("/", 1)[0] + "/not_there"
    embedded = settings.model_copy(update={"sources": {"bank": bank.model_copy(update={"url": type(bank.url)(wrong)})}})
    with pytest.raises(LakehouseError, match=r"source 'bank': no connection to 127\.0\.0\.1:\d+ .*`lakehouse up`"):
        connect_source(embedded, "bank")


@pytest.mark.slow
def test_an_error_of_one_project_is_not_shown_in_another_on_the_same_home(settings: Settings, tmp_path: Path) -> None:
    """They shared dbt's partial parse: a broken macro of one failed the other, in files that it does not have."""
    projects = []
    for name in ("here", "there"):
        for part in ("dbt_project.yml", "profiles.yml", "dbt_packages", "macros", "models/sources"):
            source, target = settings.dbt_project_dir / part, tmp_path / name / "dbt_project" / part
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        projects.append(settings.model_copy(update={"project_dir": tmp_path / name, "home": tmp_path / "home"}))
    here, there = projects
    load_manifest(here)
    stamp = sorted((tmp_path / "home" / "dbt").glob("*/manifest.key"))
    (here.dbt_project_dir / "models" / "sources" / "broken.yml").write_text("sources: [{name: x, tables: [{nme: y}]}]")
    with pytest.raises(LakehouseError, match=r"broken\.yml"):
        load_manifest(here)
    found = load_manifest(there)
    assert stamp and not [node for node in found["sources"].values() if "broken" in node["original_file_path"]]
    [kept] = list((tmp_path / "home" / "dbt").glob("there-*/target/partial_parse.msgpack"))
    assert b"broken.yml" not in kept.read_bytes()
    before = kept.stat().st_mtime_ns
    with pytest.raises(LakehouseError, match=r"broken\.yml"):
        load_manifest(here)
    load_manifest(there)
    assert kept.stat().st_mtime_ns == before, "a project is not parsed again because another one was"


def test_an_empty_database_of_a_sample_is_filled_first(settings: Settings, tmp_path: Path) -> None:
    """Right after `lakehouse up`, `ingest --once` advised `prepare`, which fails as long as there are no tables."""
    table = {"t": RawPolicy(relation="public.t", key=("id",))}
    world = make_world(settings, "CREATE TABLE t (id int PRIMARY KEY)", table)
    name, url = world.source.name, world.settings.source(world.source.name).url.get_secret_value()
    world.sql("DROP PUBLICATION lakehouse", "DROP TABLE t")
    (tmp_path / "endpoints.toml").write_text(f'[sources.{name}]\nurl = "{url}"\n')
    embedded = world.settings.model_copy(update={"home": tmp_path})
    remedy = f"run `lakehouse samples {name}`, then `lakehouse prepare {name}`"

    def advice(of: Settings) -> str:
        with connect_source(of, name) as connection, pytest.raises(LakehouseError) as caught:
            publication_oid(of, connection, name, "lakehouse")
        return str(caught.value)

    assert remedy in advice(embedded) and "samples" not in advice(world.settings), "only of the embedded stack's own"
    with pytest.raises(LakehouseError, match=remedy):
        prepare(embedded, world.source)
    assert remedy in [finding.remedy for finding in check_source(embedded, world.source)]
    world.sql("CREATE TABLE t (id int PRIMARY KEY)")
    assert advice(embedded).endswith(f"does not exist: run `lakehouse prepare {name}`")
