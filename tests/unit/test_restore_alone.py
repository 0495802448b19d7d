"""A catalog is restored for hours, and nobody may write to the lake meanwhile."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from ingestion.schema.positions import Lsn
from ingestion.state import lease as leases
from ingestion.state import progress, store
from lakehouse.catalog.open import open_catalog
from lakehouse.errors import LakehouseError
from lakehouse.servers.exports import ended, followed, noted
from lakehouse.servers.worker_sessions import enter, leave, state_of
from lakehouse.settings import Settings, SourceSettings, load_settings
from lakehouse_backup import run
from lakehouse_backup.roll_forward import RollForward
from lakehouse_backup.run import Warehouse, make_backup, restore_backup
from maintenance.inventory.session import Session

AGO = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def mine(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A lake that ingests `shop`, and has a connection to `added`; its backup has followers, a worker, an export and a
    snapshot that are at work, and files to delete."""
    monkeypatch.setattr(Session, "check", lambda session: None)  # it asks an object store
    (tmp_path / "warehouse").mkdir()
    made = load_settings(home=tmp_path / "home", catalog_url=cluster, warehouse=f"file://{tmp_path}/warehouse")
    of = SourceSettings(url=SecretStr(cluster))
    made = made.model_copy(update={"sources": {"shop": of, "added": of}})
    catalog = open_catalog(made)
    catalog.create_tables()
    catalog.close()
    with store.connect_catalog(made) as states:
        store.ensure_state(states)
        states.execute("TRUNCATE lakehouse.leases, lakehouse.removed_files, lakehouse.streams")
        store.create_stream(states, "shop", "lakehouse_shop", store.Cluster("1", 1), 0)
        held = [leases.acquire(states, name, 60, "follow") for name in ("shop", "shop/mirrors")]
        states.execute(
            "INSERT INTO lakehouse.removed_files VALUES ('a', 'raw_shop', 'orders', 1, %s, 'purge', 'm')", (AGO,)
        )
        enter(states, made.catalog_name)
        progress.begin(states, "shop", "snapshot", 9)
        with noted(made, "unity", 1.0):
            make_backup(made, folder(made), catalog_only=True)
        ended(made, "unity")
        leave(states, made.catalog_name)
        for each in held:
            assert each is not None
            leases.release(states, each)
        store.set_positions(states, "shop", Lsn(7))
    yield made
    with store.connect_catalog(made) as states:
        states.execute("TRUNCATE lakehouse.leases, lakehouse.removed_files, lakehouse.streams")


def folder(settings: Settings) -> Path:
    return settings.home.parent / "backup"


def position(settings: Settings) -> int:
    """What the lake has of the shop: 0 in the backup, and 7 now."""
    with store.connect_catalog(settings) as states:
        stream = store.read_stream(states, "shop")
    assert stream is not None
    return int(stream.position)


def takes(settings: Settings, source: str) -> bool:
    with store.connect_catalog(settings) as states:
        return leases.acquire(states, source, 60, "once") is not None


def rolling(monkeypatch: pytest.MonkeyPatch, beside: Callable[[], object]) -> None:
    """Somebody else comes while the roll-forward runs."""

    def roll_forward(*_: object) -> RollForward:
        beside()
        return RollForward()

    monkeypatch.setattr(run, "roll_forward", roll_forward)


def test_nothing_is_restored_below_a_worker(mine: Settings) -> None:
    """It was asked for followers alone."""
    with store.connect_catalog(mine) as worker:
        enter(worker, mine.catalog_name)
        with pytest.raises(LakehouseError, match=r"^`lakehouse worker` is at work: stop it"):
            restore_backup(mine, folder(mine), Warehouse.KEPT)
        leave(worker, mine.catalog_name)
    assert position(mine) == 7


@pytest.mark.parametrize("asked_again", [True, False])
def test_who_begins_to_ingest_while_objects_are_written_back_loses_no_cut(
    mine: Settings, monkeypatch: pytest.MonkeyPatch, asked_again: bool
) -> None:
    """It was asked once, before objects were written for hours."""

    def hours_later(*_: object) -> None:
        assert takes(mine, "shop")
        if not asked_again:  # the lease was taken between the question and the load
            monkeypatch.setattr(run, "refuse_at_work", lambda settings: None)

    monkeypatch.setattr(run, "load_personal", hours_later)
    with pytest.raises(LakehouseError, match=r"source .*shop.*: .* is at work: stop it, then run this again"):
        restore_backup(mine, folder(mine), Warehouse.KEPT)
    assert position(mine) == 7


def test_nobody_ingests_between_the_load_of_the_dump_and_the_end_of_the_roll_forward(
    mine: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pointers are those of the backup until then, and what was appended to them was lost by the roll-forward."""
    free: list[bool] = []
    with store.connect_catalog(mine) as states:
        stalled = leases.acquire(states, "shop", 0, "follow")
    assert stalled is not None

    def beside() -> None:
        assert position(mine) == 0
        free.extend(takes(mine, name) for name in ("shop", "shop/mirrors", "added"))
        with store.connect_catalog(mine) as states, pytest.raises(leases.LeaseLost):
            leases.check(states, stalled, 60)

    rolling(monkeypatch, beside)
    restore_backup(mine, folder(mine), Warehouse.KEPT)
    assert free == [False] * 3
    assert all(takes(mine, name) for name in ("shop", "shop/mirrors", "added"))


def test_files_that_were_removed_before_the_backup_are_kept_as_if_removed_now(
    mine: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their time was over, and a purge beside the roll-forward did not see that a table had been restored to them."""
    seen: list[datetime] = []

    def beside() -> None:
        with store.connect_catalog(mine) as states:
            seen.extend(at for (at,) in states.execute("SELECT removed_at FROM lakehouse.removed_files"))

    rolling(monkeypatch, beside)
    before = datetime.now(UTC)
    restore_backup(mine, folder(mine), Warehouse.KEPT)
    assert len(seen) == 1 and seen[0] >= before


def test_after_a_restore_that_was_killed_nobody_ingests_until_one_has_ended(
    mine: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Followers went on from pointers of the backup, which nobody had rolled forward."""

    def killed() -> None:
        raise KeyboardInterrupt

    rolling(monkeypatch, killed)
    with pytest.raises(KeyboardInterrupt):
        restore_backup(mine, folder(mine), Warehouse.KEPT)
    assert not takes(mine, "shop")
    with (
        store.connect_catalog(mine) as states,
        pytest.raises(LakehouseError, match=r"restore-backup .* run again\) is at"),
    ):
        leases.take_over(states, "shop", 60)
    rolling(monkeypatch, lambda: None)
    restore_backup(mine, folder(mine), Warehouse.KEPT)
    assert takes(mine, "shop")


def test_nobody_misses_what_ran_when_the_backup_was_made(mine: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doctor and watch told of a follower, a worker and an export that were killed, and nobody had started them."""
    rolling(monkeypatch, lambda: None)
    restore_backup(mine, folder(mine), Warehouse.KEPT)
    with store.connect_catalog(mine) as states:
        assert [leases.follower_of(states, name) for name in ("shop", "shop/mirrors")] == ["none", "none"]
        assert progress.read(states, "shop") is None
    assert state_of(mine) == "none" and followed(mine) == ()
