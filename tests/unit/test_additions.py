"""`lakehouse add`: one more table in a file of declarations that a person has edited."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pgoutput_record import scratch_database
from typer.testing import CliRunner

from lakehouse.errors import LakehouseError
from lakehouse_cli.commands import command_line
from lakehouse_project import create_project
from scaffold import SourceFile, with_table, without_source, without_table
from tests.marks import slow

ENTRY = ["      - name: orders", "        description: |", "          Orders."]
FILE = """\
sources:
  # ours
  - name: shop
    schema: raw_shop
    tables:
      - name: customers  # who buys
        config: {meta: {raw: {relation: public.customers, key: [id]}, vault: {hub: buyer}}}
        columns:
          - {name: id, data_type: integer}
"""


def read(text: str) -> SourceFile:
    return SourceFile(Path("shop.yml"), text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (FILE, FILE + "\n".join(ENTRY) + "\n"),
        (FILE.rstrip("\n"), FILE + "\n".join(ENTRY) + "\n"),
        (FILE + "\n# the end\n", FILE + "\n".join(ENTRY) + "\n\n# the end\n"),
        (FILE + "  - name: other\n    tables: []\n", FILE + "\n".join(ENTRY) + "\n  - name: other\n    tables: []\n"),
        (
            FILE + "      - name: notes\n        description: |\n          Notes.\n",
            FILE + "      - name: notes\n        description: |\n          Notes.\n" + "\n".join(ENTRY) + "\n",
        ),
        (
            "sources:\n- name: shop\n  tables:\n  - name: a\n",
            "sources:\n- name: shop\n  tables:\n  - name: a\n  - name: orders\n    description: |\n      Orders.\n",
        ),
        (FILE.replace("tables:", "tables: &ours"), FILE.replace("tables:", "tables: &ours") + "\n".join(ENTRY) + "\n"),
    ],
    ids=["last", "no newline", "a comment below", "another source below", "a block of text", "indented less", "anchor"],
)
def test_only_the_lines_of_the_table_are_added(text: str, wanted: str) -> None:
    assert with_table(read(text), "shop", ENTRY) == wanted
    assert yaml.safe_load(wanted)["sources"][0]["tables"][-1] == {"name": "orders", "description": "Orders.\n"}


def test_a_list_in_brackets_is_left_to_the_person() -> None:
    with pytest.raises(LakehouseError, match="by hand"):
        with_table(read("sources: [{name: shop, tables: [{name: a}]}]"), "shop", ENTRY)


def test_a_table_is_removed_with_its_lines_alone() -> None:
    both = with_table(read(FILE + "# the end\n"), "shop", ENTRY)
    assert without_table(read(both), "shop", "orders") == FILE + "# the end\n"
    first = without_table(read(with_table(read(FILE), "shop", ENTRY)), "shop", "customers")
    assert first == "".join(f"{line}\n" for line in [*FILE.split("\n")[:5], *ENTRY])
    with pytest.raises(LakehouseError, match="the only table of 'shop'"):
        without_table(read(FILE), "shop", "customers")


def test_a_source_is_removed_with_its_lines_alone() -> None:
    assert without_source(read(FILE), "shop") is None
    assert without_source(read("version: 2\n" + FILE), "shop") is None
    other = "  - name: other\n    tables:\n      - name: things\n"
    left = without_source(read(FILE + other + "# the end\n"), "shop")
    assert left == "sources:\n  # ours\n" + other + "# the end\n"
    assert without_source(read(FILE + other), "other") == FILE
    for held in (FILE + "models: []\n", "sources: [{name: shop, tables: [{name: a}]}, {name: b}]"):
        with pytest.raises(LakehouseError, match="by hand"):
            without_source(read(held), "shop")


@pytest.mark.parametrize("between", ["# the first one\n        ", "\n        ", "&first\n        ", "!!map\n        "])
def test_what_is_between_the_dash_and_its_entry_goes_along(between: str) -> None:
    """The dash was left behind, as an entry without a name."""
    with_two = with_table(read(FILE), "shop", ENTRY).replace("- name: customers", f"- {between}name: customers")
    assert without_table(read(with_two), "shop", "customers") == "\n".join([*FILE.split("\n")[:5], *ENTRY]) + "\n"


def test_a_file_with_aliases_is_left_to_the_person() -> None:
    """An alias stood for the lines of its anchor: `- *id` was left in place, and so in the table above."""
    aliased = FILE.replace("- {name", "- &id {name") + "      - name: notes\n        columns:\n          - *id\n"
    refused = r"^shop\.yml:12: a file with aliases \(\*id\) is not edited for you: write out .*, or .* by hand$"
    with pytest.raises(LakehouseError, match=refused):
        with_table(read(aliased), "shop", ENTRY)
    with pytest.raises(LakehouseError, match=refused):
        without_table(read(aliased), "shop", "notes")
    assert without_source(read(aliased), "shop") is None, "the file goes as a whole"
    with pytest.raises(LakehouseError, match=refused):
        without_source(read(aliased + "  - name: other\n"), "other")
    anchored = with_table(read(FILE.replace("- {name", "- &id {name")), "shop", ENTRY)
    assert without_table(read(anchored), "shop", "orders") == FILE.replace("- {name", "- &id {name")


DDL = """
CREATE TABLE customers (id int PRIMARY KEY, email text);
CREATE TABLE regions (id int PRIMARY KEY, label text, opened_at timestamp, closed_at timestamp);
CREATE TABLE orders (
  id int PRIMARY KEY, customer_id int NOT NULL REFERENCES customers, region_id int REFERENCES regions,
  amount numeric(12,2), api_token text);
CREATE SCHEMA old;
CREATE TABLE old.notes (id int PRIMARY KEY, body text);
CREATE TABLE public.notes (id int PRIMARY KEY, body text);
CREATE UNLOGGED TABLE scratch (id int PRIMARY KEY);
CREATE PUBLICATION lakehouse FOR TABLE customers, orders
"""


@pytest.fixture
def add(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """`lakehouse add` in a project with one declared table; the file is models/sources/shop.yml."""
    import psycopg

    with scratch_database(cluster) as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute(DDL.encode())
        monkeypatch.delenv("LAKEHOUSE_CONFIG", raising=False)
        monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("LAKEHOUSE_SOURCES__SHOP__URL", url)
        create_project(tmp_path / "shop")
        monkeypatch.chdir(tmp_path / "shop")
        Path("dbt_project/models/sources/shop.yml").write_text(FILE)
        monkeypatch.setenv("LAKEHOUSE_CATALOG_URL", url)
        app = command_line(["add", "remove", "scaffold"])
        yield lambda *arguments, command="add": CliRunner().invoke(app, [command, *arguments])


@pytest.mark.slow
@pytest.mark.stack
def test_what_a_proposal_leaves_out_is_said_where_it_is_made(add: Callable[..., Any]) -> None:
    """It stood in the file alone, below which the names of a hundred models were printed."""
    Path("dbt_project/models/sources/shop.yml").unlink()
    done = add("shop", "--no-vault", command="scaffold")
    assert done.exit_code == 0, done.exception
    assert "  table public.scratch, for the reason that stands beside it" in done.stdout
    assert "  schema old: 1 table\n`lakehouse add shop.SCHEMA.TABLE` declares a table of" in done.stdout
    assert done.stdout.endswith("then, once the proposal is as you want it: `lakehouse prepare shop`\n")


@pytest.mark.stack
def test_a_table_is_added_with_references_to_the_hubs_that_are_declared(add: Callable[..., Any]) -> None:
    file = Path("dbt_project/models/sources/shop.yml")
    shown = add("shop.orders", "--dry-run")
    assert shown.exit_code == 0 and "+      - name: orders" in shown.stdout and file.read_text() == FILE
    done = add("shop.orders")
    assert done.exit_code == 0 and "lakehouse prepare shop" in done.stdout
    assert file.read_text().startswith(FILE)
    added = yaml.safe_load(file.read_text())["sources"][0]["tables"][1]["config"]["meta"]
    assert added["raw"] == {"relation": "public.orders", "key": ["id"], "exclude": ["api_token"]}
    assert added["vault"]["references"] == {"customer": {"columns": ["customer_id"], "hub": "buyer"}}
    assert "region_id: refers to public.regions, which has no hub here" in file.read_text()
    models = {path.name for path in Path("dbt_project/models").rglob("*.sql")}
    assert {"parsed_shop__orders.sql", "hub_order.sql", "link_order_customer.sql"} <= models


@pytest.mark.slow
@pytest.mark.stack
def test_what_was_added_is_removed_and_the_owner_is_told_the_rest(
    add: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path("dbt_project/models/sources/shop.yml")
    assert add("shop.orders").exit_code == 0
    tried = add("shop.orders", "--dry-run", command="remove")
    assert tried.exit_code == 0 and "-      - name: orders" in tried.stdout and file.read_text() != FILE
    assert 'ALTER PUBLICATION "lakehouse" DROP TABLE "public"."orders";' in tried.stdout
    monkeypatch.setattr("lakehouse_cli.source.remove.droppable", lambda *_: [])
    refused = add("shop.orders", "--drop-tables", command="remove")
    assert "the history of shop.orders: give --yes" in str(refused.exception) and file.read_text() != FILE
    done = add("shop.orders", command="remove")
    assert done.exit_code == 0, done.exception
    assert "run this as the owner" in done.stdout and "raw_shop.orders" in done.stdout
    assert file.read_text() == FILE
    assert not [path for path in Path("dbt_project/models").rglob("*") if "order" in path.name]


@pytest.mark.slow
@pytest.mark.stack
def test_a_source_is_removed_with_what_nobody_has_edited(add: Callable[..., Any]) -> None:
    """Its declaration, and models by the hundred, were left to the person to find and remove."""
    file, models = Path("dbt_project/models/sources/shop.yml"), Path("dbt_project/models")
    assert add("shop.orders").exit_code == 0
    before = sorted(path for path in models.rglob("*") if path.is_file())
    hub = models / "vault" / "shop" / "hub_order.sql"
    tried = add("shop", "--dry-run", command="remove")
    assert tried.exit_code == 0 and "-      - name: orders" in tried.stdout, tried.exception
    assert "gone    models/vault/shop/hub_order.sql" in tried.stdout
    refused = add("shop", command="remove")
    assert "give --yes" in str(refused.exception), "without a terminal nobody can agree"
    assert before == sorted(path for path in models.rglob("*") if path.is_file())

    hub.write_text(hub.read_text() + "-- ours\n")
    done = add("shop", "--yes", command="remove")

    assert "stays   models/vault/shop/hub_order.sql" in done.stdout
    assert "removed; models of yours still read it" in str(done.exception)
    left = [path for path in models.rglob("*") if path.is_file() and "shop" in str(path.relative_to(models))]
    assert left == [hub] and not file.exists()
    hub.unlink()
    again = add("shop", command="remove")
    assert again.exit_code == 0, again.exception


@pytest.mark.stack
@pytest.mark.parametrize(
    ("table", "reason"),
    [
        slow("shop.customers", "public.customers of source 'shop' is declared already"),
        ("shop.order", "did you mean 'orders'?"),
        slow("shop.notes", "name shop.old.notes or shop.public.notes"),
        slow("shop.scratch", "must not be published"),
        slow("shopp.orders", "no source 'shopp' is declared: did you mean 'shop'?"),
    ],
)
def test_what_cannot_be_added_is_said_in_one_line(add: Callable[..., Any], table: str, reason: str) -> None:
    done = add(table)
    assert reason in str(done.exception) and isinstance(done.exception, LakehouseError)
    assert Path("dbt_project/models/sources/shop.yml").read_text() == FILE
