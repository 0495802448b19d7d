"""Tables that are built beside the ones that readers see: copied, replaced, published together or not at all."""

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.next_names import OF_SOURCES, is_next, next_name
from lakehouse.catalog.objects import list_objects
from lakehouse.catalog.open import PUBLISHED, unpublished_snapshots
from lakehouse.catalog.relations import Relation, TableName
from lakehouse.catalog.writing.next_tables import begin, building_next, delete_unowned
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings

DIM, FACT = ("marts", "dim"), ("marts", "fact")


@pytest.fixture
def catalog(postgres_catalog: LakeCatalog) -> LakeCatalog:
    postgres_catalog.create_namespace_if_not_exists("marts")
    write(postgres_catalog, DIM, 1)
    return postgres_catalog


def write(catalog: LakeCatalog, name: tuple[str, str], *rows: int) -> None:
    """Replaces the rows of a table, as `create or replace` does: with its history."""
    data = pa.table({"n": rows})
    table = catalog.create_table_if_not_exists(name, data.schema)
    table.overwrite(data)


def rows(catalog: LakeCatalog, name: tuple[str, str]) -> Any:
    return catalog.load_table(name).scan().to_arrow()["n"].to_pylist()


def test_readers_see_all_tables_change_at_once_with_their_history(catalog: LakeCatalog) -> None:
    before = catalog.load_table(DIM)
    with building_next(catalog, {DIM: {}, FACT: {}}) as sound:
        write(catalog, next_name(DIM), 1, 2)
        write(catalog, next_name(FACT), 7)
        sound |= {DIM, FACT}
        assert rows(catalog, DIM) == [1] and not catalog.table_exists(FACT)
    after = catalog.load_table(DIM)
    assert rows(catalog, DIM) == [1, 2] and rows(catalog, FACT) == [7]
    assert after.metadata.table_uuid == before.metadata.table_uuid and after.location() == before.location()
    old = after.scan(snapshot_id=before.metadata.current_snapshot_id).to_arrow()["n"].to_pylist()
    assert old == [1], "the past can still be queried"
    assert not catalog.list_tables("marts_next")


def test_a_published_table_has_the_comments_of_its_columns(catalog: LakeCatalog) -> None:
    """A replacement loses them; a statement per column took half the time of a build."""
    for comment in ("A number.", "Another number."):
        with building_next(catalog, {DIM: {"n": comment, "gone": "No column."}}) as sound:
            write(catalog, next_name(DIM), 1, 2)
            sound.add(DIM)
        assert catalog.load_table(DIM).schema().find_field("n").doc == comment
        assert rows(catalog, DIM) == [1, 2]


def published(catalog: LakeCatalog, name: tuple[str, str]) -> dict[str, str]:
    """When the snapshots of a table were published, by their ids."""
    properties = catalog.load_table(name).properties
    return {key.removeprefix(PUBLISHED): at for key, at in properties.items() if key.startswith(PUBLISHED)}


def test_the_snapshots_of_a_build_say_when_it_was_published_as_long_as_they_are_kept(catalog: LakeCatalog) -> None:
    """A pin of a moment in between kept marts of two builds, as it went by when each was made."""
    first = catalog.load_table(DIM).metadata.current_snapshot_id
    with building_next(catalog, {DIM: {}, FACT: {}}) as sound:
        write(catalog, next_name(DIM), 1, 2)
        write(catalog, next_name(FACT), 7)
        sound |= {DIM, FACT}
    dim, fact = published(catalog, DIM), published(catalog, FACT)
    made = [snapshot for name in (DIM, FACT) for snapshot in catalog.load_table(name).metadata.snapshots]
    assert {*dim, *fact} == {str(snapshot.snapshot_id) for snapshot in made} - {str(first)}
    (at,) = {*dim.values(), *fact.values()}
    assert int(at) >= max(snapshot.timestamp_ms for snapshot in made)
    expire = catalog.load_table(DIM).maintenance.expire_snapshots()
    expire.by_ids([snapshot.snapshot_id for snapshot in catalog.load_table(DIM).metadata.snapshots][:-1]).commit()
    with building_next(catalog, {DIM: {}, FACT: {}}) as sound:
        write(catalog, next_name(DIM), 3)
        sound |= {DIM, FACT}
    again = published(catalog, DIM)
    assert published(catalog, FACT) == fact and len(again.items() & dim.items()) == 1
    assert again.keys() == {str(snapshot.snapshot_id) for snapshot in catalog.load_table(DIM).metadata.snapshots}


def test_a_table_that_was_replaced_in_place_is_told_until_the_next_is_published(catalog: LakeCatalog) -> None:
    """A replacement that was begun by hand wins over what was published while it was made, which is gone then."""

    def replaced() -> dict[str, int]:
        return {name: fact.snapshot_id for name, fact in unpublished_snapshots(catalog, [DIM, FACT]).items()}

    for number in (2, 3):
        with building_next(catalog, {DIM: {}, FACT: {}}) as sound:
            write(catalog, next_name(DIM), number)
            sound.add(DIM)
        assert replaced() == {}
        write(catalog, DIM, 1)
        assert replaced() == {"marts.dim": catalog.load_table(DIM).metadata.current_snapshot_id}


def test_what_is_noted_of_a_table_outlives_its_replacement(catalog: LakeCatalog) -> None:
    """Trino leaves out a table's properties where it replaces it."""
    with building_next(catalog, {DIM: {}}) as sound:
        write(catalog, next_name(DIM), 1, 2)
        sound.add(DIM)
    before, noted = published(catalog, DIM), {"lakehouse.put-back.5": "1", "lakehouse.pin.close": "shop=1:0/5"}
    with catalog.load_table(DIM).transaction() as transaction:
        transaction.set_properties(noted | {"lakehouse.built-from": "former"})
    with building_next(catalog, {DIM: {}}) as sound:
        write(catalog, next_name(DIM), 3)
        with catalog.load_table(next_name(DIM)).transaction() as transaction:
            transaction.remove_properties(
                *(PUBLISHED + snapshot for snapshot in before), *noted, "lakehouse.built-from"
            )
        sound.add(DIM)
    properties = catalog.load_table(DIM).properties
    assert before and {key: properties.get(key) for key in noted} == noted
    assert before.items() < published(catalog, DIM).items() and "lakehouse.built-from" not in properties


def test_a_table_that_its_tests_refuse_stays_as_it_was(catalog: LakeCatalog) -> None:
    with building_next(catalog, {DIM: {}, FACT: {}}) as sound:
        write(catalog, next_name(DIM), 9, 9)
        write(catalog, next_name(FACT), 7)
        sound.add(FACT)
    assert rows(catalog, DIM) == [1] and rows(catalog, FACT) == [7]
    assert not catalog.list_tables("marts_next")


def test_a_build_that_breaks_off_publishes_nothing(catalog: LakeCatalog) -> None:
    with pytest.raises(RuntimeError), building_next(catalog, {DIM: {}}) as sound:
        write(catalog, next_name(DIM), 9)
        sound.add(DIM)
        raise RuntimeError
    assert rows(catalog, DIM) == [1] and not catalog.list_tables("marts_next")


def test_what_a_killed_build_left_is_not_published_by_the_next(
    catalog_settings: Settings, catalog: LakeCatalog
) -> None:
    with psycopg.connect(catalog_settings.catalog_dsn(), autocommit=True) as killed:
        begin(killed, catalog, [DIM])
    write(catalog, next_name(DIM), 9)
    with building_next(catalog, {DIM: {}}) as sound:
        sound.add(DIM)
    assert rows(catalog, DIM) == [1]


def test_what_another_has_built_into_a_copy_is_not_published(catalog: LakeCatalog) -> None:
    """Trino may end the statement of a killed build in the copies of the next, which has not tested it."""
    write(catalog, FACT, 5)
    with building_next(catalog, {DIM: {}, FACT: {}}) as sound:
        write(catalog, next_name(DIM), 2)
        write(catalog, next_name(FACT), 6)
        sound.add(DIM)
    assert rows(catalog, DIM) == [2] and rows(catalog, FACT) == [5]


def test_where_another_writer_was_faster_none_is_published(catalog: LakeCatalog) -> None:
    """A compaction, or a pin, of a mart: both would be lost without a word."""
    write(catalog, FACT, 5)
    message = r"marts\.fact was changed by another writer"
    with pytest.raises(LakehouseError, match=message), building_next(catalog, {DIM: {}, FACT: {}}) as sound:
        sound |= {DIM, FACT}
        write(catalog, next_name(DIM), 2)
        write(catalog, next_name(FACT), 6)
        write(catalog, FACT, 50)
    assert rows(catalog, DIM) == [1] and rows(catalog, FACT) == [50]


def test_a_publish_is_one_transaction(catalog_settings: Settings, catalog: LakeCatalog) -> None:
    with psycopg.connect(catalog_settings.catalog_dsn(), autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no space'; END $$;"
            " CREATE TRIGGER refuse BEFORE INSERT ON iceberg_tables FOR EACH ROW WHEN (new.table_name = 'fact'"
            " AND new.table_namespace = 'marts') EXECUTE FUNCTION refuse()"
        )
        try:
            with pytest.raises(psycopg.Error, match="no space"), building_next(catalog, {DIM: {}, FACT: {}}) as sound:
                sound |= {DIM, FACT}
                write(catalog, next_name(DIM), 2)
                write(catalog, next_name(FACT), 6)
        finally:
            connection.execute("DROP TRIGGER refuse ON iceberg_tables; DROP FUNCTION refuse()")
    assert rows(catalog, DIM) == [1] and not catalog.table_exists(FACT)


def test_one_build_waits_for_another(catalog: LakeCatalog) -> None:
    """The second would drop the copies of the first, and the first publish what the second has not tested yet."""
    events = []

    def other() -> None:
        with building_next(catalog, {DIM: {}}):
            events.append("second")

    with building_next(catalog, {DIM: {}}):
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(1.0)
        events.append("first")
    thread.join(timeout=30)
    assert events == ["first", "second"]


@pytest.mark.parametrize("namespace", ["raw_up_next", "mirror_up_next", "live_raw_up_next", "marts", "vault"])
def test_the_tables_of_a_source_that_is_called_so_are_no_copies(namespace: str) -> None:
    """The catalog service did not show its mirrors, and no pin kept them."""
    assert not is_next(namespace) and is_next("marts_next") and is_next("vault_next")


@given(source=st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True), of=st.sampled_from(OF_SOURCES))
@example("up", "mirror_").via("the copies of its mirrors were in the place of those of the source up_next")
def test_the_copies_of_a_source_are_where_no_source_has_tables(source: str, of: str) -> None:
    namespace, _ = next_name((f"{of}{source}", "orders"))
    assert is_next(namespace) and not namespace.startswith(OF_SOURCES) and not is_next(f"{of}{source}")


def test_a_first_build_that_is_not_published_leaves_no_files(catalog: LakeCatalog) -> None:
    """Each try left all of its rows in a folder that no table owned, which orphan removal did not look at."""
    with building_next(catalog, {DIM: {}, FACT: {}}) as sound:
        write(catalog, next_name(DIM), 1, 2)
        write(catalog, next_name(FACT), 7)
        place = files(catalog, next_name(FACT))
        sound.add(DIM)
    assert rows(catalog, DIM) == [1, 2] and place() == []
    with pytest.raises(RuntimeError, match="the build"), building_next(catalog, {FACT: {}}):
        write(catalog, next_name(FACT), 8)
        place = files(catalog, next_name(FACT))
        raise RuntimeError("the build")
    assert place() == []
    with building_next(catalog, {FACT: {}}) as sound:
        write(catalog, next_name(FACT), 9)
        place = files(catalog, next_name(FACT))
        sound.add(FACT)
    assert rows(catalog, FACT) == [9] and place()


@pytest.mark.parametrize("below", ["", "/part"])
def test_files_at_which_another_table_is_stay_with_a_first_build_that_is_not_published(
    catalog: LakeCatalog, below: str
) -> None:
    with building_next(catalog, {FACT: {}}):
        write(catalog, next_name(FACT), 7)
        table = catalog.load_table(next_name(FACT))
        if below:
            catalog.create_table(("marts", "other"), table.schema(), location=f"{table.location()}{below}")
        else:
            catalog.register_table(("marts", "other"), table.metadata_location)
        place = files(catalog, next_name(FACT))
        before = place()
    assert place() == before and catalog.load_table(("marts", "other"))


def test_a_copy_whose_metadata_does_not_tell_its_place_deletes_nothing(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehouse.catalog.writing.next_tables.delete_objects", lambda *_: pytest.fail("deleted"))
    for location in ("", "s3://wh/1.metadata.json"):
        delete_unowned(catalog, Relation(TableName(*FACT), "table", location))


def files(catalog: LakeCatalog, name: tuple[str, str]) -> Callable[[], list[str]]:
    """What asks for the files at the place where the table is now."""
    location = catalog.load_table(name).location()
    return lambda: [stored.path for stored in list_objects(cast(Any, catalog.file_io), location)]
