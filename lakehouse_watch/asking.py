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
        asked: Future[T] = Future()
        self._asked[name] = asked
        Thread(target=_answer, args=(asked, question), name=name, daemon=True).start()
        if not wait([asked], seconds).done:
            raise NoAnswer(f"it does not answer within {seconds:.0f} s")
        del self._asked[name]
        return asked.result()


def _answer(asked: Future[T], question: Callable[[], T]) -> None:
    try:
        asked.set_result(question())
    except BaseException as error:  # whatever it is, who asks is to have it
        asked.set_exception(error)
