"""The disk that runs full may be that of the servers' data, and not the home's."""

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from lakehouse.settings import load_settings
from lakehouse_stack.home.credentials import ensure_credentials
from lakehouse_stack.home.pathnames import credentials_file
from lakehouse_stack.processes.accounts import find_server_placement
from lakehouse_watch.probes import servers


@pytest.mark.skipif(os.geteuid() != 0, reason="root's servers alone have their data elsewhere")
def test_the_disk_of_data_outside_the_home_is_watched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:  # closed to others, as /root is
        home, system = Path(folder) / "home", Path(folder) / "system"
        monkeypatch.setenv("LAKEHOUSE_HOME", str(home))
        monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
        monkeypatch.setenv("LAKEHOUSE_STACK_SYSTEM_DIR", str(system))
        settings = load_settings()
        ensure_credentials(credentials_file(settings))
        find_server_placement(home, system)  # as `up` does: the watch makes no folder
        monkeypatch.setattr(
            servers.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 if system in path.parents else 10**12)
        )
        (occasion,) = servers.read_disk(settings).occasions
        assert str(system) in occasion.summary


def test_the_disk_behind_a_linked_folder_of_the_data_is_watched_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A volume of its own for the objects ran full, and the watch said that there was room."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
    monkeypatch.setenv("LAKEHOUSE_STACK_SYSTEM_DIR", str(tmp_path / "system"))
    settings, big = load_settings(), tmp_path / "big"
    ensure_credentials(credentials_file(settings))
    data = find_server_placement(settings.home, tmp_path / "system").data
    (data / "catalog").mkdir(parents=True)
    big.mkdir()
    (data / "s3").symlink_to(big)
    monkeypatch.setattr(
        servers.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 if path.resolve() == big else 10**12)
    )
    (occasion,) = servers.read_disk(settings).occasions
    assert str(data / "s3") in occasion.summary
