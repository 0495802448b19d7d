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
    """Records where this home is; raises LakehouseError if it is a copy of one that is still there."""
    identify(home)
    refuse_copy(home)
    if read(_place_file(home)) != f"{home}\n":
        write_private(_place_file(home), f"{home}\n")


def refuse_copy(home: Path) -> None:
    """Raises LakehouseError if the home is a copy of one that is still there, whose ports and servers it names."""
    own, former = identify(home, make=False), read(_place_file(home)).removesuffix("\n")
    if own and former not in ("", str(home)) and _is_at(Path(former), own, home):
        raise LakehouseError(
            f"{home} is a copy of {former}: use {former}; a copy that is to have servers of its own needs an "
            f"identity of its own: remove {identity_file(home)}"
        )


def identify(home: Path, make: bool = True) -> str:
    """The identity of a home; without `make`, nothing where it has none yet."""
    own = read(identity_file(home))
    if make and not own:
        write_private(identity_file(home), own := secrets.token_hex(8))
    return own


def _place_file(home: Path) -> Path:
    return home / "run" / "home"


def _is_at(former: Path, own: str, home: Path) -> bool:
    """Whether the home that had this identity is there still, in a folder of its own."""
    with suppress(OSError):  # not there, or somebody else's by now
        return read(identity_file(former)) == own and not former.samefile(home)
    return False


def read(path: Path) -> str:
    """What is in a file; nothing where there is none."""
    return path.read_text() if path.is_file() else ""
