"""Passwords and keys of the embedded servers, generated once per home and readable only by the owner."""

import json
import secrets
from pathlib import Path

from lakehouse.files.private_files import write_private

NAMES = (
    "sources_superuser",
    "app",
    "lakehouse_ingest",
    "catalog_superuser",
    "lakehouse",
    "trino",
    "trino_writer",
    "trino_reader",
    "trino_privacy",
    "trino_internal",
    "dagster",
    "s3_access_key",
    "s3_secret_key",
)


def ensure_credentials(path: Path) -> dict[str, str]:
    """The home's passwords and keys; generates missing ones."""
    known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    wanted = known | {name: known.get(name) or secrets.token_hex(16) for name in NAMES}
    if wanted != known:
        write_private(path, json.dumps(wanted, indent=2) + "\n")
    return wanted
