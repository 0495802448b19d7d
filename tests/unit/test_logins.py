"""Who may log in to our Trino, and the certificate that it shows."""

import ssl
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from lakehouse.errors import LakehouseError
from lakehouse.servers.logins import (
    GROUPS,
    PASSWORDS,
    add_login,
    ensure_own_logins,
    hash_password,
    matches,
    read_logins,
    remove_login,
)
from lakehouse_stack.home.certificate import RENEWED_BEFORE, VALID, ensure_certificate, make_certificate

OWN = {"lakehouse": "w" * 32, "reader": "r" * 32, "privacy": "p" * 32}


def test_a_hash_matches_its_password_alone() -> None:
    hashed = hash_password("s3cret")
    assert matches(hashed, "s3cret") and not matches(hashed, "s3cret ") and not matches("nonsense", "s3cret")
    assert hash_password("s3cret") != hashed and "s3cret" not in hashed
    iterations, salt, digest = hashed.split(":")
    assert int(iterations) >= 1000 and len(salt) == 32 and len(digest) == 40  # what Trino insists on


def test_own_logins_are_written_once_and_added_ones_stay(tmp_path: Path) -> None:
    ensure_own_logins(tmp_path, OWN)
    before = (tmp_path / PASSWORDS).read_text()
    ensure_own_logins(tmp_path, OWN)
    assert (tmp_path / PASSWORDS).read_text() == before
    password = add_login(tmp_path, "ada@example.com", "privacy")
    ensure_own_logins(tmp_path, {**OWN, "reader": "another"})
    logins = read_logins(tmp_path)
    assert matches(logins["ada@example.com"].hashed, password) and logins["ada@example.com"].role == "privacy"
    assert matches(logins["reader"].hashed, "another") and matches(logins["lakehouse"].hashed, OWN["lakehouse"])
    assert (tmp_path / GROUPS).read_text().splitlines() == [
        "writer:lakehouse", "reader:reader", "privacy:ada@example.com,privacy"
    ]  # fmt: skip
    for name in (PASSWORDS, GROUPS):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    remove_login(tmp_path, "ada@example.com")
    assert set(read_logins(tmp_path)) == set(OWN)


def test_logins_that_are_added_at_once_are_all_there(tmp_path: Path) -> None:
    ensure_own_logins(tmp_path, OWN)
    names = [f"user{number}" for number in range(12)]
    with ThreadPoolExecutor(4) as pool:
        passwords = list(pool.map(lambda name: add_login(tmp_path, name, "reader"), names))
    logins = read_logins(tmp_path)
    assert all(matches(logins[name].hashed, password) for name, password in zip(names, passwords, strict=True))


@pytest.mark.parametrize("name", ["", "a:b", "a,b", "a\nwriter:a", "-x", "lakehouse", "reader", "writer:mallory"])
def test_no_name_becomes_more_than_a_login(tmp_path: Path, name: str) -> None:
    ensure_own_logins(tmp_path, OWN)
    before = (tmp_path / GROUPS).read_text()
    with pytest.raises(LakehouseError):
        add_login(tmp_path, name, "reader")
    with pytest.raises(LakehouseError):
        remove_login(tmp_path, name)
    assert (tmp_path / GROUPS).read_text() == before


def test_the_certificate_is_kept_until_it_nears_its_end(tmp_path: Path) -> None:
    server, authority = tmp_path / "trino.pem", tmp_path / "ca.pem"
    ensure_certificate(server, authority, ["127.0.0.1"])
    before = server.read_text()
    ensure_certificate(server, authority, ["127.0.0.1"])
    assert server.read_text() == before
    assert stat.S_IMODE(server.stat().st_mode) == 0o600 and stat.S_IMODE(authority.stat().st_mode) == 0o644
    old = make_certificate(("127.0.0.1",), datetime.now(UTC) - VALID + RENEWED_BEFORE - timedelta(days=1))
    authority.write_text(old[1])
    ensure_certificate(server, authority, ["127.0.0.1"])
    assert server.read_text() != before


def test_the_authority_can_sign_nothing_more_and_strict_clients_take_it() -> None:
    server, authority = make_certificate(("127.0.0.1", "trino"), datetime.now(UTC))
    assert server.count("PRIVATE KEY") == 2 and "PRIVATE KEY" not in authority
    certificate = x509.load_pem_x509_certificate(server.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["trino"]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.encode()))
    context = ssl.create_default_context(cadata=authority)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    assert len(context.get_ca_certs()) == 1
