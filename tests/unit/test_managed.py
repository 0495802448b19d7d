"""What `prepare --check` says on a provider's server, known by the role that only this provider has."""

from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from pydantic import SecretStr

from ingestion.sources.findings import Finding
from ingestion.sources.postgres.connection import connect_source
from ingestion.sources.postgres.setup import managed
from ingestion.sources.postgres.setup.server import server_findings
from lakehouse.declarations import Source
from lakehouse.declarations.policies import LoadPolicy
from lakehouse.settings import Settings, SourceSettings, load_settings

SHOP = Source(name="shop", description="", load=LoadPolicy(), tables=())
SAYS = {
    "rds_superuser": "GRANT rds_replication TO",
    "cloudsqlsuperuser": "as a member of cloudsqlsuperuser",
    "azure_pg_admin": "as a member of azure_pg_admin",
    "neon_superuser": "in Neon's console",
    "supabase_admin": "REPLICATION as postgres",
}
TOKENS = {
    "db.rds.amazonaws.com:5432/?Action=connect&DBUser=lake&X-Amz-Expires=900&X-Amz-Signature=c0ffee": "AWS IAM",
    "ya29.a0AfH6SMBx-c0ffee": "Google Cloud IAM",
    "eyJhbGciOiJub25lIn0.eyJleHAiOjB9.c0ffee": "Microsoft Entra ID",
}


def found(cluster: str, tmp_path: Path, password: str = "") -> dict[str, Finding]:
    """What is told of the server to a role that may not replicate."""
    url = cluster.replace("postgres@", f"lake:{quote(password, safe='')}@")
    settings: Settings = load_settings(home=tmp_path)
    settings = settings.model_copy(update={"sources": {"shop": SourceSettings(url=SecretStr(url))}})
    with connect_source(settings, "shop") as connection:
        return {each.about: each for each in server_findings(connection, connection, settings, SHOP)}


@pytest.fixture(scope="module", autouse=True)
def role(cluster: str) -> None:
    with psycopg.connect(cluster, autocommit=True) as server:
        server.execute("CREATE ROLE lake LOGIN")


def test_every_provider_is_tried() -> None:
    assert {provider.marker for provider in managed.PROVIDERS} == {*SAYS}


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
