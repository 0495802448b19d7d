"""Who may log in to our Trino, and in which role: its password file and its group file, which it reads again by itself.

Trino keeps PBKDF2 (SHA-1) or bcrypt; the former needs no package. What a role may read is made in
`lakehouse.declarations.access`.
"""

import fcntl
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import privately, write_shared

Role = Literal["writer", "reader", "privacy"]
ROLES: tuple[Role, ...] = get_args(Role)
WRITER = "lakehouse"
OWN: Mapping[str, Role] = {WRITER: "writer", "reader": "reader", "privacy": "privacy"}
"""The logins that every installation has."""
PASSWORDS, GROUPS = "password.db", "group.db"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.@-]{0,62}")
ITERATIONS = 20_000


class Login(NamedTuple):
    """A user's role, and the hash of the password."""

    role: Role
    hashed: str


def read_logins(folder: Path) -> dict[str, Login]:
    """The logins by name; none where there are no files yet."""
    roles = {name: role for role in ROLES for name in _lines(folder / GROUPS).get(role, "").split(",")}
    return {name: Login(roles[name], hashed) for name, hashed in _lines(folder / PASSWORDS).items() if name in roles}


def ensure_own_logins(folder: Path, passwords: Mapping[str, str]) -> None:
    """The installation's own logins with these passwords, beside those that were added; writes what differs."""
    with _changing(folder) as logins:
        for name, password in passwords.items():
            there = logins.get(name)
            if there is None or there.role != OWN[name] or not matches(there.hashed, password):
                logins[name] = Login(OWN[name], hash_password(password))


def add_login(folder: Path, name: str, role: Role) -> str:
    """A new login, or a new password for one that was added before; returns the password, which is kept nowhere."""
    if not NAME.fullmatch(name):
        raise LakehouseError(f"{name!r} is no name for a login: it must match {NAME.pattern}")
    _refuse_own(name)
    password = secrets.token_urlsafe(18)
    with _changing(folder) as logins:
        logins[name] = Login(role, hash_password(password))
    return password


def remove_login(folder: Path, name: str) -> None:
    """Takes a login away; raises LakehouseError where there is none of that name."""
    _refuse_own(name)
    with _changing(folder) as logins:
        if logins.pop(name, None) is None:
            raise LakehouseError(f"there is no login {name!r}: `lakehouse user list` shows them")


def hash_password(password: str) -> str:
    """`iterations:salt:hash`, as Trino reads it."""
    return _hashed(password, secrets.token_bytes(16), ITERATIONS)


def matches(hashed: str, password: str) -> bool:
    """Whether it is the hash of this password."""
    try:
        iterations, salt, _ = hashed.split(":")
        return hmac.compare_digest(_hashed(password, bytes.fromhex(salt), int(iterations)), hashed)
    except ValueError:
        return False


def _hashed(password: str, salt: bytes, iterations: int) -> str:
    return f"{iterations}:{salt.hex()}:{hashlib.pbkdf2_hmac('sha1', password.encode(), salt, iterations).hex()}"


def _refuse_own(name: str) -> None:
    if name in OWN:
        raise LakehouseError(f"the login {name!r} is the installation's own: its password is in `lakehouse env`")


def _lines(file: Path) -> dict[str, str]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {name: rest for name, colon, rest in (line.partition(":") for line in lines) if colon}


@contextmanager
def _changing(folder: Path) -> Iterator[dict[str, Login]]:
    """The logins, to be changed by one process at a time: what another one adds meanwhile would be lost."""
    folder.mkdir(parents=True, exist_ok=True)
    with privately(), (folder / "lock").open("w") as lock:  # who may open it may hold it
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = read_logins(folder)
        logins = dict(before)
        yield logins
        if logins != before:
            _write(folder, logins)


def _write(folder: Path, logins: Mapping[str, Login]) -> None:
    """Groups first: a name without a group may do nothing, and so may a group without a password."""
    members = {role: [name for name, login in sorted(logins.items()) if login.role == role] for role in ROLES}
    write_shared(folder / GROUPS, "".join(f"{role}:{','.join(names)}\n" for role, names in members.items() if names))
    write_shared(folder / PASSWORDS, "".join(f"{name}:{login.hashed}\n" for name, login in sorted(logins.items())))
