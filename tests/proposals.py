"""Schemas with the declaration that a modeller writes for them by hand, and how far a proposal is from it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from lakehouse.declarations.policies import split_relation

SCHEMAS = Path(__file__).parent / "schemas"
_SHORT = {"hub": "name", "links": "to", "references": "columns", "satellites": "columns"}
NAMES = ("ticketing", "billing", "shop", "rental")


def statements(name: str) -> str:
    """The DDL of a schema."""
    return (SCHEMAS / f"{name}.sql").read_text()


def by_hand(name: str) -> dict[str, list[str]]:
    """The modeller's declaration, as lines by table."""
    tables = yaml.safe_load((SCHEMAS / f"{name}.yml").read_text())
    return {table: sorted(_lines(entry, entry.get("vault", {}))) for table, entry in tables.items()}


def proposed(text: str) -> dict[str, list[str]]:
    """The same of a proposal."""
    tables = yaml.safe_load(text)["sources"][0]["tables"]
    metas = {table["name"]: table["config"]["meta"] for table in tables}
    return {name: sorted(_lines(meta["raw"], meta.get("vault", {}))) for name, meta in metas.items()}


def _lines(raw: Mapping[str, Any], vault: Mapping[str, Any]) -> Iterator[str]:
    """What a person reads as one line each: a column that does not land, a reference, a link, a satellite …"""
    for part in ("exclude", "personal"):
        if raw.get(part):
            yield f"{part}: {sorted(raw[part])}"
    for part, value in vault.items():
        if part in ("references", "links", "satellites"):
            for name, entry in value.items():
                yield f"{part}: {name}: {_entry(part, entry)}"
        else:
            yield f"{part}: {_entry(part, value)}"


def _entry(part: str, entry: Any) -> Any:
    """Without short forms, and sorted where order means nothing."""
    if part in ("hub", "references", "links", "satellites") and not isinstance(entry, dict):
        entry = {_SHORT[part]: [entry] if isinstance(entry, str) and part != "hub" else entry}
    if isinstance(entry, dict):
        ordered = {key: value if part == "references" else _entry(key, value) for key, value in entry.items()}
        return " ".join(f"{key}={value}" for key, value in sorted(ordered.items()))
    return sorted(entry) if isinstance(entry, list) else entry


def edits(hand: Mapping[str, list[str]], found: Mapping[str, list[str]]) -> dict[str, tuple[list[str], list[str]]]:
    """By table, the lines that a modeller takes out of the proposal, and those that come in."""
    both = {table: (hand.get(table, []), found.get(table, [])) for table in [*hand, *found]}
    wrong = {t: ([x for x in b if x not in a], [x for x in a if x not in b]) for t, (a, b) in both.items()}
    return {table: lines for table, lines in wrong.items() if any(lines)}


def lines_to_edit(found: Mapping[str, tuple[list[str], list[str]]]) -> int:
    """A line that replaces another is one edit."""
    return sum(max(len(out), len(into)) for out, into in found.values())


def foreign_keys(text: str) -> set[tuple[str, str, frozenset[str]]]:
    """Schema, table and columns of each foreign key that a proposal speaks of: as a reference, or in a remark."""
    found = set()
    blocks = text.split("\n      - name: ")[1:]
    for table, block in zip(yaml.safe_load(text)["sources"][0]["tables"], blocks, strict=True):
        meta = table["config"]["meta"]
        said = [reference["columns"] for reference in meta.get("vault", {}).get("references", {}).values()]
        remarks = [line.strip()[2:] for line in block.splitlines() if line.startswith("        # ")]
        said += [remark.partition(": ")[0].split(", ") for remark in remarks]
        found |= {(*split_relation(meta["raw"]["relation"]), frozenset(columns)) for columns in said}
    return found
