"""What `lakehouse uninstall` refuses before it changes anything, and what it tells of."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from ingestion.state import lease, store
from lakehouse.errors import LakehouseError
from lakehouse.servers.worker_sessions import enter, leave
from lakehouse.settings import DebeziumSettings, Settings, SourceSettings, load_settings
from lakehouse_cli.alone import alone
from lakehouse_cli.machine import stack
from lakehouse_cli.slots_left import wal_kept
from lakehouse_cli.source import uninstall as uninstalling


def test_nothing_is_taken_away_below_a_running_dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its daemon, worker and watch went on in a home that was gone, and began to write it anew."""
    settings, ended = load_settings(home=tmp_path / "home"), list[bool]()
    monkeypatch.setattr(uninstalling, "load_settings", lambda: settings)
    monkeypatch.setattr(uninstalling, "_end", lambda _, delete_data: ended.append(delete_data))
    with alone(settings), pytest.raises(LakehouseError, match=r"^`lakehouse dev` runs for .*: stop it, then run this"):
        uninstalling.uninstall(delete_data=True, yes=True)
    assert ended == []
    uninstalling.uninstall(delete_data=True, yes=True)
    assert ended == [True]


@pytest.mark.parametrize(
    "kept", ["lakehouse.toml", "dbt_project/", "shop/lakehouse.toml", "a/2026/11-29/backup.json", "data/b/backup.json"]
)
def test_a_home_with_a_project_or_a_backup_in_it_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """All that is in it went, whatever it was."""
    settings, ended = load_settings(home=tmp_path / "home"), list[bool]()
    monkeypatch.setattr(uninstalling, "load_settings", lambda: settings)
    monkeypatch.setattr(uninstalling, "_end", lambda _, delete_data: ended.append(delete_data))
    file = settings.home / kept
    file.parent.mkdir(parents=True)
    file.mkdir() if kept.endswith("/") else file.touch()
    with pytest.raises(LakehouseError, match=f"^{file} is in the home, .*: move it elsewhere, then run this again"):
        uninstalling.uninstall(delete_data=True, yes=True)
    uninstalling.uninstall(yes=True)
    assert ended == [False]


def test_nothing_is_taken_away_below_a_follower_of_topics(
    catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no slot that would refuse, and went on in a home that was gone."""
    touched = list[str]()
    shop = SourceSettings(url=SecretStr("postgresql://127.0.0.1:1/shop"))
    settings = catalog_settings.model_copy(update={"sources": {"shop": shop}})
    monkeypatch.setattr(uninstalling, "load_settings", lambda: settings)
    monkeypatch.setattr(uninstalling, "_taken_back", lambda settings, name, *_: not touched.append(name))
    monkeypatch.setattr(uninstalling, "_declared", lambda settings: {})
    monkeypatch.setattr(uninstalling, "_end", lambda settings, delete_data: touched.append("servers"))
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        following = lease.acquire(states, "clicks", 30, "follow")
        assert following is not None
        with pytest.raises(LakehouseError, match=r"^source 'clicks': .* is at work: stop it, then run this again$"):
            uninstalling.uninstall(delete_data=True, yes=True)
        assert touched == []
        lease.release(states, following)
    uninstalling.uninstall(delete_data=True, yes=True)
    assert touched == ["shop", "servers"]


def test_nobody_is_asked_for_what_is_refused(catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever had agreed to the deletion of the home was told only then that a follower reads."""
    asked, ended = list[bool](), list[bool]()
    settings = catalog_settings.model_copy(update={"sources": {}})
    (settings.home / "run").mkdir(exist_ok=True)
    monkeypatch.setattr(uninstalling, "load_settings", lambda: settings)
    monkeypatch.setattr(uninstalling, "agreed", asked.append)
    monkeypatch.setattr(uninstalling, "_end", lambda _, delete_data: ended.append(delete_data))
    with alone(settings), pytest.raises(LakehouseError, match="`lakehouse dev` runs"):
        uninstalling.uninstall(delete_data=True)
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        following = lease.acquire(states, "clicks", 30, "follow")
        assert following is not None
        with pytest.raises(LakehouseError, match="is at work"):
            uninstalling.uninstall(delete_data=True)
        assert asked == ended == []
        lease.release(states, following)
    with pytest.raises(LakehouseError, match="--delete-data deletes all tables for good: give --yes"):
        uninstalling.uninstall(delete_data=True)  # a cron job, or a test run, has no terminal
    assert asked == ended == []
    uninstalling.uninstall()
    assert asked == [False] and ended == [False]


@pytest.fixture
def ended(catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What `down` has stopped, in a home whose own catalog runs."""
    done = list[bool]()
    endpoints = catalog_settings.home / "endpoints.toml"
    endpoints.write_text(f'catalog_url = "{catalog_settings.catalog_dsn()}"\n')
    (catalog_settings.home / "run").mkdir(exist_ok=True)
    monkeypatch.setattr(stack, "load_settings", lambda: catalog_settings)
    monkeypatch.setattr("lakehouse_stack.control.start_stop.down", lambda settings: done.append(True) or [])
    with store.connect_catalog(catalog_settings) as states:
        store.ensure_state(states)
    return done


def test_down_stops_no_server_below_a_running_dev(catalog_settings: Settings, ended: list[bool]) -> None:
    """Its followers, worker and daemon went on without a server, and said so each in its own log."""
    with alone(catalog_settings), pytest.raises(LakehouseError, match=r"^`lakehouse dev` runs for .*: stop it, then"):
        stack.down()
    assert ended == []
    stack.down()
    assert ended == [True]


def test_down_stops_no_server_below_a_follower_and_a_killed_one_is_none(
    catalog_settings: Settings, ended: list[bool]
) -> None:
    with store.connect_catalog(catalog_settings) as states:
        following = lease.acquire(states, "clicks", 30, "follow")
        assert following is not None
        with pytest.raises(LakehouseError, match=r"^source 'clicks': .* is at work: stop it, then run this again$"):
            stack.down()
        with store.connect_catalog(catalog_settings) as killed:
            assert lease._renew(killed, following, 30)
            with pytest.raises(LakehouseError, match="is at work"):
                stack.down()
        while lease.follower_of(states, "clicks") != "dead":
            time.sleep(0.02)
        stack.down()
        assert ended == [True]
        lease.release(states, following)


@pytest.mark.parametrize("command", [stack.down, lambda: uninstalling.uninstall(yes=True)])
def test_no_server_is_stopped_below_a_worker(
    catalog_settings: Settings, ended: list[bool], command: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uninstalling, "load_settings", lambda: catalog_settings.model_copy(update={"sources": {}}))
    with store.connect_catalog(catalog_settings) as states:
        enter(states, catalog_settings.catalog_name)
        with pytest.raises(LakehouseError, match=r"^`lakehouse worker` is at work: stop it, then run this again$"):
            command()
        assert ended == []
        leave(states, catalog_settings.catalog_name)
    command()
    assert ended == [True]


def test_down_of_a_home_asks_no_catalog_of_another_one(catalog_settings: Settings, ended: list[bool]) -> None:
    """Who works on that needs none of these servers."""
    (catalog_settings.home / "endpoints.toml").write_text('catalog_url = "postgresql://127.0.0.1:1/lake"\n')
    with store.connect_catalog(catalog_settings) as states:
        following = lease.acquire(states, "clicks", 30, "follow")
        assert following is not None
        stack.down()
        lease.release(states, following)
    assert ended == [True]


@pytest.fixture
def forgotten(catalog_settings: Settings, cluster: str) -> Settings:
    """Of a catalog that knows a source with a slot, one without a connection, and two that are read by topics now."""
    with store.connect_catalog(catalog_settings) as states:
        store.ensure_state(states)
        states.execute("TRUNCATE lakehouse.streams")
        for source, slot in (("shop", "s_shop"), ("renamed", "s_renamed"), ("moved", "s_moved"), ("topics", "")):
            store.create_stream(states, source, slot, store.Cluster("1", 1), 0)
    by_topics = DebeziumSettings(kind="debezium", bootstrap_servers="127.0.0.1:1")
    shop = SourceSettings(url=SecretStr(cluster))
    return catalog_settings.model_copy(update={"sources": {"shop": shop, "moved": by_topics, "topics": by_topics}})


def test_slots_that_are_out_of_reach_are_told_before_the_question_and_at_the_end(
    forgotten: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The catalog went with all that knew of them, and the sources kept WAL until their disks were full."""
    asked, ended = list[str](), list[bool]()
    monkeypatch.setattr(uninstalling, "load_settings", lambda: forgotten)
    monkeypatch.setattr(uninstalling, "agreed", lambda yes: asked.append(capsys.readouterr().out))
    monkeypatch.setattr(uninstalling, "_declared", lambda settings: {})
    monkeypatch.setattr(uninstalling, "_end", lambda _, delete_data: ended.append(delete_data))

    uninstalling.uninstall(delete_data=True, yes=True)

    for said in (asked[0].splitlines(), capsys.readouterr().out.splitlines()):
        moved, renamed = said[-2:]
        assert renamed.startswith("renamed: it has no connection here: if slot s_renamed is still there")
        assert moved.startswith("moved: it is read by topics now: if slot s_moved is still there")
        assert renamed.endswith("`SELECT pg_drop_replication_slot('s_renamed')` in its database drops it")
        assert not [line for line in said if line.startswith("topics") or "s_shop is still there" in line]
    assert ended == [True]


def test_down_tells_all_slots_that_stay(
    forgotten: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stack, "load_settings", lambda: forgotten)
    monkeypatch.setattr("lakehouse_stack.control.start_stop.down", lambda settings: [])
    stack.down()
    said = capsys.readouterr().out.splitlines()
    assert "shop: slot s_shop is not there any more; `lakehouse remove shop` drops it" in said
    assert [line.split(":")[0] for line in said[-2:]] == ["moved", "renamed"]


def test_a_catalog_that_does_not_answer_or_knows_no_slots_ends_nothing(
    forgotten: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    away = SecretStr("postgresql://postgres@127.0.0.1:1/postgres")
    unreachable = forgotten.model_copy(update={"sources": {}, "catalog_url": away})
    monkeypatch.setattr(uninstalling, "load_settings", lambda: unreachable)
    uninstalling.uninstall(dry_run=True)
    assert capsys.readouterr().out.splitlines()[-1].startswith("the catalog does not answer: ")
    with store.connect_catalog(forgotten) as states:
        states.execute("DROP SCHEMA lakehouse CASCADE")
    monkeypatch.setattr(uninstalling, "load_settings", lambda: forgotten.model_copy(update={"sources": {}}))
    uninstalling.uninstall(dry_run=True)
    assert capsys.readouterr().out.splitlines()[-1].startswith("the servers of ")


def test_a_slot_that_stays_is_told_with_the_wal_that_it_keeps(
    forgotten: Settings, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(cluster, autocommit=True) as source:
        source.execute("SELECT pg_create_logical_replication_slot('s_shop', 'pgoutput')")
        try:
            said = wal_kept(forgotten, "shop", "s_shop")
            assert re.fullmatch(
                r"stays, and its server keeps \d+ MiB of WAL for it, which grows without a limit .*", said
            )
        finally:
            source.execute("SELECT pg_drop_replication_slot('s_shop')")
    away = SourceSettings(url=SecretStr("postgresql://127.0.0.1:1/shop"))
    unreachable = forgotten.model_copy(update={"sources": {"shop": away}})
    assert wal_kept(unreachable, "shop", "s_shop") == "stays, and its server keeps WAL for it"
