"""Which alerts are open and what has to be told: one message when an alert begins, one if a warning becomes an error or
more comes under it, and one when it is over. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

Severity = Literal["warning", "error"]
CALM = timedelta(seconds=30)
"""An alert is over if it was absent for so long: what comes and goes is told once."""
MENDED = timedelta(hours=3)
"""What was told under an alert that stays open is told again if it was absent for so long. A load that fails is tried
again once an hour at the latest, and may fail otherwise each time."""
ERROR = ""  # among what was told: that the alert is an error


@dataclass(frozen=True)
class Occasion:
    """Something that needs attention. `key` is `<kind>/<subject>` and stays the same until it is over.

    It is told once it has lasted for `patience` seconds. The end of one that does not `ends` is not told. `parts` are
    what has failed under it, such as the checks of a table: what fails at once comes in one message, and what comes
    under it later in another.
    """

    key: str
    summary: str
    to_do: str
    severity: Severity = "error"
    source: str | None = None
    patience: float = 0.0
    ends: bool = True
    parts: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What it is about, such as `parked`."""
        return self.key.partition("/")[0]


@dataclass(frozen=True)
class Alert:
    """An occasion since it was first seen; `probe` found it, `gone_at` is when it was missing first.

    `told_worst` is whether it was told as an error: it may go to and fro between that and a warning. `told_parts` are
    those that were told; none where an earlier release has told it. `absent` is since when some of them, or the error
    (`ERROR`), are not there; after `MENDED` they count as never told.
    """

    occasion: Occasion
    probe: str
    since: datetime
    told: bool = False
    gone_at: datetime | None = None
    told_worst: bool = False
    told_parts: tuple[str, ...] = ()
    absent: Mapping[str, datetime] = field(default_factory=dict)

    def is_more_than(self, before: Alert) -> bool:
        """Whether parts have come that were not told of it before."""
        return bool(before.told_parts and set(self.told_parts) - set(before.told_parts))


@dataclass(frozen=True)
class Message:
    """What one target is told."""

    id: str
    target: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class State:
    """The open alerts by key, and the messages that wait, oldest first."""

    alerts: Mapping[str, Alert] = field(default_factory=dict)
    outbox: tuple[Message, ...] = ()


def advance(
    state: State,
    found: Mapping[str, Iterable[Occasion] | None],
    targets: Collection[str],
    now: datetime,
    unknown: tuple[str, ...] = (),
) -> State:
    """The state after a look. `found` is by probe; None if it could not tell, which changes nothing of its alerts. Nor
    does a look change those of `unknown`, of which it could not tell: keys, of which each stands for those of its parts
    too, or kinds, which end in a slash.
    """
    seen = {occasion.key: (probe, occasion) for probe, occasions in found.items() for occasion in occasions or ()}
    alerts: dict[str, Alert] = {}
    messages: list[Message] = []
    for key in {**state.alerts, **seen}:
        before = state.alerts.get(key)
        is_left = before is not None and _is_of(key, unknown)
        after = _seen(before, *seen[key], now) if key in seen else before if is_left else _missed(before, found, now)
        if after is not None:
            alerts[key] = after
        messages += _news(before, after, targets, now, found)
    return State(alerts, (*state.outbox, *messages))


def _is_of(key: str, unknown: Collection[str]) -> bool:
    return any(key == of or key.startswith(of if of.endswith("/") else f"{of}.") for of in unknown)


def _seen(before: Alert | None, probe: str, occasion: Occasion, now: datetime) -> Alert:
    since = now if before is None else before.since if before.told else min(before.since, now)  # a clock is set back
    told = (before is not None and before.told) or now - since >= timedelta(seconds=occasion.patience)
    if not told:
        return Alert(occasion, probe, since)
    there = {*occasion.parts, *([ERROR] if occasion.severity == "error" else [])}
    absent = _absent(before, there, now) if before is not None else {}
    known = there | absent.keys()
    return Alert(
        occasion, probe, since, told=True, told_worst=ERROR in known, told_parts=tuple(sorted(known - {ERROR})),
        absent=absent,
    )  # fmt: skip


def _absent(before: Alert, there: Collection[str], now: datetime) -> dict[str, datetime]:
    """What was told and is not there, with since when; without what was mended long ago."""
    told = {*before.told_parts, *([ERROR] if before.told_worst else [])}
    since = {part: min(before.absent.get(part, now), now) for part in told.difference(there)}
    return {part: at for part, at in since.items() if now - at < MENDED}


def _missed(before: Alert | None, found: Mapping[str, Iterable[Occasion] | None], now: datetime) -> Alert | None:
    """The alert while it may come back; None when it is over. A probe that is no longer there has nothing to tell."""
    if before is None or (before.probe in found and found[before.probe] is None):
        return before
    if not before.told:
        return None
    gone_at = min(before.gone_at or now, now)
    return None if now - gone_at >= CALM else replace(before, gone_at=gone_at)


def _news(
    before: Alert | None, after: Alert | None, targets: Collection[str], now: datetime, probes: Collection[str]
) -> list[Message]:
    if after is not None and after.told and not (before and before.told):
        return _messages(after, "began", targets, now)
    if after is not None and before is not None and after.told_worst > before.told_worst:
        return _messages(after, "began", targets, now, f"worse-{now.isoformat()}")
    if after is not None and before is not None and after.is_more_than(before):
        return _messages(after, "began", targets, now, f"more-{now.isoformat()}")
    if after is None and before is not None and before.told and before.occasion.ends:
        is_watched = before.probe in probes  # else nobody knows whether it is mended
        return _messages(before if is_watched else _unwatched(before), "over", targets, now)
    return []


def _unwatched(alert: Alert) -> Alert:
    return replace(alert, occasion=replace(alert.occasion, summary=f"not watched any more: {alert.occasion.summary}"))


def _messages(
    alert: Alert, state: Literal["began", "over"], targets: Collection[str], now: datetime, what: str = ""
) -> list[Message]:
    occasion = alert.occasion
    identity = f"{occasion.key}@{alert.since.isoformat()}/{what or state}"
    body = {
        "id": identity,
        "state": state,
        "severity": occasion.severity,
        "kind": occasion.kind,
        "key": occasion.key,
        "source": occasion.source,
        "summary": occasion.summary,
        "to_do": "" if state == "over" else occasion.to_do,
        "since": alert.since.isoformat(),
        "at": now.isoformat(),
    }
    return [Message(f"{identity}/{target}", target, body) for target in sorted(targets)]
