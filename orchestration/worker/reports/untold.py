"""What a worker has done, and tells Dagster once the marts are there too."""

from collections.abc import Callable

from lakehouse.text.log_lines import as_here


class Untold:
    """Told in the order in which it was done."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] = []

    def add(self, tell: Callable[[], object]) -> None:
        """What is logged then says of which job, as what is logged now."""
        self._waiting.append(as_here(tell))

    def tell(self) -> bool:
        """Tells it; whether there was anything."""
        is_there = bool(self._waiting)
        while self._waiting:
            self._waiting.pop(0)()
        return is_there
