"""The names of the copies in which tables are built (see `writing/next_tables.py`).

The copy of a table is in the namespace `<namespace>_next`; that of a mirror is in `next_mirror_<source>`, because a
source may be called `…_next`.
"""

Name = tuple[str, str]
PREFIX, SUFFIX = "next_", "_next"
OF_SOURCES = ("raw_", "mirror_", "live_raw_")


def next_name(table: Name) -> Name:
    """Where the next state of the table is built."""
    namespace, name = table
    return (f"{PREFIX}{namespace}" if namespace.startswith(OF_SOURCES) else f"{namespace}{SUFFIX}"), name


def is_next(namespace: str) -> bool:
    """Whether the namespace holds copies alone."""
    if namespace.startswith(OF_SOURCES):
        return False
    return namespace.endswith(SUFFIX) or namespace.removeprefix(PREFIX).startswith(OF_SOURCES)
