"""Clusters of another major version of Postgres: refused before any server starts, and upgraded."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_private
from lakehouse.settings import load_settings
from lakehouse_cli.machine import stack
from lakehouse_stack.control import postgres_upgrade
from lakehouse_stack.control.postgres_upgrade import upgrade_cluster, upgrade_clusters
from lakehouse_stack.control.start_stop import up
from lakehouse_stack.home.config import stack_settings
from lakehouse_stack.home.pathnames import credentials_file
from lakehouse_stack.processes.accounts import Placement, find_placement
from lakehouse_stack.servers.postgres_versions import OldCluster, finish_upgrade, major_of, old_clusters, upgraded_path
from tests.clusters import former_cluster, former_programs, one_port

FORMER, PASSWORD = "16", "super-1a2b"
LIFE = (
    "CREATE ROLE app LOGIN PASSWORD 'app-1'",
    "CREATE DATABASE shop OWNER app",
    "ALTER DATABASE shop SET search_path = public",
    "ALTER SYSTEM SET log_line_prefix = 'it''s \\ %p '",
    "ALTER SYSTEM SET old_snapshot_threshold = '1h'",  # Postgres 17 has it no more
    "ALTER SYSTEM SET temp_tablespaces = 'a b', pg_default",
    "ALTER SYSTEM SET default_transaction_read_only = on",
)
SHOP = (
    "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text, body jsonb)",
    "INSERT INTO orders (note, body) SELECT 'CREATE ROLE postgres;', '{\"n\": 1}' FROM generate_series(1, 500)",
    "CREATE TYPE mood AS ENUM ('sad', 'glad')",
    "CREATE TABLE parts (id int, state mood) PARTITION BY RANGE (id)",
    "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10)",
    "INSERT INTO parts VALUES (1, 'glad')",
    "CREATE PUBLICATION lakehouse FOR TABLE orders",
    "SELECT lo_from_bytea(4711, 'large')",
)


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> Iterator[Placement]:
    """A home that the user of Postgres can enter, unlike pytest's folders."""
    with tempfile.TemporaryDirectory(prefix="lakehouse-test-") as folder:
        home = Path(folder)
        home.chmod(0o711)
        monkeypatch.setenv("LAKEHOUSE_STACK_SYSTEM_DIR", str(home / "system"))
        monkeypatch.setenv("LAKEHOUSE_HOME", str(home))
        monkeypatch.chdir(home)
        yield find_placement(home, home / "system")


@pytest.fixture
def old(where: Placement) -> OldCluster:
    """A cluster as a release with Postgres 16 would have left it."""
    data = former_cluster(where, "catalog", PASSWORD)
    write_private(credentials_file(load_settings()), json.dumps({"catalog_superuser": PASSWORD}))
    with postgres_upgrade._serving(data, former_programs(where), port := one_port()):
        for database, statements in (("postgres", LIFE), ("shop", SHOP)):
            with postgres_upgrade._connect(port, PASSWORD, database) as connection:
                for statement in statements:
                    connection.execute(statement)
        with postgres_upgrade._connect(port, PASSWORD, "shop") as connection:
            connection.execute("SELECT pg_create_logical_replication_slot('lakehouse_shop', 'pgoutput')")
    [found] = old_clusters(where)
    return found


@contextmanager
def serving(data: Path, where: Placement) -> Iterator[int]:
    with postgres_upgrade._serving(data, where, port := one_port()):
        yield port


def asked(data: Path, where: Placement, query: str, database: str = "shop") -> list[tuple[Any, ...]]:
    with serving(data, where) as port, postgres_upgrade._connect(port, PASSWORD, database) as connection:
        return connection.execute(query).fetchall()


def test_up_says_what_is_wrong_and_what_to_do_before_anything_is_started(
    where: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres ended with `database files are incompatible with server`, in its log."""
    (where.data / "catalog").mkdir()
    (where.data / "catalog" / "PG_VERSION").write_text("16\n")
    started: list[str] = []
    with pytest.raises(LakehouseError, match=r"catalog: its data is of Postgres 16.* brings Postgres 18") as told:
        up(load_settings(), report=lambda server, what, seconds: started.append(server))
    assert "`lakehouse upgrade`" in str(told.value) and "\n" not in str(told.value) and not started


def test_a_cluster_is_moved_with_every_role_row_and_setting_and_the_old_one_is_kept(
    where: Placement, old: OldCluster
) -> None:
    with (old.data / "pg_ident.conf").open("a") as maps:
        maps.write("team ada app\n")
    said: list[str] = []
    assert upgrade_clusters(load_settings(), said.append) == (old,)
    assert [step for step in said if "left out" in step] == [
        "catalog: old_snapshot_threshold, set by ALTER SYSTEM, is left out: Postgres 18 does not start with it"
    ]
    assert (major_of(old.data), major_of(postgres_upgrade.old_data_path(old)), old_clusters(where)) == (
        old.wanted,
        FORMER,
        (),
    )
    with serving(old.data, where) as port:
        with postgres_upgrade._connect(port, PASSWORD, "shop") as shop:
            facts = shop.execute(
                "SELECT (SELECT count(*) FROM orders WHERE note = 'CREATE ROLE postgres;' AND body = '{\"n\": 1}'),"
                " (SELECT state::text FROM parts), (SELECT pubname FROM pg_publication_tables),"
                " current_setting('search_path'), current_setting('wal_level'), lo_get(4711)"
            ).fetchone()
            assert facts == (500, "glad", "lakehouse", "public", "logical", b"large")
            assert shop.execute(
                "SELECT current_setting('log_line_prefix'), current_setting('temp_tablespaces'),"
                " current_setting('default_transaction_read_only'), (SELECT sys_name FROM pg_ident_file_mappings)"
            ).fetchone() == ("it's \\ %p ", '"a b", pg_default', "on", "ada")
            shop.execute("SET default_transaction_read_only = off")
            [(next_id,)] = shop.execute("INSERT INTO orders (note) VALUES ('x') RETURNING id").fetchall()
            assert next_id == 501
            assert shop.execute("SELECT * FROM pg_replication_slots").fetchall() == [], "a slot does not go along"
        psycopg.connect(f"postgresql://app:app-1@127.0.0.1:{port}/shop").close()


@pytest.mark.slow
def test_a_move_that_lost_a_row_leaves_everything_as_it_was(
    where: Placement, old: OldCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever loses it: here the script is cut by one row on its way."""
    whole = postgres_upgrade._without_superuser
    cut = iter([True])

    def lossy(script: Iterator[bytes]) -> Iterator[bytes]:
        return (line for line in whole(script) if not (line.startswith(b"7\tCREATE ROLE") and next(cut, False)))

    monkeypatch.setattr(postgres_upgrade, "_without_superuser", lossy)
    with pytest.raises(LakehouseError, match=r"not everything arrived \(shop: public\.orders\).*as it was"):
        upgrade_cluster(old, where, stack_settings().system_dir, PASSWORD, lambda step: None)
    assert major_of(old.data) == FORMER and not postgres_upgrade.old_data_path(old).exists()
    monkeypatch.setattr(postgres_upgrade, "_without_superuser", whole)
    upgrade_cluster(old, where, stack_settings().system_dir, PASSWORD, lambda step: None)
    assert asked(old.data, where, "SELECT count(*) FROM orders") == [(500,)]


@pytest.mark.slow
def test_a_cluster_behind_a_link_stays_where_the_link_leads(where: Placement, old: OldCluster) -> None:
    """The new one was put beside the link, on the disk of the home, and what was called the old data was the link."""
    volume = where.data.parent / "volume"
    volume.mkdir()
    os.chown(volume, where.data.stat().st_uid, where.data.stat().st_gid)
    old.data.rename(volume / "pg")
    old.data.symlink_to(volume / "pg")
    kept = upgrade_cluster(old, where, stack_settings().system_dir, PASSWORD, lambda step: None)
    assert kept == volume / "catalog.postgres16" and major_of(kept) == FORMER
    assert old.data.is_symlink() and old.data.resolve() == volume / "pg" and major_of(volume / "pg") == old.wanted
    (volume / "pg").rename(upgraded_path(old.data))  # killed before its last rename
    finish_upgrade(old.data)
    assert asked(old.data, where, "SELECT count(*) FROM orders") == [(500,)]


def test_a_move_that_was_killed_between_its_renames_is_finished_by_the_next_start(tmp_path: Path) -> None:
    """An empty cluster would have been made in the place."""
    data = tmp_path / "catalog"
    upgraded_path(data).mkdir()
    (upgraded_path(data) / "PG_VERSION").write_text("18\n")
    finish_upgrade(data)
    assert major_of(data) == "18" and not upgraded_path(data).exists()
    upgraded_path(data).mkdir()
    finish_upgrade(data)
    assert upgraded_path(data).exists(), "a cluster that is there is not replaced"


@pytest.mark.slow
def test_a_move_that_was_killed_before_its_last_rename_can_be_made_again(where: Placement, old: OldCluster) -> None:
    """Each further run copied and compared everything, and ended with `Directory not empty`."""
    left = upgraded_path(old.data)
    left.mkdir()
    (left / "PG_VERSION").write_text(f"{old.wanted}\n")
    upgrade_cluster(old, where, stack_settings().system_dir, PASSWORD, lambda step: None)
    assert (major_of(old.data), major_of(postgres_upgrade.old_data_path(old))) == (old.wanted, FORMER)
    assert not left.exists() and (old.data / "base").is_dir(), "what was left is no cluster"


def test_programs_that_nobody_has_are_named_with_the_package_that_has_them() -> None:
    with pytest.raises(LakehouseError, match=r"Postgres 9.*install Debian's postgresql-9, then run this again"):
        postgres_upgrade.programs_for("9")


def test_up_tells_of_a_cluster_that_is_gone(
    where: Placement, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The volume of `data` was not mounted: an empty catalog was made, without a word."""
    monkeypatch.setattr("lakehouse_stack.control.start_stop.up", lambda *given, **named: None)

    def told() -> list[str]:
        stack.up()
        return [line.partition(" is gone")[0] for line in capsys.readouterr().err.splitlines()]

    assert told() == [], "a first start"
    (where.data.parent / "endpoints.toml").touch()
    assert told() == [f"{name}: {where.data / name}" for name in ("sources", "catalog")]
    for folder in (where.data / "sources", upgraded_path(where.data / "catalog")):
        folder.mkdir()
        (folder / "PG_VERSION").write_text("18\n")
    assert told() == [], "one of them waits for the last step of its upgrade"
