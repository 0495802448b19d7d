"""Whether files of the project, or of its settings, are other ones than a process that runs for long has read."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

from lakehouse.declarations.dbt.manifest import project_fingerprint
from lakehouse.errors import LakehouseError
from lakehouse.settings import CONFIG_FILE, ENDPOINTS_FILE, Settings, config_file

EVERY_SECONDS = 5.0
STILL_SECONDS = 2.0  # for which nothing is written any more: an editor, or `lakehouse add`, saves in several steps


class Changes:
    """What has been written since this was made; make it before anything is read."""

    def __init__(self, look: Callable[[], Hashable]) -> None:
        self._look = look
        self._read = self._seen = look()
        self._due = monotonic() + EVERY_SECONDS

    def settled(self) -> bool:
        """Whether there are other files than those of the last time, and nothing was written for a moment; true once
        for each change. Costs nothing most of the time, so ask it as often as you like."""
        now = monotonic()
        if now < self._due:
            return False
        before, self._seen = self._seen, self._look()
        is_other = self._seen != self._read
        self._due = now + (STILL_SECONDS if is_other else EVERY_SECONDS)
        if not is_other or self._seen != before:
            return False
        self._read = self._seen
        return True


def changes_of(settings: Settings) -> Changes:
    """Those of the project's files, and of what settings are read from beside the environment."""
    return Changes(lambda: (project_fingerprint(settings), *_stamps(settings)))


def changes_of_settings(settings: Settings) -> Changes:
    """Those of the latter alone."""
    return Changes(lambda: tuple(_stamps(settings)))


def _stamps(settings: Settings) -> Iterator[tuple[str, int, int]]:
    for file in (_config(), settings.home / ENDPOINTS_FILE, *_below(settings.secrets_dir)):
        with suppress(OSError):
            stat = file.stat()
            yield str(file), stat.st_mtime_ns, stat.st_size


def _config() -> Path:
    """The file may be away for a moment, while it is saved."""
    with suppress(LakehouseError):
        return config_file()
    return Path(CONFIG_FILE)


def _below(folder: Path | None) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir()) if folder else []
    return []
