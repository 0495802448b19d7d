"""dbt's manifest, parsed again only when the project has changed.

`dbt parse` needs no server but takes seconds, so its result is kept in the home together with a fingerprint of
the project's files, of the local packages that it links, and of the variables that they name.
"""

import fcntl
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from lakehouse.declarations.dbt.folders import project_folders
from lakehouse.declarations.dbt.yaml_files import check_yaml
from lakehouse.declarations.lines import PROJECT_FILE
from lakehouse.errors import LakehouseError
from lakehouse.files.atomic import write_atomically
from lakehouse.files.private_files import private_dir
from lakehouse.servers.tethered import tethered
from lakehouse.servers.trino import is_here
from lakehouse.settings import DBT_PACKAGE, Settings, check_project
from lakehouse.text.shown import shortened

CONNECTION = ("host", "port", "http_scheme", "user", "catalog", "ca")
PASSED_OVER = ".#~"  # what the names of files begin with that dbt does not read
_PARTS = (PROJECT_FILE, "profiles.yml", "packages.yml")  # beside the folders that the first one names
_PACKAGES = "dbt_packages"
_ENV_VAR = re.compile(rb"""\benv_var\(\s*['"](?!LAKEHOUSE_)([^'"]+)['"]""")
"""Ours are set for each run, or by the settings, of whose connection the fingerprint is."""
Stamp = tuple[str, int, int]  # name, time and size of a file


def manifest_path(settings: Settings) -> Path:
    """Where the current manifest is kept: in a folder of the project's own, as projects may share a home."""
    project = settings.dbt_project_dir.resolve()
    key = hashlib.sha256(str(project).encode()).hexdigest()[:12]
    return settings.home / "dbt" / f"{project.parent.name}-{key}" / "manifest.json"


def load_manifest(settings: Settings) -> dict[str, Any]:
    """The manifest of the dbt project as it is now; raises LakehouseError when the project does not parse."""
    with _up_to_date(settings) as manifest:
        return json.loads(manifest.read_text())


def parsed_last(settings: Settings) -> dict[str, Any] | None:
    """The manifest of the project as it was when it parsed last here; None if it never did, or the project is gone."""
    target = manifest_path(settings)
    there = (settings.dbt_project_dir / PROJECT_FILE).exists() and target.exists()
    return json.loads(target.read_text()) if there else None


def ensure_manifest(settings: Settings) -> Path:
    """Path of an up-to-date manifest; runs `dbt parse` when the project's files have changed.

    Raises LakehouseError where there is no project, or it does not parse.
    """
    with _up_to_date(settings) as manifest:
        return manifest


@contextmanager
def _up_to_date(settings: Settings) -> Iterator[Path]:
    """The manifest, locked while it is read: a process that has other variables would write its own there."""
    check_project(settings.project_dir)
    _link_package(settings.dbt_project_dir)
    target = manifest_path(settings)
    private_dir(settings.home / "dbt")  # what dbt logs and keeps has values in it: those that a test found, or a cast
    target.parent.mkdir(exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = target.with_suffix(".key")
        key = project_fingerprint(settings)
        if not (target.exists() and stamp.exists() and stamp.read_text() == key):
            try:
                parsed = _parse(settings, target.parent / "target")
            except LakehouseError as error:
                write_atomically(_failure(target), f"{key}\n{error}")
                raise
            parsed.replace(target)
            stamp.write_text(key)
        _failure(target).unlink(missing_ok=True)
        yield target


def why_unparsed(settings: Settings) -> str | None:
    """Why the project does not parse as it is now, for those who run no dbt; None if it does, or nobody has tried."""
    with suppress(OSError):
        key, _, why = _failure(manifest_path(settings)).read_text().partition("\n")
        return why if key == project_fingerprint(settings) else None
    return None


def _failure(target: Path) -> Path:
    return target.with_suffix(".error")


def dbt_environment(settings: Settings) -> dict[str, str]:
    """What profiles.yml reads. `dbt parse` is given the same as a run: dbt parses anew when its connection differs."""
    trino = settings.trino
    values = {name: value for name in CONNECTION if (value := getattr(trino, name)) is not None}
    if trino.password is not None:
        values["password"] = trino.password.get_secret_value()
    found = {f"LAKEHOUSE_TRINO__{name.upper()}": str(value) for name, value in values.items()}
    found["LAKEHOUSE_DBT_PACKAGE"] = str(DBT_PACKAGE)
    if trino.ca is not None:
        found["REQUESTS_CA_BUNDLE"] = str(trino.ca)  # one that is set wins over the profile's `cert`
    if is_here(trino.host):
        found["NO_PROXY"] = found["no_proxy"] = ",".join(filter(None, (os.environ.get("no_proxy"), trino.host)))
    return found


def project_fingerprint(settings: Settings) -> str:
    """A hash of names, sizes and times of the files that `dbt parse` reads, of the variables that they name, and of the
    connection."""
    project_dir = settings.dbt_project_dir
    digest = hashlib.sha256(f"{project_dir}\0{settings.trino}".encode())
    stamps = tuple(stamp for root in _roots(project_dir) for stamp in _stamps(root))
    digest.update("".join(f"{file}\0{time}\0{size}\n" for file, time, size in stamps).encode())
    for name in _variables(stamps):
        digest.update(f"{name}\0{os.environ.get(name)!r}\n".encode())
    return digest.hexdigest()


def _roots(project_dir: Path) -> Iterator[Path]:
    """The files and folders that dbt reads. Of a package that is linked, as `dbt deps` does with a local one, those
    that it names itself: a project's own folder has others, which change with each run."""
    yield from (project_dir / part for part in (*_PARTS, *project_folders(project_dir)))
    yield DBT_PACKAGE
    with suppress(OSError):
        for package in sorted((project_dir / _PACKAGES).iterdir()):
            there = package.resolve()
            if not package.is_symlink():
                yield package
            elif package.name[0] not in PASSED_OVER and there != DBT_PACKAGE:
                yield from (there / part for part in (PROJECT_FILE, *project_folders(there)))


def _stamps(root: Path) -> list[Stamp]:
    """Names, times and sizes of a file, or of the files in a folder; one that goes away meanwhile is none."""
    found = []
    for file in [root] if root.is_file() else _files(root, frozenset()):
        with suppress(OSError):
            stat = file.stat()
            found.append((os.fspath(file), stat.st_mtime_ns, stat.st_size))
    return sorted(found)


def _files(folder: str | Path, followed: frozenset[str]) -> Iterator[os.DirEntry[str]]:
    """Those that dbt may read, also by links to folders: editors make others while somebody types."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                there = frozenset([os.path.realpath(entry.path)] if entry.is_symlink() else ())
                if entry.name != "__pycache__" and not there & followed:  # a link may lead to a folder above it
                    yield from _files(entry.path, followed | there)
            elif entry.name[0] not in PASSED_OVER and entry.is_file():
                yield entry


@lru_cache(maxsize=2)
def _variables(stamps: tuple[Stamp, ...]) -> tuple[str, ...]:
    """The variables of the environment that the files name, which are read again once one has changed."""
    found = set[str]()
    for file in (file for file, _, _ in stamps if file.endswith((".yml", ".yaml", ".sql", ".py"))):
        with suppress(OSError):
            found.update(name.decode(errors="replace") for name in _ENV_VAR.findall(Path(file).read_bytes()))
    return tuple(sorted(found))


def _link_package(project: Path) -> None:
    """Lets the project use the dbt package of this installation: what `dbt deps` makes of a local package.

    A copy that the project has of its own stays. Raises LakehouseError where the link is missing and cannot be made, as
    in an image.
    """
    link = project / "dbt_packages" / DBT_PACKAGE.name
    if not project.is_dir() or link.resolve() == DBT_PACKAGE or (link.exists() and not link.is_symlink()):
        return
    made = link.with_name(f".{link.name}.{os.getpid()}")
    try:
        link.parent.mkdir(exist_ok=True)
        made.symlink_to(DBT_PACKAGE, target_is_directory=True)
        made.replace(link)
    except OSError as error:
        by_hand = shlex.join(["ln", "-sfn", str(DBT_PACKAGE), str(link)])
        raise LakehouseError(
            f"{link}: the link to the dbt package cannot be made ({error.strerror}): make it where the folder can be"
            f" written, as when an image is built: `{by_hand}`"
        ) from None


def _parse(settings: Settings, target_dir: Path) -> Path:
    check_yaml(settings.dbt_project_dir)
    _dbt(settings, target_dir, "parse", "the dbt project does not parse")
    return target_dir / "manifest.json"


def rebuild(settings: Settings, models: Sequence[str], without: Sequence[str] = ()) -> None:
    """Rebuilds these models with --full-refresh, but some; raises LakehouseError with dbt's last lines."""
    target_dir = manifest_path(settings).parent / "target"
    excluded = ["--exclude", *without] if without else []
    _dbt(settings, target_dir, "run", "dbt run failed", "--full-refresh", "--select", *models, *excluded)


def _dbt(settings: Settings, target_dir: Path, command: str, failure: str, *arguments: str) -> None:
    project, program = settings.dbt_project_dir, Path(sys.executable).with_name("dbt")
    if not program.exists():
        raise LakehouseError(f"{failure}: there is no {program}: install lakehouse again, with its dependencies")
    line = [
        str(program), command, "--quiet", "--no-use-colors",
        "--project-dir", str(project), "--profiles-dir", str(project),
        "--target-path", str(target_dir), "--log-path", str(target_dir), *arguments,
    ]  # fmt: skip
    done = subprocess.run(
        tethered(line), capture_output=True, text=True, env={**os.environ, **dbt_environment(settings)}
    )
    if done.returncode:
        said = (line.strip() for line in (done.stdout + done.stderr).splitlines())
        lines = [line for line in said if line and not line.startswith("INFO:")]  # such are of libraries
        raise LakehouseError(f"{failure}: " + shortened(" ".join(lines[-6:]), 600))
