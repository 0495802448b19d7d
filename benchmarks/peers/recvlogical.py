"""`pg_recvlogical` to /dev/null: the rate at which the server delivers changes to a client that discards them."""

import os
import subprocess

from benchmarks.workloads import SOURCE
from lakehouse.settings import Settings
from lakehouse.text.urls import parse_url
from lakehouse_stack.processes.accounts import packaged_programs

DOES = "receives the same changes and discards them"


def create_slot(settings: Settings) -> None:
    """Creates the slot, which retains changes from now on."""
    _run(settings, "--create-slot")


def receive(settings: Settings, until: str) -> None:
    """Receives all changes up to an LSN (as text) and drops the slot."""
    options = ["-o", "proto_version=1", "-o", "publication_names=lakehouse"]
    _run(settings, "--start", "--endpos", until, "--file", os.devnull, *options)
    _run(settings, "--drop-slot")


def _run(settings: Settings, *arguments: str) -> None:
    url = parse_url(settings.source(SOURCE).url.get_secret_value())
    command = [
        str(packaged_programs() / "pg_recvlogical"), "--slot", "bench_peer", "--plugin", "pgoutput",
        "--host", url.host, "--port", str(url.port), "--username", url.user, "--dbname", url.database, *arguments,
    ]  # fmt: skip
    subprocess.run(command, check=True, env=os.environ | {"PGPASSWORD": url.password})
