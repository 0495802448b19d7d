"""What another release has written down as JSON or TOML: keys that this one does not know are passed over."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from erasure import tombstones
from ingestion.schema.facts import Leaf, facts_from_json
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse_stack.home.credentials import ensure_credentials
from tests.unit.test_planning import FACTS


def of_a_newer_release(stored: Any) -> Any:
    """The same with a key more in each object."""
    if isinstance(stored, dict):
        return {key: of_a_newer_release(value) for key, value in stored.items()} | {"of_a_newer_release": [1, {"a": 2}]}
    return [of_a_newer_release(item) for item in stored] if isinstance(stored, list) else stored


def test_a_description_of_a_table_may_know_more() -> None:
    """Its reader ended in a TypeError, and with it every cycle of the source."""
    facts = replace(FACTS, leaves=(Leaf(7, "public.part", 1, 2),))
    assert facts_from_json(of_a_newer_release(json.loads(json.dumps(facts.to_json())))) == facts


def test_a_tombstone_may_know_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stone = replace(tombstones.tombstone("shop", "people", {"id": "7"}), done_at="2026-01-01T00:00:00+00:00")
    folder = tmp_path / tombstones.FOLDER
    folder.mkdir()
    (folder / "one.json").write_text(json.dumps(asdict(stone) | {"of_a_newer_release": 1}))
    monkeypatch.setattr(tombstones, "list_objects", lambda io, place: [])
    monkeypatch.setattr(tombstones, "keep", lambda *places: None)
    states: Any = SimpleNamespace(execute=lambda query: SimpleNamespace(fetchall=list))
    settings: Any = SimpleNamespace(home=tmp_path, warehouse="s3://warehouse/")
    assert tombstones.read(settings, SimpleNamespace(), states) == (stone,)  # type: ignore[arg-type]


def test_endpoints_that_another_release_wrote_may_know_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lakehouse up` itself refused them, which alone could have written them anew."""
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
    known = 'warehouse = "s3://here/"\n[trino]\nport = 8081\n'
    more = f'of_a_newer_release = 1\n{known}shards = 3\n[sources.shop]\nurl = "postgresql://a@b/c"\nspeed = "high"\n'
    (tmp_path / "endpoints.toml").write_text(f"{more}[gateway]\nport = 1\n")
    settings = load_settings(home=tmp_path)
    assert (settings.warehouse, settings.trino.port, list(settings.sources)) == ("s3://here/", 8081, ["shop"])
    mine = tmp_path / "lakehouse.toml"
    mine.write_text("[gateway]\nport = 1\n")
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(mine))
    with pytest.raises(LakehouseError, match="gateway"):
        load_settings(home=tmp_path)


def test_a_password_that_another_release_made_is_not_forgotten(tmp_path: Path) -> None:
    """A home that is opened with the release before, and then with the newer one again, has its servers still."""
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps({"of_a_newer_release": "secret"}))
    ensure_credentials(path)
    assert json.loads(path.read_text())["of_a_newer_release"] == "secret"
