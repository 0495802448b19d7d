"""A person is erased from topics of events, with a key and without, read from a real broker: the oracle is the disk."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from erasure.run import erase, repeat, verify
from erasure.steps import Erasure
from ingestion import pause, recover_source, refresh_mirrors, resume
from lakehouse.declarations import declarations_from
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from scaffold import apply, declared_alone, models_of, plan
from tests.brokers import Broker, Topics, drop_lake_of, make_topics
from tests.erasing import MART, People, others_of, traces
from tests.orchestrated import copy_project
from tests.pages import inline

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
"""


@dataclass(frozen=True)
class Shop(People):
    """The topics, and the lake's side of them."""

    world: Topics

    def send(self, table: str, *events: dict[str, Any] | None, keys: list[int]) -> None:
        self.world.broker.produce(f"{self.name}.{table}", events, keys=keys)

    def erase(self, spark: Any, key: str) -> Erasure:
        return erase(self.settings, self.declarations, self.manifest, f"{self.name}.users", [key], spark)


@pytest.fixture
def shop(settings: Settings, tmp_path: Path, broker: Broker) -> Iterator[Shop]:
    topics = make_topics(settings, broker, {"users": (RawPolicy(key=("id",)), USERS)})
    name = topics.source.name
    broker.create(f"{name}.users", 2)
    copy_project(settings, tmp_path)
    models = tmp_path / "dbt_project" / "models"
    columns = "[" + ", ".join(f'{{name: {c}, data_type: "{kind}"}}' for c, kind in USERS.items()) + "]"
    (models / "sources" / f"{name}.yml").write_text(DECLARED.format(name=name, users=columns))
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


def test_a_person_is_gone_from_a_topic_with_a_key_and_every_layer(shop: Shop, spark: Any) -> None:
    texts = ("Annabel Surname", "ANNABEL SURNAME", "annabel@nowhere.example", "Spooled Surname", "spooled@nowhere")
    users = [person(1, "Ben"), person(2, "Annabel"), person(3, "Cyd"), person(2, "Annabel", "GOLD")]
    shop.send("users", *users, keys=[user["id"] for user in users])
    shop.load(spark)
    refresh_mirrors(shop.settings, shop.declarations, shop.name, spark)
    kinds = [Path(path).suffix for path in traces(shop.settings, *texts)]
    assert kinds.count(".parquet") >= 5, "raw, parsed, vault, mart, mirror"
    with pytest.raises(LakehouseError, match=r"the newest event of id=2 in topic .* has personal data"):
        shop.erase(spark, "id=2")

    pause(shop.settings, shop.world.source.table("users"))
    shop.send("users", person(2, "Spooled"), None, keys=[2, 2])
    shop.world.ingest(spark)
    assert traces(shop.settings, "spooled@nowhere"), "in the spool"
    erasure = shop.erase(spark, "id=2")
    assert erasure.left == [] and f"{shop.name}.users" in erasure.elsewhere
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


def test_a_person_is_gone_from_a_topic_without_a_key_also_when_it_is_read_anew(
    settings: Settings, broker: Broker, spark: Any
) -> None:
    topic = f"clicks-{uuid.uuid4().hex[:8]}"
    topics = make_topics(settings, broker, {"clicks": (RawPolicy(topic=topic, personal=("email",)), CLICKS)})
    name, ann = topics.source.name, "clicked@nowhere.example"
    clicks: list[Any] = [click(0, 2, ann), click(1, 1, "ben@nowhere.example")]
    clicks += [click(2, 2, ann) | {"id": "none"}, f'{{"user_id": 2, "email": "{ann}'.encode()]
    broker.create(topic, 2)
    try:
        broker.produce(topic, clicks, keys=[ann, None, ann, ann])
        topics.ingest(spark)
        assert len(traces(settings, ann)) >= 2, "raw and dead letters"
        of_the_page = inline("erasure.md", "lakehouse erase web", ("web", name), ("user_id=42", "user_id=2"))
        erased = topics.command(*of_the_page.split()[1:], "--yes")
        assert erased.returncode == 0 and "nothing left" in erased.stdout, erased
        assert traces(settings, ann) == []
        seen = {(row["id"], row["user_id"], row["email"]) for row in topics.raw("clicks")}
        assert seen == {(0, 2, None), (1, 1, "ben@nowhere.example")}

        broker.delete(topic)
        broker.create(topic, 2)
        broker.produce(topic, clicks)
        with pytest.raises(LakehouseError, match="--recover"):
            topics.ingest(spark)
        recover_source(topics.settings, topics.declarations, name, spark)
        found = {trace.table for trace in verify(topics.settings, {}, topics.source.table("clicks")).traces}
        assert found >= {f"raw_{name}.clicks"}
        done, problems = repeat(topics.settings, topics.declarations, {}, name, spark)  # as `ingest --recover` does
        assert [again.left for again in done] == [[]] and problems == [] and traces(settings, ann) == []
    finally:
        drop_lake_of(topics)
