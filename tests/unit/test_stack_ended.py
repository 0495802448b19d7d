"""Which servers `lakehouse up --keep` starts again."""

import sys
from pathlib import Path

from lakehouse.settings import load_settings
from lakehouse_stack.control.start_stop import ended
from lakehouse_stack.home.pathnames import pid_file
from lakehouse_stack.processes.process import Launch, start


def test_a_server_that_was_killed_is_started_again_and_one_that_was_stopped_is_not(tmp_path: Path) -> None:
    """`lakehouse down` removes the pid file of what it stops."""
    settings = load_settings(home=tmp_path)
    file = pid_file(settings, "s3")
    file.parent.mkdir(parents=True)
    launch = Launch((sys.executable, "-c", "import time; time.sleep(100)"), tmp_path, tmp_path / "log", {})
    process = start(launch, 1, file)
    assert ended(settings) == []
    process.kill()
    process.wait(10)
    assert ended(settings) == ["s3"]
    file.unlink()
    assert ended(settings) == []
