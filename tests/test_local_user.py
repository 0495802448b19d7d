"""What another user of the machine reaches of a running stack, and a server that is taken over: tried as that user."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyiceberg.catalog.rest import RestCatalog

from lakehouse.settings import PROJECT_DIR, Settings
from lakehouse_stack.control.inspect import inspect
from lakehouse_stack.processes.accounts import find_server_placement
from tests.test_stack import COMMAND, Home, trino, trino_as

SYSTEM = Path("/var/lib/lakehouse")
pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(os.geteuid() != 0, reason="root alone can try what other users reach"),
]

STRANGER = 61184  # a user that no machine has


def run_as(user: int, group: int, *command: str | Path) -> str:
    done = subprocess.run(
        command, cwd="/", user=user, group=group, extra_groups=[], capture_output=True, text=True, timeout=300
    )
    return done.stdout


def as_stranger(*command: str | Path) -> str:
    return run_as(STRANGER, STRANGER, *command)


def servers_of(settings: Settings) -> dict[str, psutil.Process]:
    return {server.name: psutil.Process(server.pid) for server in inspect(settings) if server.pid}


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def test_as_root_no_server_that_listens_runs_as_root(settings: Settings) -> None:
    """Trino, the object store and the catalog service did, and had root's rights over the machine."""
    for name, server in servers_of(settings).items():
        looked = 0
        for process in family(server):
            with suppress(psutil.NoSuchProcess, FileNotFoundError):  # a backend that has just ended
                listens = [c for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
                assert (name == "reads") == (not listens) or process != server
                assert all(c.laddr.ip.endswith("127.0.0.1") for c in listens), name
                if name != "reads":  # it listens nowhere, and its log is not for the server whose reads are in it
                    assert 0 not in (*process.uids(), *process.gids()), name
                    status = Path(f"/proc/{process.pid}/status").read_text()
                    assert "0" not in status.split("Groups:")[1].splitlines()[0].split(), name
                looked += process == server
        assert looked, name


def test_a_server_that_is_taken_over_changes_no_file_of_the_home_but_its_own(settings: Settings) -> None:
    """Neither programs, settings nor rules, by which it would get what root has at the next command."""
    servers = servers_of(settings)
    for name in ("s3", "trino", "serve"):
        server = servers[name]
        find = ("find", *settings.home.iterdir(), "-writable", "-not", "-type", "l", "-prune")
        found = set(run_as(server.uids().real, server.gids().real, *find).split())
        assert found == {str(settings.home / "data" / own) for own in ("s3", "trino", "serve")}


def test_another_user_reads_no_file_of_the_home_but_the_authority(settings: Settings) -> None:
    readable = as_stranger("find", *settings.home.iterdir(), "-type", "f", "-readable").split()
    assert set(readable) <= {str(settings.home / "trino-ca.pem")}
    known = sorted((path for path in settings.home.rglob("*") if path.is_file()), key=lambda path: "data" in path.parts)
    opened = as_stranger(
        "sh", "-c", 'for f; do head -c1 "$f" > /dev/null && echo "$f"; done', "sh", *known[:2000]
    ).split()
    assert len(known) > 30 and set(opened) <= {str(settings.home / "trino-ca.pem")}


def test_another_user_sees_no_environment_of_a_server(settings: Settings) -> None:
    for server in servers_of(settings).values():
        for process in family(server):
            assert as_stranger("cat", f"/proc/{process.pid}/environ") == ""


CUTS = (
    "source varchar, epoch integer, cut_lsn bigint, cut_at timestamp(6) with time zone, "
    "published_at timestamp(6) with time zone, snapshots map(varchar, varchar)"
)


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder that root alone may enter, as /root is."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    shutil.rmtree(folder)


def left_by_an_earlier_release(home: Home) -> None:
    """Until release 0.2, as root, everything but the clusters was root's, and the servers' files were in `run`."""
    placed = find_server_placement(home.path, SYSTEM)
    for name in ("s3", "trino", "serve"):
        data, former = placed.data / name, home.path / "data" / name
        if data != former:
            shutil.move(data, former)
        for path in (former, *former.rglob("*")):
            os.chown(path, 0, 0, follow_symlinks=False)
    for path in placed.config.iterdir():
        path.rename(home.path / "run" / path.name)
    for path in (home.path / "run").rglob("*"):
        os.chown(path, 0, 0, follow_symlinks=False)
        if not path.is_symlink():  # to programs of all homes
            path.chmod(0o700 if path.is_dir() else 0o600)
    placed.config.rmdir()


def catalog_service(address: dict[str, Any], warehouse: str) -> RestCatalog:
    credential = f"{address['trino_user']}:{address['trino_password']}"
    return RestCatalog("served", uri=address["rest_uri"], warehouse=warehouse, credential=credential)


@pytest.mark.slow
@pytest.mark.parametrize("below", ["", "root"], ids=["a home that all may enter", "all of it below /root"])
def test_what_an_earlier_release_left_to_root_goes_on_with_its_rows_and_logins(closed: Path, below: str) -> None:
    """With the home, downloads and Python itself where no server's user gets: they are moved, linked or read before."""
    home = Home()
    start = [COMMAND]
    if below:
        (closed / "lakehouse").symlink_to(PROJECT_DIR)
        python = closed / "lakehouse" / Path(sys.prefix).relative_to(PROJECT_DIR) / "bin" / "python"
        start = [str(python), "-m", "lakehouse_cli.main"]
        home.env |= {"PYTHONPATH": str(closed / "lakehouse"), "PYTHONSAFEPATH": "1"}
        home.path = closed / "home"
        home.env["LAKEHOUSE_HOME"] = str(home.path)
    try:
        subprocess.run([*start, "up"], env=home.env, check=True, capture_output=True)
        trino(home, "CREATE SCHEMA IF NOT EXISTS lake.marts")
        trino(home, "CREATE SCHEMA IF NOT EXISTS lake.meta")
        trino(home, "CREATE TABLE lake.marts.kept AS SELECT 7 AS id")
        trino(home, f"CREATE TABLE lake.meta.cuts ({CUTS})")
        trino(home, "INSERT INTO lake.meta.cuts SELECT 'shop', 1, 100, now(), now(), MAP(ARRAY['kept'], ARRAY['1'])")
        password = home.run("user", "add", "ann").strip()
        authority = (home.path / "trino-ca.pem").read_text()
        home.run("down")
        left_by_an_earlier_release(home)
        subprocess.run([*start, "up"], env=home.env, check=True, capture_output=True)
        address = home.environment() | {"ann_user": "ann", "ann_password": password}
        assert trino_as(address, "SELECT 1", "ann") == [[1]]
        trino(home, "INSERT INTO lake.marts.kept VALUES 8")
        assert (home.path / "trino-ca.pem").read_text() == authority
        placed = find_server_placement(home.path, SYSTEM)
        assert placed.account is not None and (placed.data == home.path / "data") == (not below)
        for name in ("s3", "trino", "serve"):
            process = psutil.Process(home.pids()[name])
            assert process.uids().real == (placed.data / name).stat().st_uid == placed.account.uid, name
        client = catalog_service(address, "lake")
        assert sorted(client.load_table("marts.kept").scan().to_arrow()["id"].to_pylist()) == [7, 8]
        assert catalog_service(address, "lake@shop=0/64").list_namespaces() == [], "it reads the cuts itself"
        assert "Traceback" not in (home.path / "logs" / "serve.log").read_text()
    finally:
        home.remove()
