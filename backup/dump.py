"""The catalog's database as one file, by Postgres's own tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from psycopg.conninfo import make_conninfo

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse.urls import parse_url
from stack.accounts import packaged_programs


# Tables and not schemas: the role owns those, and may not make schemas.
TABLES = ("lakehouse.*", "iceberg_*")


def dump_catalog(settings: Settings, to: Path) -> None:
    """Writes the database to a file in pg_dump's custom format, consistent at one moment; raises LakehouseError."""
    part = to.with_name(f"{to.name}.part")
    tables = [f"--table={pattern}" for pattern in TABLES]
    _run(settings, "pg_dump", "--format=custom", "--no-owner", *tables, f"--file={part}")
    part.replace(to)


def load_catalog(settings: Settings, dump: Path) -> None:
    """Replaces what the database holds by the dump: all of it or, when that fails, nothing."""
    if not dump.exists():
        raise LakehouseError(f"{dump} is not there: name a folder that `lakehouse backup` has made")
    _run(settings, "pg_restore", "--clean", "--if-exists", "--no-owner", "--single-transaction", str(dump))


def _run(settings: Settings, program: str, *arguments: str) -> None:
    url = parse_url(settings.catalog_dsn())
    place = make_conninfo(
        host=url.host, port=url.port, dbname=url.database, user=url.user, connect_timeout=10, **dict(url.options)
    )
    command = [_program(program), f"--dbname={place}", "--no-password", *arguments]
    done = subprocess.run(command, env={**os.environ, "PGPASSWORD": url.password}, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
        raise LakehouseError(f"{program} of {url.database} at {url.host}:{url.port}: {(lines or ['no message'])[0]}")


def _program(name: str) -> str:
    """The one that came with the embedded Postgres, else the system's; raises LakehouseError."""
    packaged = packaged_programs() / name
    found = str(packaged) if packaged.exists() else shutil.which(name)
    if found is None:
        raise LakehouseError(f"{name} is not there: install Postgres's client programs")
    return found
