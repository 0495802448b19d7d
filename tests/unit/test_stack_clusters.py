"""The clusters' data folders and stale locks: neither a crash nor a second process loses data."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse_cli.source import uninstall as uninstalling
from lakehouse_stack.control.start_stop import delete_home, down, ended, linked_places, locked_home, running, up
from lakehouse_stack.home.pathnames import pid_file
from lakehouse_stack.processes import accounts
from lakehouse_stack.processes.accounts import (
    Account,
    find_placement,
    find_server_placement,
    system_data,
    system_folder,
)
from lakehouse_stack.processes.process import Launch, start, working_in
from lakehouse_stack.servers.postgres import remove_stale_lock


def test_a_home_finds_its_data_again_and_one_made_anew_leaves_the_former_data(tmp_path: Path) -> None:
    home, system = tmp_path / "home", tmp_path / "system"
    folder = system_data(home, system)
    (folder / "catalog").mkdir()
    written = (folder / "id").stat().st_mtime_ns
    assert system_data(home, system) == folder and (folder / "catalog").exists()
    assert (folder / "id").stat().st_mtime_ns == written, "who only looks writes nothing"
    for lost in ("anew", ""):
        (home / "run" / "id").write_text(lost)
        assert system_data(home, system) == folder and not (folder / "catalog").exists()
        assert (folder.with_name(f"{folder.name}.former") / "catalog").exists()
        (folder / "catalog").mkdir()


def test_a_home_that_was_moved_finds_its_data_again(tmp_path: Path) -> None:
    """It came up as an empty lake, and what was made at its former place later deleted the data."""
    home, new, system = tmp_path / "home", tmp_path / "new", tmp_path / "system"
    (system_data(home, system) / "catalog").mkdir()
    home.rename(new)
    assert (system_data(new, system, make=False) / "catalog").exists(), "who only looks sees it too"
    folder = system_data(new, system)
    assert folder == system_folder(new, system) and (folder / "catalog").exists()
    assert (folder / "home").read_text() == f"{new}\n" and [each.parent for each in system.glob("*/id")] == [folder]
    new.rename(home)
    (system_data(new, system) / "catalog").mkdir()  # another lake, where the home was in between
    assert (system_data(home, system) / "catalog").exists()
    assert len([*system.glob("*/catalog")]) == 2


def test_a_copy_of_a_home_does_not_take_its_data(tmp_path: Path) -> None:
    home, copy, system = tmp_path / "home", tmp_path / "copy", tmp_path / "system"
    folder = system_data(home, system)
    shutil.copytree(home, copy)
    refused = f"^{copy} is a copy of {home}, .* the data is in {folder}: use {home}; "
    for make in (True, False):
        with pytest.raises(LakehouseError, match=refused):
            system_data(copy, system, make)
    (copy / "run" / "id").unlink()
    assert system_data(copy, system) != folder == system_data(home, system)


def test_a_copy_of_a_home_is_refused_while_the_home_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`up` in a copied project took over the servers of the original, and `down` stopped them."""
    monkeypatch.setenv("LAKEHOUSE_STACK_SYSTEM_DIR", str(tmp_path / "system"))
    original, copied = (load_settings(home=tmp_path / name) for name in ("home", "copy"))
    with locked_home(original):
        pass
    shutil.copytree(original.home, copied.home)
    monkeypatch.setattr(uninstalling, "load_settings", lambda: copied)
    for command in (up, down, lambda _: uninstalling.uninstall(dry_run=True)):
        with pytest.raises(LakehouseError, match=f"^{copied.home} is a copy of {original.home}: use {original.home}; "):
            command(copied)
    with locked_home(original):
        pass
    original.home.rename(tmp_path / "gone")
    with locked_home(copied):
        pass  # now it is the home


def test_a_copy_that_has_an_identity_of_its_own_or_was_made_before_there_was_one_has_no_server_of_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_STACK_SYSTEM_DIR", str(tmp_path / "system"))
    original, copied = (load_settings(home=tmp_path / name) for name in ("home", "copy"))
    data = original.home / "data" / "s3"
    data.mkdir(parents=True)
    launch = Launch((sys.executable, "-c", "import time; time.sleep(100)"), data, tmp_path / "log", {})
    server = start(launch, 1, pid_file(original, "s3"))
    try:
        shutil.copytree(original.home, copied.home)
        assert running(original, "s3") == server and running(copied, "s3") is None
        assert ended(copied) == ["s3"] and down(copied) == []
        moved = load_settings(home=tmp_path / "moved")
        original.home.rename(moved.home)
        assert running(moved, "s3") == server, "a home that was moved is the same"
    finally:
        server.kill()
        server.wait(10)


@pytest.mark.parametrize("linked", ["data", "data/s3", "data/catalog"])
def test_servers_whose_data_is_elsewhere_by_a_link_are_the_homes(
    linked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` said that they had ended, `down` found nothing, and the lock of a cluster that served was deleted."""
    monkeypatch.setenv("LAKEHOUSE_STACK_SYSTEM_DIR", str(tmp_path / "system"))
    settings, elsewhere = load_settings(home=tmp_path / "home"), tmp_path / "elsewhere"
    link = settings.home / linked
    link.parent.mkdir(parents=True)
    elsewhere.mkdir()
    link.symlink_to(elsewhere)
    (tmp_path / "postgres").symlink_to("/bin/sleep")
    name = linked.rpartition("/")[2] if "/" in linked else "catalog"
    folder = settings.home / "data" / name
    folder.mkdir(exist_ok=True)
    server = start(
        Launch((str(tmp_path / "postgres"), "60"), folder, tmp_path / "log", {}), 1, pid_file(settings, name)
    )
    try:
        (folder / "postmaster.pid").write_text(f"{server.pid}\n")
        remove_stale_lock(folder)
        assert (folder / "postmaster.pid").exists()
        assert running(settings, name) == server and ended(settings) == []
        assert working_in(folder, "postgres") == [server]
        copied = tmp_path / "copy"
        shutil.copytree(settings.home, copied)  # follows the links
        (copied / "run" / "id").unlink(missing_ok=True)
        assert running(load_settings(home=copied), name) is None
        shutil.rmtree(settings.home / "run")  # as after a home was made anew around data that is kept elsewhere
        assert down(settings) == [name]
    finally:
        with suppress(psutil.NoSuchProcess):
            server.kill()
            server.wait(10)
    assert linked_places(settings) == [elsewhere]
    delete_home(settings)
    assert not settings.home.exists() and [*elsewhere.rglob("postmaster.pid")]


def test_what_a_home_has_left_is_never_deleted(tmp_path: Path) -> None:
    home, system = tmp_path / "home", tmp_path / "system"
    for number in range(3):
        (system_data(home, system) / str(number)).touch()
        shutil.rmtree(home)
    system_data(home, system)
    assert sorted(file.name for file in system.glob("*/[0-9]")) == ["0", "1", "2"]


def test_who_only_looks_makes_nothing_and_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `doctor` and `upgrade --check`, which change nothing: as root they made folders and copied programs."""
    home, system = tmp_path / "home", tmp_path / "system"
    monkeypatch.setattr(accounts, "_first_of", lambda names: Account(names[0], 1, 1))
    monkeypatch.setattr(accounts, "can_enter", lambda *_: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for _ in range(2):
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        found = find_server_placement(home, system, make=False)
        assert found.data == find_placement(home, system, make=False).data
        assert found.program(Path("/bin/true")) == Path("/bin/true")
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
        system_data(tmp_path / "home", system)
        (home / "run" / "id").write_text("of a home that was made anew")


def test_an_owner_that_was_cut_off_while_it_was_written_deletes_nothing(tmp_path: Path) -> None:
    home, system = tmp_path / "home", tmp_path / "system"
    folder = system_data(home, system)
    (folder / "catalog").mkdir()
    (folder / "id").write_text("")
    system_data(home, system)
    assert (folder.with_name(f"{folder.name}.former") / "catalog").exists()


def test_the_lock_of_a_dead_cluster_goes_though_its_pid_is_another_programs(tmp_path: Path) -> None:
    lock = tmp_path / "postmaster.pid"
    for pid in (os.getpid(), 2**22 + 1):
        lock.write_text(f"{pid}\n{tmp_path}\n")
        remove_stale_lock(tmp_path)
        assert not lock.exists()
    for damaged in ("", "not a pid\n"):
        lock.write_text(damaged)
        remove_stale_lock(tmp_path)
        assert lock.exists()


def test_servers_of_a_deleted_home_end_wherever_their_data_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of root, whose data is below the system folder, went on and kept their memory."""
    for name, value in {"HOME": "home", "STACK_SYSTEM_DIR": "system"}.items():
        monkeypatch.setenv(f"LAKEHOUSE_{name}", str(tmp_path / value))
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
    data = system_data(tmp_path / "home", tmp_path / "system") / "s3"
    data.mkdir()
    shutil.rmtree(tmp_path / "home")
    (tmp_path / "java").symlink_to("/bin/sleep")
    with subprocess.Popen([tmp_path / "java", "60"], cwd=data) as server:
        try:
            assert down(load_settings()) == ["s3"]
            server.wait(5)
        finally:
            server.kill()
