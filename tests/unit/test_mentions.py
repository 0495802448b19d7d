"""As of cuts, hubs and links have the keys that were mentioned until then, whatever was loaded first."""

import random
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse.catalog.relations import TableName
from lakehouse.errors import LakehouseError
from lakehouse_serve.past import asked, mentions
from lakehouse_serve.past.cuts import Cut
from lakehouse_serve.past.loaded import Loaded, Model
from lakehouse_serve.past.mentions import earlier_mentions
from lakehouse_serve.past.queries import AsOfCuts, Kind
from tests.marks import slow
from tests.unit.declared_vault import DeclaredVault, Name, a_declaration, table, table_history
from tests.unit.embedded_vault import START, Event
from tests.unit.test_vault_names import of
from tests.unit.test_vault_shapes import taken

OF_COMMITS, OF_POSITIONS = frozenset({"_epoch", "_commit_lsn"}), frozenset({"source_seq", "record_source"})


class Past:
    """What a vault in memory answers as of cuts, by the queries that Trino gets."""

    def __init__(self, vault: DeclaredVault) -> None:
        self.vault = vault
        vault.db.execute("attach ':memory:' as lake; create schema lake.vault")
        self.kinds = {TableName("vault", name): self._kind(name) for name in vault.sql if self._has_position(name)}
        for place in self.kinds:
            vault.db.execute(f"create view lake.vault.{place.name} as select * from memory.main.{place.name}")
        self.kinds |= {
            TableName("parsed", f"parsed_{source}__{name}"): Kind(OF_COMMITS) for source, name in vault.tables
        }
        self.models = {name: self._model(name) for name in vault.models}
        self.asked: list[str] = []

    def keys(self, name: str, cuts: Mapping[str, int], may_read_stages: bool = False) -> set[Any]:
        """The first column of a table as of these positions."""
        found = {source: Cut(source, 1, lsn, {}) for source, lsn in cuts.items()}
        lake = AsOfCuts(found, "lake", self.kinds.get)
        loaded = Loaded(self._ask, lambda _: (), lambda _: None, lambda: self.models, lake)
        table = TableName("vault", name)
        if further := earlier_mentions(loaded, table, may_read_stages):
            lake.mentioned[table] = further
        return {key for key, *_ in self.vault.rows(lake.rewrite(f"SELECT * FROM vault.{name}"))}

    def _ask(self, statement: str) -> list[list[Any]]:
        self.asked.append(statement)
        return [list(row) for row in self.vault.rows(statement)]

    def _has_position(self, name: str) -> bool:
        return self.vault.layers[name] in ("stage", "vault") and not name.startswith("rts_")

    def _kind(self, name: str) -> Kind:
        is_view = self.vault.layers[name] == "stage"
        return Kind(OF_POSITIONS, f"SELECT * FROM parsed.{name.replace('stg', 'parsed')}" if is_view else None)

    def _model(self, name: str) -> Model:
        """As the manifest has it."""
        said = vars(self.vault.context["graph"]["nodes"].get(f"model.p.{name}", object)).get("config")
        first_sight = asked._first_sight({"config": {"meta": said.meta if said else {}}})
        return Model(TableName("vault", name), loads=True, first_sight=first_sight)


SHARED = of(
    ("crm", [table("customers", ["number"], "number name", {
        "hub": "customer", "satellites": {"customer": ["name"]}})]),
    ("erp", [table("clients", ["nr"], "nr name partner", {
        "hub": {"name": "customer", "extends": True}, "links": {"client_partner": ["partner"]},
        "references": {"partner": {"columns": ["partner"], "hub": "customer"}}, "satellites": {"client": ["name"]}})]),
)  # fmt: skip


def shared(place: Path) -> Past:
    """A customer whom erp mentioned at 52 and crm at 55, and one whom erp deleted at 40 and has again since 60.

    What was later came first. The delete has the same link as a client without a partner.
    """
    vault = DeclaredVault(SHARED, place)
    event = {"gone": False, "at": START, "seq": 1, "name": "K"}
    gone = event | {"gone": True, "name": None}
    vault.load_tables({("erp", "clients"): [event | {"nr": "K", "lsn": 52}, event | {"nr": "old", "lsn": 60}]}, START)
    late = {
        ("crm", "customers"): [event | {"number": "K", "lsn": 55}],
        ("erp", "clients"): [gone | {"nr": "old", "lsn": 40}],
    }
    vault.load_tables(late, START + timedelta(days=1))
    return Past(vault)


CUTS = {"crm": 59, "erp": 50}


def test_a_key_that_another_source_mentioned_until_its_own_cut_is_in_the_hub(tmp_path: Path) -> None:
    """In a pin of a month's end, where each source has its own newest cut, the customer was gone without a message."""
    past = shared(tmp_path)
    [(key,)] = past.vault.rows("select hk_customer from hub_customer where number = 'K'")
    assert key in past.keys("sat_customer", CUTS) and key in past.keys("hub_customer", CUTS)
    assert key not in past.keys("hub_customer", {"crm": 54, "erp": 50})


def test_a_delete_mentions_a_key_and_no_link(tmp_path: Path) -> None:
    past = shared(tmp_path)
    assert len(past.keys("hub_customer", CUTS)) == 2, "the deleted one, too"
    assert past.keys("link_client_partner", CUTS) == set()
    assert len(past.keys("link_client_partner", {"crm": 59, "erp": 60})) == 2


def test_where_all_rows_are_of_before_the_cuts_no_stage_is_read(tmp_path: Path) -> None:
    past = shared(tmp_path)
    past.keys("hub_customer", {"crm": 60, "erp": 60})
    past.keys("sat_customer", CUTS)
    assert [statement for statement in past.asked if "stg_" in statement] == []


def test_too_many_keys_to_be_named_are_looked_up_by_the_writer_and_refused_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers may not read stages."""
    past = shared(tmp_path)
    wanted = past.keys("hub_customer", CUTS)
    monkeypatch.setattr(mentions, "MOST", 1)
    assert len(wanted) == 2 and past.keys("hub_customer", CUTS, may_read_stages=True) == wanted
    with pytest.raises(LakehouseError, match=r"hub_customer: more than 1 of its keys were there, .* --role writer"):
        past.keys("hub_customer", CUTS)


def test_a_row_with_a_payload_is_not_shown_before_its_own_mention(tmp_path: Path) -> None:
    """It would say of the moment what was said after it; that its key was mentioned before is in the hub."""
    described = {"hub": "customer", "satellites": {"origin": {"columns": ["name"], "historized": False}}}
    vault = DeclaredVault(of(("crm", [table("customers", ["number"], "number name", described)])), tmp_path)
    event = {"gone": False, "at": START, "seq": 1, "number": "K"}
    vault.load_tables({("crm", "customers"): [event | {"name": "new", "lsn": 60}]}, START)
    vault.load_tables({("crm", "customers"): [event | {"name": "old", "lsn": 40}]}, START + timedelta(days=1))
    past = Past(vault)
    [(key,)] = vault.rows("select hk_customer from hub_customer where number = 'K'")
    assert key in past.keys("hub_customer", {"crm": 50})
    assert key not in past.keys("nh_sat_origin", {"crm": 50}) and key in past.keys("nh_sat_origin", {"crm": 60})


def test_a_stage_that_is_gone_mentions_nothing(tmp_path: Path) -> None:
    """As after `lakehouse remove --drop-tables`: the hub has what its own rows say."""
    past = shared(tmp_path)
    for gone in [name for name in past.kinds if name.name.startswith("stg_")]:
        del past.kinds[gone]
    assert past.keys("hub_customer", CUTS) == set()


@pytest.mark.parametrize("seed", [0, slow(1), slow(2)])
def test_hubs_and_links_of_a_cut_are_those_of_a_vault_that_was_loaded_until_then(seed: int, tmp_path: Path) -> None:
    """Whatever came late, and whichever table was loaded first."""
    rng = random.Random(seed)
    text = a_declaration(rng)
    vault = DeclaredVault(text, tmp_path)
    left = {name: table_history(rng, table, 24) for name, table in vault.tables.items()}
    events = {name: list(found) for name, found in left.items()}
    for load in range(3):
        batches = {name: taken(rng, found, last=load == 2) for name, found in left.items()}
        vault.load_tables(batches, START + timedelta(days=50 + load))
    past = Past(vault)
    for cuts in ({source: rng.randint(0, 50) for source in ("crm", "erp", "desk")} for _ in range(1 + seed)):
        until = loaded_until(DeclaredVault(text, tmp_path), events, cuts)
        for name in (name for name in vault.models if name.startswith(("hub_", "link_", "nh_"))):
            wanted = {key for key, *_ in until.rows(f"select * from {name}")}
            assert past.keys(name, cuts) == wanted, (seed, cuts, name)
    assert any("DISTINCT mentioned" in statement for statement in past.asked)


def loaded_until(vault: DeclaredVault, events: Mapping[Name, list[Event]], cuts: Mapping[str, int]) -> DeclaredVault:
    """The vault with what was committed until these positions, and with nothing else."""
    batches = {name: [event for event in found if event["lsn"] <= cuts[name[0]]] for name, found in events.items()}
    vault.load_tables(batches, START + timedelta(days=50))
    return vault
