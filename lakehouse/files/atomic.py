"""Files that are written whole or not at all, whether the process is killed or the disk is full."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file by a complete one; after an error the former file is unchanged."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
