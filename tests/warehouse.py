"""The store's files, which belong to the user that the store runs as."""

import os
from pathlib import Path

from lakehouse.settings import Settings


def hand_to_store(settings: Settings, path: Path) -> None:
    """Gives the store what a test has put into its folder."""
    owner = (settings.home / "data" / "s3").stat()
    for part in (path, *path.rglob("*")):
        os.chown(part, owner.st_uid, owner.st_gid)
