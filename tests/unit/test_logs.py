"""Logs are bounded while who writes them lives, and what writes them notices nothing."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import yaml

from lakehouse.files import logs
from lakehouse.files.logs import LOG_COPIES, forget_outputs, keep_bounded, rotate
from lakehouse_cli.machine import foreground, stack

LIMIT = 10_000
ROOT = Path(__file__).parents[2]


def test_a_log_past_the_limit_is_rotated_in_place_and_the_oldest_copy_dropped(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("a") as writer:
        for generation in range(5):
            writer.write(f"generation {generation}")
            writer.flush()
            rotate(log, limit=5, copies=2)
        writer.write("still the same file")
    assert log.read_text() == "still the same file"
    assert (tmp_path / "server.log.1").read_text() == "generation 4"
    assert (tmp_path / "server.log.2").read_text() == "generation 3"
    assert not (tmp_path / "server.log.3").exists()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of LIMIT bytes."""
    assert rotate.__defaults__ is not None
    monkeypatch.setattr(rotate, "__defaults__", (LIMIT, LOG_COPIES))
    monkeypatch.setattr(logs, "LOG_BYTES", LIMIT)


def size(log: Path) -> int:
    """Of a log with its copies."""
    return sum(file.stat().st_size for file in log.parent.glob(f"{log.name}*"))


class Enough(Exception):
    """The keeper has looked often enough."""


def test_the_keeper_rotates_the_logs_of_servers_that_live(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a start and an explicit `up` did: the log of a Trino that runs for months filled the disk."""
    log = tmp_path / "logs" / "trino.log"
    log.parent.mkdir()
    writes = (
        "import sys\nfor line in sys.stdin: print('x' * 2_000, flush=True); print('.', file=sys.stderr, flush=True)"
    )
    with log.open("ab") as out:
        server = subprocess.Popen(
            [sys.executable, "-c", writes], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE, text=True
        )
    looks = iter(range(200))

    def next_look(seconds: float) -> None:
        if next(looks, None) is None:
            raise Enough
        assert server.stdin is not None and server.stderr is not None
        server.stdin.write("\n")
        server.stdin.flush()
        server.stderr.readline()
        assert size(log) <= (LOG_COPIES + 1) * LIMIT + 2_001

    monkeypatch.setattr(stack, "load_settings", lambda: SimpleNamespace(home=tmp_path))
    monkeypatch.setattr("lakehouse_stack.control.start_stop.ended", lambda settings: [])
    monkeypatch.setattr(stack, "time", SimpleNamespace(sleep=next_look))
    with server, pytest.raises(Enough):
        stack.up(keep=True, also=None)
    assert len(list(log.parent.iterdir())) == LOG_COPIES + 1
    assert {file.stat().st_mode & 0o777 for file in log.parent.glob("*.log.*")} == {0o600}


def test_what_lakehouse_dev_writes_of_its_children_is_bounded(small: None, tmp_path: Path) -> None:
    log = tmp_path / "ingest.log"
    child = foreground._Child(foreground.Command("ingest", [], log, ends_noisily=True), "36")
    child.stop.set()  # it is not printed
    lines = (b"y" * 999 + b"\n" for _ in range(500))
    foreground._copy(child, lines)  # type: ignore[arg-type]
    assert 2 * LIMIT < size(log) <= (LOG_COPIES + 1) * (LIMIT + 1_000)


def test_a_log_of_spark_is_bounded_for_as_long_as_its_session_lives(small: None, tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    looks = iter(range(50))

    def next_look(seconds: float) -> None:
        with log.open("a") as out:
            out.write("z" * 3_000)
        if next(looks, None) is None:
            sys.exit()  # of this thread

    keep_bounded(log, next_look).join(10)
    assert 2 * LIMIT < size(log) <= (LOG_COPIES + 1) * (LIMIT + 3_000)


def test_of_a_log_that_had_grown_for_long_the_end_is_kept(small: None, tmp_path: Path) -> None:
    log = tmp_path / "trino.log"
    log.write_text("a" * 9 * LIMIT + "the end")
    rotate(log)
    assert size(log) == 2 * LIMIT and (tmp_path / "trino.log.1").read_text().endswith("the end")


def test_two_who_rotate_a_log_at_once_make_one_copy(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper and `lakehouse dev` look at the same logs; a second copy would be empty, and a real one go for it."""
    log = tmp_path / "ingest.log"
    log.write_text("b" * LIMIT)
    copy = logs.shutil.copyfileobj

    def copied(source: object, to: object) -> None:
        rotate(log)
        copy(source, to)  # type: ignore[arg-type]

    monkeypatch.setattr(logs.shutil, "copyfileobj", copied)
    rotate(log)
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["ingest.log", "ingest.log.1"]


def test_a_disk_that_is_full_ends_neither_keeper_nor_log(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "trino.log"
    log.write_text("c" * LIMIT)

    def full(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(logs.shutil, "copyfileobj", full)
    logs.rotate_all(tmp_path)
    assert log.read_text() == "c" * LIMIT


def test_what_steps_have_printed_goes_after_its_time(tmp_path: Path) -> None:
    old, young = tmp_path / "run-1" / "compute_logs" / "a.out", tmp_path / "run-2" / "compute_logs" / "b.out"
    for file in (old, young):
        file.parent.mkdir(parents=True)
        file.write_text("said")
    aged = time.time() - 31 * 86_400
    for path in (old, old.parent, old.parent.parent, young.parent.parent):
        os.utime(path, (aged, aged))
    forget_outputs(tmp_path)
    forget_outputs(tmp_path)
    assert young.exists() and not old.exists()
    forget_outputs(tmp_path / "none")


def test_the_log_of_each_container_is_bounded() -> None:
    services = yaml.safe_load((ROOT / "docker" / "docker-compose.yml").read_text())["services"]
    assert services and not [
        name for name, service in services.items() if "max-size" not in str(service.get("logging"))
    ]
