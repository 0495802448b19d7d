"""One person out of many is erased from every layer and from the disk; everybody else stays, and so does the order."""

import pickle
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from erasure import tombstones
from erasure.run import end, remembered, verify
from ingestion import refresh_mirrors
from ingestion.state import lease as leases
from ingestion.state import store
from lakehouse.catalog.open import open_catalog
from lakehouse.catalog.views.tags import REGULAR
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from maintenance.actions.compact import compact
from maintenance.actions.expire_snapshots import expire_snapshots
from maintenance.inventory import removed
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from maintenance.restore.table import restore
from tests.erasing import People, copy_lake, make_people, make_raw_people, restore_lake, traces
from tests.fresh import in_source, is_fresh_view, make_views, seen_in_trino
from tests.pages import commands
from tests.test_ingestion import assert_order_is_unique, cuts
from tests.warehouse import hand_to_store
from tests.world import _plain

pytestmark = pytest.mark.stack


def days() -> dict[str, str]:
    """Makes dbt derive everything again that was committed lately."""
    today = datetime.now(UTC).date()
    return {"LAKEHOUSE_DAY_FROM": str(today - timedelta(days=2)), "LAKEHOUSE_DAY_TO": str(today)}


def snapshots_of(people: People, *tables: str) -> list[set[int]]:
    with closing(open_catalog(people.settings)) as catalog:
        loaded = [catalog.load_table(tuple(table.split("."))) for table in tables]
    return [{snapshot.snapshot_id for snapshot in table.metadata.snapshots} for table in loaded]


@pytest.mark.slow
def test_a_person_is_gone_from_every_layer_and_every_byte(settings: Settings, spark: Any, tmp_path: Path) -> None:
    people = make_people(settings, tmp_path)
    people.world.ingest(spark)
    texts = people.texts_of(42)
    people.world.sql(
        "UPDATE people SET email = 'zz' || md5('new' || email) WHERE id = 42",
        "UPDATE people SET tier = 'GOLD' WHERE id % 10 = 2",
    )
    people.load(spark)
    refresh_mirrors(people.settings, people.declarations, people.name, spark)
    texts += people.texts_of(42)
    kinds = [Path(path).suffix for path in traces(settings, *texts)]
    assert kinds.count(".parquet") >= 5 and kinds.count(".avro") >= 3, "files of four layers, and bounds of the highest"
    people.world.sql("DELETE FROM people WHERE id = 42")
    people.world.ingest(spark)
    old, new = f"vault.sat_{people.name}_pii", f"vault.sat_{people.name}_old"
    people.rows(f"CREATE TABLE {new} AS SELECT * FROM {old}")
    lost = settings.home / "data" / "s3" / "warehouse" / "marts" / f"dim_{people.name}_person-lost" / "data"
    lost.mkdir(parents=True)
    (lost / "a.parquet").write_bytes(b"planted")
    hand_to_store(settings, lost.parent)
    before = people.checksums(42)
    hub = f"SELECT count(*) FROM vault.hub_{people.name}_person WHERE person_id = 42"

    erasure = people.erase(spark, "id=42")

    assert {f.table for f in erasure.left} == {new, f"marts/{lost.parent.name}"}, (
        "what nobody knows is named, and stays"
    )
    assert remembered(people.settings, people.name)[0].done_at is None
    people.rows(f"DROP TABLE {new}")
    shutil.rmtree(lost.parent)
    (erasure,) = people.repeat(spark)
    assert erasure.left == [] and erasure.objects > 40
    assert traces(settings, *texts) == []
    assert people.checksums(42) == before
    assert people.rows(hub) == [(1,)], "the key stays"
    mirror = f"mirror_{people.name}.people"
    left = people.world.rows("SELECT count(*), 0 FROM people")
    assert people.rows(f"SELECT count(*), count_if(id = 42) FROM {mirror}") == left
    log = people.rows(
        f"SELECT _op, name, email, letter FROM raw_{people.name}.people WHERE id = 42 ORDER BY _commit_lsn"
    )
    assert log == [(op, None, None, None) for op in "ruud"]
    assert_order_is_unique(people.world, "people")
    newest = dict(cuts(people.world)[-1]["snapshots"])
    assert snapshots_of(people, f"raw_{people.name}.people") == [{int(newest["people"])}], "the cut names what is there"
    assert verify(people.settings, people.manifest, people.world.source.table("people")).traces == []


KEPT = """{{% snapshot {name}_kept %}}
{{{{ config(unique_key='id', strategy='check', check_cols=['name', 'tier'], schema='kept') }}}}
select id, name, letter, tier from {{{{ ref('parsed_{name}__people') }}}} where id <= 60 and _op = 'r'
{{% endsnapshot %}}
"""
STORED = """{{{{ config(store_failures=true, severity='warn') }}}}
select name as found from {{{{ ref('parsed_{name}__people') }}}} where id = 42 or id = 43
"""


@pytest.mark.slow
def test_snapshots_of_dbt_and_rows_that_a_test_stored_are_without_the_person(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    """Nobody looked at them, and nothing was said to be left."""
    people = make_people(settings, tmp_path)
    project, name = people.settings.dbt_project_dir, people.name
    for folder, text in (("snapshots", KEPT), ("tests", STORED)):
        (project / folder).mkdir(exist_ok=True)
        (project / folder / f"{name}_{folder}.sql").write_text(text.format(name=name))
    manifest = load_manifest(people.settings)
    manifest["sources"] |= people.manifest["sources"]
    people = replace(people, manifest=manifest)
    people.load(spark)
    people.dbt("snapshot", "--select", f"{name}_kept")
    people.dbt("test", "--select", f"{name}_tests")
    made = {n["resource_type"]: f"{n['schema']}.{n['alias']}" for n in manifest["nodes"].values() if name in n["name"]
            and n["resource_type"] in ("snapshot", "test") and n["original_file_path"].endswith(".sql")}  # fmt: skip
    kept, stored = made["snapshot"], made["test"]
    assert people.rows(f"SELECT count(*) FROM {stored}") == [(2,)]
    others = people.rows(f"SELECT * FROM {kept} WHERE id <> 42 ORDER BY id")
    texts = people.texts_of(42)
    people.world.sql("DELETE FROM people WHERE id = 42")
    people.load(spark)

    assert people.erase(spark, "id=42").left == []

    assert traces(settings, *texts) == []
    assert people.rows(f"SELECT id, name, letter FROM {kept} WHERE id = 42") == [(42, None, None)]
    assert people.rows(f"SELECT * FROM {kept} WHERE id <> 42 ORDER BY id") == others
    schema, table = stored.split(".")
    assert people.rows(f"SHOW TABLES FROM {schema} LIKE '{table}'") == []
    people.dbt("test", "--select", f"{name}_tests")
    assert people.rows(f"SELECT count(*) FROM {stored} WHERE found IS NOT NULL") == [(1,)], "the next test makes it"


def test_an_erasure_that_would_not_hold_is_refused(settings: Settings, spark: Any) -> None:
    people = make_raw_people(settings)
    people.world.ingest(spark)
    for key, message in (
        ("id=9999", "the lake has no row with id=9999"),
        ("name=x", "name the subject by its key: id=…"),
        ("id=x", 'invalid input syntax for type integer: "x"'),
        ("id=5", "still holds personal data of people id=5, and would bring it back: delete the row there"),
    ):
        with pytest.raises(LakehouseError, match=message):
            people.erase(spark, key)
    people.world.sql("UPDATE people SET name = NULL, email = NULL, letter = NULL WHERE id = 5")
    with store.connect_catalog(people.settings) as states:
        lease = leases.acquire(states, people.name, 30, "follow")
        with pytest.raises(LakehouseError, match="is at work: stop it"):
            people.erase(spark, "id=5")
        leases.release(states, lease)
    with closing(open_catalog(people.settings)) as catalog:
        raw = catalog.load_table((f"raw_{people.name}", "people"))
        raw.manage_snapshots().create_tag(raw.current_snapshot().snapshot_id, "audit").commit()
        with pytest.raises(LakehouseError, match="tag or branch audit keeps old snapshots: drop it first"):
            people.erase(spark, "id=5")
        raw.refresh().manage_snapshots().remove_tag("audit").commit()
    assert people.erase(spark, "id=5").left == []


def let_go_of_readers(people: People, name: TableName) -> None:
    """As an hour later: the fresh view has moved on, and the tags that it named before are gone."""
    with closing(open_catalog(people.settings)) as catalog:
        table = catalog.load_table(tuple(name))
        with table.manage_snapshots() as managed:
            for ref in table.metadata.refs:
                if ref.startswith(REGULAR):
                    managed.remove_tag(ref)


@pytest.mark.slow
def test_what_maintenance_kept_aside_goes_with_the_person(settings: Settings, spark: Any) -> None:
    people = make_raw_people(settings)
    people.world.ingest(spark)
    texts = people.texts_of(42)
    people.world.sql("UPDATE people SET email = 'zz' || md5('new' || email) WHERE id = 42")
    people.world.ingest(spark)
    name, before = TableName(f"raw_{people.name}", "people"), datetime.now(UTC)
    people.world.sql("DELETE FROM people WHERE id = 42")
    people.world.ingest(spark)
    keeping = MaintenancePolicy.model_validate(
        {
            "schedule_group": "nightly",
            "compact": {"target_file_size_mb": 1, "min_input_files": 2},
            "expire_snapshots": {"older_than_hours": 0, "retain_last": 1, "keep_metadata_files": 2},
            "keep_removed_hours": 1000,
        }
    )
    for act in (compact, expire_snapshots):
        let_go_of_readers(people, name)
        with closing(Session(people.settings)) as session:
            assert act(session, name, keeping).status == "done"
        people.world.sql("UPDATE people SET tier = tier || '!' WHERE id = 7")  # the next cut names the compacted files
        people.world.ingest(spark)
    with closing(Session(people.settings)) as session:
        copy = restore(session, name, before).table
        with pytest.raises(LakehouseError, match="is a restored copy: drop it first"):
            people.erase(spark, "id=42")
        session.trino(f'DROP TABLE {copy.namespace}."{copy.name}"')
        with removed.catalog_database(people.settings) as connection:
            kept = removed.recorded(connection, name)
            assert any(path.endswith(".parquet") for path in kept) and traces(settings, *texts)
            assert people.erase(spark, "id=42").left == []
            assert removed.recorded(connection, name) == {}
    assert traces(settings, *texts) == []


@pytest.mark.slow
def test_who_bore_the_key_before_or_bears_it_now_is_somebody_else(settings: Settings, spark: Any) -> None:
    """7 became 1007 and left; another person was given 7."""
    people = make_raw_people(settings)
    people.world.ingest(spark)
    texts, other = people.texts_of(7), people.texts_of(8)
    people.world.sql("UPDATE people SET id = 1007 WHERE id = 7", "UPDATE people SET id = 7 WHERE id = 8")
    people.world.sql("UPDATE people SET tier = 'X' WHERE id IN (7, 1007)", "DELETE FROM people WHERE id = 1007")
    assert people.erase(spark, "id=1007").left == []
    assert traces(settings, *texts) == []
    assert len(traces(settings, *other)) > 0
    assert people.world.current("people")[7,]["name"] == people.world.rows("SELECT name FROM people WHERE id = 7")[0][0]


@pytest.mark.slow
def test_records_that_wait_in_the_spool_lose_the_person_and_nothing_else(settings: Settings, spark: Any) -> None:
    from ingestion import pause, resume

    people = make_raw_people(settings)
    people.world.ingest(spark)
    refresh_mirrors(people.settings, people.declarations, people.name, spark)
    pause(people.settings, people.world.source.table("people"))
    people.world.sql("UPDATE people SET name = name || '-spooled', email = 'spool-' || email WHERE id IN (42, 43)")
    people.world.ingest(spark)
    texts = people.texts_of(42)
    people.world.sql("DELETE FROM people WHERE id = 42", "UPDATE people SET tier = 'Z' WHERE id = 43")
    erasure = people.erase(spark, "id=42")
    assert erasure.left == []
    assert traces(settings, *texts) == []
    done, mirror = erasure.tables[f"mirror_{people.name}.people"], (f"mirror_{people.name}", "people")
    with closing(open_catalog(people.settings)) as catalog:
        assert done.dropped and not done.rebuilt and not catalog.table_exists(mirror), "it is in no cut"
    resume(people.settings, people.declarations, people.name, ["people"], spark)
    assert traces(settings, *texts) == []
    refresh_mirrors(people.settings, people.declarations, people.name, spark)
    assert people.rows(f"SELECT count(*), count_if(id = 42) FROM {'.'.join(mirror)}") == [(299, 0)]
    mine = [row for row in people.world.raw("people") if row["id"] == 42]
    assert [(row["_op"], row["name"], row["tier"]) for row in mine] == [
        ("r", None, "BRONZE"),
        ("u", None, "BRONZE"),
        ("d", None, None),
    ]
    assert people.world.current("people")[43,]["email"].startswith("spool-")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        "erasure.steps:rewrite:after",
        "erasure.steps:drop_mirror:after",
        "erasure.steps:publish_live_files:after",
        "erasure.expire:_drop_statistics:after",
        "erasure.expire:delete_expired_files:before",
        "lakehouse.catalog.writing.bulk_delete:_send:after",
        "erasure.tombstones:forget_files_to_delete:before",
    ],
)
def test_killed_in_the_middle_the_next_run_finishes(settings: Settings, spark: Any, fault: str) -> None:
    people = make_raw_people(settings, lease_seconds=2)
    people.world.ingest(spark)
    people.world.sql("UPDATE people SET email = 'zz' || md5('new' || email) WHERE id = 42")
    people.world.ingest(spark)
    make_views(people.world)
    refresh_mirrors(people.settings, people.declarations, people.name, spark)
    texts = people.texts_of(42)
    people.world.sql("DELETE FROM people WHERE id = 42")
    killed = killed_at(people, fault)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    seen = seen_in_trino(people.world, "people")
    assert seen == (in_source(people.world, "people") if is_fresh_view(people.world, "people") else [])
    time.sleep(2.5)
    (erasure,) = people.repeat(spark)
    assert erasure.left == []
    assert traces(settings, *texts) == []
    assert is_fresh_view(people.world, "people")
    assert seen_in_trino(people.world, "people") == in_source(people.world, "people")
    with closing(open_catalog(people.settings)) as catalog, store.connect_catalog(people.settings) as states:
        assert tombstones.files_to_delete(states, (f"raw_{people.name}", "people")) == set()
        assert catalog.load_table((f"raw_{people.name}", "people")).scan().to_arrow().num_rows == 302


def killed_at(people: People, fault: str) -> subprocess.CompletedProcess[str]:
    plan = people.settings.home / f"erasing-{people.name}.pickle"
    plan.write_bytes(pickle.dumps((_plain(people.settings), people.world.source)))
    plan.chmod(0o600)
    script = f"""
import json, pickle
from pathlib import Path
from lakehouse.declarations import Declarations
from lakehouse.settings import load_settings
from tests.driver import _inject
_inject({fault!r})
from erasure.run import erase
text, source = pickle.loads(Path({str(plan)!r}).read_bytes())
erase(load_settings(**json.loads(text)), Declarations(sources=(source,)), {{}}, source.name + ".people", ["id=42"])
"""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_neither_a_restored_backup_nor_deriving_anew_brings_a_person_back(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    people = make_people(settings, tmp_path / "project")
    people.load(spark)
    texts = people.texts_of(42)
    people.world.sql("DELETE FROM people WHERE id = 42")
    people.load(spark)
    pointers = copy_lake(people, tmp_path / "backup")
    before = people.checksums(42)
    assert people.erase(spark, "id=42").left == []
    assert traces(settings, *texts) == []
    restore_lake(people, tmp_path / "backup", pointers)
    table = people.world.source.table("people")
    found = verify(people.settings, people.manifest, table)
    n = people.name
    layers = {f"raw_{n}.people", f"parsed.parsed_{n}__people", f"vault.sat_{n}_pii", f"marts.dim_{n}_person"}
    assert {trace.table for trace in found.traces} == layers, "a mart too, though it calls its column otherwise"
    (erasure,) = people.repeat(spark)
    assert erasure.left == []
    assert traces(settings, *texts) == []
    assert people.checksums(42) == before
    assert verify(people.settings, people.manifest, table).traces == []

    people.world.sql("INSERT INTO people (id, tier) VALUES (301, 'NEW')")
    satellite = f"SELECT * FROM vault.sat_{people.name}_pii ORDER BY source_seq, 1"  # ghosts have one in common
    there = people.rows(satellite)
    people.load(spark)
    people.load(spark, **days())
    assert traces(settings, *texts) == []
    derived = people.rows(satellite)
    assert len(derived) == len(there) + 1 and set(there) <= set(derived), "derived again: the new person alone"
    people.load(spark, "--full-refresh")
    assert people.rows(satellite) == derived, "an emptied satellite is what the emptied log amounts to"
    assert traces(settings, *texts) == []


def said(people: People, arguments: list[str], status: int = 0) -> str:
    """What a command of the page prints, which ends with this status."""
    done = people.world.command(*arguments)
    assert done.returncode == status, done
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_tombstone_survives_the_loss_of_any_two_of_its_places_until_it_is_ended(
    settings: Settings, spark: Any
) -> None:
    people = make_raw_people(settings)
    people.world.ingest(spark)
    people.world.sql("DELETE FROM people WHERE id = 42")
    name = f"{people.name}.people"
    preview, erase, listed, again, ending = commands("erasure.md", ("retail.customers customer_id=42", f"{name} id=42"))
    assert said(people, preview).count(name) >= 1 and remembered(people.settings, people.name) == ()
    said(people, [*erase, "--yes"])
    assert f"{name} id=42: asked" in said(people, listed)
    (stone,) = remembered(people.settings, people.name)
    assert (stone.key, stone.table) == ({"id": "42"}, "people") and stone.done_at

    def from_catalog() -> None:
        with store.connect_catalog(people.settings) as states:
            states.execute("DELETE FROM lakehouse.erasures WHERE id = %s", (stone.id,))

    copies = [
        from_catalog,
        (settings.home / "data" / "s3" / "warehouse" / "erasures" / f"{stone.id}.json").unlink,
        (settings.home / "erasures" / f"{stone.id}.json").unlink,
    ]
    for spared in range(3):
        for number, forget in enumerate(copies):
            if number != spared:
                forget()
        assert remembered(people.settings, people.name) == (stone,)
    people.world.sql("INSERT INTO people (id, name) VALUES (42, 'Back')")
    assert f"{name} id=42: " in (refused := said(people, again, status=1)) and "still holds personal data" in refused
    with pytest.raises(LakehouseError, match=f"{name} id=43: no such erasure; `lakehouse erase --list`"):
        end(people.settings, name, ["id=43"])
    assert f"{stone}: the erasure is forgotten" in said(people, ending)
    assert remembered(people.settings, people.name) == ()
    assert people.repeat(spark) == []
