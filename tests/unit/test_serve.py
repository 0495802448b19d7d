"""The catalog service's parts that need no server: warehouses, states of tables, tokens, signatures, limits, roles."""

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread, current_thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakehouse.declarations.access.rules import RELATIONS, Relation
from lakehouse.errors import LakehouseError
from lakehouse.servers.logins import ROLES, Login, Rights, add_login, ensure_own_logins, read_logins
from lakehouse.settings import ServeSettings, load_settings
from lakehouse_cli.machine.clients import client_text
from lakehouse_serve.access import grants as grants_module
from lakehouse_serve.access.grants import Grants
from lakehouse_serve.access.limits import Limit
from lakehouse_serve.access.signature import Request, is_signed, signature
from lakehouse_serve.access.tokens import ACCESS_KEY, CATALOG_SECONDS, STORAGE_SECONDS, Tokens
from lakehouse_serve.answers import Access, Answers, Caller, Refused
from lakehouse_serve.objects import part
from lakehouse_serve.past.cuts import Cut
from lakehouse_serve.past.moments import Moment, Position, parse_warehouse, prefix_of, warehouse_of
from lakehouse_serve.past.snapshots import AsOf, Chosen, NoSnapshot, as_of, at_snapshot, has_snapshot, kept_since
from lakehouse_serve.reading import CACHED_BYTES, CatalogRows
from lakehouse_serve.run import refuse_open

SECRET = "s" * 32
NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("lake", None),
        ("", None),
        ("lake@2026-05-04T10:00", Moment(at=datetime(2026, 5, 4, 10, tzinfo=UTC))),
        ("lake@2026-05-04 10:00:00.5+02:00", Moment(at=datetime(2026, 5, 4, 8, 0, 0, 500_000, tzinfo=UTC))),
        ("lake@2026-05-04T10:00+01:00:30", Moment(at=datetime(2026, 5, 4, 8, 59, 30, tzinfo=UTC))),
        ("lake@pin:month_end_20261130", Moment(pin="month_end_20261130")),
        ("lake@0/3C87757", Moment(positions=(Position(0x3C87757),))),
        ("lake@retail=1/3C87757", Moment(positions=(Position(0x1_03C87757, "retail"),))),
        ("lake@retail=2:0/10", Moment(positions=(Position(0x10, "retail", 2),))),
        ("lake@a=0/1,b_2=3:0/2", Moment(positions=(Position(1, "a"), Position(2, "b_2", 3)))),
        ("lake@a=1:0/2!", Moment(positions=(Position(2, "a", 1),), mirrors=())),
        ("lake@a=1:0/2!a=1:0/1", Moment(positions=(Position(2, "a", 1),), mirrors=(Position(1, "a", 1),))),
    ],
)
def test_a_warehouse_names_a_moment(text: str, moment: Moment | None) -> None:
    assert parse_warehouse(text, "lake") == moment


@pytest.mark.parametrize(
    "text",
    [
        "pond",
        "lake@yesterday",
        "lake@2026-11-20+02:00",
        "lake@2026-11-20x10:00",
        "lake@0001-01-01T00:00+05:00",
        "lake@pin:",
        "lake@pin:Close",
        "lake@retail=",
        "lake@0/123456789",
        "pond@0/1",
        "lake@0/1,a=0/2",
        "lake@a=0/1,a=0/2",
        "lake@a=0/1,",
        "lake@a=0/1!yesterday",
        "lake@2026-05-04T10:00!a=0/1",
    ],
)
def test_a_warehouse_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="use lake"):
        parse_warehouse(text, "lake")


@pytest.mark.parametrize("warehouse", ["lake@2026-05-04T10:00+02:00", "lake@retail=1:0/3C87757", "lake@ä/?#%"])
def test_a_prefix_is_one_segment_of_a_path_and_is_read_back(warehouse: str) -> None:
    prefix = prefix_of(warehouse)
    assert prefix.replace(".", "").replace("-", "").replace("_", "").isalnum()
    assert warehouse_of(prefix, "lake") == warehouse
    assert warehouse_of("lake", "lake") == "lake"
    assert [warehouse_of(f"as-of.{wrong}", "lake") for wrong in ("%", "ä", "A", "gA")] == [None] * 4
    assert warehouse_of("as-of.%", "lake") is warehouse_of("other", "lake") is None


def test_a_prefix_whose_cut_is_listed_no_more_is_refused() -> None:
    """After a restore of the catalog a client went on with the newest cut before the one that it had connected to."""
    of_raw, of_mirror = Cut("retail", 1, 0x10, {"stores": 5}), Cut("retail", 1, 0x8, {"stores": 6}, "mirror")
    cuts: Any = SimpleNamespace(at=lambda *_: (of_raw,))
    mirrors: Any = SimpleNamespace(at=lambda *_: (of_mirror,), newest=lambda _: (of_mirror,))
    none: Any = None
    answers, caller = Answers("lake", none, cuts, mirrors, none, none), Caller("lakehouse", Rights("writer"), "")
    raw = {("raw_retail", "stores"): Chosen(5, of_raw.position)}
    both = raw | {("mirror_retail", "stores"): Chosen(6, of_mirror.position)}
    assert answers._snapshots(caller, prefix_of("lake@retail=1:0/10!")) == raw
    for same in ("lake@retail=1:0/10", "lake@retail=0/20", "lake@retail=1:0/10!retail=1:0/8"):
        assert answers._snapshots(caller, prefix_of(same)) == both, same
    for other in ("lake@retail=1:0/20!", "lake@retail=1:0/10!retail=1:0/9"):
        with pytest.raises(Refused, match="listed no more: connect again"):
            answers._snapshots(caller, prefix_of(other))


def table_metadata() -> dict[str, Any]:
    def snapshot(number: int, parent: int | None, schema: int) -> dict[str, Any]:
        return {"snapshot-id": number, "timestamp-ms": number * 10, "schema-id": schema, "parent-snapshot-id": parent}

    return {
        "current-snapshot-id": 4, "current-schema-id": 1, "last-updated-ms": 40,
        "snapshots": [snapshot(1, None, 0), snapshot(2, 1, 0), snapshot(3, 1, 1), snapshot(4, 3, 1)],
        "snapshot-log": [{"snapshot-id": n, "timestamp-ms": n * 10} for n in (1, 2, 3, 4)],
        "metadata-log": [{"metadata-file": "s3://x/1.metadata.json", "timestamp-ms": 1}],
        "refs": {"main": {"type": "branch", "snapshot-id": 4}, "old": {"type": "tag", "snapshot-id": 2}},
        "statistics": [{"snapshot-id": 2}, {"snapshot-id": 4}],
        "properties": {"comment": "orders", "lakehouse.position": "1:0/5", "lakehouse.mirror": "{}"},
    }  # fmt: skip


def test_metadata_as_of_a_snapshot_has_its_schema_and_its_ancestors_only() -> None:
    metadata = table_metadata()
    made = at_snapshot(metadata, Chosen(2))
    assert metadata == table_metadata()
    assert (made["current-snapshot-id"], made["current-schema-id"], made["last-updated-ms"]) == (2, 0, 20)
    assert [found["snapshot-id"] for found in made["snapshots"]] == [1, 2]
    assert [found["snapshot-id"] for found in made["snapshot-log"]] == [1, 2]
    assert made["refs"] == {"main": {"type": "branch", "snapshot-id": 2}}
    assert made["statistics"] == [{"snapshot-id": 2}]
    assert made["metadata-log"] == []


def test_metadata_as_of_a_snapshot_says_nothing_of_where_the_table_stands_now() -> None:
    """`lakehouse.position` was that of the newest rows, beside those of a pin: who read on from it missed changes."""
    assert at_snapshot(table_metadata(), Chosen(2))["properties"] == {"comment": "orders"}
    at_cut = at_snapshot(table_metadata(), Chosen(2, Position(0x1F4, "shop", 1)))
    assert at_cut["properties"] == {"comment": "orders", "lakehouse.cut": "shop=1:0/1F4"}


def test_a_table_has_all_its_states_since_the_oldest_that_no_tag_alone_keeps() -> None:
    metadata = table_metadata()
    assert kept_since(metadata) == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "the whole second after it"
    metadata["snapshots"] = [found | {"timestamp-ms": found["snapshot-id"] * 1000} for found in metadata["snapshots"]]
    assert kept_since(metadata) == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    del metadata["snapshots"][2]
    assert kept_since(metadata) == datetime(1970, 1, 1, 0, 0, 4, tzinfo=UTC)
    assert kept_since({"current-snapshot-id": -1}) is None
    assert has_snapshot(metadata, 1) and not has_snapshot(metadata, 3)


def test_a_snapshot_that_has_expired_is_refused() -> None:
    with pytest.raises(NoSnapshot):
        at_snapshot(table_metadata(), Chosen(9))


def test_the_location_of_a_state_names_its_file_and_snapshot() -> None:
    for cut in (None, Position(0x3_0000001F, "re_tail2", 12)):
        state = AsOf("s3://warehouse/raw_shop/orders-1/metadata/00012-ab.gz.metadata.json", Chosen(77, cut))
        assert as_of(state.location) == state
        assert as_of(state.file) is None


def test_tokens_are_read_back_until_they_end_and_not_when_they_are_changed() -> None:
    tokens, begun = Tokens(SECRET), NOW.timestamp()
    token = tokens.issue("ann", "m", begun)
    grant = tokens.read(token, begun)
    assert grant is not None
    assert (grant.login, grant.mark, grant.folder) == ("ann", "m", "")
    assert tokens.read(token, begun + CATALOG_SECONDS) is None
    assert Tokens("t" * 32).read(token, begun) is None
    text, _, signed = token.partition(".")
    for forged in (
        "",
        ".",
        "a.b",
        f"{text}.",
        f"{text}x.{signed}",
        f"{text}.{signed}x",
        "ä.ö",
    ):
        assert tokens.read(forged, begun) is None


def test_a_token_for_the_catalog_is_none_for_the_store_and_the_other_way_round() -> None:
    tokens, begun = Tokens(SECRET), NOW.timestamp()
    keys = tokens.issue_storage("ann", "m", "parsed", "a", "s3://warehouse/a/", begun)
    assert tokens.read(keys.session_token, begun) is None
    assert tokens.read_storage(tokens.issue("ann", "m", begun), begun) is None
    grant = tokens.read_storage(keys.session_token, begun)
    assert grant is not None
    assert (grant.namespace, grant.name, grant.folder) == ("parsed", "a", "s3://warehouse/a/")
    assert keys.secret_key == tokens.storage_secret(keys.session_token)
    assert tokens.read_storage(keys.session_token, begun + STORAGE_SECONDS) is None


def test_a_signature_is_that_of_amazons_own_example() -> None:
    """From "Signature Calculations for the Authorization Header", the example of GET Object."""
    headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "range": "bytes=0-9",
        "x-amz-content-sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "x-amz-date": "20130524T000000Z",
    }
    request = Request("GET", "/test.txt", "", headers)
    made = signature(
        request, sorted(headers), "20130524/us-east-1/s3/aws4_request", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    )
    assert made == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"


def signed(request: Request, names: list[str], key: str) -> Request:
    scope = f"{request.headers['x-amz-date'][:8]}/us-east-1/s3/aws4_request"
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={';'.join(names)}, "
        f"Signature={signature(request, names, scope, key)}"
    )
    return request._replace(headers={**request.headers, "authorization": authorization})


def test_a_request_is_signed_by_its_key_within_minutes_with_its_token() -> None:
    headers = {"host": "h", "x-amz-date": "20260504T120000Z", "x-amz-security-token": "t", "x-amz-content-sha256": "u"}
    names = ["host", "x-amz-date", "x-amz-security-token"]
    request = signed(Request("GET", "/warehouse/a%20b", "x-id=GetObject&b", headers), names, "key")
    assert is_signed(request, ACCESS_KEY, "key", NOW)
    assert not is_signed(request, ACCESS_KEY, "other", NOW)
    assert not is_signed(request, "another", "key", NOW)
    assert not is_signed(request, ACCESS_KEY, "key", NOW + timedelta(minutes=15))
    assert not is_signed(request, ACCESS_KEY, "key", NOW - timedelta(minutes=15))
    for changed in (
        request._replace(method="DELETE"),
        request._replace(path="/warehouse/b"),
        request._replace(query="x-id=GetObject"),
        request._replace(headers={**request.headers, "host": "other"}),
        request._replace(headers={**request.headers, "x-amz-security-token": "other"}),
        request._replace(headers={**request.headers, "authorization": "AWS4-HMAC-SHA256 nonsense"}),
        request._replace(headers=headers),
        signed(request, ["host", "x-amz-date"], "key"),
    ):
        assert not is_signed(changed, ACCESS_KEY, "key", NOW)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, (0, 10)),
        ("bytes=0-3", (0, 4)),
        ("bytes=4-", (4, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=8-99", (8, 10)),
        ("bytes=10-", None),
        ("bytes=5-4", None),
        ("bytes=-0", None),
        ("bytes=-", (0, 10)),
        ("bytes=0-1,4-5", (0, 10)),
        ("rows=1-2", (0, 10)),
    ],
)
def test_a_range_is_read_as_s3_does(header: str | None, found: tuple[int, int] | None) -> None:
    assert part(header, 10) == found


def test_a_limit_admits_a_burst_and_then_a_rate_for_each_client() -> None:
    limit = Limit(per_second=2, burst=4)
    assert [limit.admits("ann", 0.0) for _ in range(6)] == [True] * 4 + [False] * 2
    assert limit.admits("ben", 0.0)
    assert not limit.has_room("ann", 0.0) and limit.has_room("ann", 0.5)
    assert [limit.admits("ann", 0.5) for _ in range(2)] == [True, False]


def test_a_password_stays_a_literal_in_what_clients_are_told() -> None:
    """DuckDB and ClickHouse refused the text where a password had an apostrophe."""
    settings = load_settings(trino={"http_scheme": "https", "reader_user": "reader", "reader_password": "it's"})
    assert "CLIENT_SECRET 'it''s'" in client_text(settings, "duckdb")
    assert ":it''s'" in client_text(settings, "clickhouse")
    assert ":it's" in client_text(settings, "spark")


def test_roles_are_those_of_trino_and_hold_for_whole_tables(tmp_path: Path) -> None:
    grants = Grants(tmp_path)
    ensure_own_logins(tmp_path, {"lakehouse": "w", "reader": "r", "privacy": "p"})
    relations = [
        ("parsed", "people", "reader", ["email"]),
        ("vault", "sat_person", "privacy", []),
        ("stage", "x", "writer", []),
    ]
    written = [dict(zip(("schema", "name", "least", "personal"), found, strict=True)) for found in relations]
    (tmp_path / RELATIONS).write_text(json.dumps({"relations": written}))
    grants.refresh()
    seen = {
        role: [name for schema, name, *_ in relations if grants.shows(Rights(role), schema, name)] for role in ROLES
    }
    assert seen == {"writer": ["people", "sat_person", "x"], "privacy": ["people", "sat_person"], "reader": ["people"]}
    assert grants.hidden("reader", "parsed", "people", {"id", "EMail"}) == {"email"}
    assert not grants.hidden("reader", "parsed", "people", {"id"})
    assert not grants.hidden("privacy", "parsed", "people", {"id", "email"})
    assert not grants.shows(Rights("privacy"), "raw_shop", "orders")


def test_a_thread_that_is_slow_to_read_the_logins_does_not_put_a_withdrawn_password_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held until a file changed again."""
    former, grants = add_login(tmp_path, "ada", "reader"), Grants(tmp_path)
    has_read, may_go_on, is_over = Event(), Event(), Event()

    def logins(folder: Path) -> dict[str, Login]:
        found = read_logins(folder)
        if current_thread() is first:
            has_read.set()
            assert may_go_on.wait(5)
        return found

    def relations(folder: Path) -> tuple[Relation, ...]:
        if current_thread() is second:
            is_over.wait(5)  # it has taken the new logins, if nobody kept it waiting
        return ()

    monkeypatch.setattr(grants_module, "read_logins", logins)
    monkeypatch.setattr(grants_module, "read_relations", relations)
    first, second = Thread(target=grants.refresh), Thread(target=grants.refresh)
    first.start()
    assert has_read.wait(5)
    newer = add_login(tmp_path, "ada", "reader")
    second.start()
    second.join(0.2)
    may_go_on.set()
    first.join()
    is_over.set()
    second.join()
    assert grants.mark("ada", former) is None and grants.mark("ada", newer) is not None


def test_the_service_refuses_to_send_passwords_in_the_clear() -> None:
    for safe in ({}, {"host": "::1"}, {"host": "localhost"}, {"host": "0.0.0.0", "behind_proxy": True}):
        refuse_open(ServeSettings(**safe))
    with pytest.raises(
        LakehouseError, match=r"would listen on 0\.0\.0\.0 without TLS: set LAKEHOUSE_SERVE__CERTIFICATE"
    ):
        refuse_open(ServeSettings(host="0.0.0.0"))
    with pytest.raises(LakehouseError, match="certificate and key belong together"):
        load_settings(serve={"certificate": "a.pem"})


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({}, "http://127.0.0.1:8181"),
        ({"host": "::", "certificate": "c", "key": "k", "port": 1}, "https://127.0.0.1:1"),
        ({"host": "::1"}, "http://[::1]:8181"),
        ({"url": "https://lake.example/"}, "https://lake.example"),
    ],
)
def test_clients_are_told_one_address(options: dict[str, Any], address: str) -> None:
    assert ServeSettings(**options).address() == address


def test_a_client_of_a_pin_is_told_when_another_one_takes_its_name() -> None:
    """It read some tables as of the former pin, and others as of the new one."""
    kept = {("marts", "sales"): Chosen(5), ("mirror_shop", "orders"): Chosen(6)}
    there = SimpleNamespace(metadata={"snapshots": [{"snapshot-id": n} for n in (5, 6, 7)]})
    rows = SimpleNamespace(pinned=lambda pin: kept if pin == "close" else {}, document=lambda *_: there)
    relations = SimpleNamespace(rows=rows, names=lambda role, kind: [*kept] if kind == "TABLE" else [])
    none: Any = None
    asked = Answers("lake", cast(Any, relations), none, none, none, Access("http://here", "here"))
    caller = Caller("ann", Rights("reader"), "m")
    prefix = asked.config(caller, "lake@pin:close")["overrides"]["prefix"]
    assert asked.namespaces(caller, prefix, None) == {"namespaces": [["marts"], ["mirror_shop"]]}
    kept["marts", "sales"] = Chosen(7)
    with pytest.raises(Refused, match="the pin 'close' is of another state now: connect again"):
        asked.namespaces(caller, prefix, None)
    again = asked.config(caller, "lake@pin:close")["overrides"]["prefix"]
    assert again != prefix and asked.namespaces(caller, again, None)["namespaces"]


def test_metadata_that_is_larger_than_what_is_kept_is_read_each_time() -> None:
    """Every `lake@pin:` of a lake with such a table was a 500, as the file was small while it was packed."""
    packed = gzip.compress(b"{" + b" " * CACHED_BYTES + b"}", 1)
    rows = CatalogRows(
        load_settings(catalog_url="postgresql://nobody@nowhere/lake"), cast(Any, SimpleNamespace(read=lambda _: packed))
    )
    assert [rows.read("s3://lake/t/1.gz.metadata.json").metadata for _ in range(2)] == [{}, {}]
    rows.close()
