"""Who read what is written down, whoever else reads at the same moment."""

import json
import resource
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from lakehouse_serve import access_log
from lakehouse_serve.access_log import AccessLog


def asked(address: str = "10.0.0.1", **path: str) -> Request:
    return Request({"type": "http", "client": (address, 1), "path_params": path, "headers": []})


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient")
def test_no_line_is_lost_where_files_rotate_while_many_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "FILE_BYTES", 2000)
    monkeypatch.setattr(access_log, "FILES", 200)
    log = AccessLog(tmp_path / "serve-access.log", "lake")

    def read(thread: int) -> None:
        for number in range(100):
            log.write("table", "ann", asked(table=f"t{thread}_{number}"), 200)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(read, range(8)))
    log.close()
    names = [line["name"] for file in tmp_path.iterdir() for line in lines(file)]
    assert sorted(names) == sorted(f"t{t}_{n}" for t in range(8) for n in range(100))


def test_strangers_do_not_have_the_lines_go_that_say_who_has_read_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some 2,000 requests without a login, each with a path of 64 KB, and no line of a reader was left."""
    monkeypatch.setattr(access_log, "FILE_BYTES", 20_000)
    log = AccessLog(tmp_path / "serve-access.log", "lake")
    log.write("table", "ann", asked(table="stores"), 200)
    for number in range(2000):
        log.write("object", None, asked(f"10.0.0.{number % 3}", key="\ufffd" * 64_000), 403, aside=True)
    assert [line["name"] for line in lines(tmp_path / "serve-access.log")] == ["stores"]
    written = lines(tmp_path / "serve-access-refused.log")
    assert {len(line["name"]) for line in written} == {301}
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 60_000
    log.close()
    told = {line["address"]: line["count"] for line in lines(tmp_path / "serve-access-refused.log") if "count" in line}
    assert set(told) == {"10.0.0.0", "10.0.0.1", "10.0.0.2"} and 1900 < sum(told.values()) < 2000


def test_what_was_only_counted_is_told_within_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, now = AccessLog(tmp_path / "log", "lake"), access_log.time.monotonic()
    for number in range(5000):
        log.write("login", "ann", asked(f"10.{number // 250}.0.{number % 250}"), 401, aside=True)
    for _ in range(30):
        log.write("login", "ann", asked(), 401, aside=True)
    monkeypatch.setattr(access_log.time, "monotonic", lambda: now + 61)
    log.write("table", "ann", asked(table="stores"), 200)
    counted = [line for line in lines(tmp_path / "log-refused") if line["what"] == "more refusals"]
    assert [(line["address"], line["count"]) for line in counted] == [("10.0.0.1", 11)]


def test_a_line_that_cannot_be_written_is_an_error_and_leaves_no_part_of_it(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "log", "lake")
    log.write("table", "ann", asked(table="a"), 200)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "log").stat().st_size + 20, before[1]))
        with pytest.raises(OSError):
            log.write("table", "ann", asked(table="b"), 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    log.write("table", "ann", asked(table="c"), 200)
    assert [line["name"] for line in lines(tmp_path / "log")] == ["a", "c"]


def test_a_file_that_somebody_took_away_is_made_again_for_its_owner_alone(tmp_path: Path) -> None:
    """Lines went on into the file that had no name any more."""
    log = AccessLog(tmp_path / "log", "lake")
    log.write("table", "ann", asked(table="a"), 200)
    (tmp_path / "log").unlink()
    log.write("table", "ann", asked(table="b"), 200)
    assert [line["name"] for line in lines(tmp_path / "log")] == ["b"]
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
