"""Where a slot stood when this lake made it: the only position without a signature that it may stand at later.

A slot's file is written at its creation and at checkpoints, so a crash soon after the creation brings it back there.
Of a slot that an earlier version has read, which did not sign, it is the position at which it was first seen.
"""

from lakehouse.servers.database import CatalogConnection


def put_made_lsn(connection: CatalogConnection, source: str, epoch: int, lsn: int) -> None:
    """Keeps where the slot of an epoch was made."""
    connection.execute(
        "INSERT INTO lakehouse.slots VALUES (%s, %s, %s)"
        " ON CONFLICT (source) DO UPDATE SET epoch = excluded.epoch, made_lsn = excluded.made_lsn",
        (source, epoch, lsn),
    )


def read_made_lsn(connection: CatalogConnection, source: str, epoch: int) -> int | None:
    """Where the slot of this epoch was made; None when only earlier versions have read it."""
    row = connection.execute(
        "SELECT made_lsn FROM lakehouse.slots WHERE source = %s AND epoch = %s", (source, epoch)
    ).fetchone()
    return row[0] if row else None
