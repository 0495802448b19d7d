"""How many requests a client may send: a token bucket for each."""

from __future__ import annotations

from threading import Lock

from cachetools import LRUCache

CLIENTS = 10_000


class Limit:
    """At most `burst` requests at once and `per_second` in the long run, for each client."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(CLIENTS)
        self._lock = Lock()

    def admits(self, client: str, now: float) -> bool:
        """Counts a request; `now` is a monotonic time in seconds."""
        with self._lock:
            left, since = self._buckets.get(client, (self._burst, now))
            left = min(self._burst, left + (now - since) * self._per_second)
            admitted = left >= 1
            self._buckets[client] = (left - 1 if admitted else left, now)
            return admitted
