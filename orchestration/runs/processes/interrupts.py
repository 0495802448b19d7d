"""Ends a command on SIGINT, SIGTERM or SIGHUP at any time, and leaves no process behind.

The signal raises KeyboardInterrupt in the main thread. A second thread also receives it, regardless of handlers that
libraries install, and kills everything if the main thread takes too long to unwind.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import psutil

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 30.0  # for dbt to cancel its queries and Spark its jobs
SECOND_SIGNAL_SECONDS = 3.0  # after the second signal
CHILD_SECONDS = 10.0
BEFORE_EXIT_SECONDS = 10.0


def do_nothing() -> None:
    """The handler before any run has started."""


class Stop:
    """Whether a signal has arrived, and the handlers for it.

    `on_signal` is called at once. `before_exit` is called before the process ends and returns the status of the work.
    Each runs in its own thread.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.on_signal: Callable[[], None] = do_nothing
        self.before_exit: Callable[[], str] = str
        self._stderr = os.dup(2)  # the terminal, even while output is redirected
        self._heard = 0
        self._hurry = threading.Event()
        self._ending = threading.Lock()

    def is_set(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal is not None

    def listen(self, reader: socket.socket) -> None:
        """Receives each signal of the process as one byte."""
        while data := reader.recv(64):
            for number in data:
                if number in SIGNALS:
                    self._hear(number)

    def end(self) -> None:
        """Ends all children, calls `before_exit`, and exits without waiting for threads of libraries."""
        with self._ending:
            end_processes(psutil.Process().children(recursive=True))
            said: list[str] = []
            settling = threading.Thread(target=lambda: said.append(self.before_exit()), daemon=True)
            settling.start()
            settling.join(BEFORE_EXIT_SECONDS)
            number = self.signal or signal.SIGINT
            text = ": ".join([f"interrupted by {signal.Signals(number).name}", *filter(None, said)])
            with suppress(OSError):
                os.write(self._stderr, f"error: {text}\n".encode())
            os._exit(128 + number)

    def _hear(self, number: int) -> None:
        self.signal = self.signal or number
        self._heard += 1
        if self._heard == 1:
            threading.Thread(target=self.on_signal, daemon=True).start()
            threading.Thread(target=self._end_late, daemon=True).start()
        else:
            self._hurry.set()

    def _end_late(self) -> None:
        if self._hurry.wait(GRACE_SECONDS):
            time.sleep(SECOND_SIGNAL_SECONDS)
        self.end()


@contextmanager
def interruptible() -> Iterator[Stop]:
    """A signal within the block ends the process with status 130 (SIGINT), 143 (SIGTERM) or 129 (SIGHUP)."""
    stop = Stop()
    # nohup and background jobs ignore some signals
    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _raise_once(stop)) for number in heeded}
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=stop.listen, args=(reader,), daemon=True).start()
    try:
        yield stop
    finally:
        if stop.is_set():
            for number in heeded:
                signal.signal(number, lambda number, frame: None)
            stop.end()
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        writer.close()


def _raise_once(stop: Stop) -> Callable[[int, FrameType | None], None]:
    raised = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.signal = stop.signal or number
        if not raised.is_set():  # a second exception would interrupt the clean-up after the first
            raised.set()
            raise KeyboardInterrupt

    return handle


def end_processes(processes: list[psutil.Process], seconds: float = CHILD_SECONDS) -> None:
    """Interrupts the processes so that they can clean up, and kills those that remain."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # Spark's JVM ignores SIGINT
            process.send_signal(signal.SIGTERM if process.name() == "java" else signal.SIGINT)
    _, remaining = psutil.wait_procs(processes, timeout=seconds)
    for process in remaining:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(remaining, timeout=seconds)
