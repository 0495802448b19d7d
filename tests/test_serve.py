"""The catalog service against the lake that it serves: every row, every role, every cut; and nobody else."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError, UnauthorizedError
from pyiceberg.schema import Schema

from lakehouse.declarations.policies import RawPolicy
from lakehouse.servers.logins import add_login, remove_login
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from tests.serving import PASSWORDS, Served, sample_lake, served
from tests.world import World, make_world

pytestmark = pytest.mark.stack

DDL = """CREATE TABLE orders (id int PRIMARY KEY, item text);
CREATE TABLE lines (id int PRIMARY KEY, amount numeric(12, 2))"""
TABLES = {name: RawPolicy(relation=f"public.{name}", key=("id",)) for name in ("orders", "lines")}

DENIED = r"ACCESS_DENIED|AccessDenied|403"


@pytest.fixture(scope="module")
def service(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sample_lake(settings, tmp_path_factory.mktemp("access")) as found:
        yield found


def rows_of(catalog: RestCatalog, *name: str) -> list[dict[str, Any]]:
    return catalog.load_table(name).scan().to_arrow().to_pylist()


def by_id(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["name"]) for row in rows)


def test_a_client_reads_what_trino_reads(settings: Settings, service: Served) -> None:
    oracle = sorted(tuple(row) for row in query(settings, "SELECT id, name FROM lake.parsed.served_stores"))
    assert len(oracle) == 3
    for role in ("reader", "privacy", "writer"):
        assert by_id(rows_of(service.client(role), "parsed", "served_stores")) == oracle
    query(settings, "INSERT INTO lake.parsed.served_stores VALUES (4, 'new')")
    assert (4, "new") in by_id(rows_of(service.client("reader"), "parsed", "served_stores"))
    query(settings, "DELETE FROM lake.parsed.served_stores WHERE id = 4")
    assert by_id(rows_of(service.client("reader"), "parsed", "served_stores")) == oracle


@pytest.mark.slow
def test_each_cut_is_a_warehouse_that_holds_all_tables_of_then(settings: Settings, spark: Any, service: Served) -> None:
    world = make_world(settings, DDL, TABLES)
    moments: list[tuple[str, str, dict[str, list[tuple[Any, ...]]]]] = []
    for number in range(4):
        world.sql(f"INSERT INTO orders VALUES ({number}, 'a')", f"INSERT INTO lines VALUES ({number}, {number})")
        if number == 2:
            world.sql("ALTER TABLE orders ADD note text", "UPDATE orders SET note = 'x' WHERE id = 1")
        world.ingest(spark)
        [(lsn, at)] = world.rows(
            "SELECT pg_current_wal_lsn()::text, to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US')"
        )
        moments.append((lsn, at, {name: states(world, name) for name in TABLES}))
        time.sleep(0.05)
    world.ingest(spark)  # a position beyond what was read is refused
    namespace = f"raw_{world.source.name}"
    for lsn, at, copies in moments:
        for warehouse in (f"lake@{world.source.name}={lsn}", f"lake@{at}"):
            client = service.client("writer", warehouse)
            found = {name: replayed(rows_of(client, namespace, name)) for name in TABLES}
            assert found == copies, warehouse
    assert service.client("writer", f"lake@{world.source.name}={moments[0][0]}").list_namespaces() == [(namespace,)]
    first = service.client("writer", f"lake@{world.source.name}={moments[0][0]}").load_table((namespace, "orders"))
    assert "note" not in first.schema().column_names
    assert f".at-{first.metadata.current_snapshot_id}-{world.source.name}-1-" in first.metadata_location
    assert first.properties["lakehouse.cut"].startswith(f"{world.source.name}=1:")
    with first.io.new_input(first.metadata_location).open() as file:
        assert f'"current-snapshot-id": {first.metadata.current_snapshot_id}' in file.read().decode()
    for wrong, why in (
        ("lake@2020-01-01", "no cut was published"),
        ("lake@2999-01-01", "in the future"),
        ("lake@nobody=0/1", "no cut of nobody was published"),
        ("pond", "there is no warehouse"),
    ):
        with pytest.raises(Exception, match=why):
            service.client("writer", wrong)


def states(world: World, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(map(str, row)) for row in world.rows(f"SELECT * FROM {table}"))


def replayed(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The newest version of each row, in the source's columns."""
    newest: dict[Any, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["_commit_lsn"], row["_seq"])):
        newest[row["id"]] = row
    return sorted(tuple(str(v) for k, v in row.items() if not k.startswith("_")) for row in newest.values())


def test_a_reader_gets_no_raw_table_and_none_with_personal_columns(
    settings: Settings, spark: Any, service: Served
) -> None:
    world = make_world(settings, DDL, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a')")
    world.ingest(spark)
    reader, raw = service.client("reader"), (f"raw_{world.source.name}", "orders")
    assert reader.list_namespaces() == [("parsed",)]
    assert sorted(reader.list_tables("parsed")) == [("parsed", "served_people"), ("parsed", "served_stores")]
    with pytest.raises(NoSuchTableError):
        reader.load_table(raw)
    with pytest.raises(NoSuchTableError):
        service.client("privacy").load_table(raw)
    with pytest.raises(ForbiddenError, match=r"personal columns \(email\): use a login that may read them"):
        reader.load_table(("parsed", "served_people"))
    assert rows_of(service.client("privacy"), "parsed", "served_people") == [{"id": 1, "email": "ann@example.com"}]
    assert len(rows_of(service.client("writer"), *raw)) == 1
    names = [(line["what"], line.get("name"), line.get("login"), line["status"]) for line in service.accesses()]
    assert ("table", "served_people", "reader", 403) in names
    assert ("table", "served_people", "privacy", 200) in names


def test_keys_open_one_table_and_nothing_else(settings: Settings, service: Served) -> None:
    keys = service.client("reader").load_table(("parsed", "served_stores")).io.properties
    people = service.client("privacy").load_table(("parsed", "served_people"))
    files = pafs.S3FileSystem(
        access_key=keys["s3.access-key-id"],
        secret_key=keys["s3.secret-access-key"],
        session_token=keys["s3.session-token"],
        endpoint_override=keys["s3.endpoint"].removeprefix("http://"),
        scheme="http",
        region=keys["s3.region"],
    )
    own = service.client("reader").load_table(("parsed", "served_stores"))
    file, *_ = [task.file.file_path.removeprefix("s3://") for task in own.scan().plan_files()]
    assert files.open_input_file(file).read(4) == b"PAR1"
    other, *_ = [task.file.file_path.removeprefix("s3://") for task in people.scan().plan_files()]
    folder = own.location().removeprefix("s3://")
    for closed in (other, f"{folder}/../{other.removeprefix('warehouse/')}", f"{folder}s/x", "other/x"):
        with pytest.raises(OSError, match=DENIED):
            files.open_input_file(closed)
    with pytest.raises(OSError, match=DENIED):
        files.get_file_info(pafs.FileSelector(folder))
    with (
        pytest.raises(OSError, match=DENIED),
        files.open_output_stream(f"{folder}/data/x") as out,
    ):
        out.write(b"x")
    with pytest.raises(OSError, match=DENIED):
        files.delete_file(file)
    assert files.open_input_file(file).read(4) == b"PAR1"
    assert settings.s3.secret_key is not None
    assert settings.s3.secret_key.get_secret_value() not in str(keys)


def test_nothing_is_written_through_the_service(settings: Settings, service: Served) -> None:
    writer = service.client("writer")
    before = query(settings, "SELECT count(*) FROM lake.parsed.served_stores")
    for attempt in (
        lambda: writer.drop_table(("parsed", "served_stores")),
        lambda: writer.create_table(("parsed", "mine"), Schema()),
        lambda: writer.create_namespace("mine"),
        lambda: writer.rename_table(("parsed", "served_stores"), ("parsed", "mine")),
        lambda: writer.load_table(("parsed", "served_stores")).transaction().set_properties(a="b").commit_transaction(),
    ):
        with pytest.raises((NotImplementedError, ForbiddenError), match=r"does not support endpoint|is read-only"):
            attempt()
    token = service.token("lakehouse", PASSWORDS["lakehouse"])[1]["access_token"]
    table = "/v1/lake/namespaces/parsed/tables/served_stores"
    for method, path in (
        ("DELETE", table),
        ("DELETE", f"{table}?purgeRequested=true"),
        ("POST", table),
        ("POST", f"{table}/plan"),
        ("POST", "/v1/lake/namespaces"),
        ("DELETE", "/v1/lake/namespaces/parsed"),
        ("POST", "/v1/lake/namespaces/parsed/properties"),
        ("POST", "/v1/lake/namespaces/parsed/tables"),
        ("POST", "/v1/lake/namespaces/parsed/register"),
        ("POST", "/v1/lake/namespaces/parsed/views"),
        ("DELETE", "/v1/lake/namespaces/parsed/views/served_view"),
        ("POST", "/v1/lake/tables/rename"),
        ("POST", "/v1/lake/transactions/commit"),
    ):
        status, answer = service.ask(method, path, b"{}", token)
        assert (status, answer["error"]["type"]) == (403, "ForbiddenException"), (method, path)
    assert query(settings, "SELECT count(*) FROM lake.parsed.served_stores") == before


def test_a_login_is_needed_and_ends_when_it_is_removed(service: Served) -> None:
    assert service.ask("GET", "/v1/config")[0] == 401
    assert service.ask("GET", "/v1/lake/namespaces", token="x.y")[0] == 401
    assert service.token("reader", "wrong") == (
        401,
        {"error": "invalid_client", "error_description": "login or password is wrong"},
    )
    with pytest.raises(UnauthorizedError):
        RestCatalog("x", uri=service.uri, token="x.y")
    password = add_login(service.access, "ann", "reader")
    status, answer = service.token("ann", password)
    assert (status, answer["token_type"]) == (200, "bearer")
    assert service.ask("GET", "/v1/lake/namespaces", token=answer["access_token"]) == (
        200,
        {"namespaces": [["parsed"]]},
    )
    remove_login(service.access, "ann")
    assert service.ask("GET", "/v1/lake/namespaces", token=answer["access_token"])[0] == 401
    text = service.log.read_text()
    assert not any(secret in text for secret in (*PASSWORDS.values(), password, answer["access_token"]))


def test_guessing_passwords_is_slowed_down(settings: Settings, tmp_path: Path) -> None:
    """Right passwords were counted too: a tool that connects thirty times within a minute was locked out."""
    with served(settings, tmp_path / "access", ()) as service:
        assert {service.token("reader", PASSWORDS["reader"])[0] for _ in range(30)} == {200}
        statuses = [service.token("reader", f"guess {number}")[0] for number in range(30)]
        assert statuses[:20] == [401] * 20
        assert 429 in statuses[20:]


def test_paths_that_mean_nothing_are_refused_in_the_specifications_form(service: Served) -> None:
    _, answer = service.token("lakehouse", PASSWORDS["lakehouse"])
    token = answer["access_token"]
    for path, status in (
        ("/v1/lake/namespaces/nobody", 404),
        ("/v1/lake/namespaces/parsed/tables/nobody", 404),
        ("/v1/lake/namespaces/parsed/tables/served_view", 404),
        ("/v1/lake/namespaces/parsed/views/served_stores", 404),
        ("/v1/lake/namespaces/parsed%27--/tables/x", 404),
        ("/v1/other/namespaces", 404),
        ("/v1/as-of.x/namespaces", 404),
        ("/v1/lake/namespaces/parsed/tables/a%00b", 404),
        ("/v1/lake/namespaces/parsed/tables/a%2Fb", 404),
        ("/v1/nothing", 404),
    ):
        found, body = service.ask("GET", path, token=token)
        assert (found, body["error"]["code"]) == (status, status), path
    view = service.ask("GET", "/v1/lake/namespaces/parsed/views/served_view", token=token)[1]
    assert "served_stores" in view["metadata"]["versions"][0]["representations"][0]["sql"]
    assert service.ask("GET", "/v1/lake/namespaces/parsed/views", token=token)[1] == {
        "identifiers": [{"namespace": ["parsed"], "name": "served_view"}]
    }
