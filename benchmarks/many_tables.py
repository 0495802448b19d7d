"""What many tables and many sources cost: the commands that a user runs, in a project of its own, timed one by one.

    python -m benchmarks.many_tables --tables 1000 --sources 20 --json many.json

Starts the stack of $LAKEHOUSE_HOME, which should be new, makes one database with `--tables` tables of five rows and
`--sources` databases of five tables each, declares them without a vault, and measures both installations: the first
load of raw, cycles without and with changes, mirrors, the health of all tables, Dagster's definitions, what its UI
asks first, and pages in a headless Chromium where there is one. What is done is printed at once. With `--folder`, a
run that is stopped goes on where it was, when it is begun again.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import requests

from lakehouse.settings import Settings, load_settings
from orchestration.web.login import ui_secret
from tests.ports import free_port
from tests.world import superuser

BIN = Path(sys.executable).parent
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
BUDGET = 20_000  # milliseconds that a page's timers may take; its requests and scripts are waited for
NODES = "{ assetNodes { assetKey { path } jobNames groupName } }"


def main() -> None:
    """Measures both installations, and removes their databases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000, help="tables of the one source; 0 leaves it out")
    parser.add_argument("--sources", type=int, default=20, help="sources of five tables each; 0 leaves them out")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--folder", type=Path, help="where to keep what is made until all is measured")
    wanted = parser.parse_args()
    subprocess.run([str(BIN / "lakehouse"), "up"], check=True, stdout=subprocess.DEVNULL)
    shapes = {
        "one source": {f"wide{wanted.tables}": wanted.tables},
        "many sources": {f"many{n}": 5 for n in range(wanted.sources)},
    }
    found: dict[str, Any] = {"cores": os.cpu_count()}
    with _folder(wanted.folder) as folder:
        kept = folder / "found.json"
        if kept.exists():
            found = json.loads(kept.read_text())
        for name, shape in shapes.items():
            if sum(shape.values()):
                _measure(name, shape, found, kept, stays=wanted.folder is not None)
    if wanted.json:
        wanted.json.write_text(json.dumps(found, indent=1) + "\n")


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    """The folder that was named, or one that goes with the run."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="lakehouse-many-") as temporary:
            yield Path(temporary)
    else:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()


def _urls(settings: Settings, shape: dict[str, int]) -> dict[str, tuple[str, str]]:
    """By database the URLs of the run-time role and of the owner."""
    bank = settings.source("bank")
    assert bank.owner_url is not None
    role, owner = bank.url.get_secret_value(), bank.owner_url.get_secret_value()
    return {name: (_to(role, name), _to(owner, name)) for name in shape}


def _make(settings: Settings, shape: dict[str, int], urls: dict[str, tuple[str, str]]) -> None:
    """The databases with their tables."""
    for name, tables in shape.items():
        _drop(settings, name)
        with superuser(settings) as admin:
            owner = psycopg.conninfo.conninfo_to_dict(urls[name][1])["user"]
            admin.execute(f'CREATE DATABASE "{name}" OWNER "{owner}"')
        with psycopg.connect(urls[name][1], autocommit=True) as connection:
            for number in range(tables):
                connection.execute(
                    f"CREATE TABLE t{number:04} AS SELECT n::int AS id, 'row ' || n AS note, n * 1.25 AS amount,"
                    " now() AS at FROM generate_series(1, 5) n"
                )
                connection.execute(f"ALTER TABLE t{number:04} ADD PRIMARY KEY (id)")


def _to(url: str, database: str) -> str:
    return url.rpartition("/")[0] + f"/{database}"


def _drop(settings: Settings, name: str) -> None:
    with superuser(settings) as admin:
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (name,)
        )
        admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _measure(title: str, shape: dict[str, int], found: dict[str, Any], kept: Path, stays: bool) -> None:
    """Adds the installation's figures to `found`, and keeps them after each step; none is done twice."""
    settings = load_settings()
    mine = found.setdefault(title, {"tables": sum(shape.values()), "sources": len(shape)})
    urls, project = _urls(settings, shape), kept.parent / title.replace(" ", "-")
    environment = {k: v for k, v in os.environ.items() if k != "LAKEHOUSE_CONFIG"}
    environment |= {"LAKEHOUSE_HOME": str(settings.home), "LAKEHOUSE_PROJECT_DIR": str(project)}

    def step(what: str, do: Callable[[], Any]) -> None:
        if what not in mine:
            mine[what] = do()
            kept.write_text(json.dumps(found))
            print(f"{title}: {what}: {json.dumps(mine[what])}", flush=True)

    def timed(what: str, *arguments: str, before: Callable[[], None] = lambda: None) -> None:
        def do() -> dict[str, Any]:
            before()
            return _timed(list(arguments), environment, project if project.exists() else kept.parent)

        step(what, do)

    def connected() -> dict[str, Any]:
        _make(settings, shape, urls)
        made = _timed(["lakehouse", "init", str(project)], environment, kept.parent)
        with (project / "lakehouse.toml").open("a") as file:
            for name, (url, owner) in urls.items():
                file.write(f'[sources.{name}]\nurl = "{url}"\nowner_url = "{owner}"\n')
        return made

    once = ("lakehouse", "ingest", "--once", "--json", *shape)
    mirrors = ("lakehouse", "mirror", *shape)
    done = False
    try:
        step("init", connected)
        timed("scaffold", "lakehouse", "scaffold", "--no-vault", *shape)
        timed("prepare", "lakehouse", "prepare", *shape)
        timed("first load of raw", *once)
        timed("a cycle without changes", *once)
        timed("a cycle with a row in ten tables", *once, before=lambda: _change(shape, urls, 10))
        timed("a cycle with a row in every table", *once, before=lambda: _change(shape, urls, None))
        timed("mirrors, first", *mirrors)
        timed(
            "mirrors, a row in ten tables", *mirrors, before=lambda: _ingested(shape, urls, once, environment, project)
        )
        timed("health of all tables", "lakehouse", "maintain", "status", "--json")
        timed("definitions, first", "python", "-m", "orchestration.graph")
        timed("definitions, again", "python", "-m", "orchestration.graph")
        step("UI", lambda: _ui(project, environment))
        done = True
    finally:
        if done or not stays:
            for name in shape:
                _drop(settings, name)


def _ingested(
    shape: dict[str, int], urls: dict[str, tuple[str, str]], once: Sequence[str], environment: dict[str, str], cwd: Path
) -> None:
    """Ten rows more are in raw, and in no mirror."""
    _change(shape, urls, 10)
    _run(list(once), environment, cwd)


def _timed(arguments: list[str], environment: dict[str, str], cwd: Path) -> dict[str, Any]:
    """Seconds, memory and objects of a command; of an ingestion, also the seconds of its cycles alone."""
    before = _objects()
    said, seconds, peak = _run(arguments, environment, cwd)
    found = {"seconds": round(seconds, 1), "peak_mib": peak, "objects_written": _objects() - before}
    if "ingest" in arguments:
        found["cycles_seconds"] = round(sum(report["seconds"] for report in json.loads(said)), 2)
    return found


def _run(arguments: list[str], environment: dict[str, str], cwd: Path) -> tuple[str, float, int]:
    """Output, seconds, and the peak of memory of the largest process, in MiB; raises for a command that fails."""
    program = BIN / arguments[0] if (BIN / arguments[0]).exists() else arguments[0]
    begun, peak = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            [str(program), *arguments[1:]], env=environment, cwd=cwd, stdout=output, stderr=errors
        ) as it:
            while it.poll() is None:
                peak = max(peak, _memory(it.pid))
                time.sleep(0.2)
        seconds = time.monotonic() - begun
        for file in (output, errors):
            file.seek(0)
        said, wrong = output.read(), errors.read()
    if it.returncode:
        raise RuntimeError(f"{arguments}: {said[-1000:]}{wrong[-2000:]}")
    return said, seconds, peak


def _objects() -> int:
    """Objects in the store: nothing deletes any while this runs, so the difference is what was written."""
    from pyiceberg.io import load_file_io

    from lakehouse.catalog.objects import list_objects
    from lakehouse.catalog.open import file_io_properties

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
    """Seconds until the web server answers, of the query that its asset pages begin with, and of pages in a browser."""
    port, begun = free_port(), time.monotonic()
    base, token = f"http://127.0.0.1:{port}", ui_secret(load_settings())
    argv = [sys.executable, "-m", "orchestration.web", "--host", "127.0.0.1", "--port", str(port)]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        requests.Session() as session,
        subprocess.Popen(
            argv, env=environment, cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as server,
    ):
        try:
            while not _answers(session, f"{base}/login?token={token}"):
                if server.poll() is not None:
                    raise RuntimeError(f"{argv}: ended with {server.returncode}")
                time.sleep(0.2)
            _nodes(session, base)
            found = {"start_seconds": round(time.monotonic() - begun, 1)}
            asked = time.monotonic()
            nodes = _nodes(session, base)
            found |= {"assets": len(nodes), "query_seconds": round(time.monotonic() - asked, 2)}
            raw = next(node["assetKey"]["path"] for node in nodes if node["groupName"] == "raw")
            if BROWSER:
                _page(profile, f"{base}/login?token={token}", "")
                pages = {"asset": (f"/assets/{'/'.join(raw)}", raw[1]), "jobs": ("/jobs", "load_")}
                for name, (path, text) in (pages | {"lake": ("/lake", "</table>")}).items():
                    found[f"{name}_page_seconds"] = _page(profile, base + path, text)
            return found
        finally:
            server.terminate()


def _answers(session: requests.Session, url: str) -> bool:
    """Whether the server is there; leaves its cookie in the session."""
    session.headers["Origin"] = url[: url.index("/", len("http://"))]  # which a page of the server's own would say
    try:
        return session.get(url, timeout=300).ok
    except requests.ConnectionError:
        return False


def _nodes(session: requests.Session, base: str) -> list[dict[str, Any]]:
    answer = session.post(f"{base}/graphql", json={"query": NODES}, timeout=600)
    answer.raise_for_status()
    nodes: list[dict[str, Any]] = answer.json()["data"]["assetNodes"]
    return nodes


def _page(profile: str, url: str, text: str) -> float:
    """Seconds of a page with its scripts and all that they ask, the browser's start included."""
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    begun = time.monotonic()
    shown = subprocess.run(
        [*command, f"--virtual-time-budget={BUDGET}", "--dump-dom", url], capture_output=True, text=True, timeout=600
    )
    seconds = time.monotonic() - begun
    if text not in shown.stdout:
        raise RuntimeError(f"{url}: {text!r} is not on the page: {shown.stdout[-1000:]}{shown.stderr[-1000:]}")
    return round(seconds, 1)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    main()
