"""Keeps alerts and undelivered messages in the catalog database, so that a restart tells nothing twice."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from lakehouse.servers.database import CatalogConnection
from lakehouse_watch.alerts import Alert, Message, Occasion, State


def load(connection: CatalogConnection) -> State:
    """The state as it was saved last."""
    alerts = connection.execute("SELECT key, alert FROM lakehouse.alerts ORDER BY key").fetchall()
    messages = connection.execute("SELECT id, target, message FROM lakehouse.messages ORDER BY number").fetchall()
    return State(
        {key: _alert(stored) for key, stored in alerts},
        tuple(Message(identity, target, body) for identity, target, body in messages),
    )


def save(connection: CatalogConnection, before: State, after: State) -> None:
    """Stores what has changed since `before`, in one transaction."""
    if before == after:
        return
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM lakehouse.alerts WHERE key <> ALL(%s)", (list(after.alerts),))
        cursor.executemany(
            "INSERT INTO lakehouse.alerts (key, alert) VALUES (%s, %s)"
            " ON CONFLICT (key) DO UPDATE SET alert = excluded.alert",
            [(key, _json(alert)) for key, alert in after.alerts.items() if before.alerts.get(key) != alert],
        )
        cursor.execute("DELETE FROM lakehouse.messages WHERE id <> ALL(%s)", ([m.id for m in after.outbox],))
        cursor.executemany(
            "INSERT INTO lakehouse.messages (id, target, number, message) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (id) DO UPDATE SET number = excluded.number",
            [(m.id, m.target, number, Jsonb(dict(m.body))) for number, m in enumerate(after.outbox)],
        )


def _json(alert: Alert) -> Jsonb:
    moments = {
        "since": alert.since.isoformat(),
        "gone_at": alert.gone_at.isoformat() if alert.gone_at else None,
        "absent": {part: at.isoformat() for part, at in alert.absent.items()},
    }
    return Jsonb(asdict(alert) | moments)


def _alert(stored: dict[str, Any]) -> Alert:
    gone_at, occasion = stored["gone_at"], Occasion(**stored["occasion"])
    return Alert(
        occasion=replace(occasion, parts=tuple(occasion.parts)),
        probe=stored["probe"],
        since=datetime.fromisoformat(stored["since"]),
        told=stored["told"],
        gone_at=datetime.fromisoformat(gone_at) if gone_at else None,
        told_worst=stored.get("told_worst", stored["told"] and occasion.severity == "error"),  # not in earlier releases
        told_parts=tuple(stored.get("told_parts", ())),
        absent={part: datetime.fromisoformat(at) for part, at in stored.get("absent", {}).items()},
    )
