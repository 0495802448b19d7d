"""Marts are left alone while nothing that they are made of has changed, and built whenever anything has; on Trino."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from lakehouse.catalog.open import open_catalog
from lakehouse.catalog.views.view_versions import definitions
from lakehouse.declarations.dbt.manifest import dbt_environment
from lakehouse.servers.trino import query
from lakehouse.settings import DBT_PACKAGE, Settings
from tests.dbt_package import FILES, run_dbt

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(900)]

SCHEMAS = ("stranger", "stranger_parsed", "stranger_other")
TABLE = "{{{{ config(materialized='append_only') }}}}\nselect 1 as id, '{said}' as name\n"
VIEW = "{{{{ config(materialized='view') }}}}\nselect id, {shown} as name from {{{{ ref('kept') }}}}\n"
MART = "{{{{ config(materialized='rebuilt_table') }}}}\nselect id, {name} as name from {{{{ ref('{below}') }}}}\n"
SOURCE = "{{ config(materialized='rebuilt_table') }}\nselect max(name) as name from {{ source('other', 'noted') }}\n"
DECLARED = "sources: [{name: other, schema: stranger_other, tables: [{name: noted}]}]\n"


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        file = folder / ("seeds/codes.csv" if name == "codes" else f"models/{name}.sql")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_a_mart_is_built_whenever_anything_that_it_is_made_of_is_another_one(
    settings: Settings, tmp_path: Path
) -> None:
    """It went by its own SQL and by the number of rows of appended tables: all else left it as it was."""
    folder, server = tmp_path / "stranger", dbt_environment(settings)
    write(
        folder,
        kept=TABLE.format(said="Ab"), replaced=TABLE.format(said="first"), shown=VIEW.format(shown="upper(name)"),
        one=MART.format(name="name", below="kept"), codes="id,name\n1,first\n",
        of_view=MART.format(name="name", below="shown"), of_mart=MART.format(name="name", below="one"),
        of_replaced=MART.format(name="name", below="replaced"), of_seed=MART.format(name="name", below="codes"),
        of_source=SOURCE,
    )  # fmt: skip
    for name in ("dbt_project.yml", "profiles.yml", "packages.yml"):
        (folder / name).write_text(FILES[name])
    (folder / "models" / "other.yml").write_text(DECLARED)
    marts = ("of_view", "of_mart", "of_replaced", "of_seed", "of_source")

    def names() -> list[str]:
        return [query(settings, f"SELECT name FROM stranger_parsed.{mart}")[0][0] for mart in marts]

    def run() -> str:
        return run_dbt(folder, "run", "--exclude", "kept", "replaced", **server)

    for schema in SCHEMAS:
        query(settings, f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    query(settings, "CREATE SCHEMA stranger_other")
    query(settings, "CREATE TABLE stranger_other.noted AS SELECT 'first' AS name")
    run_dbt(folder, "deps")
    run_dbt(folder, "build", **server)
    assert names() == ["AB", "Ab", "first", "first", "first"]
    assert run().count("no new data") == 6, "nothing has changed"

    write(
        folder,
        shown=VIEW.format(shown="lower(name)"), one=MART.format(name="name || '!'", below="kept"),
        replaced=TABLE.format(said="other"), codes="id,name\n1,other\n",
    )  # fmt: skip
    query(settings, "UPDATE stranger_other.noted SET name = 'other'")
    run_dbt(folder, "seed", **server)
    run_dbt(folder, "run", "--full-refresh", "--select", "replaced", **server)  # as many rows as before
    run()
    assert names() == ["ab", "Ab!", "other", "other", "other"]
    assert run().count("no new data") == 6
    for schema in SCHEMAS:
        query(settings, f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.mark.parametrize("has_checksum", [True, False])
def test_a_mart_is_built_again_once_a_view_is_made_anew_that_was_a_former_one_when_it_was_built(
    settings: Settings, tmp_path: Path, has_checksum: bool
) -> None:
    """A build of marts does not make the views of parsed and vault: a mart was signed with SQL that it had not read,
    and was never built again. Of a view with a variable nothing told at all.
    """
    folder, server = tmp_path / "stranger", dbt_environment(settings)
    view = VIEW.format(shown="{{ var('said', 'upper') }}(name)")
    write(folder, kept=TABLE.format(said="Ab"), shown=view, of_view=MART.format(name="name", below="shown"))
    for name in ("dbt_project.yml", "profiles.yml", "packages.yml"):
        (folder / name).write_text(FILES[name])
    if has_checksum:
        (folder / "macros").mkdir()
        shutil.copy(DBT_PACKAGE.parent / "template" / "dbt_project" / "macros" / "view.sql", folder / "macros")

    def run(model: str, said: str = "upper", **given: str) -> str:
        return run_dbt(folder, "run", "--select", model, "--vars", json.dumps({"said": said}), **server, **given)

    def mart() -> str:
        return str(query(settings, "SELECT name FROM stranger_parsed.of_view")[0][0])

    for schema in SCHEMAS:
        query(settings, f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    run_dbt(folder, "deps")
    run_dbt(folder, "run", **server)
    write(folder, shown=view.replace("(name)", "(name || '!')"))
    run("of_view")
    assert mart() == "AB"
    run("shown")
    run("of_view")
    assert mart() == "AB!"
    run("shown", said="lower")
    run("of_view", said="lower")
    assert mart() == "ab!"

    with closing(open_catalog(settings)) as catalog:
        made = definitions(catalog, [("stranger_parsed", "shown"), ("stranger_parsed", "kept")])
    [(name, text)] = made.items()
    assert name == ("stranger_parsed", "shown") and text and has_checksum == ("definition" in text)
    given = json.dumps({".".join(name): text})
    assert "no new data" in run("of_view", LAKEHOUSE_VIEWS=given), "who has looked already has seen the same"
    for schema in SCHEMAS:
        query(settings, f"DROP SCHEMA IF EXISTS {schema} CASCADE")
