"""Folders of a server that does not run as root, in a home of root's; also those that an earlier release left to root.

What the server changes is its own (`own_dir`), what it only reads is root's and shared with its group (`share`).
"""

import os
import shutil
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import private_dir
from lakehouse_stack.processes.accounts import Account, hand_over


def own_dir(folder: Path, account: Account | None) -> None:
    """Makes a folder that only the account may enter. A folder of root's becomes the account's with all its content.

    The server that uses it must not run. Raises LakehouseError if the folder is somebody else's.
    """
    if account is None:
        private_dir(folder)
        return
    if not folder.exists():
        folder.mkdir(parents=True, mode=0o700)
    owner = folder.lstat().st_uid
    if owner == account.uid:
        return
    if owner != 0:
        raise LakehouseError(
            f"{folder} belongs to user {owner}, not to {account.name}: `chown -R {account.name} {folder}`"
        )
    folder.chmod(0o700)  # nobody but root gets in while its content changes hands
    for _, folders, files, at in os.fwalk(folder, topdown=False):
        for name in (*folders, *files):
            os.chown(name, account.uid, account.gid, dir_fd=at, follow_symlinks=False)
    hand_over(folder, account)  # last: until then an interrupted change begins again


def share(folder: Path, account: Account | None) -> None:
    """Lets the account's group read a folder of root's, and what `write_shared` will write there."""
    if account is None:
        return
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            os.chown(path, 0, account.gid)
            path.chmod(0o2750)
        elif path.is_file() and not path.is_symlink() and path.name != "lock":  # who may open a lock may hold it
            os.chown(path, 0, account.gid)
            path.chmod(0o640)


def adopt(former: Path, path: Path) -> None:
    """Moves a file or folder from where an earlier release had it; an interrupted move begins again."""
    if former == path or path.exists() or not former.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        former.rename(path)
        return
    except OSError:  # another file system
        staging = path.with_name(f"{path.name}.adopted")
    if former.is_dir():
        shutil.rmtree(staging, ignore_errors=True)
        shutil.copytree(former, staging, symlinks=True)
        staging.rename(path)
        shutil.rmtree(former)
    else:
        shutil.copy2(former, staging)
        staging.rename(path)
        former.unlink()
