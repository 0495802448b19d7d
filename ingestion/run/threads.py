"""The threads of a follower, one per source, each with the source as it is declared and connected by now.

One whose declaration or connection changes is ended as if the follower was stopped, and begun anew; the others go on.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakehouse.declarations import Source
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings

log = logging.getLogger("lakehouse.follow")
LOOK_SECONDS = 1.0
Run = Callable[[Settings, Source, threading.Event], None]
Changed = Callable[[], tuple[Settings, Sequence[Source]] | None]
"""Settings and sources where they may be others than the last time, else None; raises LakehouseError for bad ones."""


@dataclass(frozen=True, eq=False)
class _Followed:
    source: Source
    settings: Settings

    def is_as(self, other: "_Followed") -> bool:
        name = self.source.name
        return self.source == other.source and self.settings.sources.get(name) == other.settings.sources.get(name)


@dataclass(frozen=True)
class _Running:
    followed: _Followed
    thread: threading.Thread
    stop: threading.Event


class Threads:
    """Runs `run` for each source that is wanted, until it is wanted otherwise or no more."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._wanted: dict[str, _Followed] = {}
        self._running: dict[str, _Running] = {}

    @property
    def names(self) -> list[str]:
        """The sources that are wanted."""
        return list(self._wanted)

    def want(self, settings: Settings, sources: Sequence[Source]) -> None:
        """These sources are to be followed from the next `tend` on."""
        former, wanted = self._wanted, {source.name: _Followed(source, settings) for source in sources}
        self._wanted = {
            name: former[name] if name in former and former[name].is_as(new) else new for name, new in wanted.items()
        }

    def tend(self) -> None:
        """Begins what is not followed, and asks what is declared otherwise by now to end; it is begun once it has."""
        wanted = self._wanted
        for name, running in list(self._running.items()):
            if not running.thread.is_alive():
                del self._running[name]
            elif wanted.get(name) is not running.followed and not running.stop.is_set():
                log.info("source %r: %s", name, "begins anew as it is declared now" if name in wanted else "ends")
                running.stop.set()
        for name, followed in wanted.items():
            if name not in self._running:
                self._running[name] = self._begin(name, followed)

    def _begin(self, name: str, followed: _Followed) -> _Running:
        stop = threading.Event()
        thread = threading.Thread(target=self._run, name=name, args=(followed.settings, followed.source, stop))
        thread.start()
        return _Running(followed, thread, stop)

    def end(self) -> None:
        """Asks all of them to end, and waits for it."""
        for running in self._running.values():
            running.stop.set()
        for running in self._running.values():
            running.thread.join()


def take_changes(changed: Changed, settings: Settings, threads: Threads, stop: threading.Event) -> None:
    """Has the threads follow what is declared and connected by now, until `stop` is set; other settings stay.

    For a thread of its own: to read declarations takes seconds.
    """
    while not stop.wait(LOOK_SECONDS):
        try:
            if (found := changed()) is not None:
                now, sources = found
                threads.want(settings.model_copy(update={"sources": now.sources}), sources)
        except LakehouseError as error:
            log.error("%s; goes on with what was declared before", error)
        except Exception:
            log.exception("unexpected error while declarations were read; goes on with what was declared before")
