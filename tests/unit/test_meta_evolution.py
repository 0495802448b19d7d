"""The lake's own Iceberg tables as another release made them: what they lack is added, what is unknown stays."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from ingestion.sink.meta_tables import SCHEMAS, ensure_meta
from ingestion.sink.publish import CUTS_SCHEMA, ensure_cuts
from maintenance.inventory.cuts import newest_row
from maintenance.inventory.outcome import Figures, Outcome, TableName
from maintenance.planning import history
from maintenance.planning.history import recent
from tests.unit.dbt_macros import macro

COLUMNS_OF_BOUNDS = ["invocation_id", "source", "epoch", "cut_lsn", "tables", "day_from", "day_to", "created_at"]
NOW = datetime(2026, 11, 22, tzinfo=UTC)
MAKERS: dict[str, tuple[pa.Schema, Callable[[SqlCatalog], Table]]] = {
    "cuts": (schema_to_pyarrow(CUTS_SCHEMA, include_field_ids=False), ensure_cuts),
    "maintenance": (history.SCHEMA, history._ensure),
    **{
        name: (
            schema_to_pyarrow(schema, include_field_ids=False),
            lambda catalog, name=name: ensure_meta(catalog, name),
        )
        for name, schema in SCHEMAS.items()
    },
}


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    made = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("meta")
    return made


@pytest.mark.parametrize("name", MAKERS)
def test_a_column_that_a_release_adds_reaches_a_table_that_is_there_already(catalog: SqlCatalog, name: str) -> None:
    schema, ensure = MAKERS[name]
    earlier = pa.schema(list(schema)[:-1])
    catalog.create_table(("meta", name), earlier).append(pa.Table.from_pylist([{}], earlier))
    table = ensure(catalog)
    assert table.schema().as_arrow().names == schema.names
    assert ensure(catalog).metadata_location == table.metadata_location, "nothing is left to do"
    assert table.scan().to_arrow().num_rows == 1 and not any(field.required for field in table.schema().fields)


@pytest.mark.parametrize("name", MAKERS)
def test_two_processes_that_add_a_column_at_once_both_go_on(catalog: SqlCatalog, name: str) -> None:
    schema, ensure = MAKERS[name]
    stale = catalog.create_table(("meta", name), pa.schema(list(schema)[:-1]))
    ensure(catalog)
    from lakehouse.catalog.writing.evolving import complete

    assert complete(catalog, stale, schema).schema().as_arrow().names == schema.names


def with_unknown(catalog: SqlCatalog, name: str) -> Table:
    """As a newer release made it: a column that this one does not know stands first, another one last."""
    schema, ensure = MAKERS[name]
    around = [pa.field("unknown", pa.string()), *schema, pa.field("also_unknown", pa.list_(pa.string()))]
    catalog.create_table(("meta", name), pa.schema(around))
    return ensure(catalog)


def test_cuts_with_columns_of_a_newer_release_are_read_and_written(catalog: SqlCatalog) -> None:
    table = with_unknown(catalog, "cuts")
    cut = {"source": "shop", "epoch": 1, "cut_lsn": 5, "cut_at": NOW, "published_at": NOW, "snapshots": [("t", "7")]}
    rows = pa.Table.from_pylist([cut], schema=table.schema().as_arrow())
    table.append(rows)
    found = newest_row(catalog.load_table(("meta", "cuts")), "shop")
    assert found is not None and (found["cut_lsn"], found["snapshots"]) == (5, [("t", "7")])


def outcome(**more: Any) -> Outcome:
    figures = Figures(files=2)
    return Outcome(
        "compact", TableName("raw_shop", "orders"), "done", "small files", before=figures, after=figures, **more
    )


@pytest.mark.parametrize("keep", [lambda s: [*s, pa.field("unknown", pa.string())], lambda s: list(s)[:-8]])
def test_the_history_of_maintenance_is_read_and_written_whatever_release_made_it(
    catalog: SqlCatalog, keep: Callable[[pa.Schema], list[pa.Field]]
) -> None:
    catalog.create_table(("meta", "maintenance"), pa.schema(keep(history.SCHEMA)))
    session: Any = SimpleNamespace(catalog=catalog, ago=lambda hours: datetime(2020, 1, 1, tzinfo=UTC))
    history.record(session, [outcome(seconds=1.5, started_at=NOW)])
    (act,) = recent(session)
    assert (act.action, act.seconds) == ("compact", 1.5)


def test_a_history_without_a_column_of_today_is_read_before_it_is_written_again(catalog: SqlCatalog) -> None:
    earlier = pa.schema([field for field in history.SCHEMA if field.name != "stated_seconds"])
    row = {"table": "raw_shop.orders", "action": "compact", "status": "done", "started_at": NOW, "seconds": 2.0}
    catalog.create_table(("meta", "maintenance"), earlier).append(pa.Table.from_pylist([row], earlier))
    session: Any = SimpleNamespace(catalog=catalog, ago=lambda hours: datetime(2020, 1, 1, tzinfo=UTC))
    (act,) = recent(session)
    assert (act.seconds, act.stated_seconds) == (2.0, None)


@pytest.mark.parametrize(
    ("there", "added"),
    [
        (["also_unknown", *COLUMNS_OF_BOUNDS], []),
        (COLUMNS_OF_BOUNDS[:-2], ["day_to date", "created_at timestamp(6) with time zone"]),
    ],
)
def test_the_bounds_of_runs_get_the_columns_that_an_earlier_release_did_not_know(
    there: list[str], added: list[str]
) -> None:
    """dbt keeps this one, and wrote its rows without naming the columns."""
    asked: list[str] = []
    columns = [SimpleNamespace(name=name) for name in there]
    adapter = SimpleNamespace(
        get_relation=lambda *name: name[2] if name[2] == "run_bounds" else None,
        get_columns_in_relation=lambda relation: columns,
    )
    bounds = SimpleNamespace(database="lake", schema="meta", identifier="run_bounds")
    macro(
        "write_run_bounds", adapter=adapter, run_query=asked.append, run_bounds_relation=lambda: bounds,
        env_var=lambda name, default: default, declared_sources=lambda: ["shop"], invocation_id="i",
    )()  # fmt: skip
    *altered, inserted, _ = asked
    assert [text.partition(" comment ")[0].partition("if not exists ")[2] for text in altered] == added
    assert f"({', '.join(COLUMNS_OF_BOUNDS)})" in inserted
