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
