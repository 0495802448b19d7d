"""What a release leaves behind, kept as one small archive: the catalog's database, the warehouse's objects, the source.

`LAKEHOUSE_HOME=… python -m tests.kept_release`, on a running stack, writes `tests/fixtures/release-<version>.tar.gz` of
the code at hand; once per release, before anything stored changes. Metadata names its files in full, so both sides use
the same warehouse: a folder of the bucket that no other test has. The catalog is a database of its own.
"""

import gzip
import io
import subprocess
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
from pydantic import SecretStr

from erasure.tombstones import tombstone
from ingestion import bring_up
from ingestion.run.operate import pause
from ingestion.state import store
from lakehouse.declarations.policies import MaintenancePolicy, RawPolicy
from lakehouse.servers.spark import spark_session
from lakehouse.settings import Settings, SourceSettings, load_settings
from lakehouse.text.urls import parse_url
from lakehouse_backup.objects import load_objects, save_objects
from lakehouse_stack.processes.accounts import packaged_programs
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from maintenance.planning.history import record
from maintenance.runner.run import ACTIONS
from tests.world import World, catalog_superuser, declared_source, set_up, superuser

FIXTURES = Path(__file__).parent / "fixtures"
SOURCE = "kept_shop"
TABLES = {
    "orders": RawPolicy(relation="public.orders", key=("id",)),
    "things": RawPolicy(relation="public.things", key=("id",)),
    "paused": RawPolicy(relation="public.paused", key=("id",)),
}
DDL = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(12,2), placed timestamptz);
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE things (id int PRIMARY KEY, tags text[], state mood, born date, body jsonb, big text);
CREATE TABLE paused (id int PRIMARY KEY, v text);
"""
FIRST = (
    "INSERT INTO orders SELECT i, 'c' || i % 7, i * 1.25, '2026-01-01 00:00+00'::timestamptz + i * interval '1 hour'"
    " FROM generate_series(1, 200) i",
    "INSERT INTO things SELECT i, ARRAY['a', NULL, i::text], 'glad', '2026-01-01'::date + i, '{\"n\": 1}',"
    " CASE WHEN i % 10 = 0 THEN (SELECT string_agg(md5(x::text), '') FROM generate_series(1, 300) x) END"
    " FROM generate_series(1, 40) i",
    "INSERT INTO paused SELECT i, 'p' FROM generate_series(1, 20) i",
)
LATER = (
    "UPDATE orders SET amount = amount + 1 WHERE id % 3 = 0",
    "DELETE FROM orders WHERE id % 10 = 0",
    "ALTER TABLE orders ADD COLUMN note text DEFAULT 'none'",
    "ALTER TABLE orders RENAME COLUMN customer TO buyer",
    "UPDATE orders SET note = 'late' WHERE id % 20 = 1",
    "ALTER TYPE mood ADD VALUE 'odd'",
    "UPDATE things SET state = 'odd', body = '{\"n\": 2}' WHERE id % 4 = 0",
    "INSERT INTO things (id, born) VALUES (100, 'infinity'), (101, '0044-03-15 BC')",
    "UPDATE paused SET v = 'while paused' WHERE id % 2 = 0",
)
POLICY = MaintenancePolicy.model_validate(
    {
        "schedule_group": "nightly",
        "compact": {"target_file_size_mb": 1, "min_input_files": 2, "sort_by": ["id"]},
        "expire_snapshots": {"older_than_hours": 0, "retain_last": 1, "keep_metadata_files": 2},
        "remove_orphan_files": {"older_than_hours": 0},
        "keep_removed_hours": 72,
    }
)


def main() -> None:
    """Makes the archive of the version at hand."""
    version = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"]
    settings = load_settings()
    with lake_of_its_own(settings, version) as mine:
        _make_iceberg_tables(mine)
        admin_url = _new_source(settings)
        _live(World(_reaching(settings, mine), declared_source(SOURCE, TABLES), _owner_url(settings)))
        archive = FIXTURES / f"release-{version}.tar.gz"
        _write(archive, mine, admin_url)
    print(f"{archive}: {archive.stat().st_size:,} bytes")


@contextmanager
def lake_of_its_own(settings: Settings, version: str) -> Iterator[Settings]:
    """Settings of an empty catalog database, and of a folder of the warehouse; both are gone afterwards."""
    database = f"release_{version.replace('.', '_')}"
    url = parse_url(settings.catalog_dsn())
    mine = settings.model_copy(
        update={
            "catalog_url": SecretStr(f"postgresql://{url.user}:{url.password}@{url.host}:{url.port}/{database}"),
            "warehouse": f"s3://warehouse/release-{version}/",
        }
    )
    _empty(mine)
    with catalog_superuser(settings) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE {database} OWNER {url.user}")
        admin.execute(f"ALTER DATABASE {database} SET search_path = public")
    try:
        yield mine
    finally:
        with catalog_superuser(settings) as admin:
            admin.execute(f"DROP DATABASE {database} WITH (FORCE)")
        _empty(mine)


def unpack(version: str, settings: Settings, folder: Path) -> World:
    """The archive in a stack: the lake of that release, beside a source with the same rows that is another cluster."""
    with tarfile.open(FIXTURES / f"release-{version}.tar.gz") as archive:
        archive.extractall(folder)  # of our own making; Python 3.11.2 knows no filter
    _psql(settings.catalog_dsn(), (folder / "catalog.sql").read_text())
    with closing(Session(settings)) as session:
        load_objects(session.io, settings.warehouse, folder / "warehouse")
    _new_source(settings)
    world = World(_reaching(settings, settings), declared_source(SOURCE, TABLES), _owner_url(settings))
    _psql(world.owner_url, (folder / "source.sql").read_text())
    set_up(world)
    return world


def drop_source(settings: Settings) -> None:
    """The database of the source with its slots."""
    with superuser(settings) as admin:
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (SOURCE,)
        )
        admin.execute(f"DROP DATABASE IF EXISTS {SOURCE} WITH (FORCE)")


def _live(world: World) -> None:
    """A life of a lake: loads, changes of schema, a paused table, an erasure's tombstone, maintenance."""
    world.sql(*DDL.strip().rstrip(";").split(";"), *FIRST)
    set_up(world)
    spark = spark_session(world.settings, "kept-release")
    world.ingest(spark)
    pause(world.settings, world.source.table("paused"))
    for statement in LATER:
        world.sql(statement)
        world.ingest(spark)
    with closing(Session(world.settings)) as session:
        names = [TableName(f"raw_{SOURCE}", table) for table in ("orders", "things")]
        outcomes = [
            ACTIONS[action](session, name, POLICY) for action in ("compact", "expire_snapshots") for name in names
        ]
        record(session, outcomes)
        _leave_tombstone(world, session)
    bring_up(world.settings, world.declarations, SOURCE, spark)


def _leave_tombstone(world: World, session: Session) -> None:
    from erasure.tombstones import condemn, keep

    with store.connect_catalog(world.settings) as states:
        stone = tombstone(SOURCE, "orders", {"id": "999999"})
        keep(world.settings, session.io, states, [stone])
        condemn(states, (f"raw_{SOURCE}", "orders"), ["s3://warehouse/none.parquet"])
    (world.settings.home / "erasures" / f"{stone.id}.json").unlink()


def _write(archive: Path, settings: Settings, source_url: str) -> None:
    with tempfile.TemporaryDirectory() as place, closing(Session(settings)) as session:
        folder = Path(place)
        save_objects(session.io, settings.warehouse, folder / "warehouse")
        _keep_only_named(folder / "warehouse", settings)
        (folder / "catalog.sql").write_text(_dump(settings.catalog_dsn(), "--no-owner", "--no-privileges"))
        (folder / "source.sql").write_text(_dump(source_url, "--no-owner", "--no-privileges", "--no-publications"))
        archive.parent.mkdir(exist_ok=True)
        with archive.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(_tar(folder))


def _keep_only_named(folder: Path, settings: Settings) -> None:
    """Leaves metadata files out that no table is at: a restored lake reads none of them."""
    with psycopg.connect(settings.catalog_dsn()) as catalog:
        rows = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    named = {location.removeprefix(settings.warehouse) for (location,) in rows}
    for path in folder.rglob("*.metadata.json"):
        if path.relative_to(folder).as_posix() not in named:
            path.unlink()


def _tar(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.add(path, path.relative_to(folder).as_posix(), filter=_anonymous)
    return buffer.getvalue()


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def _new_source(settings: Settings) -> str:
    """An empty database of the sources' cluster; its URL as the superuser."""
    drop_source(settings)
    owner = parse_url(_owner_url(settings))
    with superuser(settings) as admin:
        admin.execute(f"CREATE DATABASE {SOURCE} OWNER {owner.user}")
        info = admin.info
        return f"postgresql://{info.user}:{info.password}@{info.host}:{info.port}/{SOURCE}"


def _owner_url(settings: Settings) -> str:
    sample = load_settings(home=settings.home).sources["bank"].owner_url
    assert sample is not None
    return f"{sample.get_secret_value().rsplit('/', 1)[0]}/{SOURCE}"


def _reaching(shared: Settings, lake: Settings) -> Settings:
    role = load_settings(home=shared.home).sources["bank"].url.get_secret_value()
    source = SourceSettings(
        url=SecretStr(f"{role.rsplit('/', 1)[0]}/{SOURCE}"), owner_url=SecretStr(_owner_url(shared))
    )
    limits = lake.ingestion.model_copy(update={"lease_seconds": 5})
    return lake.model_copy(update={"sources": {SOURCE: source}, "ingestion": limits})


def _empty(settings: Settings) -> None:
    with closing(Session(settings)) as session:
        scheme, authority, path = session.io.parse_location(settings.warehouse.rstrip("/"), session.io.properties)
        session.io.fs_by_scheme(scheme, authority).delete_dir_contents(path, missing_dir_ok=True)


def _make_iceberg_tables(settings: Settings) -> None:
    """As whoever sets up a catalog of his own makes them: the template's statements."""
    template = Path(__file__).parents[1] / "lakehouse_stack" / "templates" / "catalog.sql.j2"
    made = [part for part in template.read_text().split(";") if "CREATE TABLE IF NOT EXISTS public.iceberg" in part]
    _psql(settings.catalog_dsn(), ";".join(made))


def _dump(url: str, *options: str) -> str:
    command = [str(packaged_programs() / "pg_dump"), *options, "--restrict-key=lakehouse", url]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _psql(url: str, script: str) -> None:
    command = [str(packaged_programs() / "psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file=-", url]
    subprocess.run(command, check=True, capture_output=True, text=True, input=script)


if __name__ == "__main__":
    main()
