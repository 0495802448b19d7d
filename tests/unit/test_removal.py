"""`lakehouse remove` beside people who edit, ingest, or press Ctrl-C meanwhile."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
import yaml
from held_topics import declared as of_topics
from pydantic import SecretStr

from ingestion.schema.offsets import Offsets
from ingestion.schema.positions import Lsn
from ingestion.sink.aside import KEPT_IN, kept_aside
from ingestion.sink.meta_tables import ensure_meta
from ingestion.sources.kinds import source_of
from ingestion.sources.postgres.setup import Kept, drop_slot, forget_slot, kept, slot_of
from ingestion.state import lease as leases
from ingestion.state import live, store
from ingestion.state.described import written
from ingestion.state.live import LiveTable
from ingestion.state.schemas import kept_schemas
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations import Declarations
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.worker_sessions import enter, leave
from lakehouse.settings import DebeziumSettings, KafkaSettings, Settings, SourceSettings, load_settings
from lakehouse_cli.lake.show import newest_cuts
from lakehouse_cli.source import remove as command
from lakehouse_cli.source import undeclaring
from lakehouse_cli.source.declaring import write_change
from lakehouse_cli.source.taking_back import kept_by, tell_of_connector
from scaffold import Change, declaring_file, plan
from scaffold.files import stamped
from tests.unit.test_renames import facts
from tests.world import declared_source

FILE = """\
sources:
  - name: shop
    tables:
      - name: customers
      - name: orders
"""


@pytest.fixture
def shop(cluster: str, tmp_path: Path) -> Settings:
    """Of a project that declares two tables, which were ingested."""
    made = load_settings(home=tmp_path / "home", project_dir=tmp_path, catalog_url=cluster)
    made = made.model_copy(update={"sources": {"shop": SourceSettings(url=SecretStr(cluster))}})
    write_project(made, "shop", FILE, "lakehouse_shop", "postgres", ("customers", "orders"))
    return made


def write_project(made: Settings, source: str, text: str, slot: str, kind: str, tables: Iterable[str]) -> None:
    """The declaration of a source, and the state of an ingestion that has met these tables."""
    file = made.dbt_project_dir / "models" / "sources" / f"{source}.yml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with closing(open_catalog(made)) as catalog:
        catalog.create_tables()
    with store.connect_catalog(made) as states:
        store.ensure_state(states)
        states.execute("TRUNCATE lakehouse.streams, lakehouse.positions, lakehouse.leases")
        store.create_stream(states, source, slot, store.Cluster("1", 1), 0, kind=kind)
        for table in tables:
            store.note_new(states, source, table, 1, None)


@pytest.fixture
def dropped(shop: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was dropped, in a lake without Trino whose declarations have no columns."""
    done: list[str] = []
    monkeypatch.setattr(command, "load_settings", lambda: shop)
    monkeypatch.setattr("scaffold.declared_alone", declared)
    monkeypatch.setattr(command, "droppable", lambda _, source, others, table: [Shown(f"raw_{source}.{table}")])
    monkeypatch.setattr(command, "drop", lambda _, found, dry_run: done.extend(found))
    monkeypatch.setattr("lakehouse.declarations.dbt.manifest.ensure_manifest", lambda settings: None)
    monkeypatch.setattr(undeclaring, "readers", lambda *_: [])
    yield done


class Shown(str):
    """The name of a relation, in its place."""

    @property
    def name(self) -> str:
        return str(self)


def declared(settings: Settings, changed: Mapping[Path, str | None] | None = None) -> Declarations:
    """What the file says, or would say."""
    file = declaration(settings)
    if (text := (changed or {}).get(file, file.read_text())) is None:
        return Declarations(sources=())
    [source] = yaml.safe_load(text)["sources"]
    tables = {table["name"]: RawPolicy(relation=f"public.{table['name']}") for table in source["tables"]}
    return Declarations(sources=(declared_source("shop", tables),))


def declaration(settings: Settings) -> Path:
    return settings.dbt_project_dir / "models" / "sources" / "shop.yml"


def known(settings: Settings) -> set[str]:
    with store.connect_catalog(settings) as states:
        return set(store.read_positions(states, "shop"))


def editing(file: Path, text: str) -> Callable[[bool], object]:
    """Somebody who corrects the file before they say yes."""
    return lambda yes: file.write_text(text)


def test_a_correction_made_while_the_question_waits_is_not_lost(
    shop: Settings, dropped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was written as it had been read before the question."""
    corrected = FILE + "      - name: notes\n"
    monkeypatch.setattr(command, "agreed", editing(declaration(shop), corrected))
    with pytest.raises(LakehouseError, match=r"shop\.yml was changed meanwhile: run this again$"):
        command.remove("shop.orders", drop_tables=True, yes=True)
    assert declaration(shop).read_text() == corrected
    assert known(shop) == {"customers", "orders"} and dropped == []


def test_a_mirror_that_was_made_while_the_question_waited_is_not_left_behind(
    shop: Settings, dropped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed for ever: what goes had been listed before the question."""
    raw = Shown("raw_shop.orders")
    found = iter([[raw], [raw, Shown("mirror_shop.orders")]])
    monkeypatch.setattr(command, "droppable", lambda *_: next(found))
    with pytest.raises(LakehouseError, match=r"^mirror_shop\.orders was made meanwhile, .*: run this again$"):
        command.remove("shop.orders", drop_tables=True, yes=True)
    assert known(shop) == {"customers", "orders"} and dropped == []


def test_a_removal_says_what_it_waits_for_and_each_line_at_once(
    shop: Settings, dropped: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was silent for the minute that dbt took, and what it had shown came in one block at the end."""
    pipe, seen = BytesIO(), list[str]()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(pipe))
    monkeypatch.setattr(undeclaring, "readers", lambda *_: ["models/mine.sql"])
    monkeypatch.setattr(command, "agreed", lambda yes: seen.append(pipe.getvalue().decode()))
    command.remove("shop.orders", yes=True)
    assert "-      - name: orders" in seen[0] and seen[0].endswith("reads   models/mine.sql\n")
    assert capsys.readouterr().err.splitlines() == [
        "asking dbt for the declarations",
        "asking dbt for the declarations with this change",
        "asking dbt what reads shop.orders",
        "asking dbt whether the project goes together without shop.orders",
    ]


def test_what_was_read_before_a_correction_is_not_written(shop: Settings) -> None:
    file = declaring_file(shop.dbt_project_dir, "shop")
    file.path.write_text(FILE + "# corrected\n")
    with pytest.raises(LakehouseError, match="was changed meanwhile"):
        write_change(file, FILE + "      - name: notes\n")
    assert file.path.read_text() == FILE + "# corrected\n"


@pytest.mark.parametrize("edited", ["models/sources/shop.yml", "models/parsed/shop/parsed_shop__orders.sql"])
def test_a_source_that_was_edited_while_the_question_waited_stays_in_the_project(
    shop: Settings, monkeypatch: pytest.MonkeyPatch, edited: str
) -> None:
    """Its file and models were removed as they had been found, with what was corrected meanwhile."""
    model = shop.dbt_project_dir / "models" / "parsed" / "shop" / "parsed_shop__orders.sql"
    model.parent.mkdir(parents=True)
    model.write_text(stamped(model.name, "SELECT 1\n"))
    corrected, taken = shop.dbt_project_dir / edited, list[str]()
    monkeypatch.setattr(command, "load_settings", lambda: shop)
    monkeypatch.setattr("scaffold.declared_alone", declared)
    monkeypatch.setattr(command, "take_back", lambda _, source, *__: taken.append(source))
    monkeypatch.setattr(command, "agreed", editing(corrected, corrected.read_text() + "# corrected\n"))
    found = undeclaring.undeclared(shop, "shop")

    with pytest.raises(LakehouseError, match=rf"{corrected} was changed meanwhile: run this again$"):
        command.remove("shop", yes=True)
    with pytest.raises(LakehouseError, match="was changed meanwhile"):
        undeclaring.undeclare(shop, found)

    assert corrected.read_text().endswith("# corrected\n") and model.exists() and declaration(shop).exists()
    assert taken == []


def test_a_removal_of_a_source_that_is_killed_can_be_repeated(shop: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The declaration went first: no command could read the project any more, nor did any remove what was left."""
    folder = shop.dbt_project_dir / "models" / "parsed" / "shop"
    folder.mkdir(parents=True)
    for table in ("customers", "orders"):
        (folder / f"parsed_shop__{table}.sql").write_text(stamped(".sql", f"SELECT '{table}'\n"))
    monkeypatch.setattr(command, "load_settings", lambda: shop)
    monkeypatch.setattr("scaffold.declared_alone", declared)
    monkeypatch.setattr(command, "take_back", lambda *_: Kept())
    monkeypatch.setattr("lakehouse.declarations.dbt.manifest.ensure_manifest", lambda settings: None)
    monkeypatch.setattr(undeclaring, "readers", lambda *_: [])

    def killed(changes: tuple[Change, ...]) -> None:
        changes[0].path.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("scaffold.apply", killed)
        command.remove("shop", yes=True)
    assert declaration(shop).read_text() == FILE

    command.remove("shop", yes=True)

    assert not declaration(shop).exists() and not folder.exists()


@pytest.mark.parametrize("step", ["drop", "write_models"])
def test_what_was_interrupted_can_be_run_again(
    shop: Settings, dropped: list[str], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The declaration went first: tables and history stayed, and the second run knew no such table."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(command, step, interrupted)
        command.remove("shop.orders", drop_tables=True, yes=True)
    assert declaration(shop).read_text() == FILE

    command.remove("shop.orders", drop_tables=True, yes=True)

    assert set(dropped) == {"raw_shop.orders"} and known(shop) == {"customers"}
    assert declaration(shop).read_text() == FILE.removesuffix("      - name: orders\n")
    with store.connect_catalog(shop) as states:
        assert leases.holder_of(states, "shop") is None


@pytest.mark.parametrize("drop_tables", [True, False])
def test_a_table_is_not_removed_below_a_follower(shop: Settings, dropped: list[str], drop_tables: bool) -> None:
    """It declared the table as before, and snapshotted what it found forgotten: `dropped` was printed before that."""
    with store.connect_catalog(shop) as states:
        lease = leases.acquire(states, "shop", 60, "follow")
    assert lease is not None
    with leases.kept_alive(shop, lease), pytest.raises(LakehouseError, match=r"^source 'shop': .* is at work: stop it"):
        command.remove("shop.orders", drop_tables=drop_tables, yes=True)
    assert declaration(shop).read_text() == FILE and dropped == []
    assert known(shop) == {"customers", "orders"}


def test_nothing_is_dropped_where_the_declarations_would_be_refused(
    shop: Settings, dropped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(settings: Settings, changed: Mapping[Path, str | None] | None = None) -> Declarations:
        if changed:
            raise LakehouseError("dbt_project/models/sources/shop.yml:4: no table has hub 'order'")
        return declared(settings)

    monkeypatch.setattr("scaffold.declared_alone", refusing)
    with pytest.raises(LakehouseError, match=r"nothing was written, as the declarations would be refused: .*'order'$"):
        command.remove("shop.orders", drop_tables=True, yes=True)
    assert declaration(shop).read_text() == FILE and dropped == []
    assert known(shop) == {"customers", "orders"}


def test_models_that_read_a_table_which_is_gone_are_told(
    shop: Settings, dropped: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that all was well, in a project that dbt could not read any more."""

    def refusing(settings: Settings) -> None:
        raise LakehouseError("mart_orders depends on a source named 'shop.orders' which was not found")

    monkeypatch.setattr("lakehouse.declarations.dbt.manifest.ensure_manifest", refusing)
    with pytest.raises(LakehouseError, match=r"^shop\.orders: removed; models of yours still read it, .*mart_orders"):
        command.remove("shop.orders", drop_tables=True, yes=True)
    assert dropped == ["raw_shop.orders"] and "start the follower again" in capsys.readouterr().out


MART = "models/marts/mart_orders.sql"


@pytest.mark.parametrize("name", ["shop.orders", "shop"])
def test_nothing_is_dropped_that_a_model_of_somebodys_reads(
    shop: Settings, dropped: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The history went first, and then the models were named that read it; a preview said nothing of them."""
    monkeypatch.setattr(command, "droppable", lambda *_: [Shown("raw_shop.orders")])
    monkeypatch.setattr(undeclaring, "readers", lambda *_: [MART])
    monkeypatch.setattr(command, "take_back", lambda *_: dropped.append("slot") or Kept())
    refused = rf"^{name}: nothing was dropped, because {MART} would read what is gone: change them first"
    with pytest.raises(LakehouseError, match=refused):
        command.remove(name, drop_tables=True, yes=True)
    assert f"reads   {MART}\n" in capsys.readouterr().out
    assert declaration(shop).read_text() == FILE and dropped == []

    asked = list[str]()
    monkeypatch.setattr(command, "agreed", lambda yes: asked.append(capsys.readouterr().out))
    command.remove(name, yes=True)
    assert f"reads   {MART}\n" in asked[0] and "raw_shop.orders" not in dropped


def test_a_project_that_does_not_parse_keeps_tables_from_being_dropped(
    shop: Settings, dropped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[str]:
        raise LakehouseError("the dbt project does not parse")

    monkeypatch.setattr(undeclaring, "readers", broken)
    with pytest.raises(LakehouseError, match=r"^shop\.orders: nothing was dropped, .* the dbt project does not"):
        command.remove("shop.orders", drop_tables=True, yes=True)
    assert dropped == [] and declaration(shop).read_text() == FILE


def test_readers_are_the_models_that_people_wrote_of_what_goes(home: Path) -> None:
    settings = load_settings(home=home)
    all_gone = plan(settings.dbt_project_dir, "retail", ())
    found = undeclaring.readers(settings, "retail", all_gone)
    assert "models/marts/dim_customer.sql" in found
    assert not {str(change.path.relative_to(settings.dbt_project_dir)) for change in all_gone} & {*found}
    assert undeclaring.readers(settings, "retail", (), "no such table") == []
    assert undeclaring.readers(settings, "elsewhere", ()) == []


TOPICS = """\
sources:
  - name: web
    tables:
      - name: clicks
      - name: views
"""


def topics(settings: Settings, changed: Mapping[Path, str | None] | None = None) -> Declarations:
    file = settings.dbt_project_dir / "models" / "sources" / "web.yml"
    if (text := (changed or {}).get(file, file.read_text())) is None:
        return Declarations(sources=())
    [source] = yaml.safe_load(text)["sources"]
    return Declarations(sources=(of_topics(*(table["name"] for table in source["tables"]), flush=None),))


@pytest.fixture
def web(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Settings, list[str]]]:
    """A project with a source in Kafka whose brokers are gone, and what was dropped of it."""
    of = KafkaSettings(kind="kafka", bootstrap_servers="127.0.0.1:1")
    made = load_settings(home=tmp_path / "home", project_dir=tmp_path, catalog_url=cluster)
    made = made.model_copy(update={"sources": {"web": of}, "warehouse": str(tmp_path / "warehouse")})
    done = list[str]()
    write_project(made, "web", TOPICS, "", "kafka", ("clicks", "views"))
    monkeypatch.setattr(command, "load_settings", lambda: made)
    monkeypatch.setattr("scaffold.declared_alone", topics)
    monkeypatch.setattr(
        command, "droppable", lambda _, source, others, table=None: [Shown(f"raw_{source}.{table or '*'}")]
    )
    monkeypatch.setattr(command, "drop", lambda _, found, dry_run: None if dry_run else done.extend(found))
    monkeypatch.setattr("lakehouse.declarations.dbt.manifest.ensure_manifest", lambda settings: None)
    monkeypatch.setattr(undeclaring, "readers", lambda *_: [])
    yield made, done


def left_of(settings: Settings) -> tuple[set[str], bool]:
    """The tables that the state knows, and whether the declaration is there."""
    with store.connect_catalog(settings) as states:
        known = set(store.read_positions(states, "web"))
    return known, (settings.dbt_project_dir / "models" / "sources" / "web.yml").exists()


def test_a_table_of_a_topic_is_removed(web: tuple[Settings, list[str]]) -> None:
    """Every source of topics was refused: `this is for sources in Postgres alone`."""
    settings, done = web
    command.remove("web.clicks", dry_run=True, drop_tables=True)
    assert left_of(settings) == ({"clicks", "views"}, True) and done == []
    command.remove("web.clicks", yes=True)
    assert left_of(settings) == ({"views"}, True) and done == []
    assert {table.name for table in topics(settings).source("web").tables} == {"views"}


def test_a_table_of_a_topic_is_removed_with_its_history(web: tuple[Settings, list[str]]) -> None:
    settings, done = web
    command.remove("web.clicks", drop_tables=True, yes=True)
    assert left_of(settings) == ({"views"}, True) and done == ["raw_web.clicks"]


def test_a_source_of_topics_is_removed(web: tuple[Settings, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    settings, done = web
    command.remove("web", dry_run=True)
    assert left_of(settings) == ({"clicks", "views"}, True)
    command.remove("web", drop_tables=True, yes=True)
    assert left_of(settings) == (set(), False) and done == ["raw_web.*"]
    assert "slot" not in capsys.readouterr().out


def test_what_is_kept_aside_goes_with_the_tables(
    web: tuple[Settings, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Payloads of tables that were dropped stayed in `meta`, where no erasure of an undeclared table reaches them."""
    settings, _ = web
    with closing(open_catalog(settings)) as catalog:
        for name in KEPT_IN:
            kept = ensure_meta(catalog, name)
            rows = [{"source": s, "table": t} for s, t in (("web", "clicks"), ("web", "views"), ("web_shop", "clicks"))]
            kept.append(pa.Table.from_pylist(rows, schema=kept.schema().as_arrow()))
    all_three = dict.fromkeys(KEPT_IN, 1)
    command.remove("web.clicks", drop_tables=True, dry_run=True)
    assert "its rows in meta.spool would be deleted: 1\n" in capsys.readouterr().out
    assert kept_aside(settings, "web", "clicks") == all_three
    command.remove("web.clicks", yes=True)
    assert kept_aside(settings, "web", "clicks") == all_three, "with its history"
    (settings.dbt_project_dir / "models" / "sources" / "web.yml").write_text(TOPICS)
    command.remove("web.clicks", drop_tables=True, yes=True)
    assert kept_aside(settings, "web", "clicks") == {} and kept_aside(settings, "web") == all_three
    command.remove("web", drop_tables=True, yes=True)
    assert "its rows in meta.quarantine deleted: 1\n" in capsys.readouterr().out
    assert kept_aside(settings, "web") == {} and kept_aside(settings, "web_shop") == all_three


@pytest.mark.parametrize("drop_tables", [True, False])
def test_of_a_source_that_is_removed_nothing_is_shown_that_nobody_will_publish(
    web: tuple[Settings, list[str]], drop_tables: bool
) -> None:
    """A follower was killed: its live tables stayed listed, and had rows for ever that the raw tables never got."""
    settings, _ = web
    with store.connect_catalog(settings) as states:
        table = LiveTable("raw_web", "clicks", "file:///base", None, "file:///live")
        live.show(states, "web", Offsets.of({("clicks", 0): 3}), [table])
    command.remove("web", dry_run=True)
    with store.connect_catalog(settings) as states:
        assert live.shown(states, "web") is not None
        command.remove("web", drop_tables=drop_tables, yes=True)
        assert states.execute("SELECT * FROM lakehouse.live WHERE source = 'web'").fetchall() == []


@pytest.mark.parametrize("is_landed", [True, False])
def test_what_schema_ids_meant_goes_with_the_tables_and_is_listed_before(
    web: tuple[Settings, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_landed: bool,
) -> None:
    """A source that is declared again may have a registry that was set up anew. No dry run named what goes."""
    settings, _ = web
    if not is_landed:
        monkeypatch.setattr(command, "droppable", lambda *_: [])
    mine, other = kept_schemas(settings, "web"), kept_schemas(settings, "web_shop")
    mine.files.mkdir(parents=True)
    for each in (mine, other):
        each.keep(7, '["x"]')
        (each.files / f"{each.source}-8.json").write_text('["y"]')
    declared = {file: file.read_text() for file in settings.dbt_project_dir.rglob("web.yml")}
    command.remove("web", yes=True)
    assert mine.read(7, "") == '["x"]'
    for file, text in declared.items():
        file.write_text(text)
    capsys.readouterr()
    command.remove("web", drop_tables=True, dry_run=True)
    said = capsys.readouterr().out
    assert mine.read(7, "") == '["x"]'
    assert all(f"{place}, would be deleted" in said for place in (mine.location(7), mine.files / "web-8.json"))
    assert "web_shop" not in said
    command.remove("web", drop_tables=True, yes=True)
    assert f"{mine.location(7)}, is to be deleted" in capsys.readouterr().out
    assert (mine.read(7, ""), mine.read(8, "")) == (None, None)
    assert (other.read(7, ""), other.read(8, "")) == ('["x"]', '["y"]')


@pytest.mark.parametrize("mode", ["once", "follow"])
def test_a_source_of_topics_is_not_removed_below_whoever_ingests_it(
    web: tuple[Settings, list[str]], mode: leases.Mode
) -> None:
    """No lease was asked for: the follower noted the tables as new, and published them behind `dropped`."""
    settings, done = web
    with store.connect_catalog(settings) as states:
        lease = leases.acquire(states, "web", 60, mode)
    assert lease is not None
    with leases.kept_alive(settings, lease), pytest.raises(LakehouseError, match=r"^source 'web': .* is at work: stop"):
        command.remove("web", drop_tables=True, yes=True)
    assert left_of(settings) == ({"clicks", "views"}, True) and done == []


def test_a_source_is_kept_from_being_ingested_until_its_declaration_is_gone(
    web: tuple[Settings, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = web
    free: list[bool] = []

    def beside(made: Settings) -> None:
        assert left_of(settings) == (set(), False)
        with store.connect_catalog(settings) as states:
            free.append(leases.acquire(states, "web", 60, "follow") is not None)

    monkeypatch.setattr("lakehouse.declarations.dbt.manifest.ensure_manifest", beside)
    command.remove("web", drop_tables=True, yes=True)
    assert free == [False]
    with store.connect_catalog(settings) as states:
        assert leases.holder_of(states, "web") is None


def test_a_source_whose_slot_is_gone_is_not_removed_below_a_follower(
    shop: Settings, dropped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease was held while the slot was dropped, and of one without a slot never."""
    monkeypatch.setattr(command, "droppable", lambda *_: [Shown("raw_shop.orders")])
    with store.connect_catalog(shop) as states:
        lease = leases.acquire(states, "shop", 60, "follow")
    assert lease is not None and slot_of(shop, "shop") is None
    with leases.kept_alive(shop, lease), pytest.raises(LakehouseError, match=r"^source 'shop': .* is at work: stop it"):
        command.remove("shop", drop_tables=True, yes=True)
    assert known(shop) == {"customers", "orders"} and declaration(shop).exists()


@pytest.mark.parametrize("name", ["web", "web.clicks"])
def test_no_table_is_dropped_below_a_worker(web: tuple[Settings, list[str]], name: str) -> None:
    """It loads parsed of what is dropped, and makes it again."""
    settings, done = web
    with store.connect_catalog(settings) as worker:
        enter(worker, settings.catalog_name)
        with pytest.raises(LakehouseError, match=r"^`lakehouse worker` is at work: stop it"):
            command.remove(name, drop_tables=True)  # and nobody was asked, who would have to give --yes here
        assert left_of(settings) == ({"clicks", "views"}, True) and done == []
        command.remove(name, yes=True)
        leave(worker, settings.catalog_name)
    assert done == []


@pytest.fixture
def published(shop: Settings, cluster: str) -> Iterator[Callable[[str], list[tuple[str]]]]:
    """Asks the shop, of which two tables are published, and of which the lake has read up to here."""
    with psycopg.connect(cluster, autocommit=True) as asked:
        asked.execute("CREATE TABLE orders (id int); CREATE TABLE customers (id int)")
        asked.execute("CREATE PUBLICATION lakehouse FOR TABLE orders, customers")
        with store.connect_catalog(shop) as states:
            [(here,)] = asked.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").fetchall()
            store.set_positions(states, "shop", Lsn(here))

        def ask(sql: str) -> list[tuple[str]]:
            cursor = asked.execute(sql)
            return cursor.fetchall() if cursor.description else []

        yield ask
        asked.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        asked.execute("DROP PUBLICATION IF EXISTS lakehouse; DROP TABLE orders, customers")


def test_what_a_slot_of_another_lake_may_read_stays_and_the_owner_is_told_what_to_run(
    shop: Settings, dropped: list[str], published: Callable[[str], list[tuple[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody streamed by it at that moment, and the other lake lost its publication."""
    published("SELECT pg_create_logical_replication_slot('another', 'pgoutput')::text")
    command.remove("shop.orders", yes=True)
    assert len(published("SELECT 1 FROM pg_publication_tables")) == 2
    stays, *statements = [line for line in capsys.readouterr().out.splitlines() if "publication" in line.lower()]
    assert stays.startswith("-- shop: this stays, because slot another may read the publication; if nobody reads by")
    assert "drop it (SELECT pg_drop_replication_slot('another')), and run this as the owner" in stays
    assert statements == ['ALTER PUBLICATION "lakehouse" DROP TABLE "public"."orders";']
    assert known(shop) == {"customers"} and "orders" not in declaration(shop).read_text()


def test_a_slot_that_another_lake_has_made_by_the_name_of_one_that_was_dropped_is_left_alone(
    shop: Settings, published: Callable[[str], list[tuple[str]]]
) -> None:
    """Two projects call their sources alike, so their slots have one name: the second `remove` dropped the other's."""
    assert slot_of(shop, "shop") is None, "it was dropped"
    published("SELECT pg_create_logical_replication_slot('lakehouse_shop', 'pgoutput')::text")
    assert slot_of(shop, "shop") is None and kept(shop, "shop", None).readers == ("lakehouse_shop",)
    [(here,)] = published("SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint FROM pg_replication_slots")
    with store.connect_catalog(shop) as states:
        store.set_positions(states, "shop", Lsn(int(here)))
    assert slot_of(shop, "shop") == "lakehouse_shop" and kept(shop, "shop", "lakehouse_shop").readers == ()


def test_a_recovery_after_a_removal_leaves_the_slot_that_another_lake_has_made_since(
    shop: Settings, published: Callable[[str], list[tuple[str]]]
) -> None:
    """It was dropped, and with it what the other lake had not read yet."""
    published("SELECT pg_create_logical_replication_slot('lakehouse_shop', 'pgoutput')::text")
    drop_slot(shop, "shop", "lakehouse_shop")
    forget_slot(shop, "shop")
    published("SELECT pg_create_logical_replication_slot('lakehouse_shop', 'pgoutput')::text")
    with (
        store.connect_catalog(shop) as states,
        source_of(shop, "shop").open() as opened,
        pytest.raises(LakehouseError, match="this lake did not make it: set"),
    ):
        opened.begin_anew(states)
    assert len(published("SELECT 1 FROM pg_replication_slots")) == 1


def test_what_another_source_of_the_project_has_of_the_same_database_stays_its_own(
    shop: Settings, published: Callable[[str], list[tuple[str]]], cluster: str
) -> None:
    """Also where its URL has the other name of this machine."""
    assert "@127.0.0.1" in cluster
    crm = SourceSettings(url=SecretStr(cluster.replace("@127.0.0.1", "@localhost")))
    both = shop.model_copy(update={"sources": {**shop.sources, "crm": crm}})
    relations = {"shop": [("public", "orders")], "crm": [("public", "customers")]}
    with store.connect_catalog(shop) as states:
        store.create_stream(states, "crm", "lakehouse_crm", store.Cluster("1", 1), 0)
    published("SELECT pg_create_logical_replication_slot('lakehouse_crm', 'pgoutput')::text")
    of_shop = kept_by(both, "shop", relations)
    assert of_shop.readers == () and of_shop.due == ('ALTER PUBLICATION "lakehouse" DROP TABLE "public"."orders"',)
    assert kept_by(both, "shop", relations, ("public", "customers")).due == (), "the other one reads it as well"
    drop_slot(both, "crm", "lakehouse_crm")
    published("ALTER PUBLICATION lakehouse DROP TABLE customers")
    assert kept_by(both, "shop", relations).due == ('DROP PUBLICATION "lakehouse"',)


@pytest.fixture
def renamed(shop: Settings, published: Callable[[str], list[tuple[str]]]) -> Iterator[Settings]:
    """The shop, whose table `orders` got another name since the lake read it, by a role that may read it alone."""
    [(oid,)] = published("SELECT 'orders'::regclass::oid")
    [(publication,)] = published("SELECT oid FROM pg_publication")
    with store.connect_catalog(shop) as states:
        read = replace(facts(1), oid=int(oid), relation=("public", "orders"))
        position = store.read_positions(states, "shop")["orders"]
        states.execute("UPDATE lakehouse.streams SET publication_oid = %s", (publication,))
        states.execute(
            "UPDATE lakehouse.positions SET facts = %s WHERE \"table\" = 'orders'",
            (written(replace(position, versions=(read,)).known),),
        )
    published("CREATE ROLE lake LOGIN; GRANT SELECT ON orders, customers TO lake; ALTER TABLE orders RENAME TO archive")
    assert shop.catalog_url is not None
    url = SecretStr(shop.catalog_url.get_secret_value().replace("postgres@", "lake@"))
    yield shop.model_copy(update={"sources": {"shop": SourceSettings(url=url)}})
    published("ALTER TABLE archive RENAME TO orders; DROP OWNED BY lake; DROP ROLE lake")


DECLARED = {"shop": [("public", "orders"), ("public", "customers")]}
OF_ARCHIVE = (
    'REVOKE SELECT ON TABLE "public"."archive" FROM "lake"',
    'ALTER PUBLICATION "lakehouse" DROP TABLE "public"."archive"',
)


def test_a_table_that_was_renamed_since_it_was_read_is_taken_back(renamed: Settings) -> None:
    """It stayed in the publication, and the role could read it."""
    keeps = kept_by(renamed, "shop", DECLARED, ("public", "orders"), "orders")
    assert (keeps.due, keeps.stays) == (OF_ARCHIVE, ())
    assert OF_ARCHIVE[0] in kept_by(renamed, "shop", DECLARED).due
    assert 'DROP PUBLICATION "lakehouse"' in kept_by(renamed, "shop", DECLARED).due


def test_a_renamed_table_that_is_declared_by_its_new_name_stays(renamed: Settings) -> None:
    both = {"shop": [*DECLARED["shop"], ("public", "archive")]}
    keeps = kept_by(renamed, "shop", both, ("public", "orders"), "orders")
    assert (keeps.due, keeps.stays) == ((), ())


def test_a_table_that_was_renamed_before_it_was_read_is_named(
    renamed: Settings, published: Callable[[str], list[tuple[str]]]
) -> None:
    """So is one of a database that was made again, where an oid may be another table's."""
    with store.connect_catalog(renamed) as states:
        states.execute("UPDATE lakehouse.streams SET publication_oid = 1")
    published("CREATE TABLE aside (id int); GRANT SELECT ON aside TO lake")
    keeps = kept_by(renamed, "shop", DECLARED, ("public", "orders"), "orders")
    published("DROP TABLE aside")
    assert keeps.due == ()
    in_publication, readable = keeps.stays
    assert in_publication == (
        'publication lakehouse has "public"."archive" too, which no table of the project is. If that is the table by a '
        'new name, run as the owner: ALTER PUBLICATION "lakehouse" DROP TABLE "public"."archive"; '
        'REVOKE SELECT ON "public"."archive" FROM "lake"'
    )
    assert readable.startswith('role lake has rights on "public"."aside" still, which no publication carries. If the')


def test_of_a_source_that_is_removed_no_cut_is_shown(shop: Settings) -> None:
    """Its age grew for ever beside those of the others."""
    (shop.dbt_project_dir / "dbt_project.yml").write_text("name: lake\n")
    with store.connect_catalog(shop) as states:
        states.execute("UPDATE lakehouse.streams SET cut_lsn = 7, cut_at = now()")
    assert [cut.source for cut in newest_cuts(shop)] == ["shop"]
    declaration(shop).unlink()
    assert newest_cuts(shop) == []


@pytest.mark.parametrize(("slot", "whose"), [(None, set()), ("lakehouse_shop", None)])
def test_a_publication_is_nobodys_to_take_back_who_has_neither_declared_nor_read_anything(
    monkeypatch: pytest.MonkeyPatch, slot: str | None, whose: set[object] | None
) -> None:
    """A project with nothing but the connection dropped what another one had prepared, and not ingested yet."""
    asked: list[object] = []
    settings = Settings(_env_file=None, sources={"shop": SourceSettings(url=SecretStr("postgresql://reader@db/shop"))})
    monkeypatch.setattr("ingestion.sources.postgres.setup.relations_met", lambda *given: set())
    monkeypatch.setattr("ingestion.sources.postgres.setup.slot_of", lambda *given: slot)
    monkeypatch.setattr("ingestion.sources.postgres.setup.had_slot", lambda *given: slot is not None)
    monkeypatch.setattr("ingestion.sources.postgres.setup.kept", lambda *given, **more: asked.append(given[3]))
    kept_by(settings, "shop", {})
    assert asked == [whose]


def test_of_a_source_in_topics_of_debezium_it_says_that_the_connector_stays(
    web: tuple[Settings, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody named the slot, which retains WAL once the connector is gone; the lake's own is not to be dropped."""
    made, _ = web
    of = DebeziumSettings(kind="debezium", bootstrap_servers="127.0.0.1:1")
    tell_of_connector(made.model_copy(update={"sources": {"web": of}}), "web")
    assert "the connector that fills them, with its slot and publication" in capsys.readouterr().out
    with_url = of.model_copy(update={"url": made.catalog_url})
    tell_of_connector(made.model_copy(update={"sources": {"web": with_url}}), "web")
    assert "pg_drop_replication_slot" not in capsys.readouterr().out, "that database has none"
    tell_of_connector(made, "web")
    assert capsys.readouterr().out == "", "of kind kafka there is none"
