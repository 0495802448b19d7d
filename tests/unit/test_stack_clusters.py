"""The clusters' data folders and stale locks: neither a crash nor a second process loses data."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lakehouse.settings import load_settings
from lakehouse_stack.control.start_stop import down
from lakehouse_stack.processes.accounts import _system_data
from lakehouse_stack.servers.postgres import remove_stale_lock


def test_a_home_finds_its_data_again_and_one_made_anew_leaves_the_former_data(tmp_path: Path) -> None:
    home, system = tmp_path / "home", tmp_path / "system"
    folder = _system_data(home, system)
    (folder / "catalog").mkdir()
    written = (folder / "id").stat().st_mtime_ns
    assert _system_data(home, system) == folder and (folder / "catalog").exists()
    assert (folder / "id").stat().st_mtime_ns == written, "who only looks writes nothing"
    for lost in ("anew", ""):
        (home / "run" / "id").write_text(lost)
        assert _system_data(home, system) == folder and not (folder / "catalog").exists()
        assert (folder.with_name(f"{folder.name}.former") / "catalog").exists()
        (folder / "catalog").mkdir()


def test_an_owner_that_was_cut_off_while_it_was_written_deletes_nothing(tmp_path: Path) -> None:
    home, system = tmp_path / "home", tmp_path / "system"
    folder = _system_data(home, system)
    (folder / "catalog").mkdir()
    (folder / "id").write_text("")
    _system_data(home, system)
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
    data = _system_data(tmp_path / "home", tmp_path / "system") / "s3"
    data.mkdir()
    shutil.rmtree(tmp_path / "home")
    (tmp_path / "java").symlink_to("/bin/sleep")
    with subprocess.Popen([tmp_path / "java", "60"], cwd=data) as server:
        try:
            assert down(load_settings()) == ["s3"]
            server.wait(5)
        finally:
            server.kill()
