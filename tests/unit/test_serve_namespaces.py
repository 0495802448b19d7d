"""A login that reads some namespaces only, at the catalog service: nothing of the others has a name or a key there."""

import gzip
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lakehouse.declarations.access.rules import RELATIONS
from lakehouse.servers.logins import add_login, change_login, ensure_own_logins
from lakehouse_serve.past.moments import prefix_of
from lakehouse_serve.past.snapshots import Chosen
from lakehouse_serve.reading import Document, Kind
from tests.unit.test_serve_tokens import Asked

Names = list[tuple[str, str]]
TABLES = [
    ("marts", "people"),
    ("marts", "sales"),
    ("mirror_shop", "orders"),
    ("raw_shop", "orders"),
    ("vault", "sat_pii"),
]
VIEW = ("parsed", "current_shop__orders")
LEAST = {("vault", "sat_pii"): "privacy"}
PAST = prefix_of("lake@pin:close")
TEXT = "SELECT * FROM mirror_shop.orders"


def described(namespace: str, name: str) -> Document:
    """The metadata of a table, or of the view, that has an address of people if it is called so."""
    fields = [{"name": "id"}, {"name": "email"}] if name == "people" else [{"name": "id"}]
    metadata = {
        "location": f"s3://warehouse/{namespace}/{name}", "schemas": [{"schema-id": 0, "fields": fields}],
        "current-schema-id": 0, "snapshots": [{"snapshot-id": 5, "timestamp-ms": 1}],
        "properties": {"comment": name, "lakehouse.pin.close": "shop=1:0/5,bank=1:0/7"},
        "versions": [{"representations": [{"type": "sql", "sql": TEXT, "dialect": "trino"}]}],
    }  # fmt: skip
    at = f"s3://warehouse/{namespace}/{name}/metadata/1.metadata.json"
    return Document(at, json.dumps(metadata).encode())


class Rows:
    """What the catalog has: tables, a view, a mirror that is shown as it is read, and a pin of all tables."""

    def relations(self, kind: Kind) -> Names:
        return TABLES if kind == "TABLE" else [VIEW]

    def document(self, kind: Kind, namespace: str, name: str) -> Document | None:
        return described(namespace, name) if (namespace, name) in self.relations(kind) else None

    def live_namespaces(self) -> frozenset[str]:
        return frozenset({"mirror_shop"})

    def live(self, namespace: str, name: str) -> Document | None:
        return described(namespace, name) if (namespace, name) == ("mirror_shop", "orders") else None

    def reads(self) -> dict[str, Any]:
        return {}

    def read(self, location: str) -> Document:
        return described(*location.split("/")[3:5])

    def pinned(self, pin: str) -> dict[tuple[str, str], Chosen]:
        return dict.fromkeys(TABLES, Chosen(5)) if pin == "close" else {}


class Lake(Asked):
    """The service over these, and its logins."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Rows())
        ensure_own_logins(self.access, {"lakehouse": "w", "reader": "r", "privacy": "p"})
        relations = [
            {"schema": schema, "name": name, "least": LEAST.get((schema, name), "reader"), "personal": ["email"]}
            for schema, name in [*TABLES, VIEW] if schema != "raw_shop"
        ]  # fmt: skip
        (self.access / RELATIONS).write_text(json.dumps({"relations": relations}))

    def add(self, role: Any, *namespaces: str, **form: str) -> str:
        """A new login's token."""
        name = f"of_{role}_{'_'.join(namespaces)}"
        token = self.login(client_id=name, client_secret=add_login(self.access, name, role, namespaces), **form)
        assert token is not None
        return token

    def ask(self, token: str, path: str, method: str = "GET") -> tuple[int, Any]:
        status, text = self.send(method, f"/v1/{path}", {"authorization": f"Bearer {token}"})
        return status, json.loads(text or b"null")

    def seen(self, token: str, prefix: str = "lake") -> list[str]:
        """All that is listed, of either kind; each of it can be had, or is refused for its personal columns."""
        found = []
        status, answer = self.ask(token, f"{prefix}/namespaces")
        assert status == 200
        for [namespace] in answer["namespaces"]:
            for kind in ("tables", "views"):
                for each in self.ask(token, f"{prefix}/namespaces/{namespace}/{kind}")[1]["identifiers"]:
                    found.append(f"{namespace}.{each['name']}")
                    status, _ = self.ask(token, f"{prefix}/namespaces/{namespace}/{kind}/{each['name']}")
                    assert status == (403 if each["name"] == "people" else 200)
        return found

    def keys_of(self, token: str, namespace: str, name: str) -> Any:
        status, answer = self.ask(token, f"lake/namespaces/{namespace}/tables/{name}")
        assert status == 200
        config = answer["config"]
        keys = config["s3.session-token"], config["s3.secret-access-key"]
        return lambda path: self.fetch(*keys, f"/warehouse/{path}/1.parquet")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_only_the_namespaces_of_a_login_are_listed(lake: Lake) -> None:
    reader = lake.login(client_id="reader", client_secret="r")
    assert reader is not None
    everything = ["live_mirror_shop.orders", "marts.people", "marts.sales", "mirror_shop.orders", ".".join(VIEW)]
    assert lake.seen(reader) == everything
    assert lake.seen(lake.add("reader")) == everything
    assert lake.seen(lake.add("reader", "marts")) == ["marts.people", "marts.sales"]
    assert lake.seen(lake.add("reader", "mirror_shop", "parsed")) == [
        "live_mirror_shop.orders", "mirror_shop.orders", ".".join(VIEW)
    ]  # fmt: skip
    assert lake.seen(lake.add("reader", "vault")) == lake.seen(lake.add("privacy", "later")) == []
    assert lake.seen(lake.add("privacy", "vault")) == ["vault.sat_pii"]
    assert lake.seen(lake.add("reader", "raw_shop")) == [], "a namespace opens nothing that the role does not"


def test_a_table_does_not_tell_a_login_of_some_namespaces_which_sources_a_pin_has(lake: Lake) -> None:
    """Who read marts alone read the names of all sources and their positions in the properties of a pinned mart."""
    reader = lake.login(client_id="reader", client_secret="r")
    assert reader is not None
    for token, told in ((lake.add("reader", "marts"), []), (reader, ["lakehouse.pin.close"])):
        status, answer = lake.ask(token, "lake/namespaces/marts/tables/sales")
        assert (status, sorted(answer["metadata"]["properties"])) == (200, ["comment", *told])
        assert answer["metadata"]["snapshots"] == [{"snapshot-id": 5, "timestamp-ms": 1}]


@pytest.mark.parametrize("file", ["1.metadata.json", "1.gz.metadata.json", "1.metadata.json.gz"])
def test_nor_does_the_file_of_its_metadata(lake: Lake, file: str) -> None:
    """It was served as it is stored to whoever has keys for the table's folder."""
    token = lake.add("reader", "marts")
    config = lake.ask(token, "lake/namespaces/marts/tables/sales")[1]["config"]
    keys = config["s3.session-token"], config["s3.secret-access-key"]
    status, content = lake.file(*keys, f"/warehouse/marts/sales/metadata/{file}")
    told = json.loads(gzip.decompress(content) if ".gz" in file else content)
    assert (status, told["properties"]) == (200, {"comment": "sales"})
    assert told["snapshots"] == [{"snapshot-id": 5, "timestamp-ms": 1}]
    reader = lake.login(client_id="reader", client_secret="r")
    assert reader is not None and lake.keys_of(reader, "marts", "sales")("marts/sales") == 200, "it is not even read"


def test_a_pin_lists_of_a_logins_namespaces_what_it_keeps(lake: Lake) -> None:
    assert lake.seen(lake.add("reader", "marts"), PAST) == ["marts.people", "marts.sales"]
    assert lake.seen(lake.add("privacy", "vault", "parsed"), PAST) == ["vault.sat_pii"]


@pytest.mark.parametrize("prefix", ["lake", PAST])
@pytest.mark.parametrize(
    "place",
    [
        "mirror_shop/tables/orders",
        "live_mirror_shop/tables/orders",
        "vault/tables/sat_pii",
        "parsed/views/current_shop__orders",
    ],
)
def test_what_is_in_another_namespace_is_answered_as_what_does_not_exist(lake: Lake, prefix: str, place: str) -> None:
    """Also where the role reads it, and through the name of its live state."""
    token = lake.add("privacy", "marts")
    namespace, kind, name = place.split("/")
    there, nowhere = f"{prefix}/namespaces/{namespace}", f"{prefix}/namespaces/nobody"
    paths = ["", f"/{kind}", f"/{kind}/{name}", *([f"/tables/{name}/credentials"] if kind == "tables" else [])]
    for path in paths:
        status, answer = lake.ask(token, there + path)
        other, expected = lake.ask(token, nowhere + path)
        assert status == other == 404
        assert answer["error"]["message"] == expected["error"]["message"].replace("nobody", namespace)
        assert answer["error"]["type"] == expected["error"]["type"]
        if "credentials" not in path:
            assert lake.ask(token, there + path, "HEAD")[0] == 404
    lines = [json.loads(line) for line in lake.log.read_text().splitlines()]
    refused = [line for line in lines if line.get("namespace") == namespace and line.get("name") == name]
    assert refused and {line["status"] for line in refused} == {404}
    assert {line["login"] for line in refused} == {"of_privacy_marts"}


def test_a_table_with_personal_columns_is_refused_as_to_every_reader(lake: Lake) -> None:
    status, answer = lake.ask(lake.add("reader", "marts"), "lake/namespaces/marts/tables/people")
    assert status == 403 and "personal columns (email)" in answer["error"]["message"]


@pytest.mark.parametrize("moment", ["2026-05-04T10:00", "0/10", "shop=0/10", "shop=1:0/10", "shp=0/1", "2999-01-01"])
def test_a_login_with_namespaces_learns_no_source_from_a_cut(lake: Lake, moment: str) -> None:
    """The prefix that a client gets names the cuts of all sources, and so do refusals. The fake has no cuts to ask."""
    token, warehouse = lake.add("reader", "marts"), f"lake@{moment}"
    for path in (f"config?warehouse={quote(warehouse)}", f"{prefix_of(warehouse)}/namespaces"):
        status, answer = lake.ask(token, path)
        assert status == 404 and "reads lake and its pins" in answer["error"]["message"]
    status, answer = lake.ask(token, f"config?warehouse={quote('lake@pin:close')}")
    assert status == 200 and lake.seen(token, answer["overrides"]["prefix"]) == ["marts.people", "marts.sales"]


def test_a_view_is_its_text_and_opens_none_of_the_tables_in_it(lake: Lake) -> None:
    token = lake.add("reader", "parsed")
    status, answer = lake.ask(token, "lake/namespaces/parsed/views/current_shop__orders")
    assert status == 200 and answer["config"] == {}
    assert answer["metadata"]["versions"][0]["representations"][0]["sql"] == TEXT
    for namespace in ("mirror_shop", "live_mirror_shop"):
        assert lake.ask(token, f"lake/namespaces/{namespace}/tables/orders")[0] == 404


@pytest.mark.parametrize("namespace", ["mirror_shop", "live_mirror_shop"])
def test_keys_end_when_their_namespace_is_taken_from_the_login(lake: Lake, namespace: str) -> None:
    token = lake.add("reader", "marts", "mirror_shop")
    opens = lake.keys_of(token, namespace, "orders")
    assert opens("mirror_shop/orders") == 200 and opens("marts/sales") == 403
    name = "of_reader_marts_mirror_shop"
    change_login(lake.access, name, None, ["marts"], everywhere=False)
    assert opens("mirror_shop/orders") == 403
    assert lake.seen(token) == ["marts.people", "marts.sales"], "its token goes on, with what it reads now"
    change_login(lake.access, name, None, (), everywhere=True)
    assert opens("mirror_shop/orders") == 200 and len(lake.seen(token)) == 5


def test_the_scope_of_a_request_for_a_token_changes_nothing(lake: Lake) -> None:
    """Clients send one of their own, such as `catalog` or `PRINCIPAL_ROLE:ALL`."""
    for scope in ("catalog", "PRINCIPAL_ROLE:ALL", "vault", ""):
        assert lake.seen(lake.add("reader", "marts", scope=scope)) == ["marts.people", "marts.sales"]
