"""A command ends on SIGINT, SIGTERM and SIGHUP at any moment, and leaves no process behind.

The main thread is asked to unwind. A thread of its own hears the signal as well, whatever handler a library has
installed and whatever the main thread is busy with, and ends everything when unwinding takes too long.
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
PATIENCE = 30.0  # dbt takes its queries back, Spark ends its jobs
HURRY = 3.0  # after the second signal
CHILD_SECONDS = 10.0
SETTLE_SECONDS = 10.0


def nothing() -> None:
    """What there is to do before any work has begun."""


class Stop:
    """Whether a signal has come, and what to do then.

    `asked` is called as soon as one comes, `settle` before the process ends and says what became of the work. Both run
    on threads of their own.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.asked: Callable[[], None] = nothing
        self.settle: Callable[[], str] = str
        self._stderr = os.dup(2)  # the terminal, wherever output is sent meanwhile
        self._heard = 0
        self._hurry = threading.Event()
        self._ending = threading.Lock()

    def is_set(self) -> bool:
        """Whether a signal has come."""
        return self.signal is not None

    def listen(self, reader: socket.socket) -> None:
        """Hears every signal of the process, as a byte each."""
        while data := reader.recv(64):
            for number in data:
                if number in SIGNALS:
                    self._hear(number)

    def end(self) -> None:
        """Ends all children, settles, and ends the process: threads that libraries have left do not hold it up."""
        with self._ending:
            end_family(psutil.Process().children(recursive=True))
            said: list[str] = []
            settling = threading.Thread(target=lambda: said.append(self.settle()), daemon=True)
            settling.start()
            settling.join(SETTLE_SECONDS)
            number = self.signal or signal.SIGINT
            text = ": ".join([f"interrupted by {signal.Signals(number).name}", *filter(None, said)])
            with suppress(OSError):
                os.write(self._stderr, f"error: {text}\n".encode())
            os._exit(128 + number)

    def _hear(self, number: int) -> None:
        self.signal = self.signal or number
        self._heard += 1
        if self._heard == 1:
            threading.Thread(target=self.asked, daemon=True).start()
            threading.Thread(target=self._end_late, daemon=True).start()
        else:
            self._hurry.set()

    def _end_late(self) -> None:
        if self._hurry.wait(PATIENCE):
            time.sleep(HURRY)
        self.end()


@contextmanager
def interruptible() -> Iterator[Stop]:
    """A signal within the block ends the process: with status 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP."""
    stop = Stop()
    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup, or a job in `&`
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
        if not raised.is_set():  # a second exception would interrupt what the first one has begun to clean up
            raised.set()
            raise KeyboardInterrupt

    return handle


def end_family(family: list[psutil.Process], seconds: float = CHILD_SECONDS) -> None:
    """Interrupts the processes, so that they take back what they have begun; what stays after that is killed."""
    for process in family:
        with suppress(psutil.NoSuchProcess):  # a JVM of Spark's is deaf to SIGINT
            process.send_signal(signal.SIGTERM if process.name() == "java" else signal.SIGINT)
    _, stubborn = psutil.wait_procs(family, timeout=seconds)
    for process in stubborn:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stubborn, timeout=seconds)
