"""`lake@…` with PyIceberg against the service, over real Iceberg tables in a directory: raw and mirrors at cuts."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
import uvicorn
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError
from pyiceberg.table import Table

from ingestion.sink.cuts import CUTS, CUTS_SCHEMA
from ingestion.sink.meta_tables import ensure_mirrors
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.declarations.access.rules import RELATIONS
from lakehouse.servers.logins import ensure_own_logins
from lakehouse.settings import load_settings
from lakehouse_serve.access.grants import Grants
from lakehouse_serve.access.limits import Limit
from lakehouse_serve.access.tokens import Tokens
from lakehouse_serve.access_log import AccessLog
from lakehouse_serve.answers import Access, Answers
from lakehouse_serve.app import Service
from lakehouse_serve.objects import Objects
from lakehouse_serve.past import cuts as cuts_module
from lakehouse_serve.past.cuts import Cuts
from lakehouse_serve.past.reads import Read, reads_of
from lakehouse_serve.reading import CatalogRows
from lakehouse_serve.relations import Relations
from maintenance.actions.expire_snapshots import Expiry
from tests.ports import free_port
from tests.unit.test_serve import SECRET

PASSWORDS = {"lakehouse": "w", "reader": "r", "privacy": "p"}
RULES = [
    {"schema": "mirror_shop", "name": "stores", "least": "reader", "personal": []},
    {"schema": "mirror_shop", "name": "people", "least": "reader", "personal": ["name"]},
]
BEGUN = datetime(2026, 11, 20, 10, tzinfo=UTC)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
RAW, STORES, PEOPLE = ("raw_shop", "stores"), ("mirror_shop", "stores"), ("mirror_shop", "people")


class Rows(CatalogRows):
    """The rows of a catalog in SQLite, which has no live tables."""

    def __init__(self, catalog: LakeCatalog) -> None:
        read = SimpleNamespace(read=lambda location: Path(location.removeprefix("file://")).read_bytes())
        super().__init__(load_settings(catalog_url="postgresql://nobody@nowhere/lake"), cast(Any, read))
        self._engine = catalog.engine
        self.known: list[Any] = []

    def reads(self) -> dict[str, Read]:
        """How far the test says that sources were read."""
        return reads_of(self.known)

    def _ask(self, statement: str, **values: str) -> list[Any]:
        return []


class Lake:
    """A source with a raw table and two mirrors, whose cuts are minutes apart, and its service."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.catalog = LakeCatalog("lake", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}/warehouse")
        for namespace in ("meta", "raw_shop", "mirror_shop", "next_mirror_shop"):
            self.catalog.create_namespace(namespace)
        for name in (RAW, STORES, PEOPLE, ("next_mirror_shop", "stores")):
            self.catalog.create_table(name, SCHEMA)
        self.catalog.create_table(CUTS, CUTS_SCHEMA)
        ensure_mirrors(self.catalog)
        monkeypatch.setattr(cuts_module, "open_catalog", lambda _: SimpleNamespace(close=lambda: None, **self._own()))
        self.log = folder / "serve-access.log"
        access = folder / "access"
        ensure_own_logins(access, PASSWORDS)
        (access / RELATIONS).write_text(json.dumps({"relations": RULES}))
        self.rows = Rows(self.catalog)
        relations, tokens, none = Relations(self.rows, Grants(access)), Tokens(SECRET), cast(Any, None)
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        answers = Answers("lake", relations, Cuts(none), Cuts(none, "mirror"), tokens, Access(self.uri, "us-east-1"))
        self.objects = Objects(cast(Any, SimpleNamespace(scheme="file")), relations, tokens)
        log = AccessLog(self.log, "lake")
        self.service = Service(answers, self.objects, tokens, log, Limit(1e6, 1e6), Limit(1e6, 1e6))

    def _own(self) -> dict[str, Any]:
        return {"load_table": self.catalog.load_table}

    @contextmanager
    def running(self) -> Iterator[None]:
        server = uvicorn.Server(uvicorn.Config(self.service.application(), port=self.port, log_level="error"))
        thread = Thread(target=server.run)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
            yield
        finally:
            server.should_exit = True
            thread.join()

    def client(self, login: str, warehouse: str) -> RestCatalog:
        given = {"oauth2-server-uri": f"{self.uri}/v1/oauth/tokens", "credential": f"{login}:{PASSWORDS[login]}"}
        return RestCatalog("served", uri=self.uri, warehouse=warehouse, **given)

    def cut(self, lsn: int, minute: int, epoch: int = 1) -> None:
        """One more row in raw, and a cut of it."""
        snapshot = self._append(RAW, lsn)
        self._list(CUTS, lsn, minute, epoch, stores=snapshot)

    def refresh(self, lsn: int, minute: int, epoch: int = 1) -> None:
        """One more row in each mirror, which is then at that cut."""
        snapshots = {}
        for name in (STORES, PEOPLE):
            snapshots[name[1]] = self._append(name, lsn)
            with self.catalog.load_table(name).transaction() as transaction:
                transaction.set_properties({"lakehouse.position": f"{epoch}:0/{lsn + 1:X}", "lakehouse.mirror": "{}"})
        self._list(("meta", "mirrors"), lsn, minute, epoch, **snapshots)

    def expire(self, *tables: tuple[str, str]) -> None:
        """All snapshots but the newest one go."""
        for name in tables:
            table = self.catalog.load_table(name)
            former = [snapshot.snapshot_id for snapshot in table.snapshots()][:-1]
            self.catalog.commit_table(table, (), tuple(Expiry(tuple(former), (), {}).updates(table)))

    def _append(self, name: tuple[str, str], lsn: int) -> int:
        table = self.catalog.load_table(name)
        table.append(pa.Table.from_pylist([{"id": lsn, "name": f"n{lsn}"}], SCHEMA))
        snapshot = self.catalog.load_table(name).current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def _list(
        self, meta: tuple[str, str], lsn: int, minute: int, epoch: int, source: str = "shop", **snapshots: int
    ) -> None:
        table, at = self.catalog.load_table(meta), BEGUN + minute * timedelta(minutes=1)
        named = [(name, str(snapshot)) for name, snapshot in snapshots.items()]
        row = {"source": source, "epoch": epoch, "cut_lsn": lsn, "cut_at": at, "published_at": at, "snapshots": named}
        table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Raw has cuts 16, 32, 48, 64 at the minutes 0 to 3; mirrors were refreshed at 32 and 64."""
    found = Lake(tmp_path, monkeypatch)
    for minute in range(4):
        found.cut(16 * (minute + 1), minute)
        if minute % 2:
            found.refresh(16 * (minute + 1), minute)
    with found.running():
        yield found


def ids(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


def states(table: Table) -> tuple[list[int], dict[str, str]]:
    return ids(table), {name: value for name, value in table.properties.items() if name.startswith("lakehouse.")}


@pytest.mark.parametrize("moment", ["2026-11-20T10:02:30", "shop=0/30", "shop=1:0/30", "0/3F"])
def test_mirrors_are_at_their_newest_cut_until_the_moment(lake: Lake, moment: str) -> None:
    """Whoever read as `reader` had an empty catalog there, and `writer` the log alone."""
    reader = lake.client("reader", f"lake@{moment}")
    assert reader.list_namespaces() == [("mirror_shop",)]
    assert states(reader.load_table(STORES)) == ([32], {"lakehouse.cut": "shop=1:0/20"})
    with pytest.raises(NoSuchTableError):
        reader.load_table(RAW)
    writer = lake.client("lakehouse", f"lake@{moment}")
    assert writer.list_namespaces() == [("mirror_shop",), ("raw_shop",)]
    assert states(writer.load_table(RAW)) == ([16, 32, 48], {"lakehouse.cut": "shop=1:0/30"})
    assert {states(writer.load_table(name))[1]["lakehouse.cut"] for name in (STORES, PEOPLE)} == {"shop=1:0/20"}


def test_personal_columns_of_a_mirror_are_for_whom_they_are_now(lake: Lake) -> None:
    moment = "lake@2026-11-20T10:02:30"
    with pytest.raises(ForbiddenError, match=r"personal columns \(name\)"):
        lake.client("reader", moment).load_table(PEOPLE)
    assert ids(lake.client("privacy", moment).load_table(PEOPLE)) == [32]


def test_the_file_that_a_state_is_said_to_be_in_is_that_state(lake: Lake) -> None:
    table = lake.client("reader", "lake@shop=0/30").load_table(STORES)
    assert table.metadata_location.endswith(f".at-{table.metadata.current_snapshot_id}-shop-1-20.metadata.json")
    found = lake.objects._find(table.metadata_location, is_whole=True)
    assert found is not None
    stored = json.loads(b"".join(found.pieces(0, found.facts.size)))
    assert stored["properties"] == table.properties
    assert stored["current-snapshot-id"] == table.metadata.current_snapshot_id


def test_a_warehouse_without_anything_for_the_login_is_refused_with_what_there_is(lake: Lake) -> None:
    """It attached, and had no table."""
    refusal = r"lake@shop=0/10 has nothing for the role reader; the oldest state that is left is lake@(\S+)"
    with pytest.raises(Exception, match=refusal) as refused:
        lake.client("reader", "lake@shop=0/10")
    assert f"lake@{datetime.now(UTC):%Y-}" in str(refused.value)
    assert lake.client("lakehouse", "lake@shop=0/10").list_namespaces() == [("raw_shop",)]


def test_what_has_expired_is_refused_with_what_is_left(lake: Lake) -> None:
    connected = lake.client("reader", "lake@shop=0/30")
    lake.expire(STORES)
    refusal = r"mirror_shop.stores has no snapshot of that cut any more: .*; the oldest state that is left is lake@"
    with pytest.raises(NoSuchTableError, match=refusal):
        connected.load_table(STORES)
    lake.expire(PEOPLE)
    with pytest.raises(Exception, match=r"lake@shop=0/30 has nothing for the role reader; the oldest state"):
        lake.client("reader", "lake@shop=0/30")
    assert ids(lake.client("reader", "lake@shop=0/40").load_table(STORES)) == [32, 64]


def test_a_client_stays_at_the_cuts_that_it_was_led_to(lake: Lake) -> None:
    lake.cut(80, 4)
    first = lake.client("reader", "lake@shop=1:0/50")
    assert states(first.load_table(STORES)) == ([32, 64], {"lakehouse.cut": "shop=1:0/40"})
    lake.refresh(80, 5)
    assert ids(first.load_table(STORES)) == [32, 64]
    assert ids(lake.client("reader", "lake@shop=1:0/50").load_table(STORES)) == [32, 64, 80]


def test_after_a_recovery_mirrors_of_the_epoch_before_are_not_shown(lake: Lake) -> None:
    """They may have rows that the source has lost."""
    lake.cut(8, 6, epoch=2)
    with pytest.raises(Exception, match="has nothing for the role reader"):
        lake.client("reader", "lake@2026-11-20T10:07")
    assert ids(lake.client("reader", "lake@2026-11-20T10:05").load_table(STORES)) == [32, 64]


def read(source: str, lsn: int, minute: float) -> tuple[Any, ...]:
    """A source that was read so far, at that minute."""
    return source, 1, lsn, BEGUN + minute * timedelta(minutes=1)


def test_what_was_not_read_is_refused_and_not_answered_from_an_older_cut(lake: Lake) -> None:
    """A client had yesterday's rows while ingestion was down, and a commit that it had just made was missing."""
    lake.rows.known = [read("shop", 80, 5)]
    assert ids(lake.client("reader", "lake@2026-11-20T10:05").load_table(STORES)) == [32, 64]
    assert ids(lake.client("reader", "lake@shop=0/50").load_table(STORES)) == [32, 64]
    with pytest.raises(Exception, match=r"shop=0/51 is not in the lake yet: shop has been read until shop=1:0/50; .*"):
        lake.client("reader", "lake@shop=0/51")
    until = "shop has been read until 2026-11-20 10:05:00 UTC only: .*; ask for lake@2026-11-20T10:05:00 or earlier"
    with pytest.raises(Exception, match=until):
        lake.client("reader", "lake@2026-11-20T10:59")
    lake.rows.known = [read("shop", 80, 60)]
    assert ids(lake.client("reader", "lake@2026-11-20T11:00").load_table(STORES)) == [32, 64], "it is idle"


def test_of_several_sources_those_that_were_not_read_have_no_tables(lake: Lake) -> None:
    """One that was removed, or is read once a night, must not keep others from being asked by time."""
    lake.catalog.create_namespace("raw_bank")
    lake.catalog.create_table(accounts := ("raw_bank", "accounts"), SCHEMA)
    lake._list(CUTS, 7, 1, 1, source="bank", accounts=lake._append(accounts, 7))
    lake.rows.known = [read("shop", 80, 5), read("bank", 8, 59)]
    client = lake.client("lakehouse", "lake@2026-11-20T10:59")
    with pytest.raises(NoSuchTableError, match=r"no table raw_shop.stores in that state: .* was not read until then"):
        client.load_table(RAW)
    assert ids(client.load_table(accounts)) == [7]
    assert ids(lake.client("lakehouse", "lake@2026-11-20T10:05").load_table(RAW)) == [16, 32, 48, 64]
    with pytest.raises(Exception, match="has nothing for the role reader; shop has been read until 2026-11-20 10:05"):
        lake.client("reader", "lake@2026-11-20T10:59")


def test_a_pin_says_of_which_cut_its_tables_are_and_not_where_they_stand_now(lake: Lake) -> None:
    for name in (STORES, RAW):
        table = lake.catalog.load_table(name)
        snapshot = table.snapshots()[0].snapshot_id if name == STORES else table.snapshots()[1].snapshot_id
        table.manage_snapshots().create_tag(snapshot, "pin_close").commit()
        with lake.catalog.load_table(name).transaction() as transaction:
            transaction.set_properties({"lakehouse.pin.close": "bank=1:0/7,shop=1:0/20"})
    writer = lake.client("lakehouse", "lake@pin:close")
    assert states(writer.load_table(STORES)) == ([32], {"lakehouse.cut": "shop=1:0/20"})
    assert states(writer.load_table(RAW)) == ([16, 32], {"lakehouse.cut": "shop=1:0/20"})


def test_copies_that_are_being_built_are_no_tables(lake: Lake) -> None:
    writer = lake.client("lakehouse", "lake")
    assert ("next_mirror_shop",) not in writer.list_namespaces()
    with pytest.raises(NoSuchTableError):
        writer.load_table(("next_mirror_shop", "stores"))


def test_the_newest_state_says_where_it_stands(lake: Lake) -> None:
    table = lake.client("reader", "lake").load_table(STORES)
    assert states(table) == ([32, 64], {"lakehouse.position": "1:0/41", "lakehouse.mirror": "{}"})


def test_nothing_is_given_out_whose_line_cannot_be_written(lake: Lake, tmp_path: Path) -> None:
    """Reads went on unlogged on a full disk."""
    reader = lake.client("reader", "lake")
    assert reader.load_table(STORES)
    lake.log.unlink()
    lake.log.symlink_to("/dev/full")
    with pytest.raises(Exception, match="the access log cannot be written"):
        reader.load_table(STORES)
    with pytest.raises(NoSuchTableError):
        reader.load_table(("mirror_shop", "none"))
    lake.log.unlink()
    assert reader.load_table(STORES)
    assert [json.loads(line)["name"] for line in lake.log.read_text().splitlines()] == ["stores"]
