"""What an event says that its table cannot follow. It parks the table, also where the event was kept aside before."""

from collections.abc import Collection

UNORDERED = (
    "a TRUNCATE came in a topic of several partitions, and no topic tells which of their events it is after: set "
    "provide.transaction.metadata=true of the connector, or give the topic one partition; then let the connector write "
    "the table to a topic of another name, and declare that one"
)


def lacking_key(key: Collection[str], told: Collection[str]) -> str | None:
    """Why a table of this key cannot go on if the keys of its events have the columns `told`, None if it can."""
    if not (lacking := sorted({*key} - {*told})):
        return None
    return (
        f"key column {', '.join(lacking)} is not in its events' key ({', '.join(sorted(told)) or 'none'}),"
        " so updates do not tell when it changes: declare that key, or set REPLICA IDENTITY FULL and let the "
        "connector write the table to a topic of another name"
    )


def shared_key(key: Collection[str], unread: Collection[str] = ()) -> str:
    """Why a table of this key cannot go on if two of its rows have it in common; `unread` is what cannot be read of
    their transaction, and may have deleted the one before the other came."""
    says = (
        f"a transaction inserts several rows that have the key ({', '.join(sorted(key))}) in common, so it tells no "
        "rows apart: declare a key that is unique in the database, or none where delivery is exactly_once"
    )
    if not unread:
        return says
    return (
        f"{says}; but if one of them was deleted by what cannot be read, {'; '.join([*unread][:3])}, mend that, and "
        "resume the table"
    )
