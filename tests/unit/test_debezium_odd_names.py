"""Tables with odd names: Debezium writes `_` for what a topic may not be called, so two tables may share a topic."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from debezium_recorded import ITEMS, Message, read, recorded, settings, table

from ingestion.sources.debezium.shape import written
from lakehouse.text.sql import relation

PLAIN, LATE = recorded("plain"), datetime(2027, 1, 1, tzinfo=UTC)
Name = tuple[str, str]
TWINS: list[tuple[Name, Name]] = [
    (("public", "a b"), ("public", "a_b")),
    (("public", 'sag "ja"'), ("public", "sag__ja_")),
    (("public", "Größe"), ("public", "Gr__e")),
    (("public", "preis$"), ("public", "preis_")),
    (("Übersicht", "c"), ("_bersicht", "c")),
    (("public", "Orders$"), ("public", "Orders ")),
]


def topic_of(of: Name) -> str:
    """As Debezium calls it."""
    return re.sub("[^A-Za-z0-9._-]", "_", ".".join(of))


def sharing_a_topic(items: Name, pairs: Name) -> list[Message]:
    """The recording, if its two tables had these names, by which their events are in one topic."""
    called = {"items": items, "pairs": pairs}
    found, offset = [], 0
    for message in sorted(PLAIN, key=lambda m: (m["at"], m["topic"] == "transaction", m["topic"], m["offset"])):
        if message["topic"] == "transaction":
            value = json.loads(message["value"])
            for part in value.get("data_collections") or ():
                schema, name = called.get(part["data_collection"].removeprefix("public."), ("public", "none"))
                part["data_collection"] = f"{schema}.{name}"
            found.append(message | {"value": json.dumps(value)})
            continue
        value = json.loads(message["value"]) if message["value"] else None
        if (of := called.get(message["topic"].removeprefix("public."))) is None:
            continue
        if value:
            value["source"] |= dict(zip(("schema", "table"), of, strict=True))
        place = {"topic": topic_of(of), "partition": 0, "offset": offset}
        found.append(message | place | {"value": value and json.dumps(value)})
        offset += 1
    return found


def relation_of(message: dict[str, Any]) -> tuple[Any, Any]:
    of = message.get("source", {})
    return of.get("schema"), of.get("table")


def without_places(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("_topic", "_offset", "_seq")} for row in rows]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize(("items", "pairs"), TWINS, ids=[topic_of(of) for of, _ in TWINS])
def test_of_two_tables_in_one_topic_the_declared_one_lands_alone(items: Name, pairs: Name, delivery: str) -> None:
    """Also where a transaction changes both: an event is of the table that it names, whatever its topic is called."""
    assert topic_of(items) == topic_of(pairs)
    given, messages = settings(delivery=delivery), sharing_a_topic(items, pairs)
    declared = table("items", ITEMS, topic=topic_of(items), relation=relation(*items))
    name = topic_of(items).split(".")[-1]
    found = read(messages, declared, given=given, now=LATE)
    wanted = read(PLAIN, table("items", ITEMS), given=given, now=LATE).rows["items"]
    assert without_places(found.rows[name]) == without_places(wanted)
    others = [m for m in messages if m["value"] and relation_of(json.loads(m["value"])) == pairs]
    assert [one.partition(":")[0] for one in found.unread[name]] == [f"0/{m['offset']}" for m in others]
    assert all(f"it is of relation {written(pairs)}, not of {written(items)}: " in one for one in found.unread[name])
