"""A disk that fills up, or a kill, in the middle of writing a file."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakehouse.files.atomic import write_atomically
from scaffold.files import Change, apply, plan, stamped
from scaffold.text import Model

BODY = "select 1 -- " + "x" * 5000


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process grows beyond 1,000 bytes: the rest of a write is refused, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_file_that_does_not_fit_leaves_the_former_one_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_atomically(file, "former")
    with full_disk(), pytest.raises(OSError):
        write_atomically(file, BODY)
    assert file.read_text() == "former" and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("former", [None, "select 2\n"])
def test_a_model_that_was_half_written_is_not_taken_for_the_users(tmp_path: Path, former: str | None) -> None:
    """Half a model had no valid checksum, so every later `lakehouse scaffold` left it alone as an edited one."""
    model = Model("parsed/shop", "parsed_shop__orders", BODY, "", ())
    file = tmp_path / next(name for name in model.files() if name.endswith(".sql"))
    file.parent.mkdir(parents=True)
    if former:
        file.write_text(stamped(file.name, former))
    with full_disk(), pytest.raises(OSError):
        apply([Change(file, "new", stamped(file.name, BODY))])
    kinds = {change.path: change.kind for change in plan(tmp_path, "shop", [model])}
    assert kinds[file] == ("changed" if former else "new")
    apply(plan(tmp_path, "shop", [model]))
    assert {change.kind for change in plan(tmp_path, "shop", [model])} == {"same"}
