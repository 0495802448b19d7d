"""Dumps and restores the catalog database with Postgres's own tools.

The dump contains Iceberg's tables and the schema `lakehouse`, which the catalog's role owns. The role may not create
tables in `public`: `lakehouse up`, or the administrator, creates Iceberg's tables there and a restore fills them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from psycopg.conninfo import make_conninfo

from lakehouse.errors import LakehouseError
from lakehouse.extras import installed
from lakehouse.servers.outage import is_full, no_room
from lakehouse.settings import Settings
from lakehouse.text.urls import parse_url, secret_options
from lakehouse_stack.processes.accounts import packaged_programs

STATE = "lakehouse"
SERVICE = "lakehouse"
ICEBERG = ("iceberg_tables", "iceberg_namespace_properties")
DROP_STATE = f"SELECT format('DROP TABLE {STATE}.%I', tablename) FROM pg_tables WHERE schemaname = '{STATE}' \\gexec\n"


def dump_catalog(settings: Settings, to: Path) -> None:
    """Writes a consistent dump in pg_dump's custom format; raises LakehouseError."""
    part = to.with_name(f"{to.name}.part")
    tables = [f"--table={pattern}" for pattern in (f"{STATE}.*", *ICEBERG)]
    try:
        _run(settings, "pg_dump", "--format=custom", "--no-owner", *tables, f"--file={part}")
        part.replace(to)
    except LakehouseError as error:
        if is_full(str(error)):
            raise no_room(to.parent) from None
        raise
    finally:
        part.unlink(missing_ok=True)


def load_catalog(settings: Settings, dump: Path, first: str = "", last: str = "") -> None:
    """Replaces the contents of the database with the dump, in one transaction with statements `first` and `last`."""
    if not dump.exists():
        raise LakehouseError(f"{dump} does not exist: name a folder written by `lakehouse backup`")
    emptied = "".join(f"DELETE FROM {table};\n" for table in ICEBERG)
    rows = _script(dump, "--data-only", *(f"--table={table}" for table in ICEBERG))
    tables = _script(dump, "--clean", "--if-exists", "--no-owner", f"--schema={STATE}")
    script = f"CREATE SCHEMA IF NOT EXISTS {STATE};\n" if _lacks_schema(settings) else ""
    script += DROP_STATE  # tables that the dump lacks would remain
    options = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--single-transaction", "--file=-")
    _run(settings, "psql", *options, given=first + script + emptied + rows + tables + last)


def state_version(dump: Path) -> tuple[int, str]:
    """The version of the state in a dump and the release that wrote it; 0 if the dump has none, as with 0.1.0."""
    return max(((version, release) for version, release, _ in _steps(dump)), default=(0, ""))


def state_began(dump: Path) -> datetime | None:
    """When the state in a dump was made, which tells it from that of another catalog; None if it has no version."""
    steps = _steps(dump)
    return min(steps)[2] if steps else None


def count_relations(dump: Path) -> int:
    """The number of tables and views in a dump."""
    rows = _script(dump, "--data-only", f"--table={ICEBERG[0]}")
    return sum(copied.count("\n") for copied in re.findall(r"^COPY .* FROM stdin;\n(.*?)^\\\.$", rows, re.M | re.S))


def _steps(dump: Path) -> list[tuple[int, str, datetime]]:
    """The steps of the state in a dump, each with the release that applied it, and when."""
    rows = _script(dump, "--data-only", "--table=schema_version") if dump.exists() else ""
    copied = re.findall(r"^(\d+)\t[^\t]*\t([^\t]*)\t(.*)$", rows, re.MULTILINE)
    return [(int(version), release, datetime.fromisoformat(at)) for version, release, at in copied]


def _script(dump: Path, *options: str) -> str:
    """Parts of the dump as SQL."""
    done = subprocess.run([_program("pg_restore"), *options, "--file=-", str(dump)], capture_output=True, text=True)
    if done.returncode:
        raise LakehouseError(f"{dump}: {_reason(done.stderr)}")
    return done.stdout


def _lacks_schema(settings: Settings) -> bool:
    answer = _run(settings, "psql", "--no-psqlrc", "-Atc", f"SELECT to_regnamespace('{STATE}') IS NULL")
    return answer.strip() == "t"


def _run(settings: Settings, program: str, *arguments: str, given: str | None = None) -> str:
    url = parse_url(settings.catalog_dsn())
    shown = {key: value for key, value in url.options if key not in secret_options()}
    secret = {key: value for key, value in url.options if key not in shown}
    with _service(secret) as (service, descriptors, variables):
        conninfo = make_conninfo(
            host=url.host, port=url.port, dbname=url.database, user=url.user,
            **{"connect_timeout": "10", **shown, **service},
        )  # fmt: skip
        done = subprocess.run(
            [_program(program), f"--dbname={conninfo}", "--no-password", *arguments],
            env={**os.environ, "PGPASSWORD": url.password, **variables},
            pass_fds=descriptors, input=given, capture_output=True, text=True,
        )  # fmt: skip
    if done.returncode:
        raise LakehouseError(f"{program} of {url.database} at {url.host}:{url.port}: {_reason(done.stderr)}")
    return done.stdout


@contextmanager
def _service(secret: Mapping[str, str]) -> Iterator[tuple[dict[str, str], tuple[int, ...], dict[str, str]]]:
    """How a program gets options that no command line may show, and libpq takes from no variable: by a service file,
    which is in memory alone. Yields the option that names the service, the file's descriptor, and the variable."""
    if not secret:
        yield {}, (), {}
        return
    with os.fdopen(os.memfd_create(SERVICE), "w") as file:
        file.write("\n".join((f"[{SERVICE}]", *(f"{key}={value}" for key, value in secret.items()), "")))
        file.flush()
        yield {"service": SERVICE}, (file.fileno(),), {"PGSERVICEFILE": f"/proc/self/fd/{file.fileno()}"}


def _reason(errors: str) -> str:
    lines = [line for line in errors.splitlines() if "error" in line.lower()] or errors.splitlines()
    return lines[0] if lines else "no message"


def _program(name: str) -> str:
    """The program of the embedded Postgres, or else of the system; raises LakehouseError."""
    packaged = packaged_programs() / name if "embedded" in installed() else None
    found = str(packaged) if packaged and packaged.exists() else shutil.which(name)
    if found is None:
        raise LakehouseError(f"{name} was not found: install Postgres's client programs")
    return found
