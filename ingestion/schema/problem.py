"""What keeps one table from being brought up."""

from lakehouse.errors import LakehouseError
from lakehouse.text.shown import visible


class TableProblem(LakehouseError):
    """Something about one table that keeps it from being brought up; the source's other tables go on.

    `table` says whose problem it is, also where a group of tables was at work and the error came back from a task.
    """

    def __init__(self, source: str, table: str, says: str) -> None:
        super().__init__(source, table, says)
        self.source, self.table, self.says = source, table, says

    def __str__(self) -> str:
        return visible(f"source {self.source!r}, table {self.table!r}: {self.says}")
