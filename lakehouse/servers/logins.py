"""Who may log in to our Trino, and in which role: its password file and its group file, which it reads again by itself.

Trino keeps PBKDF2 (SHA-1) or bcrypt; the former needs no package. What a role may read is made in
`lakehouse.declarations.access.rules`. A login that reads some namespaces only is in no group of its role, but in one
for each namespace: `reader@marts`. So it reads nothing by rules that know no namespaces, as those of an earlier
release.
"""

import fcntl
import hashlib
import hmac
import re
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from lakehouse.catalog.live_tables import committed_namespace
from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import privately, write_shared

Role = Literal["writer", "reader", "privacy"]
ROLES: tuple[Role, ...] = get_args(Role)
WRITER = "lakehouse"
OWN: Mapping[str, Role] = {WRITER: "writer", "reader": "reader", "privacy": "privacy"}
"""The logins that every installation has."""
PASSWORDS, GROUPS = "password.db", "group.db"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.@-]{0,62}")
NAMESPACE = re.compile(r"[a-z0-9_][a-z0-9_-]*")
ITERATIONS = 20_000
Namespaces = frozenset[str] | None  # None is all of them, also those that come later


class Rights(NamedTuple):
    """What a login may ask for: what its role reads, in these namespaces."""

    role: Role
    namespaces: Namespaces = None

    def covers(self, namespace: str) -> bool:
        """Whether a namespace is one of them."""
        return self.namespaces is None or namespace in self.namespaces


class Login(NamedTuple):
    """A user's role and namespaces, and the hash of the password."""

    role: Role
    hashed: str
    namespaces: Namespaces = None

    @property
    def rights(self) -> Rights:
        """Without the password."""
        return Rights(self.role, self.namespaces)


def read_logins(folder: Path) -> dict[str, Login]:
    """The logins by name; none where there are no files yet."""
    rights = _rights(_lines(folder / GROUPS))
    passwords = _lines(folder / PASSWORDS).items()
    return {
        name: Login(rights[name].role, hashed, rights[name].namespaces) for name, hashed in passwords if name in rights
    }


def ensure_own_logins(folder: Path, passwords: Mapping[str, str]) -> None:
    """The installation's own logins with these passwords, beside those that were added; writes what differs."""
    with _changing(folder) as logins:
        for name, password in passwords.items():
            there = logins.get(name)
            if there is None or there.rights != Rights(OWN[name]) or not matches(there.hashed, password):
                logins[name] = Login(OWN[name], hash_password(password))


def add_login(folder: Path, name: str, role: Role, namespaces: Collection[str] = ()) -> str:
    """A new login, or a new password and role for one that was added before; returns the password, kept nowhere.

    Without `namespaces` a new login reads all, and one that was added before those that it read: a new password opens
    nothing. Raises LakehouseError for names that cannot be.
    """
    if not NAME.fullmatch(name):
        raise LakehouseError(f"{name!r} is no name for a login: it must match {NAME.pattern}")
    _refuse_own(name)
    given, password = _checked(namespaces), secrets.token_urlsafe(18)
    with _changing(folder) as logins:
        before = logins[name].namespaces if name in logins else None
        logins[name] = Login(role, hash_password(password), given or before)
    return password


def change_login(folder: Path, name: str, role: Role | None, namespaces: Collection[str], everywhere: bool) -> None:
    """Another role, or other namespaces, or all with `everywhere`, for a login whose password stays.

    Raises LakehouseError where there is no login of that name, and for names that cannot be.
    """
    _refuse_own(name)
    given = _checked(namespaces)
    with _changing(folder) as logins:
        there = _there(logins, name)
        kept = None if everywhere else given or there.namespaces
        logins[name] = Login(role or there.role, there.hashed, kept)


def remove_login(folder: Path, name: str) -> None:
    """Takes a login away; raises LakehouseError where there is none of that name."""
    _refuse_own(name)
    with _changing(folder) as logins:
        _there(logins, name)
        del logins[name]


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


def _there(logins: Mapping[str, Login], name: str) -> Login:
    if name not in logins:
        raise LakehouseError(f"there is no login {name!r}: `lakehouse user list` shows them")
    return logins[name]


def _checked(namespaces: Collection[str]) -> frozenset[str]:
    for name in namespaces:
        if not NAMESPACE.fullmatch(name):
            raise LakehouseError(f"{name!r} is no name of a namespace: it must match {NAMESPACE.pattern}")
        if (committed := committed_namespace(name)) is not None:
            raise LakehouseError(f"{name} is read by whom {committed} is read: give {committed}")
    return frozenset(namespaces)


def _rights(groups: Mapping[str, str]) -> dict[str, Rights]:
    """By login; who is in the group of a role reads all, also if other groups name him."""
    found: dict[str, Rights] = {}
    for role in ROLES:
        within: dict[str, set[str]] = defaultdict(set)
        for group, names in groups.items():
            of, at, namespace = group.partition("@")
            for name in names.split(",") if at and of == role else ():
                within[name].add(namespace)
        found |= {name: Rights(role, frozenset(namespaces)) for name, namespaces in within.items()}
    return found | {name: Rights(role) for role in ROLES for name in groups.get(role, "").split(",")}


def _groups(login: Login) -> list[str]:
    if login.namespaces is None:
        return [login.role]
    return [f"{login.role}@{namespace}" for namespace in sorted(login.namespaces)]


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
    members: dict[str, list[str]] = {role: [] for role in ROLES}
    for name, login in sorted(logins.items()):
        for group in _groups(login):
            members.setdefault(group, []).append(name)
    write_shared(folder / GROUPS, "".join(f"{group}:{','.join(names)}\n" for group, names in members.items() if names))
    write_shared(folder / PASSWORDS, "".join(f"{name}:{login.hashed}\n" for name, login in sorted(logins.items())))
