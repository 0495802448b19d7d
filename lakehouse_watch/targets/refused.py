"""What a target refuses for ever, rather than for now."""

from lakehouse.errors import LakehouseError


class Refused(LakehouseError):
    """The target has answered that it does not take this message."""
