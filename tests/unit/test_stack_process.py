"""Processes are identified by pid and start time, and stopped with all their children."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from lakehouse_stack.processes import process
from lakehouse_stack.processes.process import Launch

SLEEPER = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
)


def launch(folder, code: str = SLEEPER) -> Launch:
    return Launch(argv=(sys.executable, "-c", code), cwd=folder, log=folder / "server.log", env={})


@pytest.fixture
def started(tmp_path):
    handles = []

    def begin(code: str = SLEEPER):
        handles.append(process.start(launch(tmp_path, code), 1234, tmp_path / "server.json"))
        return handles[-1]

    yield begin
    for handle in handles:
        with suppress(psutil.NoSuchProcess):
            for child in handle.children(recursive=True):
                child.kill()
            handle.kill()


def until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_started_process_is_found_by_its_record(tmp_path, started):
    handle = started()
    record = process.read_record(tmp_path / "server.json")
    assert record is not None and record.port == 1234
    assert process.find(record) == handle


def test_a_pid_that_now_belongs_to_another_process_is_not_taken_for_ours(tmp_path, started):
    started()
    record = process.read_record(tmp_path / "server.json")
    assert process.find(dataclasses.replace(record, started="another boot:1")) is None
    boot, _, ticks = record.started.partition(":")
    assert process.find(dataclasses.replace(record, started=f"{boot}:{int(ticks) - 100}")) is None


def test_a_jvm_that_tidies_up_its_performance_data_works_where_it_was_started(tmp_path, monkeypatch):
    """It does so for milliseconds after its start; a server that was looked at then had "ended while starting"."""
    own, tidied, other = (tmp_path / name for name in ("data", "hsperfdata_daemon", "other"))
    for folder in (own, tidied, other):
        folder.mkdir()
    this = psutil.Process()
    for folder, is_elsewhere in ((own, False), (tidied, False), (other, True)):
        monkeypatch.chdir(folder)
        assert process.works_elsewhere(this, [own]) is is_elsewhere


@pytest.mark.parametrize("step", [-3600, -3, 3])
def test_a_clock_that_is_set_makes_no_other_process_of_a_server(tmp_path, started, monkeypatch, step):
    """`status` said down, and `up --keep` killed every server of the stack and started it again."""
    handle, booted = started(), psutil.boot_time()
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: booted + step)
    assert process.find(process.read_record(tmp_path / "server.json")).pid == handle.pid


def test_a_process_that_an_earlier_release_started_is_known_by_the_clock(tmp_path, started):
    handle, file = started(), tmp_path / "server.json"
    file.write_text(
        json.dumps({name: value for name, value in json.loads(file.read_text()).items() if name != "started"})
    )
    record = process.read_record(file)
    assert process.find(record) == handle
    assert process.find(dataclasses.replace(record, created=record.created - 3600)) is None


def test_a_killed_process_is_not_found_even_while_it_is_a_zombie(tmp_path, started):
    handle = started()
    handle.kill()
    until(lambda: process.find(process.read_record(tmp_path / "server.json")) is None)


@pytest.mark.parametrize("text", ["", "{}", '{"pid": 1}', "[1]"])
def test_a_damaged_pid_file_counts_as_not_running(tmp_path, text):
    (tmp_path / "server.json").write_text(text)
    assert process.find(process.read_record(tmp_path / "server.json")) is None


def test_stop_leaves_no_child(started):
    handle = started()
    until(lambda: handle.children())
    children = handle.children()
    process.stop([handle], signal.SIGTERM, 5)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


def test_a_process_that_ignores_the_signal_is_killed(tmp_path, started):
    handle = started(STUBBORN)
    until(lambda: "ready" in (tmp_path / "server.log").read_text())
    process.stop([handle], signal.SIGTERM, 0.3)
    assert process.find(process.read_record(tmp_path / "server.json")) is None


def test_orphans_are_found_by_working_directory_and_program(tmp_path):
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as orphan:
        try:
            assert [found.pid for found in process.working_in(tmp_path, "sleep")] == [orphan.pid]
            assert process.working_in(tmp_path, "postgres") == []
        finally:
            orphan.kill()


def test_the_fingerprint_changes_with_what_the_process_would_see(tmp_path):
    plain = launch(tmp_path)
    assert plain.fingerprint() == launch(tmp_path).fingerprint()
    for changed in ({"config": "port=2"}, {"env": {"PASSWORD": "new"}}, {"argv": ("java",)}):
        assert dataclasses.replace(plain, **changed).fingerprint() != plain.fingerprint()
