"""No two things that a declaration makes in the vault have one name, or the declaration is refused."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakehouse.errors import LakehouseError
from scaffold import models_of
from scaffold.propose import DbTable, proposal
from tests.unit.test_scaffold import declared

COLUMNS = (
    "id", "account_id", "hk_account", "hd_details", "hd_status", "hk_owner", "load_date", "is_deleted", "valid_from",
    "status", "note", "owner_id",
)  # fmt: skip
NAMES = ("account", "status", "owner", "details", "account_owner", "details_v1", "id")


def table(name: str, columns: dict[str, str], vault: dict[str, Any], key: str = "id", **raw: Any) -> dict[str, Any]:
    """A declared table of these columns and types."""
    return {
        "name": name,
        "config": {"meta": {"raw": {"relation": f"public.{name}", "key": [key], **raw}, "vault": vault}},
        "columns": [{"name": column, "data_type": kind} for column, kind in columns.items()],
    }


def of(*sources: tuple[str, list[dict[str, Any]]]) -> str:
    """YAML of sources with their tables."""
    found = [{"name": name, "schema": f"raw_{name}", "tables": tables} for name, tables in sources]
    return yaml.safe_dump({"sources": found}, sort_keys=False)


OWNERS = table("owners", {"id": "int", "name": "text"}, {"hub": "owner", "satellites": {"owner_details": ["name"]}})
ACCOUNT = {"id": "int", "account_id": "text"}
OWNED = {"id": "int", "owner_id": "int"}


@pytest.mark.parametrize(
    ("columns", "vault", "said", "mended"),
    [
        ({"id": "int", "status": "text"}, {"hub": "account", "satellites": {"status": ["status"]}},
         "'hd_status' twice, as the fingerprint of the status satellite of hub 'account' and as the fingerprint of"
         " satellite 'status': rename the satellite", {"satellites": {"account_status": ["status"]}}),
        (ACCOUNT, {"hub": "account", "satellites": {"details": ["account_id"]}},
         "'account_id' twice, as column 'account_id' of the table and as the key 'id' under its name in hub 'account':"
         " name it otherwise with `hub: {name: account, column: …}`", {"hub": {"name": "account", "column": "id"}}),
        ({"id": "int", "account_id": "int"},
         {"hub": "account", "references": {"parent": {"columns": ["account_id"], "hub": "account"}},
          "links": {"account_parent": ["parent"]}},
         "'account_id' twice", {"hub": {"name": "account", "column": "number"}}),
        (OWNED, {"hub": "account", "references": {"owner": "owner_id"}, "links": {"owner": ["owner"]}},
         "'hk_owner' twice, as the key of reference 'owner' and as the key of link 'owner'",
         {"links": {"account_owner": ["owner"]}}),
        (OWNED, {"hub": "account", "references": {"owner": "owner_id"}, "links": {"account": ["owner"]}},
         "'hk_account' twice, as the key of hub 'account' and as the key of link 'account'",
         {"links": {"account_owner": ["owner"]}}),
        (OWNED, {"hub": "account", "references": {"account": {"columns": ["owner_id"], "hub": "owner"}}},
         "'hk_account' twice", {"references": {"owner": "owner_id"}}),
        *(
            ({"id": "int", name: "text"}, {"hub": "account", "satellites": {"details": [name]}}, f"{name!r} twice",
             {"raw": {name: "other"}})
            for name in ("is_deleted", "load_date", "applied_date", "source_seq", "source_seq_to", "record_source",
                         "valid_from", "valid_to", "is_current", "hk_account", "hd_details", "hd_status")
        ),
        ({"id": "int", "load_date": "text"}, {"hub": "account", "ignored": ["load_date"]}, "'load_date' twice",
         {"raw": {"load_date": "loaded_on"}}),
        (OWNED, {"event": {"name": "owner", "to": ["owner"]}, "references": {"owner": "owner_id"}},
         "'hk_owner' twice, as the key of reference 'owner' and as the key of event 'owner'",
         {"event": {"name": "payment", "to": ["owner"]}}),
        ({"id": "int", "valid_from": "text"}, {"reference_table": "code", "satellites": {"code": ["valid_from"]}},
         "a timeline would have 'valid_from' twice", {"raw": {"valid_from": "starts"}}),
        ({"id": "int", "a": "text", "b": "text"}, {"hub": "account", "satellites": {"a": ["a"], "a_v1": ["b"]}},
         "sat_a_v1 would be satellite 'a_v1' and the timeline of satellite 'a' of table accounts",
         {"satellites": {"a": ["a"], "b": ["b"]}}),
    ],
)  # fmt: skip
def test_a_name_that_meets_another_one_is_refused_with_both_and_the_remedy(
    tmp_path: Path, columns: dict[str, str], vault: dict[str, Any], said: str, mended: dict[str, Any]
) -> None:
    with pytest.raises(LakehouseError, match=r"models/shop\.yml:\d+: V7: ") as caught:
        declared(tmp_path, of(("shop", [table("accounts", columns, vault), OWNERS])))
    assert said in str(caught.value)
    alias = mended.pop("raw", {})
    text = of(("shop", [table("accounts", columns, {**vault, **mended}, alias=alias), OWNERS]))
    assert models_of(declared(tmp_path, text), "shop")


@pytest.mark.parametrize("column", ["!id", "!note"])
def test_a_column_that_a_stage_would_take_for_a_text_is_refused(tmp_path: Path, column: str) -> None:
    """`!` begins a constant there: all rows had one key, or no change of the column was seen."""
    columns = {"!id": "int", "!note": "text"}
    alias = {name: name[1:] for name in columns if name != column}
    vault = {"hub": "account", "satellites": {"details": ["!note"]}}
    with pytest.raises(LakehouseError, match=rf"yml:\d+: V7: .*, like column '{column}': give the column another"):
        declared(tmp_path, of(("shop", [table("accounts", columns, vault, key="!id", alias=alias)])))


def test_a_source_whose_name_parts_itself_is_refused(tmp_path: Path) -> None:
    """Its stages looked for source `a` and table `b__owners`."""
    with pytest.raises(LakehouseError, match=r"shop\.yml:\d+: V7: `__` parts source and table in stg_a__b__owners"):
        declared(tmp_path, of(("a__b", [OWNERS])))


def test_two_sources_make_no_relation_of_one_name(tmp_path: Path) -> None:
    """Each with a satellite of a hub of its own."""
    columns = {"id": "int", "name": "text"}
    user = table("users", columns, {"hub": "user", "satellites": {"details": ["name"]}})
    with pytest.raises(LakehouseError, match=r"V7: sat_details would be satellite 'details' and satellite 'details'"):
        declared(
            tmp_path,
            of(
                ("bank", [table("clients", columns, {"hub": "client", "satellites": {"details": ["name"]}})]),
                ("shop", [user]),
            ),
        )


def test_a_name_that_the_lake_cannot_have_is_refused(tmp_path: Path) -> None:
    """Also as a key of a mapping, and with its line."""
    wrong: list[dict[str, Any]] = [
        {"hub": "My hub"}, {"hub": {"name": "account", "column": "Konto-Nr"}},
        {"hub": "account", "satellites": {"1st": ["owner_id"]}},
    ]  # fmt: skip
    for vault in wrong:
        with pytest.raises(LakehouseError, match=r"shop\.yml:\d+: meta\.vault\..* must match \[a-z\]"):
            declared(tmp_path, of(("shop", [table("accounts", OWNED, vault)])))


def a_declaration(chance: random.Random) -> str:
    """Tables whose columns and parts are called by few names, so that they often meet."""
    tables = [OWNERS]
    for number in range(chance.randint(1, 2)):
        rest = chance.sample(COLUMNS[1:], chance.randint(1, 5))
        references: dict[str, Any] = {}
        if chance.random() < 0.6:
            references[chance.choice(NAMES)] = {"columns": [rest.pop()], "hub": "owner"}
        vault: dict[str, Any] = {"references": references}
        if chance.random() < 0.2 and references:
            vault |= {"event": {"name": chance.choice(NAMES), "to": list(references), "columns": rest}}
        elif chance.random() < 0.2:
            vault |= {"reference_table": chance.choice(NAMES), "satellites": {chance.choice(NAMES): rest}}
        else:
            half = chance.randint(0, len(rest))
            vault |= {"hub": chance.choice(NAMES), "satellites": {chance.choice(NAMES): rest[:half]}}
            vault |= {"ignored": rest[half:]}
            vault |= {"links": {chance.choice(NAMES): list(references)}} if references else {}
        tables.append(table(f"t{number}", dict.fromkeys(["id", *rest, "owner_id", "account_id"], "int"), vault))
    for one in tables[1:]:
        vault = one["config"]["meta"]["vault"]
        parts = [*vault["references"].values(), *({"columns": c} for c in vault.get("satellites", {}).values())]
        used = {column for part in parts for column in part["columns"]} | set(vault.get("event", {}).get("columns", []))
        used |= set(vault.get("ignored", [])) | {"id"}
        one["columns"] = [{"name": name, "data_type": "int"} for name in sorted(used)]
    return of(("shop", tables))


def test_in_what_is_accepted_no_model_and_no_column_comes_twice(tmp_path: Path) -> None:
    """Random declarations whose names often meet: what is not refused has models in which none do."""
    accepted = refused = 0
    for seed in range(400):
        try:
            found = declared(tmp_path, a_declaration(random.Random(seed)))
        except LakehouseError as error:
            assert ": V7: " in str(error), (seed, error)
            refused += 1
            continue
        accepted += 1
        models = models_of(found, "shop")
        assert max(Counter(model.name for model in models).values()) == 1, seed
        for model in models:
            if not model.folder.startswith(("parsed/", "current/")):
                counts = Counter(column[0] for column in model.columns)
                assert max(counts.values()) == 1, (seed, model.name, counts.most_common(1))
    assert accepted > 50 and refused > 50, (accepted, refused)


def test_what_is_proposed_has_no_name_twice(tmp_path: Path) -> None:
    """Columns that the vault would make itself, a key `id` beside `<hub>_id`, links that are called as a reference."""
    columns = tuple((name, "int", "") for name in (*COLUMNS, "valid_to", "buyer_id", "order_buyer_id", "parent_id"))
    accounts = DbTable(1, "public", "accounts", "", columns, ("id",), ((("account_id",), 1), (("parent_id",), 1)))
    orders = DbTable(2, "public", "orders", "", columns, ("id",), ((("buyer_id",), 1), (("order_buyer_id",), 1)))
    found = declared(tmp_path, proposal("shop", [accounts, orders], taken=set()))
    vault = found.source("shop").table("accounts").vault
    assert vault is not None and vault.hub is not None and vault.hub.column == "id"
    assert models_of(found, "shop")
