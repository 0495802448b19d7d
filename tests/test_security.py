"""Least rights, encrypted connections, no secret where it can be read, nothing filtered or quoted wrongly."""

import datetime
import ipaddress
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

from ingestion import recover_source, resnapshot, resume
from ingestion.pipeline.repair import stage
from ingestion.sources.postgres.connection import source_url
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query
from lakehouse.settings import Settings, SourceSettings
from lakehouse.text.urls import parse_url
from lakehouse_stack.processes.accounts import hand_over
from tests.clusters import ROLE, ROLE_PASSWORD, Cluster, cluster, world_in
from tests.repairing import spoil
from tests.test_ingestion import ORDERS, TABLES, assert_equal
from tests.world import World, make_world, superuser

pytestmark = pytest.mark.stack


def test_replication_and_select_are_all_the_rights_that_ingestion_has(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    role = parse_url(world.settings.source(world.source.name).url.get_secret_value()).user
    with superuser(settings, world.source.name) as admin:
        flags = "rolreplication, rolsuper, rolcreatedb, rolcreaterole, rolbypassrls, rolinherit"
        assert admin.execute(f"SELECT {flags} FROM pg_roles WHERE rolname = %s", (role,)).fetchone() == (
            True, False, False, False, False, True,
        )  # fmt: skip
        assert admin.execute("SELECT count(*) FROM pg_auth_members WHERE member = %s::regrole", (role,)).fetchone() == (
            0,
        )
        granted = admin.execute(
            "SELECT table_name, privilege_type FROM information_schema.role_table_grants WHERE grantee = %s", (role,)
        ).fetchall()
        assert sorted(granted) == [("lines", "SELECT"), ("orders", "SELECT")]
        owned = "SELECT count(*) FROM pg_shdepend WHERE refobjid = %s::regrole AND deptype = 'o'"
        assert admin.execute(owned, (role,)).fetchone() == (0,)
    with psycopg.connect(world.settings.source(world.source.name).url.get_secret_value(), autocommit=True) as reader:
        for forbidden in (
            "INSERT INTO orders VALUES (1)",
            "CREATE PUBLICATION mine FOR TABLE orders",
            "ALTER PUBLICATION lakehouse DROP TABLE orders",
            "ALTER TABLE orders REPLICA IDENTITY FULL",
            "CREATE TABLE public.mine (x int)",
        ):
            with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.SyntaxError)):
                reader.execute(forbidden)
    world.sql("INSERT INTO orders SELECT i, 'a', i, NULL FROM generate_series(1, 50) i")
    world.ingest(spark)
    world.sql("UPDATE orders SET note = 'n' WHERE id < 9", "DELETE FROM orders WHERE id > 40", "TRUNCATE lines")
    world.ingest(spark)
    assert_equal(world, "orders")


# TLS


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: str, key: Any, issuer: str, issuer_key: Any, authority: bool, hosts: tuple[x509.GeneralName, ...] = ()
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder(_name(issuer), _name(subject), key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Path]]:
    """A cluster that lets roles in over TLS with SCRAM only, and a folder with the CA it trusts and another one."""
    folder = tmp_path_factory.mktemp("ca")
    with cluster("15") as made:
        if made.admin("SELECT current_setting('ssl_library')") == [("",)]:
            pytest.skip("this machine's Postgres 15 is built without SSL")
        keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("good", "other", "server")}
        for name in ("good", "other"):
            (folder / f"{name}.pem").write_bytes(_certificate(name, keys[name], name, keys[name], authority=True))
        hosts = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        files = {
            "server.crt": _certificate("localhost", keys["server"], "good", keys["good"], False, hosts),
            "server.key": keys["server"].private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
            "pg_hba.conf": b"host all postgres 127.0.0.1/32 trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n",
        }
        for name, content in files.items():
            (made.data / name).write_bytes(content)
            (made.data / name).chmod(0o600)
            hand_over(made.data / name, made.account)
        made.admin(
            "ALTER SYSTEM SET ssl = on", "ALTER SYSTEM SET log_connections = on", "SELECT pg_reload_conf()",
        )  # fmt: skip
        yield made, folder


def encrypted_world(made: Cluster, settings: Settings, options: str, host: str = "127.0.0.1") -> World:
    """A world whose run-time role connects with these libpq parameters."""
    name = f"t{uuid.uuid4().hex[:10]}"
    world = world_in(made, settings, name, ORDERS, TABLES)
    url = f"postgresql://{ROLE}:{ROLE_PASSWORD}@{host}:{made.port}/{name}?{options}"
    sources = {name: SourceSettings(url=SecretStr(url))}
    return World(world.settings.model_copy(update={"sources": sources}), world.source, world.owner_url)


def test_every_connection_is_scram_over_verified_tls(
    encrypted: tuple[Cluster, Path], settings: Settings, spark: Any
) -> None:
    """psycopg, ADBC in the Spark tasks, and the replication connections."""
    made, folder = encrypted
    password = made.admin(f"SELECT left(rolpassword, 13) FROM pg_authid WHERE rolname = '{ROLE}'")
    assert password == [("SCRAM-SHA-256",)]
    world = encrypted_world(made, settings, f"sslmode=verify-full&sslrootcert={folder}/good.pem")
    before = len((made.data / "server.log").read_text())
    world.sql("INSERT INTO orders SELECT i, 'a', i, NULL FROM generate_series(1, 50) i")
    world.ingest(spark)
    world.sql("UPDATE orders SET note = 'n' WHERE id < 9")
    world.ingest(spark)
    assert_equal(world, "orders")
    log = (made.data / "server.log").read_text()[before:].splitlines()
    authorized = [line for line in log if f"connection authorized: user={ROLE}" in line]
    assert authorized and all("SSL enabled (protocol=TLSv1." in line for line in authorized)
    assert any("replication connection authorized" in line for line in authorized)
    assert any("method=scram-sha-256" in line for line in log)


@pytest.mark.parametrize(
    ("authority", "host", "message"),
    [("other", "127.0.0.1", "certificate verify failed"), ("good", "db.example", "does not match host name")],
)
def test_a_server_that_cannot_prove_its_name_is_refused(
    encrypted: tuple[Cluster, Path], settings: Settings, spark: Any, authority: str, host: str, message: str
) -> None:
    """By psycopg and by ADBC alike, which bring a libpq each."""
    import adbc_driver_postgresql.dbapi as adbc

    made, folder = encrypted
    options = f"sslmode=verify-full&sslrootcert={folder}/{authority}.pem&hostaddr=127.0.0.1"
    world = encrypted_world(made, settings, options, host)
    with pytest.raises(LakehouseError, match=message) as caught:
        world.ingest(spark)
    assert "\n" not in str(caught.value) and ROLE_PASSWORD not in str(caught.value)
    assert world.raw("orders") == []
    with pytest.raises(adbc.Error, match=message):
        adbc.connect(source_url(world.settings.source(world.source.name)))


def test_without_tls_the_server_lets_nobody_in_and_the_reason_is_one_line(
    encrypted: tuple[Cluster, Path], settings: Settings, spark: Any
) -> None:
    made, _ = encrypted
    world = encrypted_world(made, settings, "sslmode=disable")
    with pytest.raises(LakehouseError, match="no encryption") as caught:
        world.ingest(spark)
    assert "\n" not in str(caught.value)


# rows and columns that must not be lost or seen


POLICY = "CREATE POLICY even ON orders FOR SELECT USING (id % 2 = 0)"


def test_row_level_security_never_filters_silently(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders SELECT i, 'a', i, NULL FROM generate_series(1, 50) i")
    world.sql("ALTER TABLE orders ENABLE ROW LEVEL SECURITY", POLICY)
    (aside,) = world.ingest(spark).aside
    assert aside.name == "orders" and "row-level security policy for table" in aside.reason and "\n" not in aside.reason
    assert world.raw("orders") == []
    world.sql("ALTER TABLE orders DISABLE ROW LEVEL SECURITY")
    assert not resume(world.settings, world.declarations, world.source.name, ["orders"], spark).aside
    world.sql("ALTER TABLE orders ENABLE ROW LEVEL SECURITY", "INSERT INTO orders VALUES (51, 'odd', 1, NULL)")
    world.ingest(spark)
    assert_equal(world, "orders")


def test_a_table_that_the_source_refuses_to_show_does_not_hold_up_the_repair_of_another(
    settings: Settings, spark: Any
) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL)", "INSERT INTO lines VALUES (1, 1, 1)")
    world.ingest(spark)
    world.sql("ALTER TABLE orders ENABLE ROW LEVEL SECURITY", POLICY, "ALTER TABLE lines ADD price int DEFAULT 7")
    report = resnapshot(world.settings, world.declarations, world.source.name, ["orders"], spark)
    assert [aside.name for aside in report.aside] == ["orders"]
    assert_equal(world, "orders")
    assert_equal(world, "lines")


def test_row_level_security_that_comes_to_hold_during_a_repair_parks_its_table_with_the_way_out(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(settings, ORDERS, TABLES)
    role = parse_url(world.settings.source(world.source.name).url.get_secret_value()).user
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL)", "INSERT INTO lines VALUES (1, 1, 1)")
    world.sql("ALTER TABLE orders ENABLE ROW LEVEL SECURITY", POLICY)
    original = stage.compare

    def bypass(how: str) -> None:
        with superuser(settings) as admin:
            admin.execute(f"ALTER ROLE {role} {how}")

    def lose_the_right(*arguments: Any) -> Any:
        found = original(*arguments)
        bypass("NOBYPASSRLS")
        return found

    bypass("BYPASSRLS")
    try:
        world.ingest(spark)
        spoil(world, "orders", lambda rows: [row | {"note": "invented"} for row in rows])
        monkeypatch.setattr(stage, "compare", lose_the_right)
        report = recover_source(world.settings, world.declarations, world.source.name, spark)
    finally:
        bypass("NOBYPASSRLS")
    (aside,) = report.aside
    name = world.source.name
    assert (aside.name, aside.state) == ("orders", "parked")
    assert aside.reason == (
        f"source {name!r}, table 'orders': a comparison: query would be affected by row-level security policy for "
        f'table "orders": `lakehouse prepare {name} --check` says what the role needs; then `lakehouse ingest '
        f"--resume {name}.orders`"
    )
    monkeypatch.undo()
    world.sql("ALTER TABLE orders DISABLE ROW LEVEL SECURITY")
    assert not resume(world.settings, world.declarations, name, ["orders"], spark).aside
    assert_equal(world, "orders")
    assert_equal(world, "lines")


LEFT_OUT, MASKED, DIGESTED = "left-out-5c1d", "masked-null-77ab", "digested-e9f0"


def test_columns_left_out_or_masked_are_in_no_data_file_and_no_log(settings: Settings, spark: Any) -> None:
    ddl = (
        "CREATE TABLE people (id int PRIMARY KEY, secret text, salary text, email text, city text);"
        "ALTER TABLE people REPLICA IDENTITY FULL"
    )
    policy = RawPolicy(
        relation="public.people", key=("id",), exclude=("secret",), mask={"salary": "null", "email": "sha256"}
    )
    world = make_world(settings, ddl, {"people": policy})
    row = f"'{LEFT_OUT}', '{MASKED}', '{DIGESTED}', 'Brno'"
    world.sql(f"INSERT INTO people SELECT i, {row} FROM generate_series(1, 20) i")
    world.ingest(spark)
    world.sql(
        f"INSERT INTO people SELECT i, {row} FROM generate_series(21, 40) i", "UPDATE people SET id = 100 WHERE id = 3",
        "UPDATE people SET city = 'Praha' WHERE id = 30", "DELETE FROM people WHERE id < 3",
    )  # fmt: skip
    world.ingest(spark)
    files = [
        f for f in (settings.home / "data" / "s3").rglob("*") if f.is_file() and f"raw_{world.source.name}" in str(f)
    ]
    tables = [pq.read_table(f) for f in files if f.suffix == ".parquet"]
    values = {str(v) for t in tables for column in t.columns for v in column.to_pylist()}
    assert {"Brno", "Praha"} <= values and len(tables) >= 2
    assert not [v for v in values if LEFT_OUT in v or MASKED in v or DIGESTED in v]
    assert all("secret" not in t.column_names for t in tables)
    logs = [f for f in (settings.home / "logs").iterdir() if f.is_file()]
    for file in [*files, *logs]:
        content = file.read_bytes()
        assert not [secret for secret in (LEFT_OUT, MASKED, DIGESTED) if secret.encode() in content], file


# quoting


ODD_TABLE, ODD_COLUMN = 'Robert"); DROP TABLE x', "a\"b'; DROP TABLE x --"


def test_names_made_to_break_out_of_their_quotes_are_only_names(settings: Settings, spark: Any) -> None:
    world = make_world(
        settings, "CREATE TABLE x (id int PRIMARY KEY)", {"x": RawPolicy(relation="public.x", key=("id",))}
    )
    table, column = (part.replace('"', '""') for part in (ODD_TABLE, ODD_COLUMN))
    world.sql(
        f'CREATE TABLE "{table}" (id int PRIMARY KEY, "{column}" text)',
        f"INSERT INTO \"{table}\" VALUES (1, 'it''s'), (2, '\"')",
    )
    policy = RawPolicy(relation=f'public."{table}"', key=("id",), alias={ODD_COLUMN: "odd"})
    plain = RawPolicy(relation="public.x", key=("id",))
    from ingestion.sources.postgres.setup import prepare
    from tests.world import declared_source

    publication = "odd\"'; --"
    configured = world.settings.source(world.source.name).model_copy(update={"publication": publication})
    mine = world.settings.model_copy(update={"sources": {world.source.name: configured}})
    world = World(mine, declared_source(world.source.name, {"robert": policy, "x": plain}), world.owner_url)
    prepare(world.settings, world.source)
    world.ingest(spark)
    world.sql(f'UPDATE "{table}" SET "{column}" = \'O\'\'Neil"\' WHERE id = 1', "INSERT INTO x VALUES (7)")
    world.ingest(spark)
    assert {k: row["odd"] for k, row in world.current("robert").items()} == {(1,): "O'Neil\"", (2,): '"'}
    assert list(world.current("x")) == [(7,)]


def test_an_odd_column_name_is_readable_in_trino_without_an_alias(settings: Settings, spark: Any) -> None:
    column = ODD_COLUMN.replace('"', '""')
    ddl = "CREATE TABLE x (id int PRIMARY KEY)"
    world = make_world(settings, ddl, {"x": RawPolicy(relation="public.x", key=("id",))})
    world.sql(f'ALTER TABLE x ADD COLUMN "{column}" text', "INSERT INTO x VALUES (1, 'value')")
    world.ingest(spark)
    world.sql("INSERT INTO x VALUES (2, 'more')")
    world.ingest(spark)
    seen = query(settings, f'SELECT "{column.lower()}" FROM raw_{world.source.name}.x ORDER BY id')
    assert [tuple(row) for row in seen] == [("value",), ("more",)]


def test_a_slot_name_that_postgres_does_not_allow_is_refused_in_one_line(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    configured = world.settings.source(world.source.name).model_copy(update={"slot": "odd\"'; --"})
    mine = world.settings.model_copy(update={"sources": {world.source.name: configured}})
    with pytest.raises(LakehouseError, match="replication slot name") as caught:
        World(mine, world.source, world.owner_url).ingest(spark)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://reader:p4ss/w0rd@127.0.0.1:5432/retail",
        "postgresql://reader:p4ss@w0rd:x@127.0.0.1/retail",
        "postgresql://reader:p4ssw0rd@127.0.0.1:nine/retail",
        "p4ssw0rd",
        "host=127.0.0.1 password=p4ssw0rd oops",
    ],
)
def test_an_address_that_cannot_be_read_is_refused_without_quoting_its_password(settings: Settings, url: str) -> None:
    from ingestion.sources.postgres.connection import connect_source
    from ingestion.state.store import connect_catalog

    sources = {"odd": SourceSettings(url=SecretStr(url))}
    odd = settings.model_copy(update={"sources": sources, "catalog_url": SecretStr(url)})
    for connect in (lambda: connect_source(odd, "odd"), lambda: connect_catalog(odd)):
        with pytest.raises(LakehouseError) as caught:
            connect()
        text = "".join(map(str, (caught.value, caught.value.__cause__)))
        assert "p4ss" not in text and "w0rd" not in text and "\n" not in text


def test_a_wrong_password_is_not_repeated_in_the_error(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    good = parse_url(world.settings.source(world.source.name).url.get_secret_value())
    url = f"postgresql://{good.user}:wr0ng-s3cret@{good.host}:{good.port}/{good.database}"
    sources = {world.source.name: SourceSettings(url=SecretStr(url))}
    wrong = World(world.settings.model_copy(update={"sources": sources}), world.source, world.owner_url)
    with pytest.raises(LakehouseError, match="password authentication failed") as caught:
        wrong.ingest(spark)
    assert "wr0ng" not in str(caught.value) and "\n" not in str(caught.value)
    assert "wr0ng" not in repr(wrong.settings) and "wr0ng" not in str(wrong.settings)
