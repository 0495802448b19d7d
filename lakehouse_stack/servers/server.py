"""A server of the stack, as `lakehouse_stack.control.start_stop` starts, checks and stops it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lakehouse_stack.processes.process import Launch


@dataclass(frozen=True)
class Server:
    """One server: how to start it, check its health, and prepare and complete its set-up."""

    name: str
    port: int
    launch: Launch
    check_health: Callable[[], str | None]  # why the server is not healthy; None if it is. Cheap
    prepare: Callable[[], None]  # writes its files before each start
    after_start: Callable[[], None]  # completes the set-up of a healthy server; idempotent
    working_dir: Path  # with `program`, identifies orphans of a killed server
    program: str
