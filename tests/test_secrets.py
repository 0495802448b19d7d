"""After a whole run, its failures included, every byte that could be read by others is searched for every secret."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import psutil
import psycopg
import pytest

from lakehouse.catalog.open import open_catalog
from lakehouse.settings import Settings
from lakehouse.text.sql import ident
from lakehouse.text.urls import parse_url
from lakehouse_stack.home.config import stack_settings
from lakehouse_stack.home.pathnames import credentials_file
from lakehouse_stack.processes.accounts import Account, find_server_placement
from orchestration.web.login import ui_secret
from tests.orchestrated import Orchestrated, make_orchestrated
from tests.test_dev import running_dev, wait_for

pytestmark = pytest.mark.stack

SEED = 20261121
FOOTER_BYTES = 65536


def secrets_of(settings: Settings) -> dict[str, str]:
    """Every password and key of the home, but for the name of the S3 user, which is no secret."""
    known: dict[str, str] = json.loads(credentials_file(settings).read_text())
    return {name: value for name, value in known.items() if name != "s3_access_key"} | {"ui": ui_secret(settings)}


def found_in(text: str, secrets: dict[str, str]) -> list[str]:
    return [name for name, secret in secrets.items() if secret in text]


@contextmanager
def watched_processes(secrets: dict[str, str]) -> Iterator[dict[str, str]]:
    """What `ps` shows of every process meanwhile; filled with those that show a secret."""
    shown: dict[str, str] = {}
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    for name in found_in("\0".join([process.name(), *process.cmdline()]), secrets):
                        shown[name] = process.name()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield shown
    finally:
        stop.set()
        thread.join()


def words(process: psutil.Process) -> list[str]:
    """The words of a command, programs by their names."""
    with suppress(psutil.Error):
        return [Path(word).name for word in process.cmdline()]
    return []


def database_text(url: str) -> Iterator[tuple[str, str]]:
    """Every row of every table the role can read, as text."""
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        for schema, table in tables:
            with connection.cursor() as cursor:
                for (row,) in cursor.stream(f"SELECT t::text FROM {ident(schema)}.{ident(table)} t"):
                    yield f"{schema}.{table}", row


def iceberg_text(settings: Settings, namespace: str) -> Iterator[tuple[str, str]]:
    """Metadata, manifests and the footers of data files of a namespace, decompressed where they are compressed."""
    catalog = open_catalog(settings)
    try:
        for identifier in catalog.list_tables(namespace):
            table = catalog.load_table(identifier)
            yield str(identifier), table.metadata.model_dump_json()
            for snapshot in table.snapshots():
                for manifest in snapshot.manifests(table.io):
                    yield str(identifier), repr(manifest)
                    for entry in manifest.fetch_manifest_entry(table.io):
                        yield str(identifier), repr(entry)
                        with table.io.new_input(entry.data_file.file_path).open() as file:
                            content = file.read()
                        yield entry.data_file.file_path, content[-FOOTER_BYTES:].decode("latin-1")
    finally:
        catalog.close()


def private(path: Path) -> bool:
    return path.stat().st_mode & 0o077 == 0


def is_for(account: Account | None, path: Path) -> bool:
    now = path.stat()
    return account is not None and (now.st_uid, now.st_gid, now.st_mode & 0o037) == (0, account.gid, 0)


def failing_commands(o: Orchestrated) -> str:
    """What people see when something is wrong."""
    prefix = f"LAKEHOUSE_SOURCES__{o.name.upper()}__URL"
    url = parse_url(o.environment[prefix])
    away = f"postgresql://{url.user}:{url.password}@127.0.0.1:1/{url.database}"
    said = []
    for change, command in (
        ({prefix: away}, ("ingest", "--once", o.name)),
        ({prefix: o.environment[prefix] + "/x?oops=1"}, ("ingest", "--once", o.name)),
        ({"LAKEHOUSE_CATALOG_URL": away}, ("ingest", "--once", o.name)),
        ({"LAKEHOUSE_S3__ENDPOINT": "http://127.0.0.1:1"}, ("run", f"load_{o.name}")),
    ):
        broken = Orchestrated(o.world, o.tables, {**o.environment, **change})
        with pytest.raises(AssertionError) as caught:
            broken.command("lakehouse", *command)
        said.append(str(caught.value))
    return "\n".join(said)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_after_a_whole_run_no_secret_can_be_read_anywhere(settings: Settings, tmp_path: Path) -> None:
    o = make_orchestrated(settings, tmp_path, SEED)
    secrets = secrets_of(settings)
    with watched_processes(secrets) as shown:
        said = o.command("lakehouse", "run", f"load_{o.name}")
        said += o.command("lakehouse", "ingest", "--once", "--json", o.name)
        said += o.command("lakehouse", "status", "--json") + o.command("lakehouse", "show")
        with running_dev(o, tmp_path / "dev.log") as dev:
            o.world.sql(o.tables[0].insert(501, 600))
            wait_for(lambda: len(dev.runs(dg.DagsterRunStatus.SUCCESS)) > 1)  # by a run worker, with dbt and Spark
            family = psutil.Process(dev.process.pid).children(recursive=True)
            seen = {word for process in family for word in words(process)}
        said += failing_commands(o)
    assert seen >= {"orchestration.web", "orchestration.daemon", "--follow", "--instance-ref", "java"}
    assert shown == {}, "ps shows it"
    assert found_in(said, secrets) == []
    assert found_in((tmp_path / "dev.log").read_text(), secrets) == ["ui"], "the link that logs in, and nothing else"
    catalog = parse_url(settings.catalog_dsn())
    dagster = f"postgresql://dagster:{secrets['dagster']}@{catalog.host}:{catalog.port}/dagster"
    places = [*database_text(dagster), *database_text(settings.catalog_dsn())]
    assert any(o.name in text for _, text in places if "runs" in _), "the run is in Dagster's database"
    for namespace in (f"raw_{o.name}", "parsed", "vault", "meta"):
        places += iceberg_text(settings, namespace)
    assert len(places) > 100
    assert [(place, found_in(text, secrets)) for place, text in places if found_in(text, secrets)] == []


def test_files_that_hold_a_secret_are_read_by_their_owner_only(settings: Settings) -> None:
    """Logs hold none; what holds one has mode 0600, but for what a server reads that root does not run as root."""
    secrets, placed = secrets_of(settings), find_server_placement(settings.home, stack_settings().system_dir)
    holding = set()
    clusters = {settings.home / "data" / name for name in ("sources", "catalog")}
    for path in settings.home.rglob("*"):
        if path.is_file() and clusters.isdisjoint(path.parents) and found_in(path.read_text("latin-1"), secrets):
            holding.add(str(path.relative_to(settings.home)))
            assert private(path) or (path.is_relative_to(placed.config) and is_for(placed.account, path)), path
    kept = {"endpoints.toml", "run/credentials.json", "dagster/pgpass", "dagster/ui_secret"}
    assert holding == kept | {f"{placed.config.name}/s3proxy.properties"}
    assert all(private(settings.home / folder) for folder in ("logs", "run", "dagster"))
