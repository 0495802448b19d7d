"""What keeps one table from being brought up."""

from lakehouse.errors import LakehouseError


class TableProblem(LakehouseError):
    """Something about one table that keeps it from being brought up; the source's other tables go on."""
