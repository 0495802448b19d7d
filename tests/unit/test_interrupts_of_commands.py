"""Ctrl-C ends a command in one line: while it imports, while it cleans up, and while the interpreter ends."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

PRESSED = """
import os, signal, sys

class Presses:
    def find_spec(self, name, *_):
        if name == {module!r}:
            sys.meta_path.remove(self)
            for _ in range({times}):
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                except KeyboardInterrupt as pressed:
                    first = pressed
            raise first

sys.meta_path.insert(0, Presses())
sys.argv[1:] = {arguments!r}
from lakehouse_cli.main import main
"""


def ended(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("module", ["typer", "lakehouse.settings", "lakehouse_stack.control.inspect"])
def test_ctrl_c_while_a_command_imports_is_one_line(module: str, times: int) -> None:
    """For its first second, every command answered Ctrl-C with a traceback out of an import."""
    done = ended(PRESSED.format(module=module, times=times, arguments=["status"]) + "main()")
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


WORK = """
import atexit, os, signal, time
from lakehouse_cli import commands, main

def press():
    os.kill(os.getpid(), signal.SIGINT)

def work():
    {work}

commands.run_command = work
main.main()
"""
CLEANS_UP = """
    try:
        press()
    finally:
        press()
        print("cleaned up")"""
STAYS = """
    main.CLEAN_UP_SECONDS = 0.1
    try:
        press()
    finally:
        time.sleep(0.2)
        press()
        print("cleaned up")"""
LEAVES = """
    class Last:
        def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
            kill(pid, number)
    global last
    last = Last()"""
ENDS_OTHERWISE = """
    try:
        press()
    finally:
        raise ValueError("half an answer of a server")"""


def test_more_of_them_do_not_disturb_the_clean_up_nor_the_end() -> None:
    done = ended(WORK.format(work=CLEANS_UP))
    assert (done.returncode, done.stdout, done.stderr) == (130, "cleaned up\n", "error: interrupted\n")
    for work in ("atexit.register(press)", LEAVES):
        done = ended(WORK.format(work=work))
        assert (done.returncode, done.stderr) == (0, "")


def test_a_later_one_ends_what_does_not_end_by_itself() -> None:
    done = ended(WORK.format(work=STAYS))
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "error: interrupted again before it had ended\n"


def test_an_error_that_the_interrupt_has_caused_is_not_shown() -> None:
    done = ended(WORK.format(work=ENDS_OTHERWISE))
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


WAITS = """
    import socket, threading
    from lakehouse.servers.spark import quiet_py4j
    from py4j.java_gateway import GatewayClient, GatewayParameters

    quiet_py4j()
    silent = socket.create_server(("127.0.0.1", 0))
    jvm = GatewayClient(gateway_parameters=GatewayParameters(port=silent.getsockname()[1]))
    threading.Timer(0.5, press).start()
    jvm.send_command("c\\n")"""


def test_an_interrupted_call_of_the_jvm_is_one_line() -> None:
    """Py4J logs the traceback of the call as an error."""
    done = ended(WORK.format(work=WAITS))
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


LEFT_BY_ITS_PEER = """
    import logging, socket, struct, threading
    from lakehouse.servers.spark import quiet_py4j
    from py4j.clientserver import JavaClient, JavaParameters, PythonParameters
    from py4j.java_gateway import GatewayProperty

    def leave(record):
        if record.msg.startswith("Send shutdown request"):
            peer, _ = server.accept()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
        return record.levelno > logging.INFO

    quiet_py4j()
    server = socket.create_server(("127.0.0.1", 0))
    calls = logging.getLogger("py4j.clientserver")
    calls.setLevel(logging.INFO)
    calls.addFilter(leave)
    threading.Timer(0.5, press).start()
    at = JavaParameters(port=server.getsockname()[1])
    JavaClient(at, PythonParameters(), GatewayProperty(False, None)).send_command("c\\n")"""


def test_an_interrupted_call_whose_connection_has_ended_is_one_line() -> None:
    """Py4J then logs that it could not close it."""
    done = ended(WORK.format(work=LEFT_BY_ITS_PEER))
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_in_the_background_ctrl_c_stays_ignored() -> None:
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + WORK.format(work="press()\n    print(1)")
    assert ended(code).stdout == "1\n"


REHASH = """
import subprocess, sys
from lakehouse_cli.lake import rehash
from lakehouse_cli.main import main

def rebuild(*_):
    with subprocess.Popen(["sleep", "60"]) as child:
        print(child.pid, flush=True)

rehash.rebuild_vault = rebuild
sys.argv[1:] = ["rehash"]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_rehash_that_is_ended_leaves_no_dbt_behind(number: signal.Signals) -> None:
    """It would go on building without the lock that loads wait for."""
    with subprocess.Popen([sys.executable, "-c", REHASH], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout and command.stderr
        child = psutil.Process(int(command.stdout.readline()))
        command.send_signal(number)
        assert command.wait(30) == 128 + number
        assert f"interrupted by {number.name}".encode() in command.stderr.read()
    assert not child.is_running()


KILLED = """
import sys
from lakehouse.declarations.dbt.manifest import rebuild
from lakehouse.settings import load_settings

rebuild(load_settings(), ["hub_customer"])
"""
DBT = """#!/bin/sh
echo $$ > {place}/pid.new && mv {place}/pid.new {place}/pid
exec sleep 60
"""


@pytest.mark.parametrize("ignored", [False, True])
def test_a_rehash_that_is_killed_leaves_no_dbt_behind(tmp_path: Path, ignored: bool) -> None:
    """It went on building for minutes, while loads had begun."""
    (tmp_path / "python").symlink_to(sys.executable)
    (tmp_path / "dbt").write_text(DBT.format(place=tmp_path))
    (tmp_path / "dbt").chmod(0o755)
    code = f"import signal, sys; sys.executable = {str(tmp_path / 'python')!r}\n"
    code += "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if ignored else ""
    with subprocess.Popen([sys.executable, "-c", code + KILLED]) as command:
        until(lambda: (tmp_path / "pid").exists())
        dbt = psutil.Process(int((tmp_path / "pid").read_text()))
        command.kill()
    until(lambda: not dbt.is_running() or dbt.status() == psutil.STATUS_ZOMBIE)


def until(is_so: Callable[[], bool]) -> None:
    """Waits for it."""
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.05)
    raise AssertionError("not within 30 seconds")
