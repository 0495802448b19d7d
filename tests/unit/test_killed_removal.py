"""`remove` and `uninstall` killed at every step: run again they end as if nobody had killed them, and nothing of others
is touched."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from killed import kills
from pydantic import SecretStr
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from test_removal import declaration, declared

from ingestion.schema.positions import Lsn
from ingestion.sources.postgres.setup import prepare
from ingestion.state import store
from lakehouse.catalog.open import open_catalog
from lakehouse.catalog.relations import list_relations
from lakehouse.declarations import Declarations
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, SourceSettings, load_settings
from lakehouse_cli.source import remove as removing
from lakehouse_cli.source import undeclaring
from lakehouse_cli.source import uninstall as uninstalling
from lakehouse_stack.control import start_stop
from scaffold.files import stamped

FILE = "sources:\n  - name: shop\n    tables:\n      - name: customers\n      - name: orders\n"
RIGHTS = """
SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = 'public'::regnamespace
AND has_table_privilege('lake', c.oid, 'SELECT') ORDER BY 1
"""
ROWS = Schema(NestedField(1, "id", LongType()))


@dataclass(frozen=True)
class Made:
    """A project with its lake and its source, which other readers have too."""

    folder: Path
    cluster: str
    name: str

    @property
    def settings(self) -> Settings:
        """As a command reads them: without a catalog where its servers do not run, or the home is gone."""
        home = self.folder / "home"
        runs = {"catalog_url": self.url("lake"), "warehouse": f"file://{self.folder}/warehouse"}
        there = runs if (home / "endpoints.toml").exists() else {}
        there |= {"catalog_url": "postgresql://127.0.0.1:1/lake"} if there and self.stopped.exists() else {}
        made = load_settings(home=home, project_dir=self.folder, ingestion={"lease_seconds": 1.5}, **there)
        shop = SourceSettings(url=SecretStr(self.url("shop", "lake")), owner_url=SecretStr(self.url("shop")))
        return made.model_copy(update={"sources": {"shop": shop}})

    @property
    def stopped(self) -> Path:
        return self.folder / "stopped"

    def url(self, database: str, user: str = "postgres") -> str:
        server = self.cluster.rpartition("/")[0].replace("postgres@", f"{user}@")
        return f"{server}/{database}_{self.name}"

    def left(self) -> dict[str, Any]:
        """All that a removal could touch."""
        project = self.folder / "dbt_project"
        with psycopg.connect(self.url("shop")) as shop:
            found: dict[str, Any] = {
                "slots": shop.execute("SELECT slot_name FROM pg_replication_slots ORDER BY 1").fetchall(),
                "published": shop.execute(
                    "SELECT pubname, tablename FROM pg_publication_tables ORDER BY 1, 2"
                ).fetchall(),
                "readable": shop.execute(RIGHTS).fetchall(),
                "files": sorted(str(p.relative_to(project)) for p in project.rglob("*") if p.is_file()),
                "home": (self.folder / "home").exists(),
            }
        running = self.settings
        if running.catalog_url is not None and not self.stopped.exists():
            with closing(open_catalog(running)) as catalog, store.connect_catalog(running) as states:
                found["tables"] = sorted(str(each.name) for each in list_relations(catalog))
                found["known"] = sorted(store.read_positions(states, "shop")), store.read_slots(states)
        return found


@pytest.fixture(scope="module")
def templates(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A source that is prepared, and a lake that has ingested it; another reader has a slot in its database."""
    first = Made(tmp_path_factory.mktemp("first"), cluster, "first")
    with psycopg.connect(cluster, autocommit=True) as server:
        server.execute("CREATE ROLE lake LOGIN REPLICATION")
        server.execute("SELECT pg_create_logical_replication_slot('anothers', 'pgoutput')")
        for database in ("shop", "lake"):
            server.execute(f"CREATE DATABASE {database}_first")  # type: ignore[arg-type]
    with psycopg.connect(first.url("shop"), autocommit=True) as shop:
        for table in ("customers", "orders", "anothers"):
            shop.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")  # type: ignore[arg-type]
        shop.execute("CREATE PUBLICATION others FOR TABLE anothers; GRANT SELECT ON anothers TO lake")
    (first.folder / "home").mkdir()
    (first.folder / "home" / "endpoints.toml").touch()
    write_project(first)
    prepare(first.settings, declared(first.settings).source("shop"))
    with store.connect_catalog(first.settings) as states:
        store.ensure_state(states)
        store.create_stream(states, "shop", "lakehouse_shop", store.Cluster("1", 1), 0)
        for table in ("customers", "orders"):
            store.note_new(states, "shop", table, 1, None)
    with closing(open_catalog(first.settings)) as catalog:
        catalog.create_tables()
        for name in ("raw_shop.customers", "raw_shop.orders", "raw_other.things"):
            catalog.create_namespace_if_not_exists(name.partition(".")[0])
            catalog.create_table(name, ROWS)
    return cluster


def write_project(made: Made) -> None:
    models = made.folder / "dbt_project" / "models"
    (models / "sources").mkdir(parents=True)
    (models / "sources" / "shop.yml").write_text(FILE)
    (models / "parsed" / "shop").mkdir(parents=True)
    for table in ("customers", "orders"):
        generated = models / "parsed" / "shop" / f"parsed_shop__{table}.sql"
        generated.write_text(stamped(".sql", f"SELECT '{table}'\n"))
    (models / "mine.sql").write_text("SELECT 1\n")


@contextmanager
def copied(cluster: str, folder: Path, name: str) -> Iterator[Made]:
    """A copy of all that, with a slot that has not read beyond the lake."""
    made = Made(folder / name, cluster, name)
    (made.folder / "home").mkdir(parents=True)
    (made.folder / "home" / "endpoints.toml").touch()
    write_project(made)
    with psycopg.connect(cluster, autocommit=True) as server:
        for database in ("shop", "lake"):
            server.execute(f"CREATE DATABASE {database}_{name} TEMPLATE {database}_first")  # type: ignore[arg-type]
    with psycopg.connect(made.url("shop"), autocommit=True) as shop:
        shop.execute("SELECT pg_create_logical_replication_slot('lakehouse_shop', 'pgoutput')")
        [(here,)] = shop.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").fetchall()
    with store.connect_catalog(made.settings) as states:
        store.set_positions(states, "shop", Lsn(here))
    try:
        yield made
    finally:
        with psycopg.connect(cluster, autocommit=True) as server:
            server.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name <> 'anothers'"
            )
            for database in ("shop", "lake"):
                server.execute(f"DROP DATABASE {database}_{name} WITH (FORCE)")  # type: ignore[arg-type]
        shutil.rmtree(made.folder)


def dropped_by_trino(settings: Settings, statement: str) -> None:
    with closing(open_catalog(settings)) as catalog:
        name = statement.split()[-1].replace('"', "")
        if catalog.table_exists(name):
            catalog.drop_table(name)


def what_is_declared(settings: Settings, changed: Mapping[Path, str | None] | None = None) -> Declarations:
    return declared(settings, changed) if declaration(settings).exists() else Declarations(sources=())


def without_declarations(*_: object) -> Declarations:
    return Declarations(sources=())


OTHERS = {
    "slots": [("anothers",)],
    "published": [("others", "anothers")],
    "readable": [("anothers",)],
}
EVERYWHERE = ("models/mine.sql",)
ORDERS_ARE_GONE = {
    "slots": [("anothers",), ("lakehouse_shop",)],
    "published": [("lakehouse", "customers"), ("others", "anothers")],
    "readable": [("anothers",), ("customers",)],
    "files": [*EVERYWHERE, "models/parsed/shop/parsed_shop__customers.sql", "models/sources/shop.yml"],
    "home": True,
    "tables": ["raw_other.things", "raw_shop.customers"],
    "known": (["customers"], {"shop": "lakehouse_shop"}),
}
SHOP_IS_GONE = OTHERS | {
    "files": [*EVERYWHERE],
    "home": True,
    "tables": ["raw_other.things"],
    "known": ([], {}),
}
ALL_FILES = sorted(
    [
        *EVERYWHERE,
        "models/sources/shop.yml",
        *(f"models/parsed/shop/parsed_shop__{t}.sql" for t in ("customers", "orders")),
    ]
)
UNDECLARED = SHOP_IS_GONE | {"files": ALL_FILES}
ENDED = OTHERS | {"files": ALL_FILES, "home": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "declares", "wanted"),
    [
        (lambda: removing.remove("shop.orders", drop_tables=True, yes=True), what_is_declared, ORDERS_ARE_GONE),
        (lambda: removing.remove("shop", drop_tables=True, yes=True), what_is_declared, SHOP_IS_GONE),
        (lambda: removing.remove("shop", drop_tables=True, yes=True), without_declarations, UNDECLARED),
        (lambda: uninstalling.uninstall(delete_data=True, yes=True), what_is_declared, ENDED),
    ],
    ids=["a table", "a source", "a source that nobody declares or has read", "everything"],
)
def test_whoever_is_killed_can_run_it_again(
    templates: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[[], None],
    declares: Callable[..., Declarations],
    wanted: dict[str, Any],
) -> None:
    """A publication that nobody declares stayed for ever once its slot was dropped, and without a word; a home that was
    being deleted was not deleted any further, as the catalog that knew of slots was gone."""
    at: list[Made] = []
    monkeypatch.setattr("scaffold.declared_alone", declares)
    monkeypatch.setattr("lakehouse.servers.trino.query", dropped_by_trino)
    monkeypatch.setattr("lakehouse.declarations.dbt.manifest.ensure_manifest", lambda settings: None)
    monkeypatch.setattr(undeclaring, "readers", lambda *_: [])
    monkeypatch.setattr(removing, "write_models", lambda *_: orders_unmodelled(at[-1]))
    monkeypatch.setattr(start_stop, "down", lambda settings: at[-1].stopped.touch() or ["postgres"])
    for command in (removing, uninstalling):
        monkeypatch.setattr(command, "load_settings", lambda: at[-1].settings)

    with ExitStack() as made:

        def anew(number: int) -> None:
            made.close()
            at.append(made.enter_context(copied(templates, tmp_path, f"n{number}")))
            if declares is without_declarations:
                with store.connect_catalog(at[-1].settings) as states:
                    store.forget_positions(states, "shop", ["customers", "orders"])

        anew(0)
        number = 0
        for number in kills(run, tmp_path):
            until_it_is_free(run)
            assert at[-1].left() == wanted, f"killed after {number} effects"
            anew(number + 1)
        assert at[-1].left() == wanted
    assert number > 5


def until_it_is_free(run: Callable[[], None]) -> None:
    """Who is killed while the lease is taken holds it until it has run out, and it says so. A table that is declared no
    more is gone: its declaration goes last."""
    for _ in range(50):
        try:
            return run()
        except LakehouseError as error:
            if "declares no table 'orders'" in str(error):
                return None
            assert "is at work: stop it" in str(error)
            time.sleep(0.1)
    raise AssertionError("the lease of a killed command did not run out")


def orders_unmodelled(made: Made) -> None:
    model = made.folder / "dbt_project" / "models" / "parsed" / "shop" / "parsed_shop__orders.sql"
    model.unlink(missing_ok=True)
