"""A Postgres 18 of the test's own, from the packaged programs: one cluster, gone afterwards."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lakehouse_stack.processes.accounts import find_placement, hand_over
from tests.ports import free_port

SETTINGS = {"wal_level": "logical", "fsync": "off", "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}


@contextmanager
def throwaway_postgres(**server: str) -> Iterator[str]:
    """The superuser's URL of a running cluster without passwords, on loopback, with these settings."""
    with tempfile.TemporaryDirectory(prefix="lakehouse-test-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        home = Path(folder)
        placement = find_placement(home, home / "system")
        data = placement.data / "cluster"
        data.mkdir(mode=0o700)
        hand_over(data, placement.account)
        user: dict[str, Any] = (
            {"user": placement.account.uid, "group": placement.account.gid, "extra_groups": []}
            if placement.account
            else {}
        )

        def run(program: str, *arguments: str) -> None:
            command = [str(placement.programs / program), "-D", str(data), *arguments]
            subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, **user)

        run("initdb", "-U", "postgres", "--auth=trust", "--locale=C", "--encoding=UTF8", "--no-sync")
        port = free_port()
        options = " ".join(f"-c {name}='{value}'" for name, value in {**SETTINGS, **server, "port": port}.items())
        run("pg_ctl", "-w", "-l", str(data / "log"), "-o", options, "start")
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "stop")
