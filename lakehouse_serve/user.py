"""Another user instead of root, once what only root may read has been read: the secret, the key, a low port."""

from __future__ import annotations

import os
import pwd
from importlib import import_module

from lakehouse.errors import LakehouseError

LATE = (
    "anyio._backends._asyncio",
    "lakehouse.catalog.lake_catalog",
    "lakehouse.catalog.private_pyiceberg",
    "pyiceberg.avro.decoder_fast",
    "pyiceberg.io.pyarrow",
)
"""Modules that are imported when they are first needed: the user may not be able to read where they are."""


def become(name: str | None) -> None:
    """Goes on as that user, for good. Raises LakehouseError where this process may not or there is no such user."""
    if name is None:
        return
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise LakehouseError(f"LAKEHOUSE_SERVE__USER: there is no user {name!r}") from None
    if os.geteuid() == user.pw_uid:
        return
    for module in LATE:
        import_module(module)
    try:
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    except PermissionError:
        raise LakehouseError(f"LAKEHOUSE_SERVE__USER: only root can become {name!r}: unset it") from None
