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
    Rights,
    add_login,
    change_login,
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


def test_a_login_that_reads_some_namespaces_is_in_a_group_for_each_and_in_none_of_its_role(tmp_path: Path) -> None:
    ensure_own_logins(tmp_path, OWN)
    add_login(tmp_path, "ada", "reader", ["marts", "mirror_shop"])
    add_login(tmp_path, "ben", "privacy", ["marts"])
    add_login(tmp_path, "eve", "reader", ["marts"])
    assert (tmp_path / GROUPS).read_text().splitlines() == [
        "writer:lakehouse", "reader:reader", "privacy:privacy",
        "reader@marts:ada,eve", "reader@mirror_shop:ada", "privacy@marts:ben",
    ]  # fmt: skip
    rights = {name: login.rights for name, login in read_logins(tmp_path).items()}
    assert rights["ada"] == Rights("reader", frozenset({"marts", "mirror_shop"}))
    assert rights["ben"] == Rights("privacy", frozenset({"marts"}))
    assert rights["reader"] == Rights("reader", None)
    remove_login(tmp_path, "ada")
    assert "ada" not in (tmp_path / GROUPS).read_text()


def test_logins_from_before_there_were_namespaces_read_all_of_them(tmp_path: Path) -> None:
    """As the release before wrote the files."""
    hashed = hash_password("secret")
    (tmp_path / GROUPS).write_text("writer:lakehouse\nreader:ann,reader\nprivacy:privacy\n")
    (tmp_path / PASSWORDS).write_text(
        "".join(f"{name}:{hashed}\n" for name in ("ann", "lakehouse", "privacy", "reader"))
    )
    before = (tmp_path / GROUPS).read_text()
    found = read_logins(tmp_path)
    roles = {"ann": "reader", "lakehouse": "writer", "privacy": "privacy", "reader": "reader"}
    assert {name: login.role for name, login in found.items()} == roles
    assert all(login.rights.covers("anything") for login in found.values())
    ensure_own_logins(tmp_path, dict.fromkeys(OWN, "secret"))
    assert (tmp_path / GROUPS).read_text() == before


def test_a_new_password_opens_no_other_namespace_and_a_change_keeps_the_password(tmp_path: Path) -> None:
    ensure_own_logins(tmp_path, OWN)
    add_login(tmp_path, "ada", "reader", ["marts"])
    password = add_login(tmp_path, "ada", "privacy")

    def rights() -> Rights:
        login = read_logins(tmp_path)["ada"]
        assert matches(login.hashed, password)
        return login.rights

    assert rights() == Rights("privacy", frozenset({"marts"}))
    change_login(tmp_path, "ada", "reader", (), everywhere=False)
    assert rights() == Rights("reader", frozenset({"marts"}))
    change_login(tmp_path, "ada", None, ["parsed", "vault"], everywhere=False)
    assert rights() == Rights("reader", frozenset({"parsed", "vault"}))
    change_login(tmp_path, "ada", None, (), everywhere=True)
    assert rights() == Rights("reader")
    for name in ("nobody", "reader", "lakehouse"):
        with pytest.raises(LakehouseError):
            change_login(tmp_path, name, None, ["marts"], everywhere=False)
    remove_login(tmp_path, "ada")
    add_login(tmp_path, "ada", "reader")
    assert read_logins(tmp_path)["ada"].rights == Rights("reader"), "another person with that name"


@pytest.mark.parametrize(
    "namespace", ["", "a:b", "a,b", "a\nwriter:ada", "marts\n", "Marts", "marts.x", ".*", "a@b", "live_raw_web"]
)
def test_no_namespace_becomes_more_than_a_group_of_its_own(tmp_path: Path, namespace: str) -> None:
    ensure_own_logins(tmp_path, OWN)
    add_login(tmp_path, "ada", "reader", ["marts"])
    before = (tmp_path / GROUPS).read_text(), (tmp_path / PASSWORDS).read_text()
    with pytest.raises(LakehouseError, match="give raw_web" if namespace.startswith("live") else "no name of a names"):
        add_login(tmp_path, "ada", "reader", ["vault", namespace])
    with pytest.raises(LakehouseError):
        change_login(tmp_path, "ada", None, [namespace], everywhere=False)
    assert ((tmp_path / GROUPS).read_text(), (tmp_path / PASSWORDS).read_text()) == before


def test_an_own_login_reads_everything_again_after_somebody_narrowed_it_by_hand(tmp_path: Path) -> None:
    """The pipeline would have found no table."""
    ensure_own_logins(tmp_path, OWN)
    (tmp_path / GROUPS).write_text("writer@marts:lakehouse\nreader:reader\nprivacy:privacy\n")
    ensure_own_logins(tmp_path, OWN)
    assert read_logins(tmp_path)["lakehouse"].rights == Rights("writer")


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
