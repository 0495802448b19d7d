"""As root, servers run as another user: what they own, what they may read, and what they cannot have root do."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_private, write_shared
from lakehouse.settings import load_settings
from lakehouse_cli.machine.upgrade import _users_planned
from lakehouse_stack.home.credentials import ensure_credentials
from lakehouse_stack.home.pathnames import credentials_file
from lakehouse_stack.processes.accounts import (
    Account,
    Placement,
    find_placement,
    find_server_placement,
    hand_over,
    reachable,
    run_as,
)
from lakehouse_stack.processes.ownership import adopt, own_dir, share
from lakehouse_stack.servers.postgres import CONFIG_FILE, postgres_server

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root alone has other users")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can enter, which pytest's are not."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o711)
        yield Path(path)


@pytest.fixture
def account(folder: Path) -> Account:
    found = find_server_placement(folder, folder / "system").account
    assert found is not None
    return found


def may(account: Account, test: str, path: Path) -> bool:
    done = subprocess.run(["/usr/bin/test", test, str(path)], user=account.uid, group=account.gid, extra_groups=[])
    return done.returncode == 0


def test_root_runs_no_server_itself_and_keeps_postgres_apart(folder: Path) -> None:
    others, postgres = find_server_placement(folder, folder / "system"), find_placement(folder, folder / "system")
    assert others.account is not None and postgres.account is not None
    assert others.account.uid and postgres.account.uid
    assert others.account != postgres.account, "this machine has `daemon` or `lakehouse`"
    assert (others.data, others.config) == (folder / "data", folder / "config")


def test_a_home_that_the_user_cannot_enter_has_its_servers_in_the_system_folder(folder: Path) -> None:
    home = folder / "root" / "home"
    home.mkdir(parents=True)
    home.parent.chmod(0o700)
    found = find_server_placement(home, folder / "system")
    assert found.account is not None and found.data.parent == folder / "system"
    own_dir(found.data / "s3", found.account)
    assert may(found.account, "-w", found.data / "s3")


def test_who_has_the_objects_keeps_them_whatever_users_come_later(folder: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    (folder / "data" / "s3").mkdir(parents=True)
    os.chown(folder / "data" / "s3", nobody.pw_uid, nobody.pw_gid)
    found = find_server_placement(folder, folder / "system").account
    assert found is not None and found.name == "nobody"


def test_a_folder_of_roots_becomes_the_users_with_all_that_is_in_it(folder: Path, account: Account) -> None:
    data, elsewhere = folder / "s3", folder / "elsewhere"
    (data / "warehouse" / "raw").mkdir(parents=True)
    (data / "warehouse" / "raw" / "a.parquet").write_text("a")
    elsewhere.write_text("root's")
    (data / "link").symlink_to(elsewhere)
    own_dir(data, account)
    assert {path.lstat().st_uid for path in (data, *data.rglob("*"))} == {account.uid}
    assert elsewhere.stat().st_uid == 0, "what a link leads to stays whose it was"
    (data / "warehouse" / "of-root").mkdir()
    own_dir(data, account)  # nothing is changed in what is somebody else's
    assert (data / "warehouse" / "of-root").stat().st_uid == 0


def test_a_home_that_root_has_all_of_is_told_to_upgrade(
    folder: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(folder))
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
    settings = load_settings()
    ensure_credentials(credentials_file(settings))
    assert _users_planned(settings) == []
    (folder / "data" / "s3").mkdir()
    (line,) = _users_planned(settings)
    assert line.startswith("trino, s3, serve: ") and f"as user {account.name} instead of root" in line
    own_dir(folder / "data" / "s3", account)
    assert _users_planned(settings) == []


def test_a_change_of_owner_that_was_cut_off_is_completed(folder: Path, account: Account) -> None:
    data = folder / "s3"
    for name in ("a", "b"):
        (data / name).mkdir(parents=True)
    hand_over(data / "a", account)
    own_dir(data, account)
    assert {path.lstat().st_uid for path in (data, data / "a", data / "b")} == {account.uid}


def test_a_folder_of_somebody_else_is_refused(folder: Path, account: Account) -> None:
    nobody = pwd.getpwnam("nobody")
    assert account.uid != nobody.pw_uid
    data = folder / "trino"
    data.mkdir()
    os.chown(data, nobody.pw_uid, nobody.pw_gid)
    with pytest.raises(LakehouseError, match=f"belongs to user {nobody.pw_uid}, not to {account.name}: `chown -R"):
        own_dir(data, account)


def test_what_is_shared_is_read_by_the_user_and_changed_by_root_alone(folder: Path, account: Account) -> None:
    access, other = folder / "config" / "access", Account("nobody", 65534, 65534)
    write_private(access / "password.db", "before")
    write_private(access / "lock", "")
    share(folder / "config", account)
    write_shared(access / "rules.json", "{}")
    write_shared(access / "password.db", "after")
    for name in ("rules.json", "password.db"):
        assert may(account, "-r", access / name) and not may(account, "-w", access / name)
        assert not may(other, "-r", access / name)
    assert not may(account, "-w", access) and not may(account, "-r", access / "lock")


def test_what_is_shared_with_nobody_stays_private(folder: Path) -> None:
    write_shared(folder / "access" / "password.db", "")
    assert (folder / "access" / "password.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("elsewhere", [None, "/dev/shm"], ids=["renamed", "across file systems"])
def test_what_an_earlier_release_had_elsewhere_is_moved_whole(folder: Path, elsewhere: str | None) -> None:
    target = Path(tempfile.mkdtemp(dir=elsewhere)) / "s3"
    try:
        (folder / "s3" / "warehouse").mkdir(parents=True)
        (folder / "s3" / "warehouse" / "a").write_text("a")
        (folder / "trino.pem").write_text("key")
        if elsewhere:  # an attempt that was cut off
            (target.with_name("s3.adopted") / "warehouse").mkdir(parents=True)
        adopt(folder / "s3", target)
        adopt(folder / "trino.pem", target.with_name("trino.pem"))
        assert (target / "warehouse" / "a").read_text() == "a"
        assert target.with_name("trino.pem").read_text() == "key"
        assert not (folder / "s3").exists() and not (folder / "trino.pem").exists()
        (folder / "s3").mkdir()
        adopt(folder / "s3", target)  # never over what is there
        assert (target / "warehouse" / "a").exists()
    finally:
        shutil.rmtree(target.parent)


@pytest.mark.parametrize("elsewhere", [None, "/dev/shm"], ids=["links", "copies"])
def test_programs_below_a_closed_folder_can_be_run(folder: Path, account: Account, elsewhere: str | None) -> None:
    """Those of root are below /root, and its umask may have kept them to itself."""
    programs = folder / "cache" / "java"
    (programs / "bin").mkdir(parents=True)
    (programs / "bin" / "java").write_text("#!/bin/sh\necho runs\n")
    (programs / "bin" / "java").chmod(0o700)
    (programs / "bin" / "j").symlink_to("java")
    for path in (programs / "bin", programs, programs.parent):
        path.chmod(0o700)
    system = Path(tempfile.mkdtemp(dir=elsewhere or folder))
    try:
        found = reachable(programs, account, system)
        assert found != programs and found == reachable(programs, account, system)
        done = subprocess.run([found / "bin" / "j"], user=account.uid, group=account.gid, capture_output=True)
        assert done.stdout == b"runs\n"
        assert reachable(Path("/bin/sh"), account, system) == Path("/bin/sh")
    finally:
        shutil.rmtree(system)


def test_what_runs_as_another_user_has_nothing_of_roots(
    folder: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes of that user may read its variables, and write to its terminal."""
    monkeypatch.setenv("LAKEHOUSE_CATALOG_URL", "postgresql://u:secret@h/d")
    own_dir(folder / "data", account)
    run_as(account, 'tr "\\0" "\\n" < /proc/self/environ > "$1"', folder / "data" / "env")
    assert "secret" not in (folder / "data" / "env").read_text()


def test_a_link_in_postgress_folder_does_not_have_root_write_elsewhere(folder: Path) -> None:
    """Who took over Postgres had any file of the machine replaced at the next `lakehouse up`, and could read any."""
    placement: Placement = find_placement(folder, folder / "system")
    server = postgres_server("catalog", 1, placement, folder / "log", "secret", "", {})
    data, victim = placement.data / "catalog", folder / "victim"
    server.prepare()
    victim.write_text("root's")
    (data / CONFIG_FILE).unlink()
    (data / CONFIG_FILE).symlink_to(victim)
    (data / f"{CONFIG_FILE}.new").symlink_to(victim)
    with pytest.raises(LakehouseError, match="remove what is in the way"):
        server.prepare()
    (data / f"{CONFIG_FILE}.new").unlink()
    server.prepare()
    assert victim.read_text() == "root's" and victim.stat().st_uid == 0
    assert "listen_addresses" in (data / CONFIG_FILE).read_text() and not (data / CONFIG_FILE).is_symlink()
