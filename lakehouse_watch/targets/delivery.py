"""Delivers messages: in order per target, again until it takes them, in growing intervals while it does not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lakehouse.errors import LakehouseError
from lakehouse.settings import AlertSettings
from lakehouse_watch.alerts import Message
from lakehouse_watch.targets import mail, webhook

log = logging.getLogger("lakehouse.watch")
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0
Send = Callable[[Mapping[str, Any]], None]


@dataclass
class Delivery:
    """The targets by name, and when each is tried again after it took nothing."""

    targets: Mapping[str, Send]
    _pauses: dict[str, tuple[float, float]] = field(default_factory=dict)  # its length, and its end

    def deliver(self, outbox: tuple[Message, ...], now: float) -> tuple[Message, ...]:
        """Sends what is due; returns what no target has taken. Messages of targets that are gone are dropped."""
        left: list[Message] = []
        refused = {name for name, (_, until) in self._pauses.items() if now < until}
        for message in outbox:
            if message.target not in self.targets:
                continue
            if message.target in refused or not self._taken(message, now):
                refused.add(message.target)  # what comes after it waits too: the end must not precede the beginning
                left.append(message)
        return tuple(left)

    def _taken(self, message: Message, now: float) -> bool:
        try:
            self.targets[message.target](message.body)
        except LakehouseError as error:
            before, _ = self._pauses.get(message.target, (FIRST_PAUSE / 2, 0.0))
            pause = min(before * 2, LONGEST_PAUSE)
            self._pauses[message.target] = pause, now + pause
            log.warning("%s; next try in %.0f s", error, pause)
            return False
        self._pauses.pop(message.target, None)
        return True


def declared_targets(alerts: AlertSettings) -> dict[str, Send]:
    """The targets of the settings."""
    targets: dict[str, Send] = {}
    if alerts.webhook is not None:
        targets["webhook"] = partial(webhook.send, alerts.webhook.get_secret_value())
    if alerts.mail is not None:
        targets["mail"] = partial(mail.send, alerts.mail)
    return targets
