"""Who read what is written down, whoever else reads at the same moment."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.requests import Request

from lakehouse_serve import access_log
from lakehouse_serve.access_log import AccessLog


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
            name = {"table": f"t{thread}_{number}"}
            log.write("table", "ann", Request({"type": "http", "path_params": name, "headers": []}), 200)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(read, range(8)))
    log.close()
    lines = [line for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert sorted(json.loads(line)["name"] for line in lines) == sorted(
        f"t{t}_{n}" for t in range(8) for n in range(100)
    )
