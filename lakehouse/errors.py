"""The one exception that is meant for people."""


class LakehouseError(Exception):
    """Bad input or a broken environment: one line that says what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with status 1.
    """
