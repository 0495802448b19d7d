"""The exception whose message users see."""

from lakehouse.text.shown import visible


class LakehouseError(Exception):
    """Bad input or a broken environment: one line that says what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with status 1. Names and values in it may be anybody's: as
    text it holds nothing that does more than being read. Of several arguments each is a line.
    """

    def __str__(self) -> str:
        return "\n".join(visible(str(line)) for line in self.args)
