"""The catalog service attacked by somebody who knows how it is made: with keys of another table, with logins that
changed, with malformed requests, and with many of them."""

import json
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, urlsplit

import psutil
import pytest
from pyarrow.fs import S3FileSystem
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from lakehouse.servers.logins import add_login, remove_login
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse_serve.access.grants import Grants
from lakehouse_serve.access.signature import Request, signature
from lakehouse_serve.access.tokens import Tokens
from lakehouse_serve.connections import IDLE_SECONDS
from lakehouse_stack.home.certificate import make_certificate
from lakehouse_stack.servers.serve import check_health
from tests.serving import PASSWORDS, RELATIONS, Served, sample_lake, served, write_relations

pytestmark = pytest.mark.stack

SECRET = "a-secret-that-the-test-knows-0123456789"
MOST_BYTES = 400 << 20


@pytest.fixture(scope="module")
def service(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("access")
    with sample_lake(settings, folder, LAKEHOUSE_SERVE__SECRET=SECRET) as found:
        yield found


@dataclass(frozen=True)
class Keys:
    """Keys of the store, and a client that sends whatever it likes with them."""

    service: Served
    access_key: str
    secret_key: str
    token: str

    @classmethod
    def of(cls, service: Served, table: Table) -> "Keys":
        given = table.io.properties
        return cls(service, given["s3.access-key-id"], given["s3.secret-access-key"], given["s3.session-token"])

    def send(self, method: str, path: str, query_string: str = "", body: bytes | None = None) -> tuple[int, bytes]:
        """Status and content of a request for a path, which is sent as it is, signed."""
        address = urlsplit(self.service.uri)
        headers = {
            "host": address.netloc,
            "x-amz-content-sha256": "UNSIGNED-PAYLOAD",
            "x-amz-date": datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"),
            "x-amz-security-token": self.token,
        }
        scope, names = f"{headers['x-amz-date'][:8]}/us-east-1/s3/aws4_request", sorted(headers)
        signed = signature(Request(method, path, query_string, headers), names, scope, self.secret_key)
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.access_key}/{scope}, SignedHeaders={';'.join(names)}, "
            f"Signature={signed}"
        )
        return raw(self.service, method, path + (f"?{query_string}" if query_string else ""), headers, body)


def raw(
    service: Served, method: str, target: str, headers: Mapping[str, str], body: bytes | None = None
) -> tuple[int, bytes]:
    """Status and content; nothing of the target is normalized on its way."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    with connected(service) as connection:
        connection.sendall("\r\n".join([*lines, "connection: close", "", ""]).encode("latin-1") + (body or b""))
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), content


def connected(service: Served) -> socket.socket:
    address = urlsplit(service.uri)
    assert address.hostname and address.port
    return socket.create_connection((address.hostname, address.port), timeout=60)


def data_file(table: Table) -> str:
    """The path of a table's data file on the endpoint."""
    [task, *_] = table.scan().plan_files()
    return "/" + task.file.file_path.removeprefix("s3://")


def is_alive(service: Served) -> bool:
    return service.ask("GET", "/healthz")[0] == 200


def test_no_spelling_of_a_path_leads_out_of_the_table(service: Served) -> None:
    """The object is asked for by its decoded path, and signed by the path as it was sent."""
    own = service.client("reader").load_table(("parsed", "served_stores"))
    foreign = data_file(service.client("privacy").load_table(("parsed", "served_people")))
    keys, mine = Keys.of(service, own), data_file(own)
    folder = "/" + own.location().removeprefix("s3://").rstrip("/")
    rest = foreign.removeprefix("/warehouse")
    up = "/.." * folder.count("/")
    assert keys.send("GET", quote(mine, safe="/~"))[1].startswith(b"PAR1")
    closed = [
        foreign,
        foreign.replace("/", "//"),
        foreign.replace("parsed", "%70arsed"),
        foreign.replace("/", "%2f").replace("%2fwarehouse", "/warehouse", 1),
        f"{folder}/..{rest}",
        f"{folder}{up}{foreign}",
        f"{folder}/%2e%2e{rest}",
        f"{folder}/%2E%2E/%2e%2e{foreign}",
        f"{folder}/data/..%2f..%2f..{rest}",
        f"{folder}/%252e%252e{rest}",
        f"{folder}/..%00{rest}",
        f"{folder}/..;{rest}",
        f"{folder}\\..\\..{rest}",
        f"{folder}/..%5c..{rest}",
        f"{folder}//..//..{foreign}",
        f"{folder}/./../..{foreign}",
        f"{folder}/%c0%ae%c0%ae{rest}",
        f"{folder}%2f..{rest}",
        f"/{foreign}",
        f"/.{foreign}",
        f"http://127.0.0.1{foreign}",
        folder,
        f"{folder}/",
        f"{folder}x/a",
        "/warehouse",
        "/warehouse/",
        "/",
        f"{folder}/%00",
        f"{folder}/%ff%fe",
        mine + "%00.parquet",
        f"{folder}/metadata/x.metadata.json.at-{'9' * 100}.metadata.json",
    ]
    for path in closed:
        status, content = keys.send("GET", path)
        assert status in {400, 403, 404}, (path, status)
        assert b"PAR1" not in content and b"ann@" not in content, path
        assert keys.send("HEAD", path)[0] in {400, 403, 404}, path
    assert keys.send("GET", f"{folder}/{'a' * 5000}")[0] in {404, 503}, "what the store makes of such a name"
    assert is_alive(service)


def test_the_store_lists_and_takes_nothing(settings: Settings, service: Served) -> None:
    own = service.client("writer").load_table(("parsed", "served_stores"))
    keys, mine = Keys.of(service, own), data_file(own)
    folder = own.location().removeprefix("s3://warehouse").strip("/")
    before = keys.send("GET", mine)
    for path, asked in (
        ("/warehouse", f"list-type=2&prefix={quote(folder, safe='')}"),
        ("/warehouse/", "list-type=2"),
        ("/warehouse", "versions"),
        ("/warehouse", "uploads"),
        ("/warehouse", "location"),
        ("/warehouse", "acl"),
        ("/", ""),
    ):
        status, content = keys.send("GET", path, asked)
        assert status in {403, 404} and folder.encode() not in content, (path, asked, status)
    for method, path, asked in (
        ("PUT", mine, ""),
        ("PUT", mine, "partNumber=1&uploadId=x"),
        ("PUT", f"/warehouse/{folder}/new", ""),
        ("POST", mine, "uploads"),
        ("POST", mine, "uploadId=x"),
        ("POST", "/warehouse", "delete"),
        ("DELETE", mine, ""),
        ("DELETE", mine, "uploadId=x"),
        ("PATCH", mine, ""),
    ):
        assert keys.send(method, path, asked, b"x")[0] == 403, (method, path, asked)
    assert keys.send("OPTIONS", mine)[0] in {403, 404, 405}
    assert keys.send("GET", mine) == before
    assert len(query(settings, "SELECT * FROM lake.parsed.served_stores")) == 3


def test_forged_and_expired_tokens_open_nothing(service: Served) -> None:
    tokens, now = Tokens(SECRET), time.time()
    own = service.client("reader").load_table(("parsed", "served_stores"))
    keys, mine, folder = Keys.of(service, own), data_file(own), own.location().rstrip("/") + "/"
    asked = "/v1/lake/namespaces"
    mark, writers = (str(Grants(service.access).mark(login, PASSWORDS[login])) for login in ("reader", "lakehouse"))
    assert service.ask("GET", asked, token=tokens.issue("reader", mark, now))[0] == 200
    for token in (
        tokens.issue("reader", mark, now - 3601),
        tokens.issue("reader", writers, now),
        tokens.issue("nobody", mark, now),
        Tokens(SECRET + "x").issue("lakehouse", writers, now),
        tokens.issue_storage("lakehouse", writers, "parsed", "served_people", folder, now).session_token,
        tokens.issue("reader", mark, now)[:-1],
        "e30." + "0" * 64,
        "." * 1000,
        "\xff\xfe",
    ):
        assert service.ask("GET", asked, token=token)[0] == 401, token
    for forged in (
        tokens.issue_storage("reader", mark, "parsed", "served_stores", folder, now - 12 * 3600 - 1),
        tokens.issue_storage("reader", writers, "parsed", "served_stores", folder, now),
        tokens.issue_storage("nobody", mark, "parsed", "served_stores", folder, now),
        tokens.issue_storage("reader", mark, "parsed", "served_people", folder, now),
        tokens.issue_storage("reader", mark, "parsed", "served_secret", folder, now),
        tokens.issue_storage("reader", mark, "parsed", "served_stores", "s3://warehouse/", now),
        Tokens(SECRET + "x").issue_storage("reader", mark, "parsed", "served_stores", folder, now),
    ):
        asks = Keys(service, forged.access_key, forged.secret_key, forged.session_token)
        assert asks.send("GET", mine)[0] == 403, forged
    assert Keys(service, keys.access_key, "x" * 64, keys.token).send("GET", mine)[0] == 403
    assert raw(service, "GET", mine, {"host": "x", "x-amz-security-token": keys.token})[0] == 403
    assert keys.send("GET", mine)[0] == 200


def test_keys_end_with_the_rights_of_their_login(service: Served) -> None:
    """Keys of a login that read personal columns opened the files for half a day after it was made a reader."""
    password = add_login(service.access, "eve", "privacy")

    def client() -> RestCatalog:
        given = {"uri": service.uri, "oauth2-server-uri": f"{service.uri}/v1/oauth/tokens"}
        return RestCatalog("x", **given, warehouse="lake", credential=f"eve:{password}")

    people = client().load_table(("parsed", "served_people"))
    keys, file = Keys.of(service, people), data_file(people)
    assert keys.send("GET", file)[0] == 200
    password = add_login(service.access, "eve", "reader")
    assert keys.send("GET", file)[0] == 403
    stores = client().load_table(("parsed", "served_stores"))
    keys, file = Keys.of(service, stores), data_file(stores)
    assert keys.send("GET", file)[0] == 200
    declared = [r | {"personal": ["name"]} if r["name"] == "served_stores" else r for r in RELATIONS]
    write_relations(service.access, declared)
    time.sleep(1.1)
    assert keys.send("GET", file)[0] == 403
    write_relations(service.access, RELATIONS)
    time.sleep(1.1)
    assert keys.send("GET", file)[0] == 200
    remove_login(service.access, "eve")
    assert keys.send("GET", file)[0] == 403


def test_keys_end_when_a_personal_column_is_added(settings: Settings, service: Served) -> None:
    name = "parsed.served_grows"
    query(settings, f"CREATE TABLE lake.{name} AS SELECT 1 AS id")
    write_relations(
        service.access,
        [*RELATIONS, {"schema": "parsed", "name": "served_grows", "least": "reader", "personal": ["email"]}],
    )
    try:
        table = service.client("reader").load_table(name)
        keys, file = Keys.of(service, table), data_file(table)
        assert keys.send("GET", file)[0] == 200
        query(settings, f"ALTER TABLE lake.{name} ADD COLUMN email varchar")
        query(settings, f"INSERT INTO lake.{name} VALUES (2, 'ann@example.com')")
        time.sleep(1.1)
        assert keys.send("GET", file)[0] == 403
        query(settings, f"ALTER TABLE lake.{name} DROP COLUMN email")
        with pytest.raises(Exception, match="personal columns"):
            service.client("reader").load_table(name)
    finally:
        write_relations(service.access, RELATIONS)
        query(settings, f"DROP TABLE lake.{name}")


def test_a_table_that_was_made_again_opens_with_new_keys_only(settings: Settings, service: Served) -> None:
    table = service.client("reader").load_table(("parsed", "served_stores"))
    keys, file = Keys.of(service, table), data_file(table)
    assert keys.send("GET", file)[0] == 200
    query(settings, "DROP VIEW lake.parsed.served_view")
    query(settings, "DROP TABLE lake.parsed.served_stores")
    time.sleep(1.1)
    assert keys.send("GET", file)[0] == 403
    assert service.client("reader").list_tables("parsed") == [("parsed", "served_people")]
    for statement in (
        "CREATE TABLE lake.parsed.served_stores AS SELECT id, format('%d', id) AS name FROM (VALUES 1, 2, 3) t (id)",
        "CREATE VIEW lake.parsed.served_view AS SELECT id FROM lake.parsed.served_stores",
    ):
        query(settings, statement)
    again = service.client("reader").load_table(("parsed", "served_stores"))
    assert again.metadata.table_uuid != table.metadata.table_uuid
    assert keys.send("GET", data_file(again))[0] == 403
    assert len(again.scan().to_arrow()) == 3


def test_requests_that_two_servers_read_differently_are_refused(service: Served) -> None:
    """Each has a second request hidden in it, which a proxy in front would take for the body of the first."""
    hidden = b"GET /v1/config HTTP/1.1\r\nhost: x\r\n\r\n"
    chunk = b"0\r\n\r\n"
    for head in (
        b"content-length: %d\r\ntransfer-encoding: chunked" % (len(hidden) + len(chunk)),
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity",
        b"transfer-encoding: xchunked",
        b"transfer-encoding : chunked",
        b"transfer-encoding:\x0bchunked",
        b"content-length: 0\r\ncontent-length: %d" % len(hidden),
        b"content-length: +0",
        b"content-length: 0x0",
        b"content-length: -1",
        b" folded: x\r\ncontent-length: 0",
        b"x: a\rb\r\ncontent-length: 0",
        b"x: a\x00b\r\ncontent-length: 0",
    ):
        with connected(service) as connection:
            connection.sendall(b"POST /v1/oauth/tokens HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n\r\n" + chunk + hidden)
            connection.settimeout(3)
            answers = received(connection)
        assert answers.startswith(b"HTTP/1.1 4"), (head, answers)
        assert b"NotAuthorizedException" not in answers, f"{head!r}: the hidden request was answered"
    for line in (
        b"GET  /healthz HTTP/1.1",
        b"GET /healthz",
        b"\x16\x03\x01\x02\x00",
        b"PRI * HTTP/2.0",
    ):
        with connected(service) as connection:
            connection.sendall(line + b"\r\nhost: x\r\n\r\n")
            connection.settimeout(3)
            assert b" 200 " not in received(connection), line
    assert is_alive(service)


def received(connection: socket.socket) -> bytes:
    """All that arrives until the end, or until nothing arrives any more."""
    answers = b""
    try:
        while piece := connection.recv(1 << 16):
            answers += piece
    except (TimeoutError, ConnectionResetError):
        pass
    return answers


def test_huge_headers_and_forms_take_no_memory(service: Served) -> None:
    """uvicorn's usual parser keeps headers of any size: 300 MB of them, and of nobody who is logged in."""
    for name in (b"x: ", b"authorization: Bearer ", b"x-amz-security-token: "):
        with connected(service) as connection:
            sent = 0
            try:
                connection.sendall(b"GET /v1/config HTTP/1.1\r\nhost: x\r\n" + name)
                for _ in range(300):
                    connection.sendall(b"a" * (1 << 20))
                    sent += 1
            except OSError:
                pass
            assert sent < 20, f"{sent} MB of a header were taken"
    with suppress(OSError):  # it answers before it has read all, and closes
        status, answer = service.ask("POST", "/v1/oauth/tokens", b"grant_type=client_credentials&x=" + b"a" * (5 << 20))
        assert (status, answer["error"]) == (401, "invalid_client")
    assert service.ask("GET", "/v1/" + "a" * 100_000)[0] in {400, 401, 414, 431}
    assert psutil.Process(service.pid).memory_info().rss < MOST_BYTES
    assert is_alive(service)


@pytest.mark.slow
def test_connections_that_ask_nothing_are_closed(service: Served) -> None:
    """Silent ones, and ones that send a header or a body byte by byte, stayed for as long as their clients liked."""
    before = psutil.Process(service.pid).num_fds()
    silent = [connected(service) for _ in range(100)]
    dripping = [connected(service) for _ in range(100)]
    forms = [connected(service) for _ in range(20)]
    for connection in dripping:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: ")
    for connection in forms:
        connection.sendall(b"POST /v1/oauth/tokens HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
    assert psutil.Process(service.pid).num_fds() >= before + 200
    deadline = time.monotonic() + 3 * IDLE_SECONDS
    while psutil.Process(service.pid).num_fds() > before + 10 and time.monotonic() < deadline:
        for connection in (*dripping, *forms):
            try:
                connection.sendall(b"a")
            except OSError:
                continue
        assert is_alive(service)
        time.sleep(1)
    left = psutil.Process(service.pid).num_fds() - before
    for connection in (*silent, *dripping, *forms):
        connection.close()
    assert left <= 10


def test_many_requests_at_once_are_answered_or_told_to_wait(
    settings: Settings, tmp_path: Path, service: Served
) -> None:
    with served(settings, tmp_path / "access", RELATIONS, LAKEHOUSE_SERVE__REQUESTS_PER_SECOND="10") as few:
        token = few.token("lakehouse", PASSWORDS["lakehouse"])[1]["access_token"]
        with ThreadPoolExecutor(40) as pool:
            path = "/v1/lake/namespaces/parsed/tables/served_stores"
            statuses = list(pool.map(lambda _: few.ask("GET", path, token=token)[0], range(400)))
        assert set(statuses) == {200, 429} and statuses.count(200) >= 20
        other = few.token("reader", PASSWORDS["reader"])[1]["access_token"]
        assert few.ask("GET", path, token=other)[0] == 200, "the limit is of each login"


def test_a_name_that_is_no_login_takes_as_long_as_a_wrong_password(settings: Settings, tmp_path: Path) -> None:
    """It was answered ten times as fast, which tells a guesser the names."""
    with served(settings, tmp_path / "access", ()) as service:

        def seconds(login: str) -> float:
            begun = time.perf_counter()
            assert service.token(login, "wrong")[0] == 401
            return time.perf_counter() - begun

        seconds("reader")
        times = {login: [] for login in ("reader", "nobody")}
        for _ in range(8):
            for login, found in times.items():
                found.append(seconds(login))
        known, unknown = min(times["reader"]), min(times["nobody"])  # what is longer waited for a core
        assert unknown > 0.6 * known, times


def test_the_log_has_what_was_asked_and_no_line_of_the_attackers(service: Served) -> None:
    name = 'x"}\n{"what": "forged"} %s %d \x1b[31m'
    _, answer = service.token("reader", PASSWORDS["reader"])
    status, _ = service.ask(
        "GET", f"/v1/lake/namespaces/parsed/tables/{quote(name, safe='')}", token=answer["access_token"]
    )
    assert status == 404
    line = [line for line in service.accesses() if line.get("name") == name][-1]
    assert (line["login"], line["status"]) == ("reader", 404)
    assert not [line for line in service.accesses() if line["what"] == "forged"]
    assert service.log.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_passwords_and_files_go_over_tls(
    settings: Settings, tmp_path: Path, service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)  # it would win over what the client is given
    server, authority = make_certificate(("127.0.0.1",), datetime.now(UTC))
    pem, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
    pem.write_text(server)
    ca.write_text(authority)
    options = {"LAKEHOUSE_SERVE__CERTIFICATE": str(pem), "LAKEHOUSE_SERVE__KEY": str(pem)}
    path = data_file(service.client("reader").load_table(("parsed", "served_stores"))).strip("/")
    with served(settings, tmp_path / "access", RELATIONS, **options) as safe:
        trusting = ssl.create_default_context(cafile=str(ca))
        with urllib.request.urlopen(f"{safe.uri}/healthz", context=trusting) as answer:
            assert json.load(answer) == {"status": "ok"}
        assert check_health(int(safe.uri.rpartition(":")[2]), has_tls=True) is None
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"{safe.uri}/healthz", context=ssl.create_default_context())
        with connected(safe) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b" 200 " not in connection.recv(1000)
        old = ssl.create_default_context(cafile=str(ca))
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"{safe.uri}/healthz", context=old)
        with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
            safe.client("reader")
        client = safe.client("reader", ssl={"cabundle": str(ca)})
        keys = client.load_table(("parsed", "served_stores")).config
        assert keys["s3.endpoint"] == f"{safe.uri}/"
        files = S3FileSystem(
            access_key=keys["s3.access-key-id"], secret_key=keys["s3.secret-access-key"],
            session_token=keys["s3.session-token"], endpoint_override=keys["s3.endpoint"], tls_ca_file_path=str(ca),
        )  # fmt: skip
        assert files.open_input_file(path).read(4) == b"PAR1"


@pytest.mark.slow
def test_readers_and_a_writer_at_once_see_whole_states(settings: Settings, service: Served) -> None:
    """A reader that loads while the table is written sees a state before or after, never a part."""
    query(settings, "CREATE TABLE lake.parsed.served_secret AS SELECT 1 AS id, 0 AS value")
    ended, seen = threading.Event(), set()

    def read() -> None:
        client = service.client("writer")
        while not ended.is_set():
            rows = client.load_table(("parsed", "served_secret")).scan().to_arrow().to_pylist()
            seen.add(tuple(sorted((row["id"], row["value"]) for row in rows)))

    try:
        with ThreadPoolExecutor(4) as pool:
            reads = [pool.submit(read) for _ in range(4)]
            for number in range(1, 6):
                query(settings, f"INSERT INTO lake.parsed.served_secret VALUES ({number + 1}, {number})")
            ended.set()
            for found in reads:
                found.result()
    finally:
        ended.set()
        query(settings, "DROP TABLE lake.parsed.served_secret")
    states = {((1, 0), *((number + 1, number) for number in range(1, last + 1))) for last in range(6)}
    assert seen and seen <= states
