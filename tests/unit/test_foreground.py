"""Children in the foreground: restarted when they end, and none left behind."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

PARENT = """
import sys
from pathlib import Path
from lakehouse_cli.machine.foreground import Command, keep_running

folder = Path(sys.argv[1])
keep_running(
    [
        Command("short", [sys.executable, "-c", "print('\\x1b[32mhello\\x1b[0m')"], folder / "short.log"),
        Command("long", [sys.executable, str(folder / "family.py")], folder / "long.log"),
    ],
    cwd=folder,
    env={"MARK": "set"},
)
print("ended", flush=True)
"""
# A server with a grandchild that does not care about being asked to end.
FAMILY = """
import os, subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
print("pids", os.getpid(), child.pid, os.environ["MARK"], flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_children_are_restarted_and_at_the_end_gone(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "family.py").write_text(FAMILY)
    log = tmp_path / "long.log"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    try:
        wait_for(lambda: log.exists() and "pids" in log.read_text())
        wait_for(lambda: (tmp_path / "short.log").read_text().count("hello") >= 2)
        pids = [int(word) for word in log.read_text().split()[1:3]]
        parent.send_signal(number)
        output, _ = parent.communicate(timeout=60)
    finally:
        parent.kill()
    assert not [pid for pid in pids if alive(pid)]
    assert parent.returncode == 0 and output.endswith("ended\n")
    assert "short     ended with status 0, restarts in 2 s" in output
    assert "\x1b" not in (tmp_path / "short.log").read_text()
    assert log.read_text().strip().endswith("set")


def alive(pid: int) -> bool:
    """A zombie is not: whoever adopted it has not looked yet."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_for(condition: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.1)


WAITING = """
import sys
from pathlib import Path
from lakehouse_cli.machine import foreground

folder = Path(sys.argv[1])
foreground.FIRST_WAIT = float(sys.argv[2])
asks = f"from pathlib import Path; print('there' if Path({str(folder / 'socket')!r}).exists() else 'missing')"
listens = f"import time; time.sleep(3); open({str(folder / 'socket')!r}, 'w').close(); time.sleep(600)"
foreground.keep_running(
    [
        foreground.Command("asks", [sys.executable, "-c", asks], folder / "asks.log", after=[folder / "socket"]),
        foreground.Command("listens", [sys.executable, "-c", listens], folder / "listens.log"),
    ],
    cwd=folder,
    env={},
)
"""


@pytest.mark.parametrize(("first_wait", "found"), [("60", "there"), ("0.5", "missing")])
def test_a_child_waits_for_what_it_asks_at_once_but_not_for_good(tmp_path: Path, first_wait: str, found: str) -> None:
    """Dagster's web server and daemon printed a page each for a code server that did not listen yet."""
    command = [sys.executable, "-c", WAITING, str(tmp_path), first_wait]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == f"asks      {found}\n"
        finally:
            parent.send_signal(signal.SIGTERM)
            parent.communicate(timeout=30)


DUE = """
import sys
from pathlib import Path
from lakehouse_cli.machine.foreground import Command, keep_running

folder = Path(sys.argv[1])

def due():
    mark = folder / "due"
    return mark.exists() and not mark.unlink()

keep_running([Command("once", [sys.executable, "-c", "print('here')"], folder / "once.log", due=due)], folder, {})
"""


def test_a_child_that_is_run_when_it_is_due_is_left_alone_when_it_has_ended(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", DUE, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        try:
            for _ in range(2):
                (tmp_path / "due").touch()
                wait_for(lambda: not (tmp_path / "due").exists())
                assert parent.stdout is not None and parent.stdout.readline() == "once      here\n"
            time.sleep(3)
            assert (tmp_path / "once.log").read_text() == "here\nhere\n"
        finally:
            parent.send_signal(signal.SIGTERM)
            output, _ = parent.communicate(timeout=30)
    assert output == ""


@pytest.mark.parametrize(
    ("environment", "has_colors"), [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({"NO_COLOR": "1"}, False)]
)
def test_names_have_colors_on_a_terminal_whose_user_wants_them(
    tmp_path: Path, environment: dict[str, str], has_colors: bool
) -> None:
    (tmp_path / "family.py").write_text("")
    ours, theirs = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | environment
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=theirs, env=variables)
    os.close(theirs)
    with os.fdopen(ours, "rb") as terminal:
        said = next(line for line in terminal if b"hello" in line)
        parent.send_signal(signal.SIGTERM)
        parent.wait(30)
    assert (b"\x1b[" in said) is has_colors


CHATTY = """
import sys
from pathlib import Path
from lakehouse_cli.machine.foreground import Command, keep_running

folder = Path(sys.argv[1])
says = "[print('x' * 99) for _ in range(10_000)]"
marks = f"from pathlib import Path; Path({str(folder / 'marker')!r}).touch()"
silent = "import time; time.sleep(600)"
keep_running([Command("chatty", [sys.executable, "-c", f"{says}; {marks}; {silent}"], folder / "full.log")], folder, {})
"""


def test_a_child_goes_on_while_the_disk_of_its_log_is_full(tmp_path: Path) -> None:
    """Nobody read its pipe any more, so that it hung in a message, even after there was room again."""
    (tmp_path / "full.log").symlink_to("/dev/full")
    with open("/dev/full", "w") as full:
        parent = subprocess.Popen(
            [sys.executable, "-c", CHATTY, str(tmp_path)], stdout=full, cwd=Path(__file__).parents[2]
        )
    try:
        wait_for(lambda: (tmp_path / "marker").exists(), seconds=20)
        assert parent.poll() is None
    finally:
        parent.send_signal(signal.SIGTERM)
        parent.wait(30)


NOISY = """
import sys
from pathlib import Path
from lakehouse_cli.machine.foreground import Command, keep_running

folder = Path(sys.argv[1])
says = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit('at its end')); print('here'); "
argv = [sys.executable, "-uc", says + "time.sleep(600)"]
keep_running(
    [Command("noisy", argv, folder / "noisy.log", ends_noisily=True), Command("plain", argv, folder / "plain.log")],
    folder, {}, before_end=lambda: print("first", (folder / "noisy.log").read_text(), flush=True),
)
"""


def test_what_a_noisy_child_says_at_the_end_is_in_its_log_alone(tmp_path: Path) -> None:
    """Ctrl-C during a run of Dagster printed the tracebacks of its interrupt."""
    with subprocess.Popen([sys.executable, "-c", NOISY, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        logs = [tmp_path / "noisy.log", tmp_path / "plain.log"]
        wait_for(lambda: all(log.exists() and log.read_text() for log in logs))
        parent.send_signal(signal.SIGINT)
        output, _ = parent.communicate(timeout=30)
    assert [log.read_text() for log in logs] == ["here\nat its end\n"] * 2
    assert sorted(output.splitlines()[:2]) == ["noisy     here", "plain     here"]
    assert output.splitlines()[2:] == ["first here", "", "plain     at its end"], "and it is asked to end after that"
