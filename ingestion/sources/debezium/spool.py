"""The messages of a read until it is known which of them land: in memory, on disk where they are too many."""

from array import array
from tempfile import SpooledTemporaryFile

IN_MEMORY = 64 * 1024 * 1024


class Spool:
    """Values by the index of their message."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._file = SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115 - closed by whoever made it
        self._starts = array("q", [0])

    def add(self, value: bytes | None) -> None:
        """Adds a message."""
        self._starts.append(self._starts[-1] + len(value or b""))
        if value:
            self._file.seek(self._starts[-2])
            self._file.write(value)

    def size(self, index: int) -> int:
        """How many bytes a message has."""
        return self._starts[index + 1] - self._starts[index]

    def value(self, index: int) -> bytes:
        """The value of a message."""
        self._file.seek(self._starts[index])
        return self._file.read(self.size(index))

    def close(self) -> None:
        """Deletes it."""
        self._file.close()
