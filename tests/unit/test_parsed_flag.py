"""What `lakehouse upgrade` does where parsed's flag of deletions has its former name, and which views it makes anew."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import IcebergTables
from pyiceberg.table import Table
from sqlalchemy.orm import Session
from trino.exceptions import TrinoUserError

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.relations import TableName, view_columns, view_text
from lakehouse.catalog.writing.commit import retried
from lakehouse.migrations import parsed_flag
from lakehouse.migrations.parsed_flag import FORMER, RENAMED, _reading, _rename, outdated, rename, under_the_new_name
from lakehouse.settings import Settings

TABLES = [TableName("parsed", "parsed_shop__sales")]
NOTHING = frozenset[str]()


def test_views_that_name_the_flag_or_have_it_are_made_anew_and_what_reads_those_after_them() -> None:
    views = {
        TableName("marts", "above"): ("SELECT _deleted FROM marts.star", NOTHING),
        TableName("parsed", "current_shop__sales"): ("SELECT id FROM parsed_shop__sales WHERE NOT _deleted", NOTHING),
        TableName("marts", "star"): ('SELECT * FROM "parsed"."parsed_shop__sales"', frozenset({"id", "_deleted"})),
        TableName("marts", "other_table"): ("SELECT _deleted FROM parsed_shop__sales_of_old", NOTHING),
        TableName("marts", "another_name"): ("SELECT is_deleted, not_deleted FROM parsed_shop__sales", NOTHING),
    }
    assert [view.name for view in _reading(views, TABLES)] == ["current_shop__sales", "star", "above"]


def test_a_view_is_made_anew_from_its_own_text() -> None:
    shown = (
        "CREATE VIEW lake.parsed.v COMMENT 'x' SECURITY DEFINER AS\nSELECT id, is_deleted FROM t WHERE (NOT _deleted)"
    )
    assert under_the_new_name(shown) == (
        "CREATE OR REPLACE VIEW lake.parsed.v COMMENT 'x' SECURITY DEFINER AS\n"
        "SELECT id, is_deleted FROM t WHERE (NOT _is_deleted)"
    )


def test_the_newest_version_of_a_view_says_what_it_reads_and_has() -> None:
    versions = [
        {"version-id": number, "schema-id": number, "representations": [{"sql": f"SELECT {number}"}]}
        for number in (1, 2)
    ]
    schemas = [{"schema-id": number, "fields": [{"name": f"c{number}"}]} for number in (1, 2)]
    metadata = {"current-version-id": 2, "versions": versions, "schemas": schemas}
    assert (view_text(metadata), view_columns(metadata)) == ("SELECT 2", {"c2"})


ROWS = pa.table(
    {"id": [1, 2], "_op": ["c", "d"], "_deleted": [False, True], "_valid_from": [None, None],
     "_record_source": ["s", "s"], "_loaded_at": [None, None]},
    pa.schema([("id", pa.int64()), ("_op", pa.string()), ("_deleted", pa.bool_()), ("_valid_from", pa.timestamp("us")),
               ("_record_source", pa.string()), ("_loaded_at", pa.timestamp("us"))]),
)  # fmt: skip


@pytest.fixture
def catalog(tmp_path: Path) -> LakeCatalog:
    made = LakeCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("parsed")
    return made


def parsed(catalog: LakeCatalog, name: str) -> Table:
    table = catalog.create_table(("parsed", name), ROWS.schema)
    table.append(ROWS)
    return table


def view(catalog: LakeCatalog, folder: Path, name: str, text: str) -> None:
    """A view as Trino leaves it in the catalog."""
    file = folder / f"{name}.metadata.json"
    version = {"version-id": 1, "schema-id": 0, "representations": [{"sql": text}]}
    file.write_text(json.dumps({"current-version-id": 1, "versions": [version], "schemas": []}))
    row = IcebergTables(
        catalog_name="lake",
        table_namespace="parsed",
        table_name=name,
        metadata_location=f"file://{file}",
        previous_metadata_location=None,
    )
    row.iceberg_type = "VIEW"
    with Session(catalog.engine) as session:
        session.add(row)
        session.commit()


def test_a_rename_keeps_snapshots_and_rows_and_a_killed_one_is_finished(catalog: LakeCatalog) -> None:
    first, second = (parsed(catalog, f"parsed_shop__{name}") for name in ("sales", "stores"))
    parsed(catalog, "of_others")
    assert [line.partition(":")[2] for line in outdated(Settings(), catalog).lines()] == [
        " rename _deleted to _is_deleted"
    ] * 2
    retried(catalog, TableName(*first.name()), _rename)  # then it was killed
    found = outdated(Settings(), catalog)
    assert (found.tables, found.renamed) == ((TableName(*second.name()),), (TableName(*first.name()),))
    assert rename(Settings(), catalog) == []
    assert outdated(Settings(), catalog) == parsed_flag.Outdated((), (), (), ())
    for before in (first, second):
        now = catalog.load_table(before.name())
        assert now.metadata.snapshots == before.metadata.snapshots and RENAMED not in now.properties
        assert now.scan().to_arrow().column("_is_deleted").to_pylist() == [False, True]
    assert FORMER in catalog.load_table(("parsed", "of_others")).schema().column_names


def test_a_rename_that_was_killed_before_its_last_step_is_told_until_it_is_finished(catalog: LakeCatalog) -> None:
    """`lakehouse upgrade` said that there was nothing to do, and a view that got such a column later was made anew."""
    table = parsed(catalog, "parsed_shop__sales")
    retried(catalog, TableName(*table.name()), _rename)  # its views are made; then it was killed
    assert outdated(Settings(), catalog).lines() == ["parsed.parsed_shop__sales: end the renaming of _deleted"]
    assert rename(Settings(), catalog) == []
    assert outdated(Settings(), catalog).lines() == []
    assert RENAMED not in catalog.load_table(table.name()).properties


def test_a_table_with_a_column_of_either_name_is_told_and_left(catalog: LakeCatalog) -> None:
    """Its source has a column `_is_deleted`, which parsed did not refuse before."""
    from pyiceberg.types import StringType

    with parsed(catalog, "parsed_shop__sales").update_schema() as update:
        update.add_column("_is_deleted", StringType())
    (line,) = outdated(Settings(), catalog).lines()
    assert "declare meta.raw.alias: {_is_deleted: another_name}" in line and "--full-refresh" in line
    assert rename(Settings(), catalog) == []
    assert outdated(Settings(), catalog).lines() == [line]


def test_views_are_made_anew_below_first_and_one_that_trino_refuses_is_told(
    catalog: LakeCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed(catalog, "parsed_shop__sales")
    view(catalog, tmp_path, "a_above", "SELECT _deleted FROM parsed.b_star")
    view(catalog, tmp_path, "b_star", "SELECT id, _deleted FROM parsed.parsed_shop__sales")
    view(catalog, tmp_path, "c_wrong", "SELECT _deleted, nothing FROM parsed.parsed_shop__sales")
    view(catalog, tmp_path, "d_other", "SELECT id FROM parsed.parsed_shop__sales")
    made: list[str] = []

    def query(settings: Settings, statement: str) -> list[list[str]]:
        if statement.startswith("SHOW"):
            name = statement.split('"')[3]
            return [[f"CREATE VIEW {name} AS SELECT _deleted"]]
        if statement.startswith("CREATE"):
            name = statement.split()[4]
            if name == "c_wrong":
                raise TrinoUserError(
                    {"errorName": "COLUMN_NOT_FOUND", "message": "Column 'nothing' cannot be resolved"}
                )
            made.append(statement)
        return []

    monkeypatch.setattr(parsed_flag, "query", query)
    found = outdated(Settings(), catalog)
    assert {name.name for name in found.views} == {"a_above", "b_star", "c_wrong"} and "d_other" not in str(found)
    said = rename(Settings(), catalog)
    assert made == [f"CREATE OR REPLACE VIEW {name} AS SELECT _is_deleted" for name in ("b_star", "a_above")]
    assert len(said) == 1 and said[0].startswith("parsed.c_wrong read _deleted, which is called _is_deleted now")
    assert outdated(Settings(), catalog).lines() == [], "a view that names such a column from now on is left alone"
