"""Which servers `lakehouse up --keep` starts again, and doctor and the watch tell of."""

import sys
from pathlib import Path

import pytest

from lakehouse.settings import load_settings
from lakehouse_stack.control.plan import build_servers
from lakehouse_stack.control.start_stop import KAFKA_PORTS, ended
from lakehouse_stack.home.config import EVERY_SERVER, SERVERS, TRINO_INTERNAL, StackSettings
from lakehouse_stack.home.credentials import NAMES, ensure_credentials
from lakehouse_stack.home.pathnames import credentials_file, pid_file, ports_file
from lakehouse_stack.home.ports import write_ports
from lakehouse_stack.processes.process import Launch, start
from lakehouse_watch.probes.servers import read_servers


@pytest.mark.parametrize("name", EVERY_SERVER)
def test_a_server_that_was_killed_is_started_again_and_one_that_was_stopped_is_not(tmp_path: Path, name: str) -> None:
    """`lakehouse down` removes the pid file of what it stops."""
    settings = load_settings(home=tmp_path)
    file = pid_file(settings, name)
    file.parent.mkdir(parents=True)
    launch = Launch((sys.executable, "-c", "import time; time.sleep(100)"), tmp_path, tmp_path / "log", {})
    process = start(launch, 1, file)
    assert ended(settings) == []
    process.kill()
    process.wait(10)
    assert ended(settings) == [name]
    file.unlink()
    assert ended(settings) == []


def test_each_server_that_is_down_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of reads has no port, and was taken for one that was never started."""
    monkeypatch.setenv("LAKEHOUSE_STACK_SYSTEM_DIR", str(tmp_path / "system"))
    settings = load_settings(home=tmp_path / "home")
    assert read_servers(settings).occasions == (), "nobody has run `lakehouse up`"
    credentials_file(settings).parent.mkdir(parents=True)
    ensure_credentials(credentials_file(settings))
    write_ports(ports_file(settings), dict.fromkeys((*SERVERS, TRINO_INTERNAL), 1))
    told = {occasion.key: occasion.summary for occasion in read_servers(settings).occasions}
    assert told == {f"server/{name}": f"the server {name} does not work: down" for name in (*SERVERS, "reads")}


def test_no_server_that_is_started_is_forgotten(tmp_path: Path) -> None:
    """The log of reads was none of those that `lakehouse up --keep` looks after."""
    ports = dict.fromkeys((*SERVERS, *KAFKA_PORTS), 1)
    stack = StackSettings(system_dir=tmp_path / "system")
    servers = build_servers(load_settings(home=tmp_path / "home"), stack, ports, dict.fromkeys(NAMES, "secret"))
    assert {server.name for server in servers} == set(EVERY_SERVER)


@pytest.mark.parametrize(
    ("warehouse", "made_in"),
    [
        ("s3://warehouse/", "s3://warehouse/"),
        ("s3://warehouse/team/", "s3://warehouse/team/"),
        ("s3://my-lake/", "s3://warehouse/"),
    ],
)
def test_trino_makes_tables_in_the_warehouse_that_the_settings_name(
    tmp_path: Path, warehouse: str, made_in: str
) -> None:
    """It made them beside the warehouse, where no backup found their files; a bucket of one's own is none of its."""
    stack = StackSettings(system_dir=tmp_path / "system")
    settings = load_settings(home=tmp_path / "home", warehouse=warehouse)
    servers = build_servers(settings, stack, dict.fromkeys(SERVERS, 1), dict.fromkeys(NAMES, "secret"))
    (trino,) = [server for server in servers if server.name == "trino"]
    assert f"default-warehouse-dir={made_in}\n" in trino.launch.config
