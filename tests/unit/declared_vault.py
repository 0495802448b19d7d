"""A vault of several sources in memory, made from a declaration as `lakehouse scaffold` makes it, and its histories.

The declaration has all shapes: hubs of several tables with collision codes, keys of several columns that references
share, tables that are links with and without an id of their own, satellites of links and without history, children,
events, codes; and names that meet.
"""

import functools
import random
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import yaml

from lakehouse.declarations import RawTable
from lakehouse.declarations.vault.names import in_lake
from scaffold import models_of
from scaffold.types import lake_type
from tests.unit.embedded_vault import METADATA, START, Event, Vault
from tests.unit.test_scaffold import declared
from tests.unit.test_vault_names import of

COMPILED = functools.cache(jinja2.Environment().from_string)
METADATA_COLUMNS = (
    "_is_deleted boolean, _valid_from timestamptz, _epoch integer, _commit_lsn bigint, _seq bigint,"
    " _record_source varchar, _loaded_at timestamptz"
)
VALUES = {
    "text": ["1", "2", "3", "a|b", "", " ", "A", "a"],
    "int": [1, 2, 3, 11],
    "bigint": [1, 2, 11],
    "numeric(8,2)": [Decimal("1.00"), Decimal("2.00"), Decimal("1.50")],
    "date": [date(2026, 1, 1), date(2026, 1, 11)],
}
Name = tuple[str, str]


def table(name: str, key: list[str], columns: str, vault: dict[str, Any]) -> dict[str, Any]:
    """A declared table; `columns` are names, and a type where it is not text."""
    found = [column.partition(":") for column in columns.split()]
    return {
        "name": name,
        "config": {"meta": {"raw": {"relation": f"public.{name}", "key": key}, "vault": vault}},
        "columns": [{"name": column, "data_type": kind or "text"} for column, _, kind in found],
    }


def a_declaration(rng: random.Random) -> str:
    """Sources with all shapes; how keys are read, what is linked and what has a history is drawn."""
    rules = rng.choice([{}, {"blank": "unknown"}, {"blank": "error"}, {"normalize": "upper_trim"}])
    crm, erp = rng.choice([("crm", "erp"), ("", "erp"), ("", "")])
    people: dict[str, Any] = {"requester": ["tenant", "requester_id"], "assignee": ["tenant", "assignee_id"]}
    people = {role: {"columns": columns, "hub": "agent"} for role, columns in people.items()}
    links = rng.choice([
        {"ticket_agents": ["requester", "assignee"], "ticket_customer": ["customer"]},
        {"ticket_agents": ["assignee", "customer", "requester"]},
    ])  # fmt: skip
    tickets = {
        "hub": "ticket", "links": links, "codes": {"status": "status"},
        "references": people | {"customer": {"columns": ["number"], "collision_code": crm}},
        "satellites": {"ticket": ["status", "order"], "assigned": {"columns": ["part"], "link": "ticket_agents"},
                       "ticket_origin": {"columns": ["always"], "historized": rng.random() < 0.3}},
    }  # fmt: skip
    ticket_agent = {
        "ticket": {"columns": ["tenant", "ticket_id"]}, "who": {"columns": ["tenant", "agent_id"], "hub": "agent"},
    }  # fmt: skip
    customer = {"name": "customer", "extends": True}
    desk = [
        table("agents", ["tenant", "id"], "tenant:int id:int order hk_note", {
            "hub": "agent", "track_mentions": True, "satellites": {"agent": ["order", "hk_note"]}}),
        table("tickets", ["tenant", "id"],
              "tenant:int id:int requester_id:int assignee_id:int number status order part always", tickets),
        table("watchers", ["tenant", "ticket_id", "agent_id", "channel"],
              "tenant:int ticket_id:int agent_id:int channel order always", {
                  "link": {"name": "watching", "to": rng.sample(list(ticket_agent), 2)}, "references": ticket_agent,
                  "satellites": {"watching": ["order"],
                                 "watching_origin": {"columns": ["always"], "historized": False}}}),
        table("helpers", ["id"], "id:int tenant:int ticket_id:int agent_id:int order always", {
            "link": {"name": "helping", "to": rng.sample(list(ticket_agent), 2)}, "references": ticket_agent,
            "satellites": {"helping": ["order"], "helping_origin": {"columns": ["always"], "historized": False}}}),
        table("teams", ["id"], "id lead_tenant:int lead_id:int", {
            "hub": "team", "links": {"team_lead": ["customer"]},
            "references": {"customer": {"columns": ["lead_tenant", "lead_id"], "hub": "agent"}}}),
        table("phones", ["number", "kind"], "number kind digits", {
            "children_of": "customer", "references": {"customer": {"columns": ["number"], "collision_code": crm}},
            "satellites": {"status": ["digits"]}}),
        table("statuses", ["code"], "code label", {"reference_table": "status", "satellites": {"status": ["label"]}}),
        table("comments", ["id"], "id:int tenant:int ticket_id:int always", {
            "event": {"name": "comment", "to": ["ticket"], "columns": ["always"]},
            "references": {"ticket": ["tenant", "ticket_id"]}}),
    ]  # fmt: skip
    crm_tables = [
        table("customers", ["number"], "number name", {
            "hub": {"name": "customer", "collision_code": crm, **rules}, "satellites": {"customer": ["name"]}}),
        table("contacts", ["customer_id"], "customer_id order", {
            "hub": {**customer, "collision_code": crm}, "satellites": {"customer_contact": ["order"]}}),
    ]  # fmt: skip
    erp_tables = [
        table("clients", ["nr"], "nr:int name partner:int", {
            "hub": {**customer, "collision_code": erp}, "links": {"customer_partner": ["partner"]},
            "references": {"partner": {"columns": ["partner"], "hub": "customer"}},
            "satellites": {"customer_erp": ["name"]}}),
    ]  # fmt: skip
    return of(("crm", crm_tables), ("erp", erp_tables), ("desk", desk))


class DeclaredVault(Vault):
    """The models of all sources, in memory. `sql` has their texts, `tables` what is declared."""

    def __init__(self, text: str, place: Path, texts: dict[str, str] | None = None) -> None:
        self.place = place
        self._read(text)
        super().__init__(texts)
        self.models = self._vault_models()

    def declare(self, text: str) -> None:
        """The same tables, declared otherwise: the models are others, and what was loaded is there."""
        self._read(text)
        self.models, self.redeclared = self._vault_models(), True
        self.context |= self._provided()
        for name in self.sql:
            if self.layers[name] == "stage":
                self.db.execute(f"drop view if exists {name} cascade")
        self._make_stages()

    def _read(self, text: str) -> None:
        found = declared(self.place, text)
        self.tables: Mapping[Name, RawTable] = {(table.source, table.name): table for table in found.tables}
        models = [model for source in found.sources for model in models_of(found, source.name)]
        self.sql = {model.name: model.sql for model in models}
        self.columns = {
            model.name: {name: {"name": name, "data_type": kind, "description": ""} for name, kind, _ in model.columns}
            for model in models
        }
        self.layers = {model.name: model.folder.partition("/")[0] for model in models}
        self.nodes = {
            (source["name"], table["name"]): SimpleNamespace(
                config=table["config"],
                columns={column["name"]: SimpleNamespace(**column) for column in table["columns"]},
            )
            for source in yaml.safe_load(text)["sources"] for table in source["tables"]
        }  # fmt: skip

    def _vault_models(self) -> dict[str, tuple[str, dict[str, Any]]]:
        return {name: ("", {}) for name in self.sql if self.layers[name] == "vault"}

    def load_tables(self, batches: Mapping[Name, Sequence[Event]], moment: datetime) -> None:
        """Appends events to the parsed tables, and loads every table."""
        for (source, name), events in batches.items():
            columns = [column.name for column in self.tables[source, name].columns]
            rows = [
                [*(e.get(column) for column in columns), e["gone"], e["at"], 1, e["lsn"], e["seq"],
                 f"{source}.public.{name}", moment] for e in events
            ]  # fmt: skip
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                self.db.executemany(f"insert into parsed_{source}__{name} values ({marks})", rows)
                self.commit(f"parsed_{source}__{name}")
        self.load([], moment)

    def make_timelines(self) -> None:
        """The `_v1` views."""
        for name in self.sql:
            if self.layers[name] == "timelines":
                self.db.execute(f"create or replace view {name} as {self._sql(name)}")

    def _build(self) -> None:
        for (source, name), table in self.tables.items():
            columns = ", ".join(
                f'"{in_lake(table.raw, [c.name])[0]}" {lake_type(c.data_type or "text")}' for c in table.columns
            )
            self.db.execute(f"create table parsed_{source}__{name} ({columns}, {METADATA_COLUMNS})")
        self.db.execute("create table properties (model varchar, key varchar, value varchar)")
        self.db.execute("create table history (model varchar, snapshot_id bigint, is_current_ancestor boolean)")
        self.db.execute(
            "create table run_bounds (invocation_id varchar, day_from date, day_to date, created_at timestamptz)"
        )
        self._make_stages()

    def _make_stages(self) -> None:
        for name in self.sql:
            if self.layers[name] == "stage":
                self.db.execute(f"create view {name} as {self._sql(name).replace('_op', 'null')}")

    def _sql(self, name: str) -> str:
        read = dict.fromkeys(re.findall(r"\bstg_\w+", self.sql[name]))
        depends_on = SimpleNamespace(nodes=[f"model.p.{stage}" for stage in read])
        self.context |= {
            "this": name,
            "model": SimpleNamespace(name=name, columns=self.columns[name], depends_on=depends_on),
        }
        sql: str = COMPILED(self.sql[name]).render(cdc_vault=self.context["cdc_vault"])
        return sql.replace("'$1'", "'\\1'")  # how this engine names a group

    def _provided(self) -> dict[str, Any]:
        table = SimpleNamespace(materialized="append_only")
        nodes = {}
        for source, name in self.tables:
            parsed = f"parsed_{source}__{name}"
            above = SimpleNamespace(nodes=[f"model.p.{parsed}"])
            view = SimpleNamespace(materialized="view", meta={})
            nodes[f"model.p.stg_{source}__{name}"] = SimpleNamespace(
                resource_type="model", config=view, depends_on=above, raw_code=""
            )
            nodes[f"model.p.{parsed}"] = SimpleNamespace(
                resource_type="model", config=table, database="", schema="", alias=parsed
            )
        return super()._provided() | {
            "graph": {"nodes": nodes},
            "declared_table": lambda source, name: self.nodes[source, name],
            "system_table": lambda name, kind: f"({METADATA[kind].format(name)})",
        }


def table_history(rng: random.Random, table: RawTable, most: int) -> list[Event]:
    """Events of a table in source order; few values, so that keys and states meet. An event happens once."""
    kinds = {column.name: column.data_type or "text" for column in table.columns}
    assert table.vault is not None
    alive: dict[tuple[Any, ...], Event | None] = {}
    events: list[Event] = []
    lsn, at = rng.randint(1, 5), START
    for number in range(rng.randint(most // 3 + 1, most)):
        lsn, at = lsn + rng.randint(1, 3), at + timedelta(seconds=rng.choice([0, 1, 3600, -2]))
        key = {name: rng.choice(VALUES[kinds[name]]) for name in table.key}
        if table.vault.event:
            key = dict.fromkeys(table.key, number)
        before = alive.get(tuple(key.values()))
        gone = not table.vault.event and rng.random() < (0.25 if before else 0.05)
        values = {
            name: None if gone else f"{name} of {[*key.values()]}" if name == "always"
            else before[name] if before and rng.random() < 0.5 else rng.choice([*VALUES[kinds[name]], None])
            for name in kinds if name not in key
        }  # fmt: skip
        alive[tuple(key.values())] = None if gone else values
        events.append({**key, **values, "gone": gone, "at": at, "lsn": lsn, "seq": 1})
    return events
