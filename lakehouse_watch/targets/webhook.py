"""A webhook: JSON by POST. `text` is what Slack and its kind show; the other keys are for programs."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import Any

from lakehouse.errors import LakehouseError
from lakehouse.servers.outage import BROKEN_OFF
from lakehouse_watch.targets.refused import Refused
from lakehouse_watch.targets.text import full_text

SECONDS = 10.0
FINAL = (400, 413, 422)  # it does not take this message; other answers tell of the address, or of its state


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without a message."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def send(url: str, body: Mapping[str, Any]) -> None:
    """Posts the message; raises LakehouseError, which does not tell the URL: who has it may post."""
    data = json.dumps({"text": full_text(body), **body}).encode()
    try:
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")
        answer = urllib.request.build_opener(_NoRedirect).open(request, timeout=SECONDS)
        answer.close()  # what else it says may take long
    except (*BROKEN_OFF, ValueError) as error:  # also an answer other than 2xx, and an address that is none
        reason = getattr(error, "reason", None) or type(error).__name__
        status = f" {error.code}" if hasattr(error, "code") else ""
        kind = Refused if getattr(error, "code", 0) in FINAL else LakehouseError
        raise kind(f"the webhook did not take a message:{status} {reason}; check alerts.webhook") from None
