"""A schema registry that breaks off, stays silent, is moved, or has schemas that only writers check."""

import base64
import json
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_kafka_avro import decoded_by, forget

from ingestion.sources.debezium.message.avro import AvroOpener
from ingestion.sources.debezium.message.opened import JsonOpener
from ingestion.sources.kafka import registry as module
from ingestion.sources.kafka.avro_values import AvroValues
from ingestion.sources.kafka.json_values import JsonValues
from ingestion.sources.kafka.registry import SchemaRegistry, registry_of
from ingestion.sources.kafka.values import Unread
from ingestion.state.schemas import KeptSchemas
from lakehouse.catalog.file_io import file_io
from lakehouse.catalog.private_pyiceberg import LakeFileIO
from lakehouse.errors import LakehouseError
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import Settings
from lakehouse_stack.home.certificate import make_certificate
from tests.registry import Registry, framed, keeping, record, running_registry

EVENT = record("event", id="long")


@pytest.fixture(autouse=True)
def knows_nothing() -> Iterator[None]:
    forget()
    module._silent.clear()
    yield
    forget()
    module._silent.clear()


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        yield running


def client(url: str, folder: Path, machine: str = "home") -> AvroValues:
    return AvroValues(SchemaRegistry("web", url, None, None, None, keeping(folder, "web", machine)))


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that sends this to whoever comes, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        stopped = threading.Event()

        def serve() -> None:
            while not stopped.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.settimeout(5)
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            stopped.set()
            thread.join()


def http(status: str, body: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (
        status.encode(),
        len(body) if length is None else length,
        body,
    )


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (http("200 OK", b'{"schema":', 500), "does not answer"), (b"HTTP/9 what\r\n\r\n", "does not answer"),
        (b"", "does not answer"), (http("503 Sorry", b"{", 500), r"fails \(503\)"),
        (http("404 Not Found", b"{", 500), "is no schema registry"), (http("200 OK", b"[]"), "is no schema registry"),
        (http("200 OK", b"{}"), "is no schema registry"), (http("200 OK", b'"x"'), "is no schema registry"),
        (http("200 OK", b'{"schema": 5}'), "is no schema registry"),
        (http("200 OK", b'{"schema": "{}", "references": [{}]}'), "is no schema registry"),
    ],
)  # fmt: skip
def test_an_answer_that_breaks_off_or_is_none_is_told_and_is_no_dead_letter(
    tmp_path: Path, answer: bytes, says: str
) -> None:
    with answering(answer) as url, pytest.raises(LakehouseError, match=says) as refused:
        decoded_by(client(url, tmp_path), {"id": "bigint"}, framed(7, EVENT, {"id": 1}))
    assert isinstance(refused.value, Unreachable) == ("no schema registry" not in says), "those are tried again"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `server.pem` for 127.0.0.1, `authority.pem`, which signed it, `other.pem`, and no certificate."""
    folder = tmp_path_factory.mktemp("certificates")
    names = iter(("authority", "other"))
    for server, authority in (make_certificate(("127.0.0.1",), datetime.now(UTC)) for _ in range(2)):
        (folder / f"{next(names)}.pem").write_text(authority)
        if not (folder / "server.pem").exists():
            (folder / "server.pem").write_text(server)
    (folder / "text.pem").write_text("no certificate\n")
    return folder


@pytest.fixture
def by_tls(certificates: Path) -> Iterator[Registry]:
    with running_registry(certificates / "server.pem") as running:
        running.register(7, EVENT)
        running.login = f"Basic {base64.b64encode(b'lake:secret-2e').decode()}"
        yield running


def secure(folder: Path, url: str, ca: Path | None, password: str = "secret-2e") -> AvroValues:
    of = {"url": url, "user": "lake", "password": password, "ca": ca}
    given = {"kind": "kafka", "bootstrap_servers": "a:1", "schema_registry": of}
    settings = Settings(home=folder, sources={"web": given})  # type: ignore[dict-item]
    registry = registry_of(settings, "web", settings.kafka("web"))
    assert registry is not None
    return AvroValues(replace(registry, kept=keeping(folder, "web")))


def test_a_registry_by_tls_is_read_by_the_declared_authority_and_login(
    by_tls: Registry, certificates: Path, tmp_path: Path
) -> None:
    avro = secure(tmp_path, by_tls.url, certificates / "authority.pem")
    assert not decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 1})).unread
    avro.registry.check()


@pytest.mark.parametrize(
    ("authority", "host", "password", "says"),
    [
        ("other.pem", "127.0.0.1", "secret-2e", r"is not trusted \(.*\): correct \w+__CA, the authorities that are"),
        (None, "127.0.0.1", "secret-2e", r"is not trusted \(.*\): correct \w+__CA, the authorities that are"),
        ("authority.pem", "localhost", "secret-2e", r"\(Hostname mismatch, .*'localhost'\): name it in \w+URL as"),
        ("text.pem", "127.0.0.1", "secret-2e", r"text\.pem holds no certificates that can be read here: .*__CA$"),
        ("lacking.pem", "127.0.0.1", "secret-2e", r"lacking\.pem holds no certificates that can be read here: .*__CA$"),
        ("authority.pem", "127.0.0.1", "wrong-3a", r"refuses the login \(401\): correct \w+__USER and \w+__PASSWORD$"),
    ],
)
def test_a_registry_that_is_not_trusted_is_told_and_nothing_is_read(
    by_tls: Registry, certificates: Path, tmp_path: Path, authority: str | None, host: str, password: str, says: str
) -> None:
    """What is behind another certificate may be another registry: it was said to be down, and what was known used."""
    value = framed(7, EVENT, {"id": 1})
    decoded_by(secure(tmp_path, by_tls.url, certificates / "authority.pem"), {"id": "bigint"}, value)
    forget()
    before = len(by_tls.asked)
    ca = certificates / authority if authority else None
    avro = secure(tmp_path, by_tls.url.replace("127.0.0.1", host), ca, password)
    with pytest.raises(LakehouseError, match=says) as refused:
        decoded_by(avro, {"id": "bigint"}, value)
    assert not isinstance(refused.value, Unreachable) and password not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert password == "wrong-3a" or len(by_tls.asked) == before, "the login was sent to nobody"


def test_a_registry_whose_certificate_has_expired_is_told_to_renew_it(tmp_path: Path) -> None:
    """The authority was to be corrected, which is right."""
    server, authority = make_certificate(("127.0.0.1",), datetime.now(UTC) - timedelta(days=3_650))
    (tmp_path / "server.pem").write_text(server)
    (tmp_path / "authority.pem").write_text(authority)
    with running_registry(tmp_path / "server.pem") as running:
        avro = secure(tmp_path, running.url, tmp_path / "authority.pem")
        with pytest.raises(LakehouseError, match=r"not trusted \(certificate has expired\): renew it$"):
            avro.registry.check()


def test_a_silent_registry_is_waited_for_once_not_once_for_each_schema(registry: Registry, tmp_path: Path) -> None:
    """It takes connections and never answers: ten seconds for each schema that was known, every minute."""
    avro = client(registry.url, tmp_path)
    values = []
    for number in range(1, 6):
        schema = record(f"event{number}", id="long")
        registry.register(number, schema)
        values.append(framed(number, schema, {"id": number}))
    decoded_by(avro, {"id": "bigint"}, *values)
    forget()
    registry.status, registry.asked = 503, []
    found = decoded_by(avro, {"id": "bigint"}, *values)
    assert found.values.column("id").to_pylist() == [1, 2, 3, 4, 5] and len(registry.asked) == 1
    registry.status, late = None, record("late", id="long")
    registry.register(9, late)
    assert not decoded_by(avro, {"id": "bigint"}, framed(9, late, {"id": 9})).unread, "what is not known is asked for"


class Clock:
    """The time of the process, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_a_registry_that_was_set_up_anew_while_it_was_down_is_noticed_within_a_minute(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was used during the silence counted as asked for at that moment, and was believed for another minute."""
    avro, clock = client(registry.url, tmp_path), Clock(monkeypatch)
    registry.register(7, EVENT)
    registry.register(8, EVENT)
    decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 1}), framed(8, EVENT, {"id": 1}))
    clock.now, registry.status = 1100.0, 503
    assert not decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 2})).unread
    clock.now, registry.status = 1101.0, None
    registry.register(7, record("event", a="string", id="long"))
    registry.register(8, record("event", a="string", id="long"))
    clock.now = 1159.0
    decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 3}), framed(8, EVENT, {"id": 3}))
    clock.now = 1161.0
    for number in (7, 8):
        with pytest.raises(LakehouseError, match=f"another schema for id {number} than before"):
            decoded_by(avro, {"id": "bigint"}, framed(number, EVENT, {"id": 4}))


def test_a_registry_that_takes_its_time_to_fail_is_trusted_no_longer(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The minute begins when it was asked: it may be another one by the time at which the answer is given up."""
    avro, clock = client(registry.url, tmp_path), Clock(monkeypatch)
    registry.register(7, EVENT)
    decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 1}))
    clock.now, registry.status = 1100.0, 503
    answer = registry.answer

    def late(path: str, login: str | None) -> tuple[int, object]:
        clock.now += 10.0
        return answer(path, login)

    registry.answer = late  # type: ignore[method-assign]
    decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 2}))
    clock.now, registry.status = 1160.5, None
    registry.register(7, record("event", a="string", id="long"))
    with pytest.raises(LakehouseError, match="another schema for id 7 than before"):
        decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 3}))


@pytest.mark.parametrize("status", [301, 302, 401, 403, 404])
def test_what_answers_in_a_registrys_place_may_be_another_one_and_stops_the_read(
    registry: Registry, tmp_path: Path, status: int
) -> None:
    """One that was set up anew wants another login: its events would be read by the former schemas without end."""
    avro = client(registry.url, tmp_path)
    registry.register(7, EVENT)
    decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 1}))
    forget()
    registry.status = status
    for number in (7, 8):
        with pytest.raises(LakehouseError, match=r"the schema registry at .* correct LAKEHOUSE_SOURCES__WEB__"):
            decoded_by(avro, {"id": "bigint"}, framed(number, EVENT, {"id": 3}))
    with pytest.raises(LakehouseError, match="the schema registry at"):
        avro.registry.check()
    registry.status = None
    assert not decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 3})).unread


@pytest.mark.parametrize("status", [404, 503])
def test_no_id_is_trusted_unasked_once_the_registry_was_seen_to_be_set_up_anew(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Somebody stops it to restore it: what it wrote meanwhile is in the topics, and the former ids were believed."""
    avro = client(registry.url, tmp_path)
    registry.register(7, EVENT)
    registry.register(8, EVENT)
    decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 1}), framed(8, EVENT, {"id": 1}))
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    registry.register(7, record("event", a="string", id="long"))
    with pytest.raises(LakehouseError, match="another schema for id 7 than before"):
        decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 2}))
    registry.status = status
    for number in (7, 8):
        for process in (avro, client(registry.url, tmp_path, "another machine")):
            with pytest.raises(LakehouseError, match="the schema registry at"):
                decoded_by(process, {"id": "bigint"}, framed(number, EVENT, {"id": 2}))
            forget()
    registry.status = None
    registry.register(7, EVENT)  # it was restored
    decoded_by(avro, {"id": "bigint"}, framed(8, EVENT, {"id": 2}))
    assert avro.registry.kept.is_doubted(9), "an id that means the same in both says nothing of others"
    decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 2}))
    registry.status = 503
    assert not decoded_by(avro, {"id": "bigint"}, framed(8, EVENT, {"id": 3})).unread


def test_an_id_that_the_registry_describes_as_before_since_waits_for_no_outage(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asked for the id that was doubted any more, and so each outage stopped the source, for ever."""
    avro = client(registry.url, tmp_path)
    ids = (7, 8, 9)
    for number in ids:
        registry.register(number, EVENT)
        decoded_by(avro, {"id": "bigint"}, framed(number, EVENT, {"id": 1}))
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    registry.register(7, record("event", a="string", id="long"))
    with pytest.raises(LakehouseError, match="another schema for id 7 than before"):
        decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 2}))
    decoded_by(avro, {"id": "bigint"}, framed(8, EVENT, {"id": 2}))
    registry.status = 503
    for process in (avro, client(registry.url, tmp_path, "another machine")):
        assert not decoded_by(process, {"id": "bigint"}, framed(8, EVENT, {"id": 3})).unread
        for number in (7, 9):
            with pytest.raises(LakehouseError, match="the schema registry at"):
                decoded_by(process, {"id": "bigint"}, framed(number, EVENT, {"id": 3}))
        forget()
    registry.status = None
    registry.register(9, record("event", a="string", id="long"))
    with pytest.raises(LakehouseError, match="another schema for id 9 than before"):
        decoded_by(avro, {"id": "bigint"}, framed(9, EVENT, {"id": 2}))
    assert avro.registry.kept.is_doubted(8), "since then it was not asked for"
    registry.register(7, EVENT)
    decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 2}))
    assert avro.registry.kept.is_doubted(8) and not avro.registry.kept.is_doubted(7)
    registry.register(9, EVENT)
    decoded_by(avro, {"id": "bigint"}, framed(9, EVENT, {"id": 2}))
    assert not avro.registry.kept.is_doubted(8)


def test_a_doubt_that_was_kept_as_a_number_alone_is_one(registry: Registry, tmp_path: Path) -> None:
    """It could not be read, and each read of the source failed."""
    avro = client(registry.url, tmp_path)
    kept = avro.registry.kept
    for number in (7, 8):
        registry.register(number, EVENT)
        decoded_by(avro, {"id": "bigint"}, framed(number, EVENT, {"id": 1}))
    with file_io(kept.io_properties).new_output(f"{kept.folder}/web-doubt.json").create(True) as stream:
        stream.write(b"7")
    assert kept.is_doubted(7) and kept.is_doubted(8)
    assert kept.trust(8) and kept.is_doubted(7) and not kept.is_doubted(8)
    assert not kept.trust(7) and not kept.is_doubted(9)


def test_a_schema_that_was_known_is_read_by_where_the_registry_has_lost_it(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that keeps schemas in memory was started again: its events are no dead letters."""
    avro = client(registry.url, tmp_path)
    registry.register(7, EVENT)
    decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 1}))
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    registry.schemas.clear()
    for _ in range(2):
        assert not decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 2})).unread
        forget()
    assert (
        "schema 8 is not in the registry" in decoded_by(avro, {"id": "bigint"}, framed(8, EVENT, {"id": 3})).unread[0]
    )
    registry.register(7, record("another", v="string"))
    with pytest.raises(LakehouseError, match="another schema for id 7 than before"):
        decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 4}))


def test_a_schema_that_is_printed_otherwise_is_the_same(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry that is moved to another product keeps ids, and not the blanks between."""
    avro = client(registry.url, tmp_path)
    registry.register(7, json.dumps(EVENT))
    decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 1}))
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    registry.register(7, json.dumps(dict(reversed(EVENT.items())), indent=1))
    for _ in range(2):
        assert not decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 1})).unread
        forget()


def test_a_task_on_another_machine_knows_what_an_id_meant(registry: Registry, tmp_path: Path) -> None:
    """What ids meant was kept on each machine, so that a new one believed a registry that was set up anew."""
    registry.register(7, EVENT)
    decoded_by(client(registry.url, tmp_path), {"id": "bigint"}, framed(7, EVENT, {"id": 1}))
    forget()
    other = client(registry.url, tmp_path, "another machine")
    registry.register(7, record("event", a="string", id="long"))
    for read in (AvroOpener(other.registry).open, lambda value: decoded_by(other, {"id": "bigint"}, value)):
        with pytest.raises(LakehouseError, match="another schema for id 7 than before"):
            read(framed(7, EVENT, {"id": 1}))


def test_the_object_that_the_error_names_is_all_that_has_to_be_removed(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that remembers the other schema lives on."""
    avro, other = client(registry.url, tmp_path), record("event", v="string", id="long")
    registry.register(7, EVENT)
    decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 1}))
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    registry.register(7, other)
    kept = Path(avro.registry.kept.location(7))
    for _ in range(2):
        with pytest.raises(LakehouseError, match=f"remove {kept} and ingest again"):
            decoded_by(avro, {"id": "bigint"}, framed(7, other, {"v": "x", "id": 2}))
    kept.unlink()
    found = decoded_by(avro, {"id": "bigint"}, framed(7, other, {"v": "x", "id": 2}))
    assert found.values.to_pylist() == [{"id": 2}] and "string" in kept.read_text()


@pytest.mark.parametrize("step", ["new_input", "new_output"])
def test_a_read_stops_where_the_store_keeps_no_schema(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A file that could not be written was passed over, and nobody knew later what the id had meant."""

    def down(*_: object) -> None:
        raise OSError("AWS Error NETWORK_CONNECTION during PutObject")

    registry.register(7, EVENT)
    with monkeypatch.context() as patch:
        patch.setattr(LakeFileIO, step, down)
        for _ in range(2):
            with pytest.raises(Unreachable, match=r"source 'web': what schema 7 means .*web-7\.json: AWS Error"):
                decoded_by(client(registry.url, tmp_path), {"id": "bigint"}, framed(7, EVENT, {"id": 1}))
    assert not decoded_by(client(registry.url, tmp_path), {"id": "bigint"}, framed(7, EVENT, {"id": 1})).unread


def test_of_two_tasks_that_keep_a_schema_at_once_the_first_one_wins(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    avro = client(registry.url, tmp_path)
    registry.register(7, EVENT)
    before = keeping(tmp_path, "web").keep

    def late(kept: KeptSchemas, number: int, text: str) -> str:
        before(number, json.dumps([json.dumps(record("event", id="int"))]))
        return before(number, text)

    monkeypatch.setattr(KeptSchemas, "keep", late)
    with pytest.raises(LakehouseError, match="another schema for id 7 than before"):
        decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 1}))


def test_what_is_kept_and_cannot_be_read_is_told_and_is_no_dead_letter(registry: Registry, tmp_path: Path) -> None:
    avro = client(registry.url, tmp_path)
    kept = Path(avro.registry.kept.location(7))
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"\xff{")
    registry.register(7, EVENT)
    with pytest.raises(LakehouseError, match=f"what is kept of schema 7 cannot be read: remove {kept}"):
        decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 1}))


def test_the_store_is_asked_once_for_each_schema_and_process(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    avro, asked = client(registry.url, tmp_path), list[str]()
    new_input = LakeFileIO.new_input
    monkeypatch.setattr(LakeFileIO, "new_input", lambda io, place: asked.append(place) or new_input(io, place))
    registry.register(7, EVENT)
    decoded_by(avro, {"id": "bigint"}, framed(7, EVENT, {"id": 1}))
    forget()
    asked.clear()
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    for _ in range(3):
        decoded_by(pickle.loads(pickle.dumps(avro)), {"id": "bigint"}, framed(7, EVENT, {"id": 1}))
    kept = avro.registry.kept
    assert asked == [kept.location(7), f"{kept.folder}/web-doubt.json"]


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("string", None), ({"type": "double"}, 0), ("long", "0"), ({"type": "array", "items": "long"}, None),
        ("bytes", 1),
    ],
)  # fmt: skip
def test_a_default_that_does_not_fit_makes_no_dead_letters(
    registry: Registry, tmp_path: Path, kind: object, default: object
) -> None:
    """Data are read by the schema that wrote them, which needs no default; older libraries did not check it."""
    registry.register(
        7, {"type": "record", "name": "event", "fields": [
            {"name": "id", "type": "long"}, {"name": "v", "type": kind, "default": default}]},
    )  # fmt: skip
    written = record("event", id="long", v=kind)
    datum = {"string": "x", "long": 5, "bytes": b"x"}.get(str(kind), [1] if "array" in str(kind) else 0.5)
    found = decoded_by(client(registry.url, tmp_path), {"id": "bigint"}, framed(7, written, {"id": 1, "v": datum}))
    assert not found.unread and found.values.to_pylist() == [{"id": 1}]


def test_ids_of_eight_bytes_are_told_as_such(tmp_path: Path) -> None:
    value = b"\0" + (7).to_bytes(8, "big") + b"\2"
    found = decoded_by(client("http://127.0.0.1:1", tmp_path), {"id": "bigint"}, value)
    assert "no schema id in four bytes" in found.unread[0]


def test_framed_avro_that_is_declared_as_json_is_told_as_such() -> None:
    value = framed(7, EVENT, {"id": 1})
    for read in (JsonValues().row, JsonOpener().open):
        with pytest.raises(Unread, match=r"no JSON, but framed as Avro is: declare meta.raw.format: avro"):
            read(value)
