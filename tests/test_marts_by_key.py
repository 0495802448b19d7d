"""Marts of which only the rows that change are built: after each load they are what their SQL, and the source, says."""

import os
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import orchestration.worker.marts.marts as module
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.open import newest_data_snapshots, open_catalog
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.policies import RawPolicy
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from orchestration.worker.dbt.warm_dbt import NodeResult, WarmDbt
from orchestration.worker.marts.by_key import noted
from orchestration.worker.marts.marts import Marts
from orchestration.worker.plan import Graph, table_of
from tests.readers import Declared, Project, project_of
from tests.world import World, make_world

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(3000)]
SEEDS = [int(os.environ["RANDOM_SEED"])] if "RANDOM_SEED" in os.environ else [1, 2]
ROUNDS = int(os.environ.get("ROUNDS", "8"))

DDL = """
CREATE TABLE product (product_id int PRIMARY KEY, label text);
CREATE TABLE sale (sale_id int PRIMARY KEY, note text);
CREATE TABLE line (line_id int PRIMARY KEY, sale_id int NOT NULL, product_id int, units int NOT NULL);
INSERT INTO product SELECT i, 'p' || i FROM generate_series(1, 5) i;
INSERT INTO sale SELECT i, 'n' || i FROM generate_series(1, 20) i;
INSERT INTO line SELECT i, 1 + i % 20, nullif(i % 6, 0), i FROM generate_series(1, 60) i
"""
CHANGES = (
    "INSERT INTO line SELECT i, 1 + i % 20, nullif(i % 6, 0), i FROM generate_series({new}, {new} + 3) i",
    "INSERT INTO sale VALUES ({new}, NULL); INSERT INTO line VALUES ({new} + 50, {new}, 1, 5)",
    "INSERT INTO line VALUES ({new} + 60, 1, {new}, 7)",  # a product that comes later, or never
    "INSERT INTO product VALUES ({new}, 'late') ON CONFLICT DO NOTHING",
    "UPDATE line SET units = units + 1 WHERE line_id % 7 = {n} % 7",
    "UPDATE line SET sale_id = 1 + (sale_id + 1) % 20 WHERE line_id % 11 = {n} % 11",
    "UPDATE line SET product_id = NULL WHERE line_id % 13 = {n} % 13",
    "UPDATE sale SET note = note || '!' WHERE sale_id % 5 = {n} % 5",
    "DELETE FROM line WHERE line_id % 9 = {n} % 9",
    "DELETE FROM sale WHERE sale_id % 10 = {n} % 10",
    "DELETE FROM line WHERE line_id = {n}; INSERT INTO line VALUES ({n}, 2, 3, 1000 + {n})",
)
LINES = """select hub.hk_{n}_line, sold.hk_{n}_sale, hub.line_id, sale.sale_id, product.product_id, details.units
from {{{{ ref('hub_{n}_line') }}}} as hub
join {{{{ ref('sat_{n}_line_details_v1') }}}} as details
  on details.hk_{n}_line = hub.hk_{n}_line and details.is_current and not details.is_deleted
join {{{{ ref('link_{n}_sold') }}}} as sold on sold.hk_{n}_line = hub.hk_{n}_line
join {{{{ ref('eff_sat_{n}_sold_v1') }}}} as eff
  on eff.hk_{n}_sold = sold.hk_{n}_sold and eff.is_current and eff.is_active
left join {{{{ ref('hub_{n}_sale') }}}} as sale on sale.hk_{n}_sale = sold.hk_{n}_sale
left join {{{{ ref('hub_{n}_product') }}}} as product on product.hk_{n}_product = sold.hk_{n}_product
"""
SALES = """select hub.hk_{n}_sale, hub.sale_id, details.note, coalesce(lines.lines, 0) as lines, lines.units
from {{{{ ref('hub_{n}_sale') }}}} as hub
join {{{{ ref('sat_{n}_sale_details_v1') }}}} as details
  on details.hk_{n}_sale = hub.hk_{n}_sale and details.is_current and not details.is_deleted
left join (
  select sold.hk_{n}_sale, count(*) as lines, sum(line.units) as units
  from {{{{ ref('sat_{n}_line_details_v1') }}}} as line
  join {{{{ ref('link_{n}_sold') }}}} as sold on sold.hk_{n}_line = line.hk_{n}_line
  join {{{{ ref('eff_sat_{n}_sold_v1') }}}} as eff on eff.hk_{n}_sold = sold.hk_{n}_sold
  where line.is_current and not line.is_deleted and eff.is_current and eff.is_active
  group by sold.hk_{n}_sale
) as lines on lines.hk_{n}_sale = hub.hk_{n}_sale
"""
ORACLES = {
    "line": "SELECT line_id, sale_id, product_id, units FROM line",
    "sale": """SELECT sale_id, note, (SELECT count(*) FROM line WHERE line.sale_id = sale.sale_id),
      (SELECT sum(units) FROM line WHERE line.sale_id = sale.sale_id) FROM sale""",
}


@dataclass
class Shop:
    """A source with its vault and two marts, built as the worker builds them."""

    world: World
    project: Project
    catalog: LakeCatalog

    def __post_init__(self) -> None:
        """Parses the project."""
        settings = self.project.settings
        self.dbt, self.manifest = WarmDbt(settings), load_manifest(settings)
        self.dbt.refresh()
        self.graph = Graph(self.manifest)
        self.marts = Marts(settings, self.catalog, self.dbt, self.manifest, self.graph)
        self.models = {part: f"model.lakehouse.fct_{self.name}_{part}" for part in ORACLES}

    @property
    def name(self) -> str:
        """The source's name."""
        return self.world.source.name

    def load(self, spark: Any, *changes: str) -> None:
        """Ingests, and loads the vault."""
        self.world.sql(*changes)
        self.world.ingest(spark)
        self.project.load("run")

    def build(self) -> None:
        """Builds the marts."""
        reads = [
            table_of(node) for node in self.graph.nodes.values() if node["config"].get("materialized") == "append_only"
        ]
        results: list[NodeResult] = []
        self.marts.build(sorted(self.models.values()), (), newest_data_snapshots(self.catalog, reads), results)
        assert not [result for result in results if result.failed], results

    def merges(self) -> int:
        """The builds by key of both marts since their last builds of the whole."""
        tables = self.catalog.load_tables([("marts", f"fct_{self.name}_{part}") for part in ORACLES])
        return sum(note.merges for table in tables.values() if (note := noted(table)))

    def assert_right(self, when: object) -> None:
        """Each mart has the rows of its SQL, run anew, and those of the source, each once."""
        for part, model in self.models.items():
            table = f'marts."fct_{self.name}_{part}"'
            sql = self.dbt.compiled([f"fct_{self.name}_{part}"])[model]
            for one, other in ((f"TABLE {table}", sql), (sql, f"TABLE {table}")):
                assert not query(self.world.settings, f"({one}) EXCEPT ALL ({other})"), (when, part)
            columns = {"line": "line_id, sale_id, product_id, units", "sale": "sale_id, note, lines, units"}[part]
            there = sorted(map(tuple, query(self.world.settings, f"SELECT {columns} FROM {table}")), key=repr)
            assert there == sorted(map(tuple, self.world.rows(ORACLES[part])), key=repr), (when, part)


@pytest.fixture
def shop(settings: Settings, spark: Any, tmp_path: Path) -> Iterator[Shop]:
    """The first load of all of it."""
    tables = {t: RawPolicy(relation=f"public.{t}", key=(f"{t}_id",)) for t in ("product", "sale", "line")}
    world = make_world(settings, DDL, tables)
    n = world.source.name
    vault = {
        "product": {"hub": f"{n}_product", "satellites": {f"{n}_product_details": ["label"]}},
        "sale": {"hub": f"{n}_sale", "satellites": {f"{n}_sale_details": ["note"]}},
        "line": {
            "hub": f"{n}_line", "references": {f"{n}_sale": "sale_id", f"{n}_product": "product_id"},
            "links": {f"{n}_sold": [f"{n}_sale", f"{n}_product"]}, "satellites": {f"{n}_line_details": ["units"]},
        },
    }  # fmt: skip
    columns = {
        "product": {"product_id": "integer", "label": "text"}, "sale": {"sale_id": "integer", "note": "text"},
        "line": {"line_id": "integer", "sale_id": "integer", "product_id": "integer", "units": "integer"},
    }  # fmt: skip
    with project_of(world, tmp_path / "project") as project, closing(open_catalog(settings)) as catalog:
        raw = {t: {"relation": f"public.{t}", "key": [f"{t}_id"]} for t in tables}
        project.declare({t: Declared(columns[t], raw[t], vault[t]) for t in tables})
        write_marts(project.settings.dbt_project_dir / "models" / "marts", n)
        world.ingest(spark)
        project.load("run")
        try:
            yield Shop(world, project, catalog)
        finally:
            for part in ORACLES:
                query(settings, f'DROP TABLE IF EXISTS marts."fct_{n}_{part}"')


def write_marts(folder: Path, n: str) -> None:
    folder.mkdir()
    link = f"link_{n}_sold"
    through = {
        "line": {f"hub_{n}_sale": link, f"hub_{n}_product": link},
        "sale": {f"sat_{n}_line_details": link, f"eff_sat_{n}_sold": link},
    }
    for part, sql in (("line", LINES), ("sale", SALES)):
        (folder / f"fct_{n}_{part}.sql").write_text(sql.format(n=n))
        leads = ", ".join(f"{table}: {by}" for table, by in through[part].items())
        built_by = f"{{key: hk_{n}_{part}, through: {{{leads}}}, from_rows: 0}}"
        columns = f"[{{name: hk_{n}_{part}, data_tests: [unique, not_null]}}]"
        entry = f"{{name: fct_{n}_{part}, config: {{meta: {{built_by: {built_by}}}}}, columns: {columns}}}"
        (folder / f"fct_{n}_{part}.yml").write_text(f"models: [{entry}]\n")


@pytest.mark.parametrize("seed", SEEDS)
def test_after_each_load_a_mart_built_by_key_is_its_query_and_the_source(shop: Shop, spark: Any, seed: int) -> None:
    """Compactions of the vault between, and a build that is lost, change nothing."""
    rng, merged = random.Random(seed), 0
    shop.build()
    shop.assert_right((seed, "first"))
    for number in range(ROUNDS):
        for _ in range(rng.randint(1, 2)):  # the marts miss a load now and then
            lot = [rng.choice(CHANGES).format(n=rng.randint(1, 60), new=100 * (number + 1) + i * 10) for i in range(2)]
            shop.load(spark, *(one for text in lot for one in text.split("; ")))
        if rng.random() < 0.3:
            query(shop.world.settings, f"ALTER TABLE vault.hub_{shop.name}_line EXECUTE optimize")
        shop.build()
        shop.assert_right((seed, number))
        merged += shop.merges() > 0
    assert merged >= ROUNDS * 0.7, "most builds are by key"


def test_a_mart_that_was_not_left_as_it_was_built_is_built_whole(
    shop: Shop, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = shop.name
    shop.build()
    old = query(shop.world.settings, f'SELECT snapshot_id FROM marts."fct_{n}_line$refs"')[0][0]
    shop.load(spark, "UPDATE line SET units = 0 WHERE line_id < 5")
    shop.build()
    assert shop.merges() == 2
    query(shop.world.settings, f"ALTER TABLE marts.fct_{n}_line EXECUTE rollback_to_snapshot({old})")
    query(shop.world.settings, f"DELETE FROM marts.fct_{n}_sale WHERE sale_id < 10")
    shop.load(spark, "UPDATE line SET units = 1 WHERE line_id = 50")
    shop.build()
    shop.assert_right("after changes by hand")
    assert shop.merges() == 0
    shop.load(spark, "UPDATE line SET units = 2 WHERE line_id = 50")
    shop.build()
    assert shop.merges() == 2

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: Any = UTC) -> Any:
            return datetime.now(tz) + timedelta(days=1)

    monkeypatch.setattr(module, "datetime", Tomorrow)
    shop.load(spark, "DELETE FROM line WHERE line_id = 50")
    shop.build()
    assert shop.merges() == 0, "once a day"
    shop.assert_right("a day later")
