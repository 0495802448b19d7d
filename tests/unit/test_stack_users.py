"""As root, Postgres runs as another user: what it cannot have root do."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse.errors import LakehouseError
from lakehouse_stack.processes.accounts import Account, Placement, find_placement, hand_over, run_as
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
    found = find_placement(folder, folder / "system").account
    assert found is not None
    return found


def test_what_runs_as_another_user_has_nothing_of_roots(
    folder: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes of that user may read its variables, and write to its terminal."""
    monkeypatch.setenv("LAKEHOUSE_CATALOG_URL", "postgresql://u:secret@h/d")
    assert (folder / "data").is_dir()
    hand_over(folder / "data", account)
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
