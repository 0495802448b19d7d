"""What many tables and many sources cost: the commands that a user runs, in a project of its own, timed one by one.

    python -m benchmarks.many_tables --tables 1000 --sources 20 --json many.json

Starts the stack of $LAKEHOUSE_HOME, makes one database with `--tables` tables of five rows and `--sources` databases of
five tables each, declares them without a vault, and measures both installations: the first load of raw, cycles without
and with changes, the health of all tables, Dagster's definitions, and what its UI asks first. What is done is printed
at once, so that a run that is stopped has told what it knows.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg

from lakehouse.settings import Settings, load_settings
from tests.ports import free_port
from tests.world import superuser

BIN = Path(sys.executable).parent
NODES = "{ assetNodes { assetKey { path } jobNames groupName } }"


def main() -> None:
    """Measures both installations, and removes their databases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000, help="tables of the one source; 0 leaves it out")
    parser.add_argument("--sources", type=int, default=20, help="sources of five tables each; 0 leaves them out")
    parser.add_argument("--json", type=Path, help="where to write the results")
    wanted = parser.parse_args()
    subprocess.run([str(BIN / "lakehouse"), "up"], check=True, stdout=subprocess.DEVNULL)
    settings, found = load_settings(), {}
    shapes = {"one source": {"wide": wanted.tables}, "many sources": {f"many{n}": 5 for n in range(wanted.sources)}}
    for name, shape in shapes.items():
        if sum(shape.values()):
            with _databases(settings, shape) as urls:
                found[name] = _measure(name, shape, urls)
            if wanted.json:
                wanted.json.write_text(json.dumps({"cores": os.cpu_count(), **found}, indent=1) + "\n")


@contextmanager
def _databases(settings: Settings, shape: dict[str, int]) -> Iterator[dict[str, tuple[str, str]]]:
    """The databases with their tables; the URLs of the run-time role and of the owner."""
    bank = settings.source("bank")
    assert bank.owner_url is not None
    role, owner = bank.url.get_secret_value(), bank.owner_url.get_secret_value()
    urls = {name: (_to(role, name), _to(owner, name)) for name in shape}
    try:
        for name, tables in shape.items():
            _drop(settings, name)
            with superuser(settings) as admin:
                admin.execute(f'CREATE DATABASE "{name}" OWNER "{psycopg.conninfo.conninfo_to_dict(owner)["user"]}"')
            with psycopg.connect(urls[name][1], autocommit=True) as connection:
                for number in range(tables):
                    connection.execute(
                        f"CREATE TABLE t{number:04} AS SELECT n::int AS id, 'row ' || n AS note, n * 1.25 AS amount,"
                        " now() AS at FROM generate_series(1, 5) n"
                    )
                    connection.execute(f"ALTER TABLE t{number:04} ADD PRIMARY KEY (id)")
        yield urls
    finally:
        for name in shape:
            _drop(settings, name)


def _to(url: str, database: str) -> str:
    return url.rpartition("/")[0] + f"/{database}"


def _drop(settings: Settings, name: str) -> None:
    with superuser(settings) as admin:
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (name,)
        )
        admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _measure(title: str, shape: dict[str, int], urls: dict[str, tuple[str, str]]) -> dict[str, Any]:
    found: dict[str, Any] = {"tables": sum(shape.values()), "sources": len(shape)}
    with tempfile.TemporaryDirectory(prefix="lakehouse-many-") as folder:
        project = Path(folder) / "many"
        environment = {k: v for k, v in os.environ.items() if k != "LAKEHOUSE_CONFIG"}
        environment |= {"LAKEHOUSE_HOME": str(load_settings().home), "LAKEHOUSE_PROJECT_DIR": str(project)}

        def timed(what: str, *arguments: str) -> str:
            before = _objects()
            said, seconds, peak = _run(list(arguments), environment, project if project.exists() else Path(folder))
            objects = _objects() - before
            found[what] = {"seconds": round(seconds, 1), "peak_mib": peak, "objects_written": objects}
            print(f"{title}: {what}: {seconds:.1f} s, {peak} MiB, {objects} objects", flush=True)
            return said

        timed("init", "lakehouse", "init", str(project))
        with (project / "lakehouse.toml").open("a") as file:
            for name, (url, owner) in urls.items():
                file.write(f'[sources.{name}]\nurl = "{url}"\nowner_url = "{owner}"\n')
        timed("scaffold", "sh", "-c", " && ".join(f"{BIN}/lakehouse scaffold --no-vault {name}" for name in shape))
        timed("prepare", "lakehouse", "prepare", *shape)
        timed("first load of raw", "lakehouse", "ingest", "--once", *shape)
        timed("a cycle without changes", "lakehouse", "ingest", "--once", *shape)
        _change(shape, urls, 10)
        timed("a cycle with a row in ten tables", "lakehouse", "ingest", "--once", *shape)
        _change(shape, urls, None)
        timed("a cycle with a row in every table", "lakehouse", "ingest", "--once", *shape)
        timed("health of all tables", "lakehouse", "maintain", "status", "--json")
        timed("definitions, first", "python", "-m", "orchestration.graph")
        timed("definitions, again", "python", "-m", "orchestration.graph")
        found["UI"] = _ui(project, environment)
        print(f"{title}: UI: {found['UI']}", flush=True)
    return found


def _run(arguments: list[str], environment: dict[str, str], cwd: Path) -> tuple[str, float, int]:
    """Output, seconds, and the peak of memory of the largest process, in MiB; raises for a command that fails."""
    program = BIN / arguments[0] if (BIN / arguments[0]).exists() else arguments[0]
    begun, peak = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(
            [str(program), *arguments[1:]], env=environment, cwd=cwd, stdout=output, stderr=output
        ) as it:
            while it.poll() is None:
                peak = max(peak, _memory(it.pid))
                time.sleep(0.2)
        seconds = time.monotonic() - begun
        output.seek(0)
        said = output.read()
    if it.returncode:
        raise RuntimeError(f"{arguments}: {said[-2000:]}")
    return said, seconds, peak


def _objects() -> int:
    """Objects in the store: nothing deletes any while this runs, so the difference is what was written."""
    from pyiceberg.io import load_file_io

    from lakehouse.catalog.open import file_io_properties
    from maintenance.inventory.lake import list_objects

    settings = load_settings()
    return len(list_objects(load_file_io(file_io_properties(settings)), settings.warehouse))  # type: ignore[arg-type]


def _memory(pid: int) -> int:
    """MiB of a process and its children."""
    try:
        process = psutil.Process(pid)
        every = [process, *process.children(recursive=True)]
        return sum(each.memory_info().rss for each in every) >> 20
    except psutil.Error:
        return 0


def _change(shape: dict[str, int], urls: dict[str, tuple[str, str]], tables: int | None) -> None:
    """Updates a row in so many tables, spread over the sources, or in all of them."""
    left = tables
    for name, number in shape.items():
        with psycopg.connect(urls[name][1], autocommit=True) as connection:
            for each in range(number if left is None else min(left, number)):
                connection.execute(f"UPDATE t{each:04} SET note = note || '.' WHERE id = 1")
        left = None if left is None else left - min(left, number)


def _ui(project: Path, environment: dict[str, str]) -> dict[str, float]:
    """Seconds until the web server answers, and of the query that its asset pages begin with."""
    import requests

    port, begun = free_port(), time.monotonic()
    argv = [str(BIN / "dagster-webserver"), "--port", str(port), "--workspace", str(project / "workspace.yaml")]
    with (
        tempfile.TemporaryDirectory() as home,
        subprocess.Popen(
            argv,
            env={**environment, "DAGSTER_HOME": home},
            cwd=project,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as server,
    ):
        try:
            url = f"http://127.0.0.1:{port}/graphql"
            found: dict[str, float] = {}
            while "start_seconds" not in found:
                try:
                    requests.post(url, json={"query": NODES}, timeout=300).raise_for_status()
                    found["start_seconds"] = round(time.monotonic() - begun, 1)
                except requests.ConnectionError:
                    time.sleep(0.2)
            asked = time.monotonic()
            nodes = requests.post(url, json={"query": NODES}, timeout=300).json()["data"]["assetNodes"]
            return found | {"assets": len(nodes), "query_seconds": round(time.monotonic() - asked, 2)}
        finally:
            server.terminate()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    main()
