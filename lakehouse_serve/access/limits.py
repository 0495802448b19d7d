"""How many requests, or wrong passwords, a client may send: a token bucket for each."""

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
        """Whether it may send one more, which is counted; `now` is a monotonic time in seconds."""
        with self._lock:
            left = self._left(client, now)
            self._buckets[client] = (left - 1 if left >= 1 else left, now)
            return left >= 1

    def has_room(self, client: str, now: float) -> bool:
        """The same, without counting."""
        with self._lock:
            return self._left(client, now) >= 1

    def _left(self, client: str, now: float) -> float:
        left, since = self._buckets.get(client, (self._burst, now))
        return min(self._burst, left + (now - since) * self._per_second)
