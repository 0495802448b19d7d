"""What maintenance decides from metadata, on real Iceberg tables in a directory: no server, no Spark."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from lakehouse.catalog.objects import StoredObject, list_objects
from lakehouse.catalog.relations import changed_at, view_text
from lakehouse.catalog.writing.commit import commit_on
from lakehouse.declarations.policies import CompactPolicy, ExpirePolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from maintenance.actions.expire_snapshots import Expiry, decide, expirable
from maintenance.actions.layout import manifests_worth_rewriting, plan_for
from maintenance.command.maintain import app
from maintenance.inventory.cuts import newest_cut, snapshots_of_cuts
from maintenance.inventory.declared import maintained_tables, schedule_groups, select
from maintenance.inventory.figures import live_manifests, measure, measure_all
from maintenance.inventory.lake import Lake, Relation, _group, list_relations
from maintenance.inventory.outcome import Outcome, TableName, one_line
from maintenance.inventory.reachable import only_of, reachable_files
from maintenance.inventory.session import Session
from maintenance.inventory.temporary import leftovers, model_of, temporary_prefix, temporary_relations
from maintenance.runner.result import Result
from maintenance.runner.run import ACTIONS

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
CUTS_SCHEMA = pa.schema(
    [("source", pa.string()), ("epoch", pa.int32()), ("cut_lsn", pa.int64()),
     ("published_at", pa.timestamp("us", tz="UTC")), ("snapshots", pa.map_(pa.string(), pa.string()))]
)  # fmt: skip
RULE = CompactPolicy(target_file_size_mb=128, min_input_files=5)
LATER = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1000)
EVERYTHING = ExpirePolicy(older_than_hours=0, retain_last=1, keep_metadata_files=20)
NIGHTLY = {"schedule_group": "nightly", "compact": {"target_file_size_mb": 128, "min_input_files": 5}}
PROJECT = Path(__file__).parents[2] / "dbt_project"


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    for namespace in ("raw_shop", "meta"):
        catalog.create_namespace(namespace)
    return catalog


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return catalog.create_table("raw_shop.sales", SCHEMA)


def append(table: Table, day: str, times: int = 1) -> None:
    for number in range(times):
        table.append(pa.Table.from_pylist([{"id": number, "day": day}], SCHEMA))


def ids(table: Table) -> list[int]:
    return [snapshot.snapshot_id for snapshot in table.snapshots()]


def test_five_small_files_are_worth_a_compaction_and_four_are_not(table: Table) -> None:
    append(table, "mon", times=4)
    assert not plan_for(table, RULE).data
    append(table, "mon")
    assert (plan_for(table, RULE).files, plan_for(table, RULE).partitions) == (5, 1)


def test_small_files_are_counted_per_partition(table: Table) -> None:
    with table.update_spec() as spec:
        spec.add_field("day", IdentityTransform())
    append(table, "mon", times=4)
    append(table, "tue", times=4)
    assert not plan_for(table, RULE).data
    append(table, "tue")
    assert plan_for(table, RULE).files == 5


def test_manifests_are_rewritten_when_there_are_many_for_their_size(table: Table) -> None:
    append(table, "mon", times=4)
    assert not manifests_worth_rewriting(live_manifests(table), RULE)
    append(table, "mon")
    assert manifests_worth_rewriting(live_manifests(table), RULE)


def test_an_empty_table_needs_nothing(table: Table) -> None:
    plan = plan_for(table, RULE)
    assert not plan.data and not plan.manifests
    assert measure(table).files == 0


def test_the_size_of_the_metadata_file_is_among_the_figures_of_an_expiry(table: Table) -> None:
    """The history's columns for it were there and always empty."""
    figures = measure_all(table)
    assert figures.metadata_bytes == Path(table.metadata_location.removeprefix("file://")).stat().st_size > 0
    assert replace(figures, metadata_bytes=None) == measure(table)


def test_expiry_never_takes_the_current_snapshot(table: Table) -> None:
    append(table, "mon", times=3)
    assert expirable(table, EVERYTHING, frozenset(), LATER) == ids(table)[:-1]


def test_expiry_keeps_what_a_cut_names(table: Table) -> None:
    append(table, "mon", times=3)
    named = frozenset(ids(table)[:1])
    assert expirable(table, EVERYTHING, named, LATER) == [ids(table)[1]]


def test_expiry_keeps_tags_and_the_whole_line_of_a_branch(table: Table) -> None:
    append(table, "mon", times=4)
    table.manage_snapshots().create_branch(ids(table)[1], "audit").commit()
    assert expirable(table, EVERYTHING, frozenset(), LATER) == [ids(table)[2]]


def test_expiry_drops_a_tag_when_its_time_is_over_and_keeps_only_what_others_name(table: Table) -> None:
    append(table, "mon", times=4)
    manage = table.manage_snapshots()
    manage.create_tag(ids(table)[0], "pin_for_ever").create_tag(
        ids(table)[1], "pin_until", max_ref_age_ms=1000
    ).commit()
    assert decide(table, EVERYTHING, frozenset(), LATER, table.snapshots()[1].timestamp_ms).references == ()
    expiry = decide(table, EVERYTHING, frozenset(), LATER, LATER)
    assert (expiry.references, expiry.snapshots) == (("pin_until",), tuple(ids(table)[1:3]))


def test_files_of_expired_snapshots_are_those_that_nothing_else_refers_to(catalog: SqlCatalog, table: Table) -> None:
    append(table, "mon", times=3)
    table.delete("id = 1")
    first, last = table.snapshots()[0], table.snapshots()[-1]
    append(table, "tue")
    gone = [snapshot for snapshot in table.snapshots() if snapshot != last]
    before = reachable_files(table)
    sizes = only_of(table, table.snapshots()[:-1], table.snapshots()[-1:])
    expiry = Expiry(tuple(ids(table)[:-1]), (), {})
    after = reachable_files(commit_on(catalog, table, tuple(expiry.updates(table))))
    assert set(sizes) == before - after
    assert first.manifest_list in sizes and len(gone) == 4
    data = {path: size for path, size in sizes.items() if path.endswith(".parquet")}
    assert all(size == len(table.io.new_input(path)) for path, size in data.items()) and len(data) == 1


def test_a_commit_on_a_state_that_is_no_longer_there_is_refused(catalog: SqlCatalog, table: Table) -> None:
    append(table, "mon", times=2)
    seen = catalog.load_table("raw_shop.sales")
    table.manage_snapshots().create_tag(ids(table)[0], "pin_meanwhile").commit()
    with pytest.raises(CommitFailedException, match="changed by another writer"):
        commit_on(catalog, seen, tuple(Expiry((ids(table)[0],), (), {}).updates(seen)))
    assert "pin_meanwhile" in catalog.load_table("raw_shop.sales").refs()


def test_the_log_of_metadata_files_is_cut_and_no_writer_deletes_what_leaves_it(
    catalog: SqlCatalog, table: Table
) -> None:
    append(table, "mon", times=4)
    assert not decide(table, EVERYTHING, frozenset(), 0, 0)
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.delete-after-commit.enabled": "true"})
    two = EVERYTHING.model_copy(update={"keep_metadata_files": 2})
    table = commit_on(catalog, table, tuple(decide(table, two, frozenset(), 0, 0).updates(table)))
    assert table.properties["write.metadata.delete-after-commit.enabled"] == "false"
    assert len(table.metadata.metadata_log) == 2
    assert not decide(table, two, frozenset(), 0, 0)


def test_the_log_of_metadata_files_is_made_longer_too_where_its_writers_keep_less(
    catalog: SqlCatalog, table: Table
) -> None:
    """Ingestion and dbt make tables that keep 20, so that a log is never longer than declared."""
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "2"})
    four = EVERYTHING.model_copy(update={"keep_metadata_files": 4})
    table = commit_on(catalog, table, tuple(decide(table, four, frozenset(), 0, 0).updates(table)))
    append(table, "mon", times=6)
    assert len(catalog.load_table("raw_shop.sales").metadata.metadata_log) == 4
    assert not decide(table, four, frozenset(), 0, 0)


def test_expiry_takes_only_snapshots_older_than_the_limit(table: Table) -> None:
    append(table, "mon", times=3)
    limit = table.snapshots()[1].timestamp_ms
    assert expirable(table, EVERYTHING, frozenset(), limit) == ids(table)[:1]


def replaced(table: Table, ages_hours: Sequence[float]) -> Table:
    """The table with a whole build of each age: a replacement has no parent, and begins the log of snapshots anew."""
    append(table, "mon", times=len(ages_hours))
    made = {
        s.snapshot_id: s.model_copy(update={"parent_snapshot_id": None, "timestamp_ms": LATER - int(hours * 3_600_000)})
        for s, hours in zip(table.snapshots(), ages_hours, strict=True)
    }
    last = table.metadata.snapshot_log[-1]
    log = [last.model_copy(update={"timestamp_ms": made[last.snapshot_id].timestamp_ms})]
    metadata = table.metadata.model_copy(update={"snapshots": [*made.values()], "snapshot_log": log})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)


def test_the_last_snapshots_of_a_table_that_is_replaced_stay_though_none_descends_from_another(table: Table) -> None:
    """Of a mart, the newest build alone was kept, whatever was declared."""
    three, builds = EVERYTHING.model_copy(update={"retain_last": 3}), replaced(table, (9, 8, 7, 6))
    assert decide(builds, three, frozenset(), LATER, LATER).snapshots == (ids(builds)[0],)


def test_expiry_keeps_what_was_in_force_when_the_retention_time_began(table: Table) -> None:
    """A mart that was built last week, and now, lost at once what it had yesterday."""
    builds = replaced(table, (200, 100, 1))
    expired = [expirable(builds, EVERYTHING, frozenset(), LATER - hours * 3_600_000) for hours in (150, 72, 0)]
    first, second, _ = ids(builds)
    assert expired == [[], [first], [first, second]]


def test_the_newest_cut_of_a_source_counts_however_old_it_is(catalog: SqlCatalog) -> None:
    cuts, now = catalog.create_table("meta.cuts", CUTS_SCHEMA), datetime.now(UTC)
    for source, days, snapshot in (("shop", 9, "1"), ("shop", 8, "2"), ("bank", 0, "3")):
        row = {"source": source, "epoch": 1, "cut_lsn": -days, "published_at": now - timedelta(days=days)}
        cuts.append(pa.Table.from_pylist([{**row, "snapshots": [("sales", snapshot)]}], cuts.schema().as_arrow()))
    sales = TableName("raw_shop", "sales")
    assert snapshots_of_cuts(catalog, "shop", now - timedelta(days=1)) == {sales: frozenset({2})}
    assert snapshots_of_cuts(catalog, "shop", now - timedelta(days=30)) == {sales: frozenset({1, 2})}
    assert newest_cut(catalog, "shop") == {sales: 2}


def test_the_cut_in_force_when_the_retention_time_began_counts_too(catalog: SqlCatalog) -> None:
    """A source that was idle over the weekend lost its Sunday as soon as Monday's first cut was there."""
    cuts, now = catalog.create_table("meta.cuts", CUTS_SCHEMA), datetime.now(UTC)
    for hours, snapshot in ((90, "0"), (80, "1"), (1, "9")):
        row = {"source": "shop", "epoch": 1, "cut_lsn": -hours, "published_at": now - timedelta(hours=hours)}
        cuts.append(pa.Table.from_pylist([{**row, "snapshots": [("sales", snapshot)]}], cuts.schema().as_arrow()))
    assert snapshots_of_cuts(catalog, "shop", now - timedelta(hours=72)) == {TableName("raw_shop", "sales"): {1, 9}}


def test_what_the_cuts_of_the_retention_time_name_is_kept_of_mirrors_too(catalog: SqlCatalog) -> None:
    """A mirror that had not changed for days, and changed now, lost at once the state of all cuts before."""
    mirrors, now = catalog.create_table("meta.mirrors", CUTS_SCHEMA), datetime.now(UTC)
    for hours, snapshot in ((200, "1"), (2, "2"), (1, "2"), (0, "3")):
        row = {"source": "shop", "epoch": 1, "cut_lsn": -hours, "published_at": now - timedelta(hours=hours)}
        mirrors.append(pa.Table.from_pylist([{**row, "snapshots": [("sales", snapshot)]}], mirrors.schema().as_arrow()))
    session = Session(Settings(_env_file=None))
    session._shared |= {"catalog": catalog, "now": datetime.now(UTC)}
    sales = TableName("mirror_shop", "sales")
    assert session.snapshots_of_cuts(sales, 24) == {1, 2, 3}
    assert session.snapshots_of_cuts(sales, 1.5) == {2, 3}
    assert session.snapshots_of_cuts(sales, 0.5, of_now=False) == {2, 3}
    assert session.snapshots_of_cuts(TableName("raw_shop", "sales"), 24) == frozenset(), "of which meta.cuts tells"
    assert session.snapshots_of_cuts(TableName("marts", "sales"), 24) == frozenset()


def test_the_newest_cut_is_the_one_of_the_newest_epoch_and_position(catalog: SqlCatalog) -> None:
    """After a recovery positions begin anew: epoch first, and of two cuts at one position the one published last."""
    cuts, now = catalog.create_table("meta.cuts", CUTS_SCHEMA), datetime.now(UTC)
    rows = [(1, 900, 50, "1"), (2, 10, 40, "2"), (2, 20, 31, "3"), (2, 20, 30, "4")]
    cuts.append(
        pa.Table.from_pylist(
            [
                {"source": "shop", "epoch": epoch, "cut_lsn": lsn, "published_at": now - timedelta(minutes=minutes),
                 "snapshots": [("sales", snapshot), ("items", f"9{snapshot}")]}
                for epoch, lsn, minutes, snapshot in rows
            ],
            cuts.schema().as_arrow(),
        )
    )  # fmt: skip
    assert newest_cut(catalog, "shop") == {TableName("raw_shop", "sales"): 4, TableName("raw_shop", "items"): 94}
    assert newest_cut(catalog, "bank") == {}


def test_without_cuts_nothing_is_protected_by_them(catalog: SqlCatalog) -> None:
    assert snapshots_of_cuts(catalog, "shop", datetime.now(UTC)) == {}


def test_every_file_of_a_healthy_table_is_reachable(table: Table) -> None:
    append(table, "mon", times=3)
    listed = {stored.path.removeprefix("file://") for stored in list_objects(table.io, table.location())}
    assert {path.removeprefix("file://") for path in reachable_files(table)} == listed


def test_an_object_belongs_to_the_deepest_location_above_it() -> None:
    outer, inner, other = "s3://w/shop/sales/", "s3://w/shop/sales/nested/", "s3://w/shop/sales_old/"
    paths = [f"{outer}data/a", f"{inner}data/b", f"{other}data/c"]
    grouped = _group([stored(path) for path in paths], {outer, inner})
    assert {owner: [found.path for found in objects] for owner, objects in grouped.items()} == {
        outer: [paths[0]],
        inner: [paths[1]],
    }


def stored(path: str) -> StoredObject:
    return StoredObject(path, 1, datetime(2024, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("orders__dbt_tmp", "orders"),
        ("orders__dbt_tmp_view", "orders"),
        ("orders__dbt_tmp_20240101", "orders"),
        ("orders__dbt_backup", "orders"),
        ("orders", None),
        ("orders__dbt_tmpl", None),
        ("__dbt_tmp", None),
    ],
)
def test_temporary_names_are_those_that_dbt_gives(name: str, model: str | None) -> None:
    found = model_of(TableName("marts", name))
    assert found == (TableName("marts", model) if model else None)


def test_the_prefix_of_a_temporary_relation_is_its_directory() -> None:
    directory = f"s3://w/marts/orders__dbt_tmp-{'0' * 32}"
    assert temporary_prefix(f"{directory}/data/x.parquet") == (f"{directory}/", TableName("marts", "orders"))
    assert temporary_prefix("s3://w/marts/orders-1/data/orders__dbt_tmp") is None
    assert temporary_prefix("s3://orders__dbt_tmp/marts/x") is None


def test_objects_below_the_location_of_any_relation_are_not_left_over() -> None:
    """dbt replaces a table by renaming its temporary one: the living table keeps the temporary location."""
    living, dead = "s3://w/marts/orders__dbt_tmp-1a", "s3://w/marts/items__dbt_tmp-2b".replace("2b", "b" * 32)
    living = living.replace("1a", "a" * 32)
    renamed = Relation(TableName("marts", "orders"), "table", f"{living}/metadata/1.json")
    objects = (stored(f"{living}/data/x"), stored(f"{dead}/data/y"))
    lake = Lake(objects, (), (renamed,), {}, {})
    assert list(leftovers(lake, "s3://w")) == [TableName("marts", "items")]
    assert leftovers(Lake(objects, (f"{dead}/",), (renamed,), {}, {}), "s3://w") == {}
    assert temporary_relations(lake) == {}


def test_what_was_built_beside_the_tables_of_readers_and_not_published_is_left_over() -> None:
    """All rows of a mart that failed its tests at its first build stayed for ever."""
    built, hexes = "s3://w/marts_next", "a" * 32
    published = Relation(TableName("marts", "dim"), "table", f"{built}/dim-{hexes}/metadata/1.json")
    other = [
        "s3://w/marts_next/a.parquet",
        f"s3://w/marts_next/fct-{hexes}__as_of_20260101/metadata/1",
        "s3://w/marts/x/y",
    ]
    deep = ["s3://w/raw_shop/orders_next/data/a", f"s3://w2/marts_next/fct-{hexes}/data/a", "s3://w/raw_next/x/a"]
    dead = [f"{built}/fct-{hexes}/data/a", f"{built}/fct-{hexes}/metadata/1", f"{built}/bridge/a"]
    objects = tuple(map(stored, [f"{built}/dim-{hexes}/data/a", *other, *deep, *dead]))
    found = leftovers(Lake(objects, (), (published,), {}, {}), "s3a://w/")
    assert {str(model): [each.prefix for each in prefixes] for model, prefixes in found.items()} == {
        "marts.fct": [f"{built}/fct-{hexes}/"], "marts.bridge": [f"{built}/bridge/"],
    }  # fmt: skip


def test_views_and_tables_of_the_catalog_are_listed_alike(catalog: SqlCatalog, table: Table) -> None:
    assert list_relations(catalog) == (Relation(TableName("raw_shop", "sales"), "table", table.metadata_location),)


def test_a_view_is_as_old_as_its_newest_version_and_reads_as_its_current_one() -> None:
    versions: list[dict[str, Any]] = [
        {"version-id": 1, "timestamp-ms": 1000, "representations": [{"sql": "SELECT 1"}]},
        {"version-id": 2, "timestamp-ms": 2000, "representations": [{"sql": "SELECT 2"}]},
    ]
    view = {"current-version-id": 2, "versions": versions}
    assert changed_at(view) == datetime.fromtimestamp(2, tz=UTC)
    assert view_text(view) == "SELECT 2"


def manifest(**policies: dict[str, Any] | None) -> dict[str, Any]:
    def model(name: str, maintenance: dict[str, Any] | None) -> dict[str, Any]:
        meta = {} if maintenance is None else {"maintenance": maintenance}
        place = {"schema": "vault", "name": name, "original_file_path": f"models/{name}.sql"}
        return {**place, "resource_type": "model", "config": {"materialized": "append_only", "meta": meta}}

    return {"sources": {}, "nodes": {name: model(name, policy) for name, policy in policies.items()}}


def test_a_model_without_a_policy_is_not_maintained() -> None:
    tables = maintained_tables(manifest(hub=NIGHTLY, sat=None), PROJECT)
    assert [str(table.name) for table in tables] == ["vault.hub"]
    assert tables[0].policy.expire_snapshots is None


def test_a_view_is_not_maintained() -> None:
    nodes = manifest(current=NIGHTLY)
    nodes["nodes"]["current"]["config"]["materialized"] = "view"
    assert maintained_tables(nodes, PROJECT) == ()


def test_an_unknown_key_is_an_error_that_names_file_and_key() -> None:
    wrong = {**NIGHTLY, "compact": {"target_file_size_mb": 128, "min_input_files": 5, "min_files": 5}}
    with pytest.raises(
        LakehouseError, match=r"models/hub.sql:1: hub: meta.maintenance.compact: unknown key `min_files`: did you mean"
    ):
        maintained_tables(manifest(hub=wrong), PROJECT)


def test_tables_are_chosen_by_name_and_by_group() -> None:
    tables = maintained_tables(manifest(hub=NIGHTLY, sat={**NIGHTLY, "schedule_group": "hourly"}), PROJECT)
    assert schedule_groups(tables) == ("hourly", "nightly")
    assert [str(table.name) for table in select(tables, group="hourly")] == ["vault.sat"]
    assert [str(table.name) for table in select(tables, ["vault.hub"])] == ["vault.hub"]
    with pytest.raises(LakehouseError, match=r"no maintenance policy for vault\.hab: .* did you mean vault\.hub\?"):
        select(tables, ["vault.hab"])
    with pytest.raises(LakehouseError, match="no table is in schedule group 'yearly'; groups are hourly, nightly"):
        select(tables, group="yearly")


def test_a_run_fails_only_above_the_share_it_accepts() -> None:
    hub, sat, link = (TableName("vault", name) for name in ("hub", "sat", "link"))
    done, failed = Outcome("compact", sat, "done"), Outcome("compact", hub, "failed", error="no")
    result = Result((failed, done, Outcome("compact", link, "skipped")))
    assert result.failed_share == 0.5
    result.check(0.5)
    with pytest.raises(LakehouseError, match=r"failed for 1 of 2 tables, first compact of vault\.hub: no"):
        result.check()


def test_a_table_counts_as_failed_when_one_of_its_actions_failed() -> None:
    hub = TableName("vault", "hub")
    others = [Outcome(action, hub, "done") for action in ("expire_snapshots", "remove_orphan_files")]
    assert Result((Outcome("compact", hub, "failed", error="no"), *others)).failed_share == 1.0


def test_an_error_of_pages_becomes_one_line() -> None:
    java = "An error occurred while calling o1.sql.\n: org.apache.Nope: broken\n\tat a\n\tat b"
    assert one_line(RuntimeError(java)) == "RuntimeError: org.apache.Nope: broken"
    assert one_line(ValueError()) == "ValueError: no message"


def test_the_command_offers_every_action() -> None:
    assert {*ACTIONS, "all", "status"} <= {
        command.name or command.callback.__name__ for command in app.registered_commands
    }
