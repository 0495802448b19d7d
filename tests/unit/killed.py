"""Kills a command before each of its effects in turn: a file that it changes, a program that it starts, a statement."""

import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

READS = re.compile(r"(?!.*pg_drop_replication_slot)\s*(SELECT|SHOW|SET|BEGIN)\b", re.IGNORECASE | re.DOTALL)
FILES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink"}


def kills(run: Callable[[], object], within: Path) -> Iterator[int]:
    """Kills `run`, in a child process, before its first effect, before its second, and so on, and yields after each
    kill how many effects it had; ends once it has run to its end. Of files only those below `within` count."""
    number = 0
    while _is_killed(run, within, number):
        yield number
        number += 1


def _is_killed(run: Callable[[], object], within: Path, before: int) -> bool:
    child = os.fork()
    if child == 0:
        try:
            _count(within, before)
            run()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), "it failed: see what it has printed"
    return status == signal.SIGKILL


def _count(within: Path, before: int) -> None:
    """From now on this process is killed before its effect of that number."""
    left, lock = [before], threading.Lock()

    def effect() -> None:
        with lock:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    def audited(event: str, given: tuple[Any, ...]) -> None:
        is_write = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)
        if event == "subprocess.Popen" or ((is_write or event in FILES) and _is_below(given, within)):
            effect()

    execute = psycopg.Cursor.execute

    def counted(cursor: Any, query: Any, *given: Any, **named: Any) -> Any:
        if not READS.match(str(query)):
            effect()
        return execute(cursor, query, *given, **named)

    psycopg.Cursor.execute = counted  # type: ignore[method-assign]
    sys.addaudithook(audited)


def _is_below(given: tuple[Any, ...], within: Path) -> bool:
    """A path that is relative to an open folder is one of a tree that is deleted."""
    path = given[0]
    return isinstance(path, (str, os.PathLike)) and (not os.path.isabs(path) or Path(path).is_relative_to(within))
