"""What a home is known by, wherever it is moved: a copy of it, with records of its servers, is not taken for it."""

import secrets
from contextlib import suppress
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_private


def identity_file(home: Path) -> Path:
    """The file with the identity of a home."""
    return home / "run" / "id"


def claim(home: Path) -> None:
    """Records where this home is; raises LakehouseError if it is a copy of one that is still there.

    The copy names the ports, passwords and servers of that one.
    """
    own, place = identify(home), home / "run" / "home"
    if (former := read(place).removesuffix("\n")) != str(home):
        if former and is_copy(home, own, Path(former)):
            raise LakehouseError(
                f"{home} is a copy of {former}: use {former}; a copy that is to have servers of its own needs an "
                f"identity of its own: remove {identity_file(home)}"
            )
        write_private(place, f"{home}\n")


def identify(home: Path, make: bool = True) -> str:
    """The identity of a home; without `make`, nothing where it has none yet."""
    own = read(identity_file(home))
    if make and not own:
        write_private(identity_file(home), own := secrets.token_hex(8))
    return own


def is_copy(home: Path, own: str, former: Path) -> bool:
    """Whether the home that had this identity is still there, beside the one that has it now."""
    with suppress(OSError):  # not there, or somebody else's by now
        return read(identity_file(former)) == own and not former.samefile(home)
    return False


def read(path: Path) -> str:
    """What is in a file; nothing where there is none."""
    return path.read_text() if path.is_file() else ""
