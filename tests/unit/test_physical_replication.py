"""Who steals the run-time role's password must not copy the whole cluster with it, and ingestion goes on."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from ingestion.sources.findings import Finding
from ingestion.sources.postgres.setup import advice, may_copy_cluster, once
from ingestion.sources.postgres.setup.physical import ABOUT
from lakehouse.settings import Settings, SourceSettings, load_settings
from lakehouse_stack.control.containers import HBA, IMAGES_HBA, container_files
from lakehouse_stack.processes.accounts import Placement, find_placement, hand_over, packaged_programs
from lakehouse_stack.processes.process import start, stop
from lakehouse_stack.servers.postgres import postgres_server
from lakehouse_stack.servers.server import Server
from lakehouse_stack.templates.render import render
from tests.clusters import ROLE, ROLE_PASSWORD, cluster
from tests.ports import free_port

pytestmark = pytest.mark.stack
PASSWORD = "stolen-4d1f"


@pytest.fixture
def embedded() -> Iterator[tuple[Server, Placement]]:
    """The source cluster as `lakehouse up` makes it, in a folder whose name has quotes and a space."""
    with tempfile.TemporaryDirectory(prefix="lakehouse-test-", ignore_cleanup_errors=True) as folder:
        home = Path(folder) / 'it\'s a "home"'
        for path in (Path(folder), home, Path(folder) / "system"):
            path.mkdir(exist_ok=True)
            path.chmod(0o711)
        where = find_placement(home, Path(folder) / "system")
        hand_over(where.data, where.account)
        port = free_port()
        passwords = {"LAKEHOUSE_APP_PASSWORD": "app-1", "LAKEHOUSE_INGEST_PASSWORD": PASSWORD}
        roles = render("sources.sql.j2", databases=("shop",))
        server = postgres_server("sources", port, where, home / "sources.log", "super-1", roles, passwords)
        server.prepare()
        process = start(server.launch, port, home / "pid")
        try:
            deadline = time.monotonic() + 60
            while server.check_health() is not None:
                assert time.monotonic() < deadline, server.launch.log.read_text()
                time.sleep(0.1)
            server.after_start()
            yield server, where
        finally:
            stop([process], server.launch.stop_signal, 20)


def basebackup(url: str, to: Path) -> subprocess.CompletedProcess[str]:
    """What a thief would run."""
    program = packaged_programs() / "pg_basebackup"
    command = [str(program), "-d", url, "-D", str(to), "-X", "none", "-c", "fast", "--no-sync"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def follows(url: str) -> bool:
    """Whether the role may still read a database's changes."""
    with psycopg.connect(f"{url}?replication=database", autocommit=True) as connection:
        result = connection.pgconn.exec_(b"CREATE_REPLICATION_SLOT follows TEMPORARY LOGICAL pgoutput")
        return result.ntuples == 1


def of_source(url: str) -> Settings:
    return Settings(sources={"shop": SourceSettings(url=SecretStr(url))})


def test_the_embedded_sources_refuse_a_copy_of_the_cluster(embedded: tuple[Server, Placement], tmp_path: Path) -> None:
    server, _ = embedded
    url = f"postgresql://lakehouse_ingest:{PASSWORD}@127.0.0.1:{server.port}/shop"
    stolen = basebackup(url, tmp_path / "stolen")
    assert stolen.returncode == 1 and "pg_hba.conf rejects replication connection" in stolen.stderr
    assert follows(url) and not may_copy_cluster(of_source(url), "shop")

    with psycopg.connect(
        host="127.0.0.1", port=server.port, user="postgres", password="super-1", dbname="postgres", autocommit=True
    ) as admin:
        assert admin.execute("SELECT count(*) FROM pg_hba_file_rules WHERE error IS NOT NULL").fetchone() == (0,)
        own = Path(str(admin.execute("SELECT current_setting('hba_file')").fetchone()[0]))  # type: ignore[index]
        own.write_text(f'include "{str(own.with_name("pg_hba.conf")).replace(chr(34), chr(34) * 2)}"\n')
        admin.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 30
        while not may_copy_cluster(of_source(url), "shop"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    stolen = basebackup(url, tmp_path / "copied")
    assert stolen.returncode == 0, "without our lines it works: the password and REPLICATION are all it takes"
    assert (tmp_path / "copied" / "global" / "pg_control").exists()


def test_what_prepare_advises_refuses_it_elsewhere_and_keeps_ingestion_going(tmp_path: Path) -> None:
    with cluster() as made:
        url = made.url("postgres", ROLE, ROLE_PASSWORD)
        settings = of_source(url)
        assert may_copy_cluster(settings, "shop") and basebackup(url, tmp_path / "copied").returncode == 0
        says, remedy = advice(settings, "shop")
        assert says == f'role "{ROLE}" may copy the whole cluster (pg_basebackup)'
        line, hba = remedy.split("`")[1], made.data / "pg_hba.conf"
        hba.write_text(f"{line}\n{hba.read_text()}")
        made.admin("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 30
        while may_copy_cluster(settings, "shop"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert basebackup(url, tmp_path / "again").returncode == 1 and follows(url)


def test_one_line_for_one_server_is_said_once() -> None:
    """Three databases of one server were three lines that asked for the same."""
    place = "postgresql://{}:secret@{}:5432/{}"
    urls = {
        "a": place.format("reader", "one", "a"), "b": place.format("reader", "one", "b"),
        "c": place.format("reader", "two", "c"), "d": place.format("other", "one", "d"),
    }  # fmt: skip
    settings = load_settings(sources={name: {"url": url} for name, url in urls.items()})
    findings = [Finding(name, None, about, "warning", "says", "do") for name in urls for about in (ABOUT, "failover")]
    said = set[tuple[str, int, str]]()
    found = [f for each in (findings[:3], findings[3:]) for f in once(settings, each, said)]
    assert [f.source for f in found if f.about == ABOUT] == ["a", "c", "d"]
    assert [f.source for f in found if f.about == "failover"] == [*urls], "others are as they were"


def test_the_containers_have_the_same_lines_before_those_of_the_image() -> None:
    files = container_files(2048)
    assert f"hba_file = '{HBA}'" in files["sources/postgresql.conf"] and HBA == "/config/sources/pg_hba.conf"
    lines = [line.split() for line in files["sources/pg_hba.conf"].splitlines() if not line.startswith("#")]
    assert [line[-1] for line in lines] == ["reject", "reject", f'"{IMAGES_HBA}"']
    assert "hba_file" not in files["catalog/postgresql.conf"]
