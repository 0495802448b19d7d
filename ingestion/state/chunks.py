"""Which heap ranges of a table's snapshot are in the lake: a killed snapshot does not read them again."""

from collections.abc import Iterable
from dataclasses import dataclass

from ingestion.schema.positions import Position
from lakehouse.servers.database import CatalogConnection


@dataclass(frozen=True)
class Chunk:
    """A range of heap pages of one relation, the last one without an end; all partitions at once from page -1."""

    number: int
    relation: tuple[str, str]
    first_page: int
    end_page: int | None


def plan(connection: CatalogConnection, source: str, table: str, chunks: Iterable[Chunk]) -> None:
    """Records the ranges of a snapshot that is about to begin."""
    connection.execute('DELETE FROM lakehouse.chunks WHERE source = %s AND "table" = %s', (source, table))
    with connection.cursor() as cursor:
        cursor.executemany(
            'INSERT INTO lakehouse.chunks (source, "table", number, relation, first_page, end_page)'
            " VALUES (%s, %s, %s, %s, %s, %s)",
            [(source, table, c.number, list(c.relation), c.first_page, c.end_page) for c in chunks],
        )


def open_ranges(connection: CatalogConnection, source: str, table: str) -> list[Chunk]:
    """The ranges that are not in the lake yet."""
    rows = connection.execute(
        "SELECT number, relation, first_page, end_page FROM lakehouse.chunks"
        ' WHERE source = %s AND "table" = %s AND point IS NULL ORDER BY number',
        (source, table),
    )
    return [Chunk(number, (relation[0], relation[1]), first, end) for number, relation, first, end in rows]


def first_point(connection: CatalogConnection, source: str, table: str) -> int | None:
    """The least bound of `_commit_lsn` at which a range was read that is in the lake; None when there is none."""
    row = connection.execute(
        'SELECT min(point) FROM lakehouse.chunks WHERE source = %s AND "table" = %s', (source, table)
    ).fetchone()
    return row[0] if row else None


def done(connection: CatalogConnection, source: str, table: str, chunks: Iterable[Chunk], point: Position) -> None:
    """Records ranges that the same transaction makes visible."""
    connection.execute(
        'UPDATE lakehouse.chunks SET point = %s WHERE source = %s AND "table" = %s AND number = ANY(%s)',
        (point.commit_bound, source, table, [chunk.number for chunk in chunks]),
    )
