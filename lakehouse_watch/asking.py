"""Asks whoever may not answer, such as a server that is stopped or whose disk hangs, without hanging with it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, TypeVar

from lakehouse.errors import LakehouseError

T = TypeVar("T")
SECONDS = 60.0  # of all probes of a look together: a first one at a large lake takes some
LEAST = 5.0  # of a probe that others have left no more
SOON = 15.0  # in which the catalog's database answers, or is as good as down


class NoAnswer(LakehouseError):
    """It is still asked."""


@dataclass
class Asking:
    """What is asked at this moment, by name, each in a thread of its own."""

    _asked: dict[str, Future[Any]] = field(default_factory=dict)

    def ask(self, name: str, question: Callable[[], T], seconds: float) -> T:
        """The answer. Raises NoAnswer if there is none in time, and at once where one before is still waited for."""
        if name in self._asked and not self._asked[name].done():
            raise NoAnswer("it still does not answer")
        self._asked.pop(name, None)
        asked = self.begin(name, question)
        if not wait([asked], seconds).done:
            raise NoAnswer(f"it does not answer within {seconds:.0f} s")
        del self._asked[name]
        return asked.result()

    def begin(self, name: str, question: Callable[[], T]) -> Future[T]:
        """Asks, and waits for nothing; what is still being asked is not asked twice."""
        if name not in self._asked:
            self._asked[name] = Future()
            Thread(target=_answer, args=(self._asked[name], question), name=name, daemon=True).start()
        return self._asked[name]

    def late(self, name: str) -> Any:
        """The answer to what was begun, once; None while there is none."""
        if name in self._asked and self._asked[name].done():
            return self._asked.pop(name).result()
        return None


def _answer(asked: Future[T], question: Callable[[], T]) -> None:
    try:
        asked.set_result(question())
    except BaseException as error:  # whatever it is, who asks is to have it
        asked.set_exception(error)
