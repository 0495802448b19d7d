"""The page of the lake, as a browser shows it: logged in by the link, over a lake that has just been loaded."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakehouse.settings import PROJECT_DIR
from lakehouse_page.asked import ask
from lakehouse_watch.asking import Asking
from orchestration.web.login import ui_secret
from tests.ports import free_port
from tests.slots import until
from tests.world import World

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
QUESTION = """
questions:
  - title: An echo
    fields: [{name: number, kind: number}, {name: word, kind: text}, {name: moment, kind: moment}]
    sql: SELECT :number + 1, :word, :moment, current_user
"""
pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The demo's project, with a dashboard that can be changed."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "dbt_project").symlink_to(PROJECT_DIR / "dbt_project")
    shutil.copy(PROJECT_DIR / "dashboard.yml", folder)
    return folder


@pytest.fixture
def browse(loaded_world: World, tmp_path: Path, project: Path) -> Iterator[Callable[[str], str]]:
    """A path of the web server as a browser has it after its scripts have run; the browser keeps its cookies."""
    name, port = loaded_world.source.name, free_port()
    url = loaded_world.settings.sources[name].url.get_secret_value()
    environment = {
        **os.environ, f"LAKEHOUSE_SOURCES__{name.upper()}__URL": url, "LAKEHOUSE_HOME": str(loaded_world.settings.home),
        "LAKEHOUSE_PROJECT_DIR": str(project),
    }  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "orchestration.web",
        "--port",
        str(port),
        "--workspace",
        str(tmp_path / "none.yaml"),
    ]
    (tmp_path / "none.yaml").write_text("load_from:\n  - python_file: none.py\n")
    (tmp_path / "none.py").write_text("import dagster as dg\n\ndefs = dg.Definitions()\n")

    def browsed(path: str) -> str:
        browser = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/browser"]
        shot = f"--screenshot={os.environ.get('PAGE_SCREENSHOT', tmp_path / 'page.png')}"
        address = f"http://127.0.0.1:{port}{path}"
        subprocess.run(
            [*browser, shot, "--window-size=1200,1400", address], capture_output=True, timeout=120, check=True
        )
        done = subprocess.run(
            [*browser, "--dump-dom", address], capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout

    with subprocess.Popen(command, env=environment, cwd=tmp_path) as server:
        try:
            until(lambda: _answers(port), 120)
            yield browsed
        finally:
            server.terminate()


def _answers(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_shows_the_source_that_was_loaded_and_only_after_the_login(
    loaded_world: World, browse: Callable[[str], str]
) -> None:
    assert "Log in with the link" in browse("/lake")
    browse(f"/login?token={ui_secret(loaded_world.settings)}")
    shown = browse("/lake")
    row = re.search(rf"<td>{loaded_world.source.name}</td>(.*?)</tr>", shown, re.DOTALL)
    assert row and f"{len(loaded_world.source.tables)} streaming" in row[1] and "<rect " in row[1]
    assert "Revenue by store" in shown
    assert re.search(rf"<h2>Last cuts</h2>.*<td>{loaded_world.source.name}</td>", shown, re.DOTALL)


def test_what_it_asks_is_of_this_moment(loaded_world: World) -> None:
    page = ask(loaded_world.settings, Asking())
    (source,) = [each for each in page.sources if each.name == loaded_world.source.name]
    assert source.rows and sum(source.rows) > 0 and source.lag_seconds is not None and not source.follows
    assert {size for size in page.sizes if size[0].startswith(loaded_world.source.name)}
    cuts = [cut for cut in page.cuts if cut.source == loaded_world.source.name]
    assert cuts == sorted(cuts, key=lambda cut: cut.at, reverse=True)
    assert sum(cut.rows or 0 for cut in cuts) == sum(source.rows)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_asks_a_question_and_what_is_typed_is_a_value(
    loaded_world: World, browse: Callable[[str], str], project: Path
) -> None:
    (project / "dashboard.yml").write_text(QUESTION)
    browse(f"/login?token={ui_secret(loaded_world.settings)}")
    shown = browse("/lake/an-echo?number=41&word=%27%3B+DROP&moment=2026-11-20T10%3A00")
    row = re.search(r"<tr><td>(.*?)</td></tr>", shown, re.DOTALL)
    assert row and row[1].split("</td><td>") == ["42", "'; DROP", "2026-11-20 10:00:00", "reader"]
    assert "number: 'x' is no number" in browse("/lake/an-echo?number=x&word=a&moment=2026-11-20T10%3A00")
