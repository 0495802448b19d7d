"""`lakehouse upgrade` without a stack: Dagster's storage, who is in the way, what is said."""

import json
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine
from typer.testing import CliRunner

import lakehouse_cli.machine.upgrade as module
from ingestion.state import store
from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_private
from lakehouse.migrations import ensure_state, known_steps, newest_version, pending, refuse_former_state, stamp
from lakehouse.migrations import migrate as migrate_state
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.worker_sessions import CLASS, WORKER
from lakehouse.settings import Settings, load_settings
from lakehouse.text.urls import parse_url
from lakehouse_backup.dump import dump_catalog, load_catalog
from lakehouse_cli.alone import alone
from lakehouse_cli.commands import _root, command_line
from lakehouse_cli.machine.upgrade import planned, sources_to_recover, upgrade
from lakehouse_stack.control.postgres_upgrade import identify
from lakehouse_stack.home.instance import with_driver, write_instance
from lakehouse_stack.home.pathnames import credentials_file, ports_file
from lakehouse_stack.home.ports import write_ports
from orchestration.instance import migrate, outdated


@pytest.fixture
def mine(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A catalog and a Dagster database of the test's own; somebody else's servers, as far as the home knows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    with psycopg.connect(cluster, autocommit=True) as admin:
        for database in ("lake", "dagster"):
            admin.execute(f"DROP DATABASE IF EXISTS {database}")
            admin.execute(f"CREATE DATABASE {database}")
    url = cluster.rsplit("/", 1)[0]
    monkeypatch.setenv("LAKEHOUSE_CATALOG_URL", f"{url}/lake")
    monkeypatch.setenv("LAKEHOUSE_DAGSTER__STORAGE_URL", f"{url}/dagster")
    with closing(SqlCatalog("lake", uri=f"{with_driver(url)}/lake", warehouse=f"file://{tmp_path}")):
        return load_settings()


def typed(*arguments: str) -> tuple[int, str]:
    import typer

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(upgrade)
    result = CliRunner().invoke(app, arguments)
    if isinstance(result.exception, LakehouseError):
        raise result.exception
    return result.exit_code, result.output


def dagster_tables(mine: Settings) -> list[tuple[str]]:
    assert mine.dagster.storage_url is not None
    with psycopg.connect(mine.dagster.storage_url.get_secret_value()) as connection:
        return connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()


def set_back(mine: Settings) -> None:
    """Dagster's storage as a release before the last change of its schema left it."""
    from dagster._core.storage.sql import run_alembic_downgrade
    from dagster_postgres.run_storage import run_storage
    from dagster_postgres.utils import pg_alembic_config

    assert mine.dagster.storage_url is not None
    engine = create_engine(with_driver(mine.dagster.storage_url.get_secret_value()))
    with engine.connect() as connection, connection.begin():
        run_alembic_downgrade(pg_alembic_config(run_storage.__file__), connection, "-1")
    engine.dispose()


def test_dagsters_storage_of_an_earlier_release_is_told_and_migrated(mine: Settings) -> None:
    import dagster as dg

    assert outdated(mine) is None, "there is no instance yet"
    write_instance(mine)
    assert outdated(mine) is None and dagster_tables(mine) == [], "looking makes no tables"
    with dg.DagsterInstance.from_config(str(mine.dagster_home)) as instance:
        assert instance.get_runs() == []
    assert outdated(mine) is None
    set_back(mine)
    behind = outdated(mine)
    assert behind is not None and "→" in behind
    migrate(mine, lambda text: None)
    assert outdated(mine) is None


def test_it_says_what_it_would_do_does_it_and_then_has_nothing_to_do(mine: Settings) -> None:
    assert typed("--check") == (0, "nothing to do\n"), "nothing is stored yet"
    with psycopg.connect(mine.catalog_dsn(), autocommit=True) as states:
        migrate_state(states, known_steps()[:1])
    status, output = typed("--check")
    assert status == 1 and "state: step 2, positions" in output
    assert typed("--check") == (status, output), "looking changes nothing"
    status, output = typed()
    assert status == 0 and output.endswith("upgraded\n")
    assert typed() == (0, "nothing to do\n") and typed("--check") == (0, "nothing to do\n")


def test_it_says_what_is_left_and_exits_with_1(mine: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said "upgraded" and exited with 0: a script went on with tables and views that loads and readers refuse."""
    left = ["parsed.parsed_shop__sales: its source has a column _is_deleted", "parsed.c_wrong: change its definition"]
    monkeypatch.setattr(module, "PARTS", (module.Part(lambda settings: left[:1], lambda settings: None),))
    status, output = typed()
    verdict = "upgraded, but for what is said here: that is left for you"
    assert status == 1 and output.splitlines()[1:] == [left[0], verdict]
    assert typed("--check") == (1, f"{left[0]}\n")
    views = left[1:]  # which are to be made anew, and of which nobody knows afterwards
    monkeypatch.setattr(module, "PARTS", (module.Part(lambda settings: views, lambda settings: [views.pop()]),))
    assert typed() == (1, f"{left[1]}\n{verdict}\n")
    assert typed() == (0, "nothing to do\n")


def test_sources_to_recover_are_named_by_each_run_and_exit_with_1(
    mine: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--check` said that there was nothing to do, and exited with 0."""
    monkeypatch.setattr(module, "sources_to_recover", lambda settings: ["shop", "bank"])
    for arguments in ((), ("--check",)):
        assert typed(*arguments) == (1, "nothing to do\nthen: lakehouse ingest --recover shop bank\n")


@pytest.mark.parametrize(
    "command",
    ["doctor", "status", "show", "watch --once", "maintain --dry-run", "maintain status", "maintain compact --dry-run"],
)
def test_a_command_that_only_looks_leaves_the_state_of_an_earlier_release_as_it_is(
    mine: Settings, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The release before refused the state after a `lakehouse doctor` of the new one, which says that it changes
    nothing."""
    monkeypatch.setenv("LAKEHOUSE_SOURCES__SHOP__URL", mine.catalog_dsn())
    with psycopg.connect(mine.catalog_dsn(), autocommit=True) as connection:
        migrate_state(connection, known_steps()[:-1])
    name, *arguments = command.split()
    result = CliRunner().invoke(command_line([name]), [name, *arguments])
    said = " ".join(f"{result.output} {result.exception}".split())
    assert "of an earlier release" in said and "`lakehouse upgrade`" in said
    with psycopg.connect(mine.catalog_dsn()) as connection:
        assert stamp(connection)[0] == newest_version() - 1


def test_a_catalog_in_which_nothing_was_stored_yet_needs_no_upgrade(mine: Settings) -> None:
    """`lakehouse up` makes the schema, without a table: `doctor` named every step there was."""
    with psycopg.connect(mine.catalog_dsn(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA lakehouse")
    refuse_former_state(mine)
    assert not [line for line in planned(mine) if line.startswith("state")] and sources_to_recover(mine) == []
    with psycopg.connect(mine.catalog_dsn(), autocommit=True) as connection:
        ensure_state(connection)
        assert stamp(connection)[0] == newest_version()


def test_it_refuses_in_one_line_while_somebody_is_at_work(mine: Settings) -> None:
    with psycopg.connect(mine.catalog_dsn(), autocommit=True) as states:
        migrate_state(states, known_steps()[:1])
        states.execute("DELETE FROM lakehouse.schema_version")
        states.execute("INSERT INTO lakehouse.leases VALUES ('shop', 1, 'me', 'follow', now(), now() + interval '1 h')")
        with pytest.raises(LakehouseError, match=r"^source 'shop': .* is at work: stop it, then run this again$"):
            typed()
        states.execute("DELETE FROM lakehouse.leases")
        states.execute("SELECT pg_advisory_lock_shared(%s, hashtext(%s))", (CLASS, f"{mine.catalog_name}/{WORKER}"))
        with pytest.raises(LakehouseError, match=r"^`lakehouse worker` is at work: stop it, then run this again$"):
            typed()
        states.execute("SELECT pg_advisory_unlock_all()")
        with alone(mine), pytest.raises(LakehouseError, match=r"^`lakehouse dev` runs for .*: stop it, then run"):
            typed()
        assert states.execute("SELECT * FROM lakehouse.schema_version").fetchall() == []
    assert typed()[0] == 0


def test_sources_of_a_migrated_cluster_are_named_until_they_are_recovered(
    mine: Settings, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that moved their cluster was interrupted; the next one had nothing to move there and named none."""
    url = parse_url(cluster)
    for name in ("shop", "bank", "topics"):
        monkeypatch.setenv(f"LAKEHOUSE_SOURCES__{name.upper()}__URL", cluster)
    monkeypatch.setenv("LAKEHOUSE_SOURCES__CRM__URL", f"postgresql://elsewhere:{url.port}/crm")  # of the same port
    settings = load_settings()
    assert sources_to_recover(settings) == [], "these servers are somebody else's"
    write_private(credentials_file(settings), json.dumps({"sources_superuser": "secret"}))
    write_ports(ports_file(settings), {"sources": url.port})
    assert sources_to_recover(settings) == [], "nothing is stored yet"
    with psycopg.connect(mine.catalog_dsn(), autocommit=True) as states:
        ensure_state(states)
        here = identify(settings, "sources", url.port)
        for name, system in (("shop", "7"), ("bank", here), ("crm", "7"), ("topics", "7")):
            kind = "kafka" if name == "topics" else "postgres"
            store.create_stream(CatalogConnection(states), name, "", store.Cluster(system, 1), 0, kind)
        assert sources_to_recover(settings) == ["shop"]


def test_the_release_is_printed() -> None:
    import re

    import typer

    app = typer.Typer(add_completion=False)
    app.callback()(_root)
    app.command("nothing")(lambda: None)
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0 and re.fullmatch(r"lakehouse \d+\.\d+\.\d+\n", result.output)


def test_a_backup_of_a_newer_release_is_refused_before_anything_is_replaced(
    mine: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakehouse_backup import folder, run

    with psycopg.connect(mine.catalog_dsn(), autocommit=True) as states:
        ensure_state(states)
        states.execute("INSERT INTO lakehouse.schema_version (version, name, release) VALUES (99, 'later', '9.9.0')")
    dump_catalog(mine, tmp_path / folder.DUMP)
    about = {"made_at": "2027-01-01T00:00:00+00:00", "warehouse": mine.warehouse, "catalog_only": False, "unknown": 1}
    (tmp_path / folder.ABOUT).write_text(json.dumps(about))
    monkeypatch.setattr(run, "load_catalog", lambda *given: pytest.fail("it was replaced"))
    with pytest.raises(LakehouseError, match=r"holds state of version 99, made by release 9\.9\.0.*install 9\.9\.0"):
        run.restore_backup(mine, tmp_path)


def test_a_backup_of_an_earlier_release_replaces_the_state_and_is_brought_up(mine: Settings, tmp_path: Path) -> None:
    """What it does not hold stayed beside what it holds: the later version's stamp above the earlier one's tables."""
    with psycopg.connect(mine.catalog_dsn(), autocommit=True) as states:
        migrate_state(states, known_steps()[:1])
        states.execute("DROP TABLE lakehouse.schema_version, lakehouse.witnesses")
        states.execute("INSERT INTO lakehouse.condemned VALUES ('raw_shop', 'orders', 'of the backup')")
        dump_catalog(mine, tmp_path / "catalog.dump")
        ensure_state(states)
        states.execute("CREATE TABLE lakehouse.later (id int)")
        states.execute("INSERT INTO lakehouse.schema_version (version, name, release) VALUES (99, 'later', '9.9.0')")
        states.execute("DELETE FROM lakehouse.condemned")
        load_catalog(mine, tmp_path / "catalog.dump")
        assert stamp(states) == (0, "") and len(pending(states, known_steps())) == len(known_steps())
        ensure_state(states)
        tables = {name for (name,) in states.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'lakehouse'")}
        assert "witnesses" in tables and "later" not in tables
        assert states.execute("SELECT path FROM lakehouse.condemned").fetchall() == [("of the backup",)]
