"""A person is erased from topics of events, with a key and without, read from a real broker: the oracle is the disk."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from erasure.run import erase, remembered, verify
from erasure.steps import Erasure
from ingestion import bring_up, pause, recover_source, refresh_mirrors, resume
from lakehouse.declarations import declarations_from
from lakehouse.declarations.manifest import load_manifest
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from scaffold import apply, declared_alone, models_of, plan
from tests.brokers import Broker, Topics, drop_lake_of, make_topics
from tests.erasing import MART, People, others_of, traces
from tests.orchestrated import copy_project

pytestmark = [pytest.mark.stack, pytest.mark.slow]
USERS = {"id": "bigint", "name": "text", "email": "text", "tier": "text"}
CLICKS = {"id": "bigint", "user_id": "bigint", "page": "text", "email": "text"}
DECLARED = """sources:
  - name: {name}
    schema: raw_{name}
    description: A web shop.
    config: {{meta: {{kind: kafka, owners: [web@example.com]}}}}
    tables:
      - name: users
        config:
          meta:
            raw: {{topic: {name}.users, key: [id]}}
            vault:
              hub: {{name: {name}_person, column: person_id}}
              satellites:
                {name}_pii: {{columns: [name, email], personal: true}}
                {name}_tier: {{columns: [tier]}}
        data_tests: [cdc_vault.raw_log_is_sound]
        columns: {users}
      - name: clicks
        config:
          meta:
            raw: {{topic: {name}.clicks, personal: [email]}}
            vault: {{none: events without a key}}
        columns: {clicks}
"""


@dataclass(frozen=True)
class Shop(People):
    """The topics, and the lake's side of them."""

    world: Topics

    def topic(self, table: str) -> str:
        return f"{self.name}.{table}"

    def send(self, table: str, *events: dict[str, Any] | bytes | None, keys: list[Any] | None = None) -> None:
        self.world.broker.produce(self.topic(table), events, keys=keys)

    def erase_from(self, table: str, spark: Any, *words: str) -> Erasure:
        return erase(self.settings, self.declarations, self.manifest, self.topic(table), words, spark)


@pytest.fixture
def shop(settings: Settings, tmp_path: Path, broker: Broker) -> Iterator[Shop]:
    policies = {"users": (RawPolicy(key=("id",)), USERS), "clicks": (RawPolicy(), CLICKS)}
    topics = make_topics(settings, broker, policies)
    name = topics.source.name
    broker.create(f"{name}.users", 2), broker.create(f"{name}.clicks", 2)
    copy_project(settings, tmp_path)
    models = tmp_path / "dbt_project" / "models"
    columns = {
        table: "[" + ", ".join(f'{{name: {c}, data_type: "{kind}"}}' for c, kind in of.items()) + "]"
        for table, of in (("users", USERS), ("clicks", CLICKS))
    }
    (models / "sources" / f"{name}.yml").write_text(DECLARED.format(name=name, **columns))
    mine = topics.settings.model_copy(update={"project_dir": tmp_path})
    apply(plan(mine.dbt_project_dir, name, models_of(declared_alone(mine), name)))
    (models / "marts").mkdir()
    (models / "marts" / f"dim_{name}_person.sql").write_text(MART.format(name=name))
    manifest = load_manifest(mine)
    declarations = declarations_from(manifest, mine.dbt_project_dir)
    manifest["sources"] |= others_of(mine)
    world = replace(topics, settings=mine, source=declarations.source(name))
    yield Shop(world, manifest, declarations)
    drop_lake_of(world)


def person(number: int, name: str, tier: str = "BRONZE") -> dict[str, Any]:
    return {"id": number, "name": f"{name} Surname", "email": f"{name.lower()}@nowhere.example", "tier": tier}


def click(number: int, user: int, email: str) -> dict[str, Any]:
    return {"id": number, "user_id": user, "page": f"/{number}", "email": email}


def test_a_person_is_gone_from_topics_of_events(shop: Shop, spark: Any) -> None:
    texts = ("Annabel Surname", "ANNABEL SURNAME", "annabel@nowhere.example", "Spooled Surname", "spooled@nowhere")
    texts += ("clicked@nowhere.example",)
    users = [person(1, "Ben"), person(2, "Annabel"), person(3, "Cyd"), person(2, "Annabel", "GOLD")]
    clicks: list[Any] = [click(0, 2, "clicked@nowhere.example"), click(1, 1, "ben@nowhere.example")]
    clicks.append(json.dumps(click(2, 2, "clicked@nowhere.example") | {"id": "none"}).encode())
    clicks.append(b'{"user_id": 2, "email": "clicked@nowhere.example')
    shop.send("users", *users, keys=[user["id"] for user in users])
    shop.send("clicks", *clicks)
    shop.load(spark)
    refresh_mirrors(shop.settings, shop.declarations, shop.name, spark)
    kinds = [Path(path).suffix for path in traces(shop.settings, *texts)]
    assert kinds.count(".parquet") >= 6, "raw, parsed, vault, mart, mirror, dead letters"
    with pytest.raises(LakehouseError, match=r"the newest event of id=2 in topic .* has personal data"):
        shop.erase_from("users", spark, "id=2")

    pause(shop.settings, shop.world.source.table("users"))
    shop.send("users", person(2, "Spooled"), None, keys=[2, 2])
    shop.world.ingest(spark)
    assert traces(shop.settings, "spooled@nowhere"), "in the spool"
    erasure = shop.erase_from("users", spark, "id=2")
    assert erasure.left == [] and shop.topic("users") in erasure.elsewhere
    assert shop.erase_from("clicks", spark, "user_id=2").left == []
    assert traces(shop.settings, *texts) == []
    resume(shop.settings, shop.declarations, shop.name, ["users"], spark)
    shop.load(spark)
    refresh_mirrors(shop.settings, shop.declarations, shop.name, spark)
    assert traces(shop.settings, *texts) == []
    mine = [(row["_op"], row["name"], row["tier"]) for row in shop.world.raw("users") if row["id"] == 2]
    assert mine == [("c", None, "BRONZE"), ("c", None, "GOLD"), ("c", None, "BRONZE"), ("d", None, None)]
    for relation in (f"parsed.current_{shop.name}__users", f"mirror_{shop.name}.users"):
        assert shop.rows(f"SELECT id, email FROM {relation} ORDER BY id") == [
            (1, "ben@nowhere.example"), (3, "cyd@nowhere.example"),
        ]  # fmt: skip
    seen = {(row["id"], row["user_id"], row["email"]) for row in shop.world.raw("clicks")}
    assert seen == {(0, 2, None), (1, 1, "ben@nowhere.example")}

    shop.world.broker.delete(shop.topic("clicks"))
    shop.world.broker.create(shop.topic("clicks"), 2)
    shop.send("clicks", *clicks)
    with pytest.raises(LakehouseError, match="--recover"):
        bring_up(shop.settings, shop.declarations, shop.name, spark)
    recover_source(shop.settings, shop.declarations, shop.name, spark)
    found = verify(shop.settings, shop.manifest, shop.world.source.table("clicks"))
    assert {trace.table for trace in found.traces} >= {f"raw_{shop.name}.clicks"}
    assert [done.left for done in shop.repeat(spark)] == [[], []]  # as the command `ingest --recover` does
    assert traces(shop.settings, *texts) == [] and len(remembered(shop.settings, shop.name)) == 2
