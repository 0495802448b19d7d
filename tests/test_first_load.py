"""Two sources that share a hub, on Trino: each may be loaded first, and what was loaded once is never left out."""

import random
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from ingestion.sink.publish import ensure_cuts
from lakehouse.catalog.open import open_catalog
from tests.histories import START, Clock, Row, TableHistory, change_at_random
from tests.zoo import MODELS, RAW, SOURCE, Zoo, animals, random_animal

pytestmark = [pytest.mark.stack, pytest.mark.slow]
STAGES = "['stg_zoo__animals', 'stg_farm__animals']"
SHARED = ("hub_animal", "hub_keeper", "link_animal_keeper", "rts_animal")
OF_FARM = ("parsed/zoo/parsed_zoo__animals", "stage/zoo/stg_zoo__animals", "vault/zoo/sat_animal_details")
TESTS = """
models:
  - name: hub_keeper
    data_tests:
      - cdc_vault.hub_is_sound: {arguments: {src_pk: hk_keeper, src_nk: keeper_id, stage: stg_farm__animals}}
"""
ZOO_JOB = ("parsed_zoo__animals", "stg_zoo__animals", "stg_farm__animals", *SHARED)
FARM_JOB = ("parsed_farm__animals", "stg_zoo__animals", "stg_farm__animals", *SHARED, "sat_farm_details")
NAMES = {"zoo": "farm", "sat_animal_details": "sat_farm_details"}


@pytest.fixture
def both(zoo: Zoo) -> Iterator[Zoo]:
    """The zoo and a farm, whose animals and keepers are in the same hubs."""
    models = zoo.project / "models"
    (models / "sources/farm.yml").write_text(_of_farm(SOURCE))
    for name in OF_FARM:
        path = models / f"{_of_farm(name)}.sql"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_of_farm(MODELS[name]))
    for name in SHARED:
        path = models / f"vault/zoo/{name}.sql"
        path.write_text(path.read_text().replace("'stg_zoo__animals'", STAGES))
    (models / "vault/zoo/farm.yml").write_text(TESTS)
    _clear(zoo)
    yield zoo
    _clear(zoo)


def test_either_of_two_sources_may_be_loaded_first_and_nothing_of_the_other_is_missing(both: Zoo) -> None:
    """The first job failed: the other source's stage read a table that was not there, and the hubs were left out."""
    zoo, farm = _history(range(1, 20)), _history(range(15, 30))
    both.publish(zoo.raw[:-10], START + timedelta(days=2))
    both.dbt("run", models=ZOO_JOB)
    assert both.rows("select * from vault.stg_farm__animals") == []
    both.dbt("test", models=["hub_keeper"])
    assert _ids(both) == _mentioned(zoo.raw[:-10])

    _publish(both, farm.raw, START + timedelta(days=1))
    both.dbt("run", models=FARM_JOB)
    assert _ids(both) == _mentioned(zoo.raw[:-10]) | _mentioned(farm.raw)
    of_farm = f"vault.{NAMES['sat_animal_details']} as sat join vault.hub_animal as hub using (hk_animal)"
    assert {id_ for [id_] in both.rows(f"select distinct hub.id from {of_farm}")} == _mentioned(farm.raw)

    both.publish(zoo.raw[-10:], START + timedelta(days=3))
    both.rows("drop table parsed.parsed_farm__animals")
    with pytest.raises(AssertionError, match="parsed_farm__animals"):
        both.dbt("run", models=ZOO_JOB)
    both.dbt("run", models=FARM_JOB)
    both.dbt("run", models=ZOO_JOB)
    assert _ids(both) == _mentioned(zoo.raw) | _mentioned(farm.raw)


def _of_farm(text: str) -> str:
    for name, other in NAMES.items():
        text = text.replace(name, other)
    return text


def _history(ids: range) -> TableHistory:
    rng, table = random.Random(ids.start), animals()
    clock = Clock(rng)
    for _ in range(60):
        change_at_random(table, clock, list(ids), random_animal(rng))
    return table


def _mentioned(rows: list[Row]) -> set[int]:
    return {row["id"] for row in rows if row["_op"] != "t"}


def _ids(zoo: Zoo) -> set[int]:
    """The keys of the hub, each of which is there once."""
    found = [id_ for [id_] in zoo.rows("select id from vault.hub_animal where record_source <> 'ghost'")]
    assert len(found) == len(set(found))
    return set(found)


def _publish(zoo: Zoo, rows: list[Row], at: datetime) -> None:
    """As `Zoo.publish`, of the farm."""
    cut: dict[str, Any] = {
        "source": "farm", "epoch": rows[-1]["_epoch"], "cut_lsn": rows[-1]["_commit_lsn"], "cut_at": at,
        "published_at": at, "snapshots": [("animals", "1")],
    }  # fmt: skip
    with closing(open_catalog(zoo.settings)) as catalog:
        catalog.create_namespace_if_not_exists("raw_farm")
        table = catalog.create_table_if_not_exists(("raw_farm", "animals"), RAW)
        table.append(pa.Table.from_pylist([row | {"_ingested_at": at} for row in rows], schema=RAW))
        cuts = ensure_cuts(catalog)
        cuts.append(pa.Table.from_pylist([cut], schema=cuts.schema().as_arrow()))


def _clear(zoo: Zoo) -> None:
    zoo.rows("create schema if not exists raw_farm")
    for kind, name in (
        ("table", "raw_farm.animals"), ("table", "parsed.parsed_farm__animals"), ("view", "vault.stg_farm__animals"),
        ("table", f"vault.{NAMES['sat_animal_details']}"),
    ):  # fmt: skip
        zoo.rows(f"drop {kind} if exists {name}")
