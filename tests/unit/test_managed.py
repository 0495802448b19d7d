"""What `prepare --check` says on a provider's server, known by the role that only this provider has."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from pydantic import SecretStr
from throwaway_postgres import throwaway_postgres

from ingestion.sources.findings import Finding
from ingestion.sources.postgres import connection
from ingestion.sources.postgres.connection import connect_source
from ingestion.sources.postgres.setup import managed
from ingestion.sources.postgres.setup.server import server_findings
from lakehouse.declarations import Source
from lakehouse.declarations.policies import LoadPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, SourceSettings, load_settings
from tests.pages import DOCS, inline

SHOP = Source(name="shop", description="", load=LoadPolicy(), tables=())
SAYS = {
    "rds_superuser": "GRANT rds_replication TO",
    "cloudsqlsuperuser": "as a member of cloudsqlsuperuser",
    "azure_pg_admin": "as a member of azure_pg_admin",
    "neon_superuser": "in Neon's console",
    "supabase_admin": "REPLICATION as postgres",
}
PAGE = "how-to/managed-postgres.md"
OF_PAGE = {
    "Amazon RDS": "rds_superuser", "Google Cloud SQL": "cloudsqlsuperuser", "Azure Database": "azure_pg_admin",
    "Supabase": "supabase_admin", "Neon": "neon_superuser",
}  # fmt: skip
ROWS = {  # what the page's table says of each: how decoding is switched on, and how the role comes to replicate
    OF_PAGE[name.partition(",")[0]]: (decoding, right)
    for name, decoding, right in re.findall(
        r"^\| ([A-Z][^|]+) \| ([^|]+) \| ([^|]+) \|", (DOCS / PAGE).read_text(), re.MULTILINE
    )
}
TOKENS = {
    "db.rds.amazonaws.com:5432/?Action=connect&DBUser=lake&X-Amz-Expires=900&X-Amz-Signature=c0ffee": "AWS IAM",
    "ya29.a0AfH6SMBx-c0ffee": "Google Cloud IAM",
    "eyJhbGciOiJub25lIn0.eyJleHAiOjB9.c0ffee": "Microsoft Entra ID",
}


def found(cluster: str, tmp_path: Path, password: str = "", user: str = "lake") -> dict[str, Finding]:
    """What is told of the server to this role; `lake` may not replicate."""
    url = cluster.replace("postgres@", f"{user}:{quote(password, safe='')}@")
    settings: Settings = load_settings(home=tmp_path)
    settings = settings.model_copy(update={"sources": {"shop": SourceSettings(url=SecretStr(url))}})
    with connect_source(settings, "shop") as source:
        return {each.about: each for each in server_findings(source, source, settings, SHOP)}


@pytest.fixture(scope="module", autouse=True)
def role(cluster: str) -> None:
    with psycopg.connect(cluster, autocommit=True) as server:
        server.execute("CREATE ROLE lake LOGIN")


def test_every_provider_is_tried() -> None:
    assert {provider.marker for provider in managed.PROVIDERS} == {*SAYS} == {*ROWS}


@pytest.mark.parametrize("marker", SAYS)
def test_the_remedy_is_the_providers_own(cluster: str, tmp_path: Path, marker: str) -> None:
    plain = found(cluster, tmp_path)["rights"].remedy
    with psycopg.connect(cluster, autocommit=True) as server:
        server.execute(f"CREATE ROLE {marker}")  # type: ignore[arg-type]
        try:
            remedy = found(cluster, tmp_path)["rights"].remedy
        finally:
            server.execute(f"DROP ROLE {marker}")  # type: ignore[arg-type]
    assert SAYS[marker] in remedy and plain == 'run ALTER ROLE "lake" REPLICATION as a superuser'


@contextmanager
def of_provider(server: psycopg.Connection[Any], marker: str) -> Iterator[str]:
    """The role of somebody who administers such a server, which is no superuser; and no role of these afterwards."""
    server.execute(f"CREATE ROLE {marker}; CREATE ROLE rds_replication")  # type: ignore[arg-type]
    server.execute(f"CREATE ROLE boss LOGIN CREATEROLE REPLICATION IN ROLE {marker}")  # type: ignore[arg-type]
    server.execute("GRANT rds_replication TO boss WITH ADMIN OPTION")
    try:
        yield "boss"
    finally:
        server.execute(f"DROP ROLE IF EXISTS lakehouse_ingest, boss, rds_replication, {marker}")  # type: ignore[arg-type]


@pytest.mark.parametrize("marker", SAYS)
def test_what_the_page_says_lets_the_role_replicate(cluster: str, tmp_path: Path, marker: str) -> None:
    """By the statements of its table, run by somebody who has what the provider gives."""
    made = inline(PAGE, "CREATE ROLE", ("…", "secret"))
    statements = re.findall("`((?:GRANT|ALTER)[^`]+)`", ROWS[marker][1])
    assert statements or marker == "neon_superuser", "there the console makes the role"
    with psycopg.connect(cluster, autocommit=True) as server, of_provider(server, marker) as boss:
        with psycopg.connect(cluster.replace("postgres@", f"{boss}@"), autocommit=True) as admin:
            admin.execute(made)  # type: ignore[arg-type]
            before = found(cluster, tmp_path, user="lakehouse_ingest")["rights"].remedy
            for statement in statements:
                admin.execute(statement)
        assert SAYS[marker] in before
        assert ("rights" in found(cluster, tmp_path, user="lakehouse_ingest")) == (not statements)


def test_the_page_and_the_check_switch_decoding_on_in_the_same_way(tmp_path: Path) -> None:
    with throwaway_postgres(wal_level="replica") as url, psycopg.connect(url, autocommit=True) as server:
        server.execute("CREATE ROLE lake LOGIN")
        for marker, (decoding, _) in ROWS.items():
            with of_provider(server, marker):
                told = found(url, tmp_path)["wal_level"]
            assert told.weight == "in the way"
            parameters = re.findall("`([^`]+)`", decoding)
            assert all(each in told.remedy for each in parameters), told.remedy
            assert parameters or marker in ("neon_superuser", "supabase_admin")


@pytest.mark.parametrize(("password", "whose"), TOKENS.items())
def test_a_token_in_place_of_a_password_is_told_and_not_shown(
    cluster: str, tmp_path: Path, password: str, whose: str
) -> None:
    """The follower ran for an hour, and could not connect again."""
    warned = found(cluster, tmp_path, password)["password"]
    assert warned.weight == "warning" and f"is a token of {whose}" in warned.says
    assert "give the role a password" in warned.remedy and "c0ffee" not in warned.line


def test_a_password_is_no_token(cluster: str, tmp_path: Path) -> None:
    for password in ("", "secret", "eyJ", "eyJ.a", "my-ya29.word", "X-Amz-Signature"):
        assert "password" not in found(cluster, tmp_path, password)


def test_a_pooler_that_drops_the_session_settings_is_refused(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Policies would filter rows of a snapshot in silence, and floats come with fewer digits."""
    kept = connection.source_url
    monkeypatch.setattr(connection, "source_url", lambda given: re.sub("options=[^&]*&?", "", kept(given)))
    with pytest.raises(LakehouseError, match=r"DateStyle is ISO, MDY\): something between drops `options`.*itself$"):
        found(cluster, tmp_path)


@pytest.mark.parametrize("replication", [False, True])
def test_a_pooler_that_passes_on_what_a_server_reports_and_drops_the_rest_is_refused(
    cluster: str, tmp_path: Path, replication: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PgBouncer from 1.20 on reads `options` itself: DateStyle was right, and policies filtered rows."""
    settings = Settings(home=tmp_path, sources={"shop": SourceSettings(url=SecretStr(cluster))})
    connect_source(settings, "shop", replication=replication).close()
    reported = "-c DateStyle=ISO,YMD -c TimeZone=UTC -c IntervalStyle=postgres"
    kept = connection.source_url
    passed = f"options={quote(reported)}&"
    monkeypatch.setattr(connection, "source_url", lambda given: re.sub("options=[^&]*&?", passed, kept(given)))
    with pytest.raises(LakehouseError, match=r"\(lock_timeout is 0\): something between drops"):
        connect_source(settings, "shop", replication=replication)
