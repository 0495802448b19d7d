"""What a server of the stack is, for `lakehouse_stack.control` to start, watch and stop."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lakehouse_stack.process import Launch


@dataclass(frozen=True)
class Server:
    """One server: how it is started, how one knows that it answers, what is done before and after."""

    name: str
    port: int
    launch: Launch
    trouble: Callable[[], str | None]  # why a client would not be served now; None when it would. Cheap
    prepare: Callable[[], None]  # writes its files, before every start
    follow_up: Callable[[], None]  # completes its set-up once it answers; may run again at any time
    works_in: Path  # working directory and program of its processes: finds those that survive a killed parent
    program: str
