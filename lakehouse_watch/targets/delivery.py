"""Delivers messages: in order per target, again until it takes them, in growing intervals while it does not.

A message that a target refuses for good, as a filter of mail does, is set aside once the target takes a later one: what
is wrong is the message then, and neither an outage nor the settings. It holds up no other, and an alert says so.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lakehouse.errors import LakehouseError
from lakehouse.metrics import REGISTRY
from lakehouse.settings import AlertSettings
from lakehouse_watch.alerts import Message, Occasion
from lakehouse_watch.targets import mail, webhook
from lakehouse_watch.targets.refused import Refused

log = logging.getLogger("lakehouse.watch")
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0
TRIES = 3  # of a message that is refused, before a later one is tried in its place
KIND = "undelivered"
TOLD_SECONDS = 3600.0  # for which it is told that a message was not taken
Send = Callable[[Mapping[str, Any]], Sequence[str] | None]
"""It returns who of several did not get the message, and why."""


@dataclass
class Delivery:
    """The targets by name, and when each is tried again after it took nothing."""

    targets: Mapping[str, Send]
    _pauses: dict[str, tuple[float, float]] = field(default_factory=dict)  # its length, and its end
    _refusals: Counter[str] = field(default_factory=Counter)  # by message
    _lost: dict[tuple[str, str], float] = field(default_factory=dict)  # by target and what is told, since when

    def deliver(self, outbox: tuple[Message, ...], now: float) -> tuple[Message, ...]:
        """Sends what is due; returns what no target has taken. Messages of targets that are gone are dropped."""
        left: dict[str, Message] = {}
        waiting = {name for name, (_, until) in self._pauses.items() if now < until}
        failed = set[str]()
        passed: dict[str, list[Message]] = {}  # by target, those that it refuses, and that may be all there is to it
        for message in outbox:
            target = message.target
            if target not in self.targets:
                continue
            if target in waiting:  # what comes after it waits too: the end must not precede the beginning
                left[message.id] = message
                continue
            error = self._error(message, now)
            if error is None:
                for refused in passed.pop(target, []):
                    self._set_aside(left.pop(refused.id), now)
                failed.discard(target)
                continue
            failed.add(target)
            left[message.id] = message
            if self._refusals[message.id] >= TRIES:
                passed.setdefault(target, []).append(message)
            else:
                waiting.add(target)
        for target in self.targets.keys() & failed:
            self._pause(target, now)
        self._refusals = Counter({number: count for number, count in self._refusals.items() if number in left})
        return tuple(left.values())

    def refused(self, now: float) -> list[Occasion]:
        """What was not taken within the last hour, by target."""
        self._lost = {lost: at for lost, at in self._lost.items() if now - at < TOLD_SECONDS}
        return [
            Occasion(
                f"{KIND}/{target}", f"{target} did not take a message: {'; '.join(mine[:3])}",
                "see what needs attention at the page `/lake`, and correct the target", ends=False, parts=tuple(mine),
            )
            for target in sorted({target for target, _ in self._lost})
            for mine in [[what for name, what in self._lost if name == target]]
        ]  # fmt: skip

    def _error(self, message: Message, now: float) -> LakehouseError | None:
        target = message.target
        try:
            for lost in self.targets[target](message.body) or ():
                if message.body.get("kind") != KIND:  # it would tell of itself without end
                    self._lose(target, lost, now)
        except LakehouseError as error:
            log.warning("%s", error)
            self._refusals[message.id] += isinstance(error, Refused)
            return error
        self._pauses.pop(target, None)
        return None

    def _pause(self, target: str, now: float) -> None:
        before, _ = self._pauses.get(target, (FIRST_PAUSE / 2, 0.0))
        pause = min(before * 2, LONGEST_PAUSE)
        self._pauses[target] = pause, now + pause
        log.warning("%s: next try in %.0f s", target, pause)

    def _set_aside(self, message: Message, now: float) -> None:
        self._lose(message.target, f"{message.body['key']} ({message.body['state']}) was refused", now)

    def _lose(self, target: str, what: str, now: float) -> None:
        log.error("%s has not got a message: %s", target, what)
        REGISTRY.add("lakehouse_refused_messages_total", target=target)
        self._lost.setdefault((target, what), now)


def declared_targets(alerts: AlertSettings) -> dict[str, Send]:
    """The targets of the settings."""
    targets: dict[str, Send] = {}
    if alerts.webhook is not None:
        targets["webhook"] = partial(webhook.send, alerts.webhook.get_secret_value())
    if alerts.mail is not None:
        targets["mail"] = partial(mail.send, alerts.mail)
    return targets
