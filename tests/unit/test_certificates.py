"""Certificates of brokers and schema registries: what is wrong is told by the check, and what soon will be."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ingestion.sources.findings import Finding
from ingestion.sources.kafka.certificates import SOON
from ingestion.sources.kafka.check import of_certificates, of_registry
from ingestion.sources.kafka.registry import SchemaRegistry
from ingestion.sources.kafka.source import OpenKafka
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_stack.home.certificate import VALID, make_certificate
from tests.registry import Registry, keeping, running_registry

DAY = timedelta(days=1)
AVRO = cast(Any, SimpleNamespace(name="web", tables=[SimpleNamespace(raw=SimpleNamespace(format="avro"))]))


def signed(folder: Path, left: timedelta) -> Path:
    """The authority of `server.pem`, which expires so soon."""
    server, authority = make_certificate(("127.0.0.1",), datetime.now(UTC) - VALID + left)
    (folder / "server.pem").write_text(server)
    (folder / "authority.pem").write_text(authority)
    return folder / "authority.pem"


def settings(folder: Path, url: str = "https://127.0.0.1:1", **given: Any) -> Settings:
    of = {"kind": "kafka", "bootstrap_servers": "127.0.0.1:1", **given}
    return Settings(
        home=folder, sources={"web": of | {"schema_registry": {"url": url, "ca": folder / "authority.pem"}}}
    )


@contextmanager
def secure_registry(folder: Path, left: timedelta) -> Iterator[Registry]:
    signed(folder, left)
    with running_registry(folder / "server.pem") as running:
        yield running


def told(folder: Path, url: str) -> list[Finding]:
    return list(of_registry(settings(folder, url), AVRO))


def test_a_registry_whose_certificate_expires_soon_is_warned_of(tmp_path: Path) -> None:
    with secure_registry(tmp_path, SOON - DAY) as running:
        [finding] = told(tmp_path, running.url)
        assert (finding.about, finding.weight) == ("schema registry", "warning")
        assert f"the certificate of {running.url.removeprefix('https://')} expires at " in finding.line
        assert finding.remedy.startswith("renew it before")


def test_a_registry_whose_certificate_is_good_for_long_is_not_mentioned(tmp_path: Path) -> None:
    with secure_registry(tmp_path, SOON + DAY) as running:
        assert told(tmp_path, running.url) == []


def test_a_registry_whose_certificate_has_expired_is_in_the_way(tmp_path: Path) -> None:
    with secure_registry(tmp_path, -DAY) as running:
        [finding] = told(tmp_path, running.url)
        assert finding.weight == "in the way" and "(certificate has expired): renew it" in finding.line


def test_a_registry_that_speaks_no_tls_is_told_to_be_named_otherwise(tmp_path: Path) -> None:
    """It was said not to answer, and schemas that were known went on being used."""
    signed(tmp_path, SOON + DAY)
    with running_registry() as running:
        [finding] = told(tmp_path, running.url.replace("http:", "https:"))
        assert finding.line.endswith("speaks no TLS: correct LAKEHOUSE_SOURCES__WEB__SCHEMA_REGISTRY__URL")


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """What makes a connection by TLS, and hangs up."""
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.load_cert_chain(folder / "server.pem")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with trust.wrap_socket(connection, server_side=True):
                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)


@pytest.mark.parametrize(("left", "says"), [(SOON - DAY, True), (SOON + DAY, False)])
def test_a_broker_whose_certificate_expires_soon_is_warned_of(tmp_path: Path, left: timedelta, says: bool) -> None:
    ca = signed(tmp_path, left)
    with broker(tmp_path) as address:
        of = settings(tmp_path, bootstrap_servers=address, tls=True, ca=ca).kafka("web")
        found = [finding.line for finding in of_certificates(AVRO, of)]
    assert bool(found) == says and all(f"web: the certificate of {address} expires at " in line for line in found)


def test_brokers_that_are_reached_without_tls_are_not_asked(tmp_path: Path) -> None:
    assert not list(of_certificates(AVRO, settings(tmp_path).kafka("web")))


@pytest.mark.parametrize("form", ["avro", "json"])
@pytest.mark.parametrize("left", [-DAY, SOON - DAY, None])
def test_the_watch_tells_of_a_registry_that_is_not_trusted(tmp_path: Path, left: timedelta | None, form: str) -> None:
    """The source stood still, and what its alert said was that its follower does not run; but schemas that are known
    are read by while no registry answers."""
    signed(tmp_path, left or DAY)
    opened = object.__new__(OpenKafka)
    opened.check_stream = lambda states: None  # type: ignore[method-assign]
    opened._begun = lambda: cast(Any, [SimpleNamespace(format=form)])  # type: ignore[method-assign]
    with running_registry(tmp_path / "server.pem") as running:
        url = running.url if left else "https://127.0.0.1:1"
        kept = keeping(tmp_path, "web")
        opened._registry = SchemaRegistry("web", url, None, None, str(tmp_path / "authority.pem"), kept)
        if left == -DAY and form == "avro":
            with pytest.raises(LakehouseError, match=r"not trusted \(certificate has expired\): renew it$"):
                opened.check_only(cast(Any, None))
        else:
            opened.check_only(cast(Any, None))
