"""Which views `lakehouse upgrade` makes anew because parsed's flag of deletions has another name, and how."""

from lakehouse.catalog.relations import TableName, view_columns, view_text
from lakehouse.migrations.parsed_flag import _reading, under_the_new_name

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
