"""`lakehouse doctor` where nothing runs, or what is set is wrong; tests/test_doctor.py asks real servers."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from typer.testing import CliRunner

from lakehouse.settings import Settings, load_settings
from lakehouse_cli.commands import command_line
from lakehouse_cli.machine.doctor import Line, _trino, _warehouse, examine
from lakehouse_project import create_project


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an empty project and its home: dbt parses it once."""
    place = tmp_path_factory.mktemp("place")
    create_project(place / "shop")
    return place


@pytest.fixture
def found(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Line]]:
    """The lines of an empty project without servers, by what they are about."""
    monkeypatch.delenv("LAKEHOUSE_CONFIG", raising=False)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(place / "home"))
    monkeypatch.chdir(place / "shop")
    return lambda: {line.about: line for line in examine(load_settings())}


def test_without_a_stack_it_says_how_to_start_one(found: Callable[[], dict[str, Line]]) -> None:
    lines = found()
    assert lines["python"].state == "ok"
    assert lines["catalog"].state == "error" and "lakehouse up" in lines["catalog"].says
    assert lines["declarations"].state == "warning" and "lakehouse scaffold" in lines["declarations"].remedy
    assert not {"release", "object store", "trino"} & set(lines), "they would say the same again"


def test_a_port_that_is_set_and_taken_is_named(
    found: Callable[[], dict[str, Line]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("LAKEHOUSE_STACK_S3_PORT", str(taken.getsockname()[1]))
        line = found()["ports"]
    assert line.state == "error" and "change LAKEHOUSE_STACK_S3_PORT" in line.says


def test_no_password_is_printed_and_the_exit_status_tells(
    found: Callable[[], dict[str, Line]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_CATALOG_URL", "postgresql://lake:xyzzy-secret@127.0.0.1:1/xyzzy-secret")
    result = CliRunner().invoke(command_line(["doctor", "status"]), ["doctor", "--json"])
    assert result.exit_code == 1 and "xyzzy-secret" not in result.output
    (catalog,) = [line for line in json.loads(result.stdout) if line["about"] == "catalog"]
    assert "Connection refused" in catalog["says"]


def test_a_mistake_in_a_declaration_is_one_line(found: Callable[[], dict[str, Line]]) -> None:
    table = "{name: orders, config: {meta: {raw: {relation: public.orders, keys: [id]}}}}"
    file = Path("dbt_project/models/sources/shop.yml")
    file.write_text(f"sources: [{{name: shop, schema: raw_shop, tables: [{table}]}}]")
    line = found()["declarations"]
    file.unlink()
    assert line.state == "error" and "shop.yml" in line.says


def test_a_mistake_in_the_pins_is_one_line(found: Callable[[], dict[str, Line]]) -> None:
    """Dagster refused it, and everything with it."""
    file = Path("dbt_project/dbt_project.yml")
    text = file.read_text()
    file.write_text(text.replace("vars:\n", 'vars:\n  pins: {month_end: {cron: "0 0 31 2 *", keep_days: 9}}\n', 1))
    line = found()["declarations"]
    file.write_text(text)
    assert line.state == "error" and "vars.pins.month_end.cron: cron '0 0 31 2 *': month '2' has no day 31" in line.says


def test_a_mart_that_is_declared_wrongly_is_named_with_file_and_line(found: Callable[[], dict[str, Line]]) -> None:
    """It was said to be well, and the worker and all runs failed."""
    mart = Path("dbt_project/models/marts/fct_sale.sql")
    mart.parent.mkdir(exist_ok=True)
    mart.write_text("{{ config(materialized='rebuilt_table', meta={'built_by': {'key': 'hk_sale'}}) }}\nselect 1 as id")
    line = found()["models"]
    assert line.state == "error" and "fct_sale.sql:1: fct_sale: meta.built_by: hk_sale has no test" in line.says
    mart.write_text("{{ config(materialized='rebuilt_table', meta={'owner': ['team:sales']}) }}\nselect 1 as id")
    line = found()["declarations"]
    mart.unlink()
    assert line.state == "error" and "fct_sale.sql:1: fct_sale: meta: unknown key `owner`" in line.says


def test_a_source_in_kafka_is_looked_at_as_one(
    found: Callable[[], dict[str, Line]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked as a database, and every such source was an error."""
    monkeypatch.setenv("LAKEHOUSE_SOURCES__CLICKS__KIND", "kafka")
    monkeypatch.setenv("LAKEHOUSE_SOURCES__CLICKS__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr("ingestion.sources.kafka.check.check_source", lambda settings, source: [])
    meta = "{raw: {topic: views}, vault: {none: events}}"
    table = f"{{name: views, config: {{meta: {meta}}}, columns: [{{name: page, data_type: text}}]}}"
    file = Path("dbt_project/models/sources/clicks.yml")
    kind = "config: {meta: {kind: kafka}}"
    file.write_text(f"sources: [{{name: clicks, schema: raw_clicks, {kind}, tables: [{table}]}}]")
    lines = found()
    file.unlink()
    assert lines["clicks"].state == "ok", lines


def test_a_reader_without_a_login_is_a_warning_and_not_said_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It said `answers writer and reader` where both were the writer."""
    asked: list[str] = []
    monkeypatch.setattr("lakehouse.servers.trino.query", lambda settings, sql, role: asked.append(role))
    warned, answered = _trino(Settings.model_validate({"trino": {"host": "trino.example.com"}}))
    assert (warned.state, answered.state) == ("warning", "ok") and asked == ["writer"]
    assert "LAKEHOUSE_TRINO__READER_USER" in warned.says and answered.says.endswith("answers writer")


def test_tables_that_no_backup_would_have_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/old")
    catalog.create_namespace("shop")
    for name in ("sales", "stores"):
        catalog.create_table(f"shop.{name}", pa.schema([("id", pa.int64())]))
    session = SimpleNamespace(catalog=catalog, io=PyArrowFileIO({}), close=lambda: None)
    monkeypatch.setattr("maintenance.inventory.session.Session", lambda settings: session)
    (line,) = _warehouse(Settings.model_validate({"warehouse": f"file://{tmp_path}/new/"}))
    assert line.state == "warning" and line.says.startswith(f"shop.sales has files in file://{tmp_path}/old/shop/sales")
    assert "as have 1 more" in line.says
    (line,) = _warehouse(Settings.model_validate({"warehouse": f"file://{tmp_path}/old/"}))
    assert line.state == "ok"
