"""The catalog's database and the object store over TLS, with an authority of the test's own, and with a wrong one."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from pydantic import SecretStr

from lakehouse.settings import S3Settings, Settings
from lakehouse_stack.downloads.artifacts import artifact
from lakehouse_stack.downloads.java import server_java
from lakehouse_stack.home.certificate import make_certificate
from lakehouse_stack.processes.accounts import hand_over
from lakehouse_stack.servers.postgres import run_sql
from lakehouse_stack.templates.render import render
from tests.clusters import Cluster, cluster, programs_of
from tests.ports import free_port
from tests.slots import until
from tests.test_ingestion import ORDERS, TABLES, assert_equal
from tests.world import World, _plain, make_world

KEY, SECRET, PASSWORD = "key-of-the-store", "store-secret-5c1f6a", "catalog-7d0b9e"
HOSTS = ("127.0.0.1", "localhost")

# What Spark's JVM does with the lake: read what was landed, write, and delete by both clients.
JVM = """
import json, sys
from lakehouse.catalog.writing.bulk_delete import delete_objects
from lakehouse.catalog.open import open_catalog
from lakehouse.servers.spark import spark_session
from lakehouse.settings import load_settings
given = json.loads(sys.stdin.read())
settings = load_settings(**given["settings"])
spark = spark_session(settings, "tls")
name = f"{settings.catalog_name}.{given['table']}"
print("rows", spark.sql(f"SELECT count(*) FROM {name}").collect()[0][0])
spark.sql(f"DELETE FROM {name} WHERE id = 1")
catalog = open_catalog(settings)
table = catalog.load_table(given["table"])
with table.io.new_output(table.location() + "/data/left.parquet").create() as file:
    file.write(b"x")
delete_objects(table.io, [table.location() + "/data/left.parquet"])
print("left", table.io.new_input(table.location() + "/data/left.parquet").exists())
"""


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `server.pem` (key and certificate), `good.pem` (the authority that signed it), and `other.pem`."""
    folder = tmp_path_factory.mktemp("tls")
    server, good = make_certificate(HOSTS, datetime.now(UTC))
    (folder / "server.pem").write_text(server)
    (folder / "good.pem").write_text(good)
    (folder / "other.pem").write_text(make_certificate(HOSTS, datetime.now(UTC))[1])
    return folder


@pytest.fixture(scope="module")
def store(authorities: Path, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of an S3 server that has no port without TLS."""
    folder, port = tmp_path_factory.mktemp("store"), free_port()
    pem = (authorities / "server.pem").read_bytes()
    keystore = pkcs12.serialize_key_and_certificates(
        b"s3", load_pem_private_key(pem, None), x509.load_pem_x509_certificate(pem), None,  # type: ignore[arg-type]
        BestAvailableEncryption(b"changeit"),
    )  # fmt: skip
    (folder / "keystore.p12").write_bytes(keystore)
    (folder / "data" / "warehouse").mkdir(parents=True)
    (folder / "s3proxy.properties").write_text(
        f"s3proxy.secure-endpoint=https://127.0.0.1:{port}\ns3proxy.keystore-path={folder}/keystore.p12\n"
        f"s3proxy.keystore-password=changeit\ns3proxy.authorization=aws-v2-or-v4\ns3proxy.identity={KEY}\n"
        f"s3proxy.credential={SECRET}\njclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={folder}/data\n"
    )
    jar = settings.artifacts / artifact("s3proxy").target
    command = [str(server_java()), "-Xmx256m", "-jar", str(jar), "--properties", str(folder / "s3proxy.properties")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers(port), 60)
        yield f"https://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def answers(port: int) -> bool:
    import socket

    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def catalog(authorities: Path) -> Iterator[Cluster]:
    """A catalog database that lets roles in over TLS only."""
    with cluster("15") as made:
        if made.admin("SELECT current_setting('ssl_library')") == [("",)]:
            pytest.skip("this machine's Postgres 15 is built without SSL")
        pem = (authorities / "server.pem").read_text()
        rules = "host all postgres 127.0.0.1/32 trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
        for name, content in {"server.crt": pem, "server.key": pem, "pg_hba.conf": rules}.items():
            (made.data / name).write_text(content)
            (made.data / name).chmod(0o600)
            hand_over(made.data / name, made.account)
        made.admin("ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()")
        roles = ("LAKEHOUSE_CATALOG_PASSWORD", "LAKEHOUSE_TRINO_CATALOG_PASSWORD", "LAKEHOUSE_DAGSTER_PASSWORD")
        run_sql(
            programs_of("15"), made.port, "", render("catalog.sql.j2", generated=False), dict.fromkeys(roles, PASSWORD)
        )
        yield made


def secured(world: World, catalog: Cluster, store: str, authorities: Path, *, of: str, s3: str | None) -> World:
    """The world, whose lake is behind TLS; `of` signs the catalog's database, `s3` the store, as far as it knows."""
    options = f"sslmode=verify-full&sslrootcert={authorities}/{of}.pem"
    changed = {
        "catalog_url": SecretStr(catalog.url("lake", "lakehouse", PASSWORD) + f"?{options}"),
        "s3": S3Settings(
            endpoint=store, access_key=SecretStr(KEY), secret_key=SecretStr(SECRET),
            ca=authorities / f"{s3}.pem" if s3 else None,
        ),
    }  # fmt: skip
    return replace(world, settings=world.settings.model_copy(update=changed))


def in_the_jvm(world: World, table: str) -> subprocess.CompletedProcess[str]:
    given = {"settings": json.loads(_plain(world.settings)), "table": table}
    command = [sys.executable, "-c", JVM]
    return subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=240)


@pytest.fixture
def world(settings: Settings) -> World:
    made = make_world(settings, ORDERS, TABLES)
    made.sql("INSERT INTO orders SELECT i, 'a', i, NULL FROM generate_series(1, 50) i")
    return made


@pytest.mark.slow
def test_catalog_and_store_are_reached_over_tls_by_every_client(
    world: World, catalog: Cluster, store: str, authorities: Path
) -> None:
    """psycopg, SQLAlchemy, JDBC; PyArrow, obstore, Iceberg's Java client."""
    encrypted = secured(world, catalog, store, authorities, of="good", s3="good")
    done = encrypted.driver()
    assert done.returncode == 0, done.stderr
    assert_equal(encrypted, "orders")
    ran = in_the_jvm(encrypted, f"raw_{world.source.name}.orders")
    assert ran.stdout.splitlines() == ["rows 50", "left False"], ran.stderr[-2000:]
    plain = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE NOT ssl AND usename = 'lakehouse'"
    assert catalog.admin(plain) == [(0,)]


@pytest.mark.slow
@pytest.mark.parametrize("trusted", ["other", None])
def test_a_store_that_cannot_prove_its_name_gets_nothing(
    world: World, catalog: Cluster, store: str, authorities: Path, trusted: str | None
) -> None:
    lake = secured(world, catalog, store, authorities, of="good", s3=trusted)
    done = lake.driver()
    assert done.returncode != 0
    assert "certificate" in done.stderr.lower() and SECRET not in done.stderr, done.stderr[-2000:]


def test_a_catalog_that_cannot_prove_its_name_gets_no_password(
    world: World, catalog: Cluster, store: str, authorities: Path
) -> None:
    done = secured(world, catalog, store, authorities, of="other", s3="good").driver()
    assert done.returncode != 0
    assert "certificate verify failed" in done.stderr and PASSWORD not in done.stderr


@pytest.mark.slow  # S3's client tries again and again
def test_the_jvm_trusts_the_stores_authority_and_no_other(
    world: World, catalog: Cluster, store: str, authorities: Path
) -> None:
    good = secured(world, catalog, store, authorities, of="good", s3="good")
    assert good.driver().returncode == 0
    wrong = secured(world, catalog, store, authorities, of="good", s3="other")
    ran = in_the_jvm(wrong, f"raw_{world.source.name}.orders")
    assert ran.returncode != 0 and "rows" not in ran.stdout
    assert "PKIX" in ran.stderr or "certificate" in ran.stderr.lower(), ran.stderr[-2000:]
