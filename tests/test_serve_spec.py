"""The catalog service's answers, against the schemas of Iceberg's OpenAPI document."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from jsonschema import Draft202012Validator

from lakehouse.settings import Settings
from tests.serving import PASSWORDS, Served, sample_lake

pytestmark = pytest.mark.stack

SPECIFICATION: dict[str, Any] = json.loads((Path(__file__).parent / "fixtures" / "iceberg_rest.json").read_text())
TABLES, VIEWS = "/v1/lake/namespaces/parsed/tables", "/v1/lake/namespaces/parsed/views"


@pytest.fixture(scope="module")
def service(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sample_lake(settings, tmp_path_factory.mktemp("access")) as found:
        yield found


@pytest.fixture(scope="module")
def token(service: Served) -> str:
    return str(service.token("reader", PASSWORDS["reader"])[1]["access_token"])


def assert_is(answer: dict[str, Any], schema: str) -> None:
    components = SPECIFICATION["components"]
    assert schema in components["schemas"]
    Draft202012Validator({"$ref": f"#/components/schemas/{schema}", "components": components}).validate(answer)


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("/v1/config", "CatalogConfig"),
        ("/v1/config?warehouse=lake", "CatalogConfig"),
        ("/v1/lake/namespaces", "ListNamespacesResponse"),
        ("/v1/lake/namespaces?parent=parsed", "ListNamespacesResponse"),
        ("/v1/lake/namespaces?pageSize=1&pageToken=", "ListNamespacesResponse"),
        ("/v1/lake/namespaces/parsed", "GetNamespaceResponse"),
        (TABLES, "ListTablesResponse"),
        (f"{TABLES}?pageSize=1&pageToken=", "ListTablesResponse"),
        (f"{TABLES}/served_stores", "LoadTableResult"),
        (f"{TABLES}/served_stores?snapshots=refs", "LoadTableResult"),
        (f"{TABLES}/served_stores/credentials", "LoadCredentialsResponse"),
        (VIEWS, "ListTablesResponse"),
        (f"{VIEWS}/served_view", "LoadViewResult"),
    ],
)
def test_an_answer_is_as_the_specification_has_it(service: Served, token: str, path: str, schema: str) -> None:
    status, answer = service.ask("GET", path, token=token)
    assert status == 200
    assert_is(answer, schema)


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/config?warehouse=pond", 404, "NotFoundException"),
        ("GET", "/v1/lake/namespaces/nobody", 404, "NoSuchNamespaceException"),
        ("GET", "/v1/lake/namespaces/nobody/tables", 404, "NoSuchNamespaceException"),
        ("GET", f"{TABLES}/nobody", 404, "NoSuchTableException"),
        ("GET", f"{TABLES}/served_people", 403, "ForbiddenException"),
        ("GET", f"{VIEWS}/nobody", 404, "NoSuchViewException"),
        ("GET", "/v1/as-of.ä/namespaces", 404, "NotFoundException"),
        ("DELETE", f"{TABLES}/served_stores", 403, "ForbiddenException"),
        ("POST", "/v1/lake/transactions/commit", 403, "ForbiddenException"),
        ("POST", "/v1/config", 403, "ForbiddenException"),
    ],
)
def test_a_refusal_is_as_the_specification_has_it(
    service: Served, token: str, method: str, path: str, status: int, kind: str
) -> None:
    found, answer = service.ask(method, path.replace("ä", "%C3%A4"), b"{}" if method == "POST" else None, token)
    assert (found, answer["error"]["type"]) == (status, kind)
    assert_is(answer, "IcebergErrorResponse")
    found, answer = service.ask(method, path.replace("ä", "%C3%A4"), b"{}" if method == "POST" else None, "wrong")
    assert (found, answer["error"]["type"]) == (401, "NotAuthorizedException")
    assert_is(answer, "IcebergErrorResponse")


def test_heads_and_metrics_have_no_content(service: Served, token: str) -> None:
    for path, status in (
        ("/v1/lake/namespaces/parsed", 204),
        ("/v1/lake/namespaces/nobody", 404),
        (f"{TABLES}/served_stores", 204),
        (f"{TABLES}/nobody", 404),
        (f"{VIEWS}/served_view", 204),
        (f"{VIEWS}/nobody", 404),
    ):
        assert service.ask("HEAD", path, token=token)[0] == status, path
    assert service.ask("POST", f"{TABLES}/served_stores/metrics", b"{}", token) == (204, {})


def test_every_endpoint_that_is_offered_is_one_of_the_specification(service: Served, token: str) -> None:
    """Clients compare them letter by letter: PyIceberg read nothing, because the table was `{name}`."""
    offered = service.ask("GET", "/v1/config", token=token)[1]["endpoints"]
    assert set(offered) <= set(SPECIFICATION["endpoints"])
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in offered


def test_tokens_are_as_the_specification_has_them(service: Served) -> None:
    status, answer = service.token("reader", PASSWORDS["reader"])
    assert status == 200
    assert_is(answer, "OAuthTokenResponse")
    exchange = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": answer["access_token"],
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
    }
    status, renewed = service.ask("POST", "/v1/oauth/tokens", urlencode(exchange).encode())
    assert status == 200
    assert_is(renewed, "OAuthTokenResponse")
    for form in ({**exchange, "subject_token": "x"}, {"grant_type": "client_credentials"}, {}):
        status, answer = service.ask("POST", "/v1/oauth/tokens", urlencode(form).encode())
        assert status == 401
        assert_is(answer, "OAuthError")
