"""`--full-refresh` of appended tables, by dbt on Trino: whole or not at all, as the model's config has it."""

import random
from typing import Any

import pytest

from tests.histories import START, Clock, Row, change_at_random
from tests.zoo import Zoo, animals, random_animal

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(1500)]  # six runs of dbt
SATELLITE, HUB, OWN = "sat_animal_details", "hub_animal", "keepers_seen"
MOMENT = "timestamp(6) with time zone"
LISTED = {
    "hk_animal": "varchar", "hd_animal_details": "varchar", "name": "varchar", "story": "varchar",
    "weight": "decimal(8,3)", "is_deleted": "boolean", "load_date": MOMENT, "applied_date": MOMENT,
    "source_seq": "varchar", "record_source": "varchar",
}  # fmt: skip
READS_ITSELF = """
select distinct keeper_id from {{ ref('stg_zoo__animals') }}
where keeper_id is not null and keeper_id not in (select keeper_id from {{ this }})
"""


def filled(zoo: Zoo) -> Row:
    """Publishes animals, one of which weighs more than 10, and loads them; the last row of raw."""
    (zoo.project / "models/vault/zoo/tests.yml").unlink()  # a model is described once
    rng = random.Random(5)
    table, clock = animals(), Clock(rng)
    for _ in range(60):
        change_at_random(table, clock, range(1, 9), random_animal(rng))
    change_at_random(table, clock, [99], lambda key: random_animal(rng)(key) | {"weight": 12})
    zoo.publish(table.raw, START)
    zoo.dbt("run")
    return table.raw[-1]


def lists(zoo: Zoo, model: str, columns: dict[str, str]) -> None:
    """What a model's YAML lists."""
    line = "      - {{name: {0}, data_type: '{1}', description: Its {0}.}}"
    lines = [line.format(*column) for column in columns.items()]
    text = "\n".join(["models:", f"  - name: {model}", "    columns:", *lines, ""])
    (zoo.project / "models/vault/zoo" / f"{model}.yml").write_text(text)


def configured(zoo: Zoo, model: str, full_refresh: str) -> None:
    path = zoo.project / "models/vault/zoo" / f"{model}.sql"
    path.write_text(f"{{{{ config(full_refresh={full_refresh}) }}}}\n" + path.read_text())


def rows(zoo: Zoo, table: str) -> list[list[Any]]:
    return sorted(zoo.rows(f"select * from vault.{table}"), key=repr)


def test_a_table_is_replaced_in_one_step_or_stays_as_it_is(zoo: Zoo) -> None:
    """It was emptied and then filled: marts of the empty table were published, and where it failed it stayed empty."""
    (zoo.project / f"models/vault/zoo/{OWN}.sql").write_text(READS_ITSELF)
    lists(zoo, OWN, {"keeper_id": "integer"})
    zoo.rows(f"drop table if exists vault.{OWN}")
    filled(zoo)
    before, seen = {table: rows(zoo, table) for table in (SATELLITE, HUB, OWN)}, zoo.snapshots()
    assert all(before.values())

    lists(zoo, SATELLITE, LISTED | {"weight": "decimal(4,3)"})
    with pytest.raises(AssertionError, match=r"Cannot cast DECIMAL\(8, 3\) '12.000' to DECIMAL\(4, 3\)"):
        zoo.dbt("run", "--full-refresh", models=[SATELLITE])
    assert rows(zoo, SATELLITE) == before[SATELLITE]
    assert zoo.snapshots() == seen

    lists(zoo, SATELLITE, LISTED)
    zoo.dbt("run", "--full-refresh", models=[SATELLITE, HUB, OWN])
    assert {table: rows(zoo, table) for table in before} == before, "what reads itself finds nothing to leave out"
    assert {name: kind for name, kind, *_ in zoo.rows(f"describe vault.{SATELLITE}")} == LISTED
    [[made]] = zoo.rows(f"show create table vault.{SATELLITE}")
    assert "partitioning = ARRAY['month(load_date)']" in made and "COMMENT 'Its weight.'" in made
    seen = zoo.snapshots()
    zoo.dbt("run")
    assert zoo.snapshots() == seen, "the load after it finds nothing to do"
    zoo.dbt("run", "--full-refresh", models=["parsed_zoo__animals"], LAKEHOUSE_CUTS='{"another": null}')
    assert zoo.snapshots() == seen, "parsed stays where no cut says what to make it of"
    zoo.rows(f"drop table vault.{OWN}")


def test_the_config_of_a_model_says_whether_it_is_refreshed(zoo: Zoo) -> None:
    """With `false`, a full refresh added each row a second time; with `true`, each load emptied the table."""
    filled(zoo)
    before, seen = {table: rows(zoo, table) for table in (SATELLITE, HUB)}, zoo.snapshots()
    configured(zoo, SATELLITE, "false")
    configured(zoo, HUB, "true")
    for full_refresh in ([], ["--full-refresh"]):
        zoo.dbt("run", *full_refresh, models=[SATELLITE, HUB])
        assert {table: rows(zoo, table) for table in before} == before
        assert zoo.snapshots()[SATELLITE] == seen[SATELLITE] and zoo.snapshots()[HUB] != seen[HUB]
