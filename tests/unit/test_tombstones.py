"""Tombstones in a lake that is used from several homes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from erasure import tombstones
from erasure.tombstones import Tombstone
from ingestion.state import store
from lakehouse.servers.database import CatalogConnection, connect_catalog
from lakehouse.settings import Settings, load_settings

IO = PyArrowFileIO()
STONE = Tombstone("shop", "people", {"id": "5"}, "2026-01-01T00:00:00+00:00", "me")
DONE = replace(STONE, done_at="2026-01-02T00:00:00+00:00")


@pytest.fixture
def homes(cluster: str, tmp_path: Path) -> tuple[Settings, Settings]:
    """Two homes of one lake."""
    warehouse = f"file://{tmp_path}/warehouse"
    (tmp_path / "warehouse" / tombstones.FOLDER).mkdir(parents=True)
    one, other = (
        load_settings(home=tmp_path / name, catalog_url=cluster, warehouse=warehouse) for name in ("one", "other")
    )
    return one, other


@pytest.fixture
def states(homes: tuple[Settings, Settings]) -> Iterator[CatalogConnection]:
    with connect_catalog(homes[0]) as connection:
        store.ensure_state(connection)
        connection.execute("TRUNCATE lakehouse.erasures")
        yield connection


def test_an_erasure_that_was_ended_in_one_home_does_not_come_back_from_another(
    homes: tuple[Settings, Settings], states: CatalogConnection
) -> None:
    """The nightly check of another home wrote its copy back, and the next `--repeat` erased a person who was back."""
    one, other = homes
    tombstones.keep(one, IO, states, [DONE])
    assert tombstones.read(other, IO, states) == (DONE,)
    tombstones.end(one, IO, states, DONE)
    for home in (other, one, other):
        assert tombstones.read(home, IO, states) == ()
    states.execute("TRUNCATE lakehouse.erasures")  # a catalog of an older state was restored
    assert tombstones.read(one, IO, states) == () == tombstones.read(other, IO, states)


@pytest.mark.parametrize("store_of", ["warehouse", "home"])
def test_an_end_that_was_killed_between_its_steps_holds(
    homes: tuple[Settings, Settings], states: CatalogConnection, monkeypatch: pytest.MonkeyPatch, store_of: str
) -> None:
    one, other = homes
    tombstones.keep(one, IO, states, [DONE])
    assert tombstones.read(other, IO, states) == (DONE,)

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tombstones, "_object" if store_of == "warehouse" else "write_private", killed)
        tombstones.end(one, IO, states, DONE)
    assert tombstones.read(other, IO, states) == () == tombstones.read(one, IO, states)
    for home in homes:
        (file,) = (home.home / tombstones.FOLDER).glob("*.json")
        assert "ended_at" in file.read_text() and '"ended_at": null' not in file.read_text()


def test_a_person_who_is_erased_again_after_an_end_stays_erased_in_each_home(
    homes: tuple[Settings, Settings], states: CatalogConnection
) -> None:
    """Also where the clock of the one who erases again is behind."""
    one, other = homes
    tombstones.keep(one, IO, states, [DONE])
    tombstones.end(other, IO, states, DONE)
    for time in range(2):
        (again,) = tombstones.add(one, IO, states, [STONE])
        assert again == replace(STONE, ends_before=time + 1)
        for home in (other, one):
            assert tombstones.read(home, IO, states) == (again,)
        tombstones.end(other, IO, states, again)
        assert tombstones.read(one, IO, states) == ()


def test_a_proof_that_comes_after_the_end_does_not_undo_it(
    homes: tuple[Settings, Settings], states: CatalogConnection
) -> None:
    """One home was still erasing while another one ended the erasure."""
    one, other = homes
    tombstones.keep(one, IO, states, [STONE])
    tombstones.end(other, IO, states, STONE)
    tombstones.keep(one, IO, states, [DONE])
    for home in homes:
        assert tombstones.read(home, IO, states) == ()


def test_the_spellings_of_a_key_survive_a_restore_and_are_added_to_one_that_has_none(
    homes: tuple[Settings, Settings], states: CatalogConnection
) -> None:
    """A tombstone of an earlier release has none, and an erasure that is repeated finds them."""
    one, other = homes
    tombstones.keep(one, IO, states, [DONE])
    assert tombstones.read(other, IO, states) == (DONE,)
    spelled = replace(DONE, spellings=({"id": "05"}, {"id": "5.0"}))
    tombstones.keep(one, IO, states, [spelled])
    tombstones.keep(other, IO, states, [DONE])  # of a home that has read it before
    assert tombstones.read(other, IO, states) == (spelled,) == tombstones.read(one, IO, states)
    states.execute("TRUNCATE lakehouse.erasures")
    assert tombstones.read(one, IO, states) == (spelled,)
    known_none = replace(STONE, spellings=())
    tombstones.keep(one, IO, states, [replace(known_none, ends_before=1)])
    assert tombstones.read(one, IO, states) == (replace(known_none, ends_before=1),), "none is not unknown"


def test_copies_of_which_none_is_newer_keep_the_spellings_of_both(
    homes: tuple[Settings, Settings], states: CatalogConnection
) -> None:
    """Restored stores may each have what another erasure found, and one of them was forgotten."""
    one, other = homes
    tombstones.keep(one, IO, states, [replace(DONE, spellings=({"id": "05"}, {"id": "5.0"}))])
    states.execute("TRUNCATE lakehouse.erasures")
    tombstones.keep(other, IO, states, [replace(DONE, spellings=({"id": "5.0"}, {"id": "+5"}))])
    [found] = tombstones.read(one, IO, states)
    assert found.spellings == ({"id": "5.0"}, {"id": "+5"}, {"id": "05"})
    assert tombstones.read(other, IO, states) == (found,)
