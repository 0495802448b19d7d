"""Session properties of Trino for statements of few rows, whose planning costs more than their rows do."""

from lakehouse.settings import Settings

SMALL_ROWS = 1_000_000  # of all tables that are read


def as_written(settings: Settings) -> dict[str, str]:
    """What keeps Trino from looking for a better plan by statistics: the SQL of loads says which side is small."""
    return {"join_reordering_strategy": "NONE", f"{settings.trino.catalog}.statistics_enabled": "false"}


def of_marts(settings: Settings, rows: int) -> dict[str, str]:
    """The same for marts made of so many rows, and no statistics of what they write; nothing where they are many."""
    if rows > SMALL_ROWS:
        return {}
    written = {
        f"{settings.trino.catalog}.collect_extended_statistics_on_write": "false",
        "redistribute_writes": "false",
    }
    return as_written(settings) | written
