"""A second catalog: another JDBC catalog names the lake's mirrors, all of them at one cut, and engines read it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr
from pyiceberg.catalog.sql import SqlCatalog

from lakehouse.catalog.open import file_io_properties
from lakehouse.catalog.relations import Relation, TableName
from lakehouse.declarations.access.rules import RELATIONS
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_private
from lakehouse.servers.exports import followed
from lakehouse.settings import ExportSettings, Settings
from lakehouse.text.urls import parse_url
from lakehouse_cli.source.dropping import drop
from lakehouse_serve.export import export, exported
from lakehouse_watch.probes.exports import read_exports
from tests.mirrored import declaring_columns, refreshed
from tests.serving import write_relations
from tests.slots import until
from tests.world import World, make_world, superuser

pytestmark = pytest.mark.stack

DDL = """CREATE TABLE orders (id int PRIMARY KEY, item text);
CREATE TABLE lines (id int PRIMARY KEY, amount numeric(12, 2));
CREATE TABLE people (id int PRIMARY KEY, email text)"""
TABLES = {name: RawPolicy(relation=f"public.{name}", key=("id",)) for name in ("orders", "lines", "people")}


@dataclass(frozen=True)
class Second:
    """The second catalog, the settings that export to it, and who may read what."""

    settings: Settings
    url: str
    access: Path

    def rows(self, *name: str) -> list[tuple[Any, ...]]:
        """The rows of a table, as a client of that catalog reads them."""
        uri = parse_url(self.url).sqlalchemy()
        with closing(SqlCatalog("second", uri=uri, **file_io_properties(self.settings))) as catalog:
            found = catalog.load_table(name).scan().to_arrow().to_pylist()
        return sorted(tuple(row.values()) for row in found)

    def pointers(self) -> dict[str, str]:
        """The tables that it names, and their metadata files."""
        with psycopg.connect(self.url) as connection:
            return dict(connection.execute("SELECT table_name, metadata_location FROM iceberg_tables").fetchall())

    def allow(self, world: World, *tables: str, personal: tuple[str, ...] = ()) -> None:
        """Lets readers read these mirrors, but for those columns."""
        schema = f"mirror_{world.source.name}"
        write_relations(
            self.access, [{"schema": schema, "name": n, "least": "reader", "personal": list(personal)} for n in tables]
        )


@pytest.fixture
def world(settings: Settings) -> World:
    return declaring_columns(make_world(settings, DDL, TABLES))


@pytest.fixture
def second(settings: Settings, world: World, tmp_path: Path) -> Iterator[Second]:
    owner, name = parse_url(world.owner_url), f"second_{world.source.name}"
    with superuser(settings) as admin:
        admin.execute(f'CREATE DATABASE "{name}" OWNER "{owner.user}"')
    url = f"postgresql://{owner.user}:{owner.password}@{owner.host}:{owner.port}/{name}"
    options = ExportSettings(url=SecretStr(url), catalog="second", tables=(f"mirror_{world.source.name}.*",))
    trino = settings.trino.model_copy(update={"access": tmp_path})
    yield Second(world.settings.model_copy(update={"export": options, "trino": trino}), url, tmp_path)
    with superuser(settings) as admin:
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def through_java(spark: Any, second: Second, text: str) -> list[Any]:
    """What Spark answers, whose Iceberg catalog is the second one."""
    url = parse_url(second.url)
    own = {"uri": url.jdbc(), "jdbc.user": url.user, "jdbc.password": url.password}
    session = spark.newSession()  # an engine calls a JDBC catalog by its name
    for key, value in spark.sparkContext.getConf().getAll():
        if key.startswith("spark.sql.catalog.lake"):
            option = key.removeprefix("spark.sql.catalog.lake").removeprefix(".")
            session.conf.set(f"spark.sql.catalog.second.{option}".rstrip("."), own.get(option, value))
    return session.sql(text.format("second")).collect()


def changed(world: World, spark: Any, *statements: str) -> None:
    world.sql(*statements)
    world.ingest(spark)
    refreshed(world, spark)


def test_another_catalog_has_the_mirrors_at_one_cut_and_nothing_personal(
    spark: Any, world: World, second: Second
) -> None:
    schema = f"mirror_{world.source.name}"
    second.allow(world, "orders", "lines", "people", personal=("email",))
    changed(world, spark, "INSERT INTO orders VALUES (1, 'a')", "INSERT INTO lines VALUES (1, 1.5)")
    done = export(second.settings)
    assert (set(done.register), dict(done.refresh), done.drop) == ({(schema, "orders"), (schema, "lines")}, {}, ())
    assert second.rows(schema, "orders") == [(1, "a")]
    assert not export(second.settings), "nothing has changed"
    before = second.pointers()
    changed(world, spark, "UPDATE orders SET item = 'b'", "INSERT INTO lines VALUES (2, 2)")
    assert second.rows(schema, "orders") == [(1, "a")], "until the next export"
    begun = time.monotonic()
    done = export(second.settings)
    seconds = time.monotonic() - begun
    print(f"pointers refreshed in {seconds:.2f} s")
    assert set(done.refresh) == {(schema, "orders"), (schema, "lines")} and seconds < 2
    assert second.rows(schema, "orders") == [(1, "b")] and len(second.rows(schema, "lines")) == 2
    joined = (
        f"SELECT o.item, l.amount FROM {{0}}.{schema}.lines l LEFT JOIN {{0}}.{schema}.orders o USING (id) ORDER BY 2"
    )
    assert through_java(spark, second, joined) == spark.sql(joined.format("lake")).collect()
    with psycopg.connect(second.url) as connection:
        earlier = connection.execute("SELECT table_name, previous_metadata_location FROM iceberg_tables").fetchall()
    assert dict(earlier) == before
    second.allow(world, "orders")
    assert export(second.settings).drop == ((schema, "lines"),), "readers may not read it any more"
    assert set(second.pointers()) == {"orders"}
    second.allow(world, "orders", "lines")
    export(second.settings)
    drop(second.settings, [Relation(TableName(schema, "lines"), "table", "")], dry_run=False)
    assert set(second.pointers()) == {"orders"}, "its files are gone"


@pytest.mark.slow
def test_what_another_table_is_called_stays_what_it_is_and_nothing_else_changes(
    spark: Any, world: World, second: Second
) -> None:
    schema = f"mirror_{world.source.name}"
    second.allow(world, "orders", "lines")
    changed(world, spark, "INSERT INTO orders VALUES (1, 'a')")
    export(second.settings)
    with psycopg.connect(second.url, autocommit=True) as connection:
        connection.execute("UPDATE iceberg_tables SET metadata_location = 's3://theirs/x' WHERE table_name = 'lines'")
    changed(world, spark, "UPDATE orders SET item = 'b'")
    before = second.pointers()
    with pytest.raises(LakehouseError, match=rf"{schema}\.lines is another table in the second catalog: leave it out"):
        export(second.settings)
    assert second.pointers() == before
    own = second.settings.export.model_copy(update={"url": second.settings.catalog_url})
    with pytest.raises(LakehouseError, match="is the lake's own database"):
        export(second.settings.model_copy(update={"export": own}))
    away = second.settings.export.model_copy(update={"url": SecretStr(second.url.replace(":", ":9", 1))})
    for wrong, message in (
        (away, "LAKEHOUSE_EXPORT__URL|second catalog"),
        (own.model_copy(update={"url": None}), "no second catalog is set"),
    ):
        with pytest.raises(LakehouseError, match=message):
            export(second.settings.model_copy(update={"export": wrong}))


@pytest.mark.slow
def test_the_command_follows_on_its_pace(spark: Any, world: World, second: Second, tmp_path: Path) -> None:
    schema = f"mirror_{world.source.name}"
    second.allow(world, "orders")
    changed(world, spark, "INSERT INTO orders VALUES (1, 'a')")
    secret = tmp_path / "secrets"
    secret.mkdir(mode=0o700)
    write_private(secret / "LAKEHOUSE_EXPORT__URL", second.url)
    environment = os.environ | {
        "LAKEHOUSE_SECRETS_DIR": str(secret),
        "LAKEHOUSE_EXPORT__CATALOG": "second",
        "LAKEHOUSE_EXPORT__TABLES": json.dumps([f"{schema}.*"]),
        "LAKEHOUSE_EXPORT__EVERY_SECONDS": "0.3",
        "LAKEHOUSE_TRINO__ACCESS": str(second.access),
    }
    command = [str(Path(sys.executable).with_name("lakehouse")), "export"]
    listed = json.loads(subprocess.run([*command, "--list"], env=environment, capture_output=True, check=True).stdout)
    [location] = exported(second.settings).values()
    assert listed == [{"namespace": schema, "name": "orders", "metadata_location": location}]
    rules = (second.access / RELATIONS).read_text()
    (second.access / RELATIONS).unlink()
    assert b"names none of the 3 tables" in subprocess.run(command, env=environment, capture_output=True).stderr
    (second.access / RELATIONS).write_text(rules)
    with subprocess.Popen([*command, "--follow"], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "second: 1 registered, 0 refreshed, 0 dropped\n"
        changed(world, spark, "UPDATE orders SET item = 'b'")
        until(lambda: second.rows(schema, "orders") == [(1, "b")], 30)
        [watched] = followed(second.settings)
        assert watched.target.startswith("second at ") and not read_exports(second.settings).occasions
        process.kill()
        process.wait()
        assert len(followed(second.settings)) == 1, "it is still wanted"
    with subprocess.Popen([*command, "--follow"], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "second: 0 registered, 0 refreshed, 0 dropped\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert not followed(second.settings), "it has ended by itself"
