"""What a process that runs for long notices of the files that it has read."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lakehouse.declarations.dbt import changes
from lakehouse.declarations.dbt.changes import EVERY_SECONDS, STILL_SECONDS, Changes, changes_of
from lakehouse.declarations.dbt.manifest import project_fingerprint
from lakehouse.settings import Settings, load_settings


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets seconds pass."""
    now = [0.0]
    monkeypatch.setattr(changes, "monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Those of a project with one file of declarations."""
    monkeypatch.chdir(tmp_path)
    models = tmp_path / "dbt_project" / "models"
    models.mkdir(parents=True)
    (models / "shop.yml").write_text("sources: []")
    return load_settings(home=tmp_path / "home").model_copy(update={"project_dir": tmp_path})


def test_a_change_is_told_once_when_nothing_more_is_written(passes: Callable[[float], None]) -> None:
    """An editor saves in two steps, and a command writes declarations, then models: half of it is refused."""
    files = ["as read"]
    watched = Changes(lambda: files[0])
    passes(EVERY_SECONDS)
    assert not watched.settled()
    for half in ("half", "more", "all"):
        files[0] = half
        passes(EVERY_SECONDS)
        assert not watched.settled(), "it is being written"
    passes(STILL_SECONDS)
    assert watched.settled()
    passes(EVERY_SECONDS)
    assert not watched.settled(), "it was told"


def test_what_is_taken_back_at_once_is_no_change(passes: Callable[[float], None]) -> None:
    files = ["as read"]
    watched = Changes(lambda: files[0])
    for stamp in ("other", "as read", "as read"):
        files[0] = stamp
        passes(EVERY_SECONDS)
        assert not watched.settled()


def test_files_are_looked_at_every_few_seconds_however_often_one_asks(passes: Callable[[float], None]) -> None:
    looks: list[None] = []
    watched = Changes(lambda: looks.append(None))
    for _ in range(100):
        passes(EVERY_SECONDS / 10)
        watched.settled()
    assert len(looks) <= 11


@pytest.mark.parametrize("file", ["dbt_project/models/shop.yml", "dbt_project/models/new.sql", "lakehouse.toml"])
def test_files_of_the_project_and_of_settings_count(
    project: Settings, passes: Callable[[float], None], file: str
) -> None:
    watched = changes_of(project)
    (project.project_dir / file).write_text("[sources]  # longer")
    passes(EVERY_SECONDS)
    assert not watched.settled()
    passes(STILL_SECONDS)
    assert watched.settled()


def test_what_an_editor_keeps_beside_a_file_does_not_count(project: Settings, passes: Callable[[float], None]) -> None:
    watched, models = changes_of(project), project.dbt_project_dir / "models"
    (models / ".shop.yml.swp").touch()
    (models / "#shop.yml#").touch()
    (models / ".#shop.yml").symlink_to("somebody@here.1234")
    for _ in range(3):
        passes(EVERY_SECONDS)
        assert not watched.settled()


def test_a_file_that_goes_away_while_one_looks_is_none(project: Settings) -> None:
    """Whoever looked ended with an error when an editor removed its file in between."""
    models, stop = project.dbt_project_dir / "models", threading.Event()

    def types() -> None:
        while not stop.is_set():
            (models / "4913").touch()
            (models / "4913").unlink()

    editor = threading.Thread(target=types)
    editor.start()
    try:
        for _ in range(500):
            project_fingerprint(project)
    finally:
        stop.set()
        editor.join()
