"""Entry point of the `lakehouse` command: Ctrl-C ends it in one line at any moment, its imports included."""

import atexit
import os
import signal
import sys
import time
from types import FrameType

CLEAN_UP_SECONDS = 3.0
STATUS = 128 + signal.SIGINT


class Interrupts:
    """The first Ctrl-C unwinds the command, and those of the next seconds do not disturb that; a later one ends it."""

    def __init__(self) -> None:
        self.first: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGINT."""
        if self.first is None:
            self.first = time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() - self.first > CLEAN_UP_SECONDS:
            os.write(2, b"error: interrupted again before it had ended\n")
            os._exit(STATUS)


def main() -> None:
    """Runs the command line; exits 1 after an error, and 130 after Ctrl-C."""
    interrupts = Interrupts()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup and background jobs ignore it
        signal.signal(signal.SIGINT, interrupts)
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # Python restores its default at its end
    try:
        from lakehouse_cli.commands import run_command

        run_command()
    except BaseException as error:
        if interrupts.first is not None:  # whatever the unwinding has made of it
            os.write(2, b"error: interrupted\n")
            sys.exit(STATUS)
        if not isinstance(error, Exception):
            raise
        from lakehouse_cli.commands import complain

        complain(error)
        sys.exit(1)
    finally:
        interrupts.first = interrupts.first or time.monotonic()  # the interpreter's end is not disturbed either


if __name__ == "__main__":
    main()
