"""The version of the code that a run works with: the dbt project and the Python packages.

A run that failed says nothing about other code: once the cause is fixed, the next attempt is due at once.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from lakehouse.declarations.dbt.manifest import project_fingerprint
from lakehouse.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


def code_version(settings: Settings) -> str:
    """A hash of names, sizes and times of all files; it reads none of them."""
    digest = hashlib.sha256(project_fingerprint(settings).encode())
    for file in sorted(_modules(ROOT)):
        stat = file.stat()
        digest.update(f"{file}\0{stat.st_mtime_ns}\0{stat.st_size}\n".encode())
    return digest.hexdigest()[:16]


def _modules(root: Path) -> Iterator[Path]:
    """Modules of our packages; in an installation others lie beside them."""
    for package in {"lakehouse", "ingestion", "orchestration", "erasure", "maintenance"}:
        yield from (root / package).rglob("*.py")
