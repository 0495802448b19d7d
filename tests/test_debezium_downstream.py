"""The bank of the sample through Debezium and Kafka: parsed, current, mirrors, vault and what is done to them."""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from erasure.run import erase
from erasure.steps import Erasure
from ingestion import bring_up, pause, refresh_mirrors, resume
from ingestion.verify import reconcile
from lakehouse.declarations import declarations_from
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.connectors import source_of_connector
from lakehouse.settings import DebeziumSettings, Settings
from lakehouse_samples.bank import debezium as through
from lakehouse_samples.bank import workload
from lakehouse_samples.loading import schema_sql
from scaffold import apply, declared_alone, models_of, plan
from tests.brokers import Broker, Topics, drop_lake_of
from tests.debezium import Connect
from tests.erasing import People, others_of, traces
from tests.orchestrated import Orchestrated, copy_project
from tests.world import World, make_world

pytestmark = [pytest.mark.stack, pytest.mark.slow]
USERS = {"id": "uuid", "email": "text", "name": "text", "created_at": "date"}
ACCOUNTS = {
    "id": "uuid", "user_id": "uuid", "currency": "text", "balance": "numeric(15,2)", "created_at": "date",
}  # fmt: skip
TABLES = {"users": (("id",), USERS), "accounts": (("id",), ACCOUNTS)}


@dataclass(frozen=True)
class Bank(People):
    """Its database, and the lake's side of it."""

    world: Topics
    database: World
    environment: dict[str, str]
    connect: Connect

    def ingest(self, spark: Any, users: int, accounts: int) -> None:
        """Ingests until so many events are there."""
        self.world.until_there(TABLES)
        deadline = time.monotonic() + 60
        while (found := (len(self.world.raw("users")), len(self.world.raw("accounts")))) != (users, accounts):
            assert time.monotonic() < deadline, f"{found} events of users and accounts"
            bring_up(self.settings, self.declarations, self.name, spark)

    def erase(self, spark: Any, key: str) -> Erasure:
        return erase(self.settings, self.declarations, self.manifest, f"{self.name}.users", [key], spark)

    def erase_once_told(self, spark: Any, key: str) -> Erasure:
        """Again and again until it is not refused: the connector sends what is committed a moment later."""
        deadline = time.monotonic() + 120
        while True:
            try:
                return self.erase(spark, key)
            except LakehouseError as refused:
                assert re.search("has not come by its topic yet|have changes that wait", str(refused)), refused
                assert time.monotonic() < deadline, refused

    def command(self, *arguments: str) -> str:
        return Orchestrated(self.world, (), self.environment).command(*arguments)

    def vault(self) -> tuple[int, ...]:
        """Rows of the hubs of users and of accounts, and of their link."""
        names = (f"hub_{self.name}_user", f"hub_{self.name}_account", f"link_{self.name}_account_user")
        return tuple(self.rows(f"SELECT count(*) FROM vault.{name}")[0][0] for name in names)

    def assert_equal(self, tables: str = "") -> None:
        """Current views, or other `tables`, and the newest rows of satellites are the database's tables."""
        tables = tables or f"parsed.current_{self.name}__"
        for table, (_, columns) in TABLES.items():
            names = ", ".join(f"cast({c} AS varchar)" for c in columns)
            theirs = self.database.rows(f"SELECT {names} FROM {table} ORDER BY 1")
            assert self.rows(f"SELECT {names} FROM {tables}{table} ORDER BY 1") == theirs
        v = f"vault.sat_{self.name}_account_details_v1"
        hub, hk = f"vault.hub_{self.name}_account", f"hk_{self.name}_account"
        told = self.rows(
            f"SELECT cast(h.account_number AS varchar), cast(s.balance AS varchar) FROM {hub} AS h"
            f" JOIN {v} AS s ON s.{hk} = h.{hk} AND s.is_current ORDER BY 1"
        )
        assert told == self.database.rows("SELECT id::text, balance::text FROM accounts ORDER BY 1")
        assert all(found.equal for found in reconcile(self.settings, self.declarations, [self.name]))


def make_bank(settings: Settings, project: Path, broker: Broker, connect: Connect) -> Bank:
    """A bank without users yet, in a project of its own; the sample's command makes it by the same code."""
    policies = {name: RawPolicy(relation=f"public.{name}", key=key) for name, (key, _) in TABLES.items()}
    database = make_world(settings, schema_sql("bank"), policies)
    prefix = database.source.name
    url = database.settings.source(prefix).url.get_secret_value()
    through.publish(database.owner_url, url, prefix)
    through.make_topics({"bootstrap.servers": broker.server}, prefix)
    at = f"http://127.0.0.1:{connect.rest_port}"
    assert through.connect(at, database.owner_url, url, prefix, prefix)
    name, given = f"d{prefix}", source_of_connector(broker.server, prefix, url)
    copy_project(settings, project)
    declared = project / "dbt_project" / "models" / "sources" / f"{name}.yml"
    declared.write_text(through.declaration(name, prefix))
    limits = settings.ingestion.model_copy(update={"lease_seconds": 2})
    sources = {name: DebeziumSettings.model_validate(given)}
    mine = settings.model_copy(update={"sources": sources, "ingestion": limits, "project_dir": project})
    apply(plan(mine.dbt_project_dir, name, models_of(declared_alone(mine), name)))
    manifest = load_manifest(mine)
    declarations = declarations_from(manifest, mine.dbt_project_dir)
    manifest["sources"] |= others_of(mine)
    world = Topics(mine, declarations.source(name), database.owner_url, broker)
    environment = {
        **os.environ, "LAKEHOUSE_PROJECT_DIR": str(project), "DAGSTER_HOME": str(settings.dagster_home),
    } | {f"LAKEHOUSE_SOURCES__{name.upper()}__{key.upper()}": value for key, value in given.items()}  # fmt: skip
    return Bank(world, manifest, declarations, database, environment, connect)


@pytest.fixture
def bank(settings: Settings, tmp_path: Path, broker: Broker, connect: Connect) -> Iterator[Bank]:
    made = make_bank(settings, tmp_path, broker, connect)
    yield made
    connect.asked("DELETE", f"/connectors/{made.database.source.name}")
    drop_lake_of(Topics(made.settings, made.world.source, "", broker))


def test_the_bank_through_debezium_has_the_numbers_of_the_sample_in_every_layer(bank: Bank, spark: Any) -> None:
    """5 + 3 events and 3 users, 2 accounts, 2 links; then 10 + 7 and 4, 4, 4; and what is done to tables of a slot."""
    layers = ("parsed", "current", "stage", "vault", "timelines")
    for events, counts in (((5, 3), (3, 2, 2)), ((10, 7), (4, 4, 4))):
        workload.run(bank.database.owner_url)
        bank.ingest(spark, *events)
        bank.dbt("build", "--select", *layers)
        assert bank.vault() == counts
        bank.assert_equal()
        refresh_mirrors(bank.settings, bank.declarations, bank.name, spark)
        bank.assert_equal(f"mirror_{bank.name}.")
        bank.assert_equal()

    today = datetime.now(UTC).date().isoformat()
    bank.command("lakehouse", "run", f"load_{bank.name}", "--partition", today)
    assert bank.vault() == (4, 4, 4) and len(bank.world.raw("users")) == 10, "a backfill never duplicates"
    workload.run(bank.database.owner_url)
    time.sleep(3)
    bank.command("lakehouse", "run", f"load_{bank.name}")
    assert len(bank.world.raw("users")) == 15
    bank.assert_equal()
    for action in ("compact", "expire_snapshots"):
        bank.command("lakehouse", "maintain", action)
    assert len(bank.world.raw("accounts")) == 11
    bank.assert_equal()


def test_a_person_of_the_bank_is_gone_from_every_layer_and_from_what_waits(bank: Bank, spark: Any) -> None:
    workload.run(bank.database.owner_url)
    bank.ingest(spark, 5, 3)
    bank.dbt("run", "--select", "parsed", "current", "stage", "vault", "timelines")
    refresh_mirrors(bank.settings, bank.declarations, bank.name, spark)
    [(held,)] = bank.database.rows("SELECT id::text FROM users WHERE email = 'user1@bank.example.com'")
    with pytest.raises(LakehouseError, match="still holds personal data"):
        bank.erase(spark, f"id={held}")

    table = bank.world.source.table("users")
    bank.database.sql("INSERT INTO users VALUES (gen_random_uuid(), 'gone@nowhere.example', 'Gone Forever')")
    bank.ingest(spark, 6, 3)
    bank.dbt("run", "--select", "parsed", "current", "stage", "vault", "timelines")
    pause(bank.settings, table)
    bank.database.sql("UPDATE users SET name = 'Waits Forever' WHERE name = 'Gone Forever'")
    [(gone,)] = bank.database.rows("SELECT id::text FROM users WHERE name = 'Waits Forever'")
    texts = ("gone@nowhere.example", "Gone Forever", "Waits Forever", "Told Late")
    deadline = time.monotonic() + 60
    while not traces(bank.settings, "Waits Forever"):
        assert time.monotonic() < deadline
        bring_up(bank.settings, bank.declarations, bank.name, spark)

    connector = f"/connectors/{bank.database.source.name}"
    bank.connect.asked("PUT", f"{connector}/stop")
    bank.connect.until(lambda: not bank.connect.asked("GET", f"{connector}/status")["tasks"])
    bank.database.sql(
        "UPDATE users SET name = 'Told Late' WHERE name = 'Waits Forever'", "DELETE FROM users WHERE name = 'Told Late'"
    )
    with pytest.raises(LakehouseError, match=f"the delete of id={gone}, .* has not come by its topic yet"):
        bank.erase(spark, f"id={gone}")
    bank.connect.asked("PUT", f"{connector}/resume")
    erasure = bank.erase_once_told(spark, f"id={gone}")
    assert erasure.left == [] and traces(bank.settings, *texts) == []
    resume(bank.settings, bank.declarations, bank.name, ["users"], spark)
    bank.ingest(spark, 9, 3)
    assert traces(bank.settings, *texts) == []
    assert [r["_op"] for r in bank.world.raw("users") if str(r["id"]) == gone] == ["c", "u", "u", "d"]
    bank.dbt("run", "--select", "parsed", "current", "stage", "vault", "timelines")
    bank.assert_equal()
    assert [done.left for done in bank.repeat(spark)] == [[]]
