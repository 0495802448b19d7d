"""Whether UPDATE and DELETE go on working in the source's application once a table is published.

Postgres checks for each of them that the row is identified downstream (CheckCmdReplicaIdentity), and refuses the
statement where it cannot; a partition is checked by itself. The same rules are repeated here, to be checked in advance.
"""

from collections.abc import Iterator, Sequence

from ingestion.sources.findings import Finding
from ingestion.sources.postgres.setup.relations import Member, Published, Stored
from lakehouse.declarations import RawTable, Source
from lakehouse.text.sql import ident

GENERATED_SINCE = 180_000  # generated columns of an identity have to be published since then
OWN_SOURCE = "or declare it in a source of its own whose tables all have meta.raw.changes: inserts"


def identity_findings(
    source: Source,
    stored: Sequence[Stored],
    publication: Published,
    members: dict[tuple[str, str], Member],
    version: int,
) -> Iterator[Finding]:
    """One for each relation whose UPDATE or DELETE Postgres would refuse, and one for roots whose next partition is
    going to be such."""
    if not (publication.updates or publication.deletes):
        return
    for item in stored:
        table = source.table(item.table)
        if item.name is None or item.kind != "r" or item.persistence != "p":
            continue  # not published at all, which is a finding of its own
        member = members.get(table.relation)
        if (reason := _why_refused(item, publication, member, version)) is not None:
            published = "fail" if member else "would fail"
            says = f"UPDATE and DELETE of {item.quoted} {published} in the application once published: {reason}"
            remedy = _remedy(item, table, member, version)
            yield Finding(source.name, item.table, "replica identity", "in the way", says, remedy)
    for name in dict.fromkeys(item.table for item in stored if item.root_kind == "p" and not item.root_has_key):
        table = source.table(name)
        says = f"{table.raw.relation} has no primary key, so UPDATE and DELETE of partitions made later fail"
        remedy = "give each new partition REPLICA IDENTITY FULL in the transaction that makes it, or add a primary key"
        yield Finding(source.name, name, "replica identity", "warning", says, remedy)


def publishes(tables: Sequence[RawTable]) -> Published:
    """What a publication made for these tables carries."""
    inserts_alone = all(table.raw.changes == "inserts" for table in tables)
    return Published(True, not inserts_alone, not inserts_alone, True, True, False)


def _why_refused(item: Stored, publication: Published, member: Member | None, version: int) -> str | None:
    if item.identity == "n":
        return "it has REPLICA IDENTITY NOTHING"
    if item.identity != "f" and not item.usable:
        return _why_no_index(item)
    if member is not None and member.listed:
        if item.identity == "f":
            return "it has REPLICA IDENTITY FULL, with which the publication's column list does not go"
        if outside := [column for column in item.identified_by if column not in member.columns]:
            return f"the publication's column list leaves out {', '.join(outside)} of its replica identity"
    if version >= GENERATED_SINCE and (unpublished := _unpublished(item, publication)):
        return f"its replica identity holds generated columns that are not published ({', '.join(unpublished)})"
    return None


def _why_no_index(item: Stored) -> str:
    if item.identity == "i":
        return "the index of its replica identity was dropped, or is not valid"
    if item.deferrable:
        return "its primary key is DEFERRABLE, which is no replica identity"
    return "its primary key's index is not valid" if item.identified_by else "it has no primary key"


def _unpublished(item: Stored, publication: Published) -> list[str]:
    published = item.stored if publication.stored_columns else []
    return [name for name in item.generated if name in item.identified_by and name not in published]


def _remedy(item: Stored, table: RawTable, member: Member | None, version: int) -> str:
    if member is not None and member.listed:
        return "ALTER PUBLICATION … DROP TABLE, then ADD TABLE without a column list"
    alter = f"ALTER TABLE {item.quoted} REPLICA IDENTITY"
    if item.has_key and item.identity in ("n", "i"):
        return f"run {alter} DEFAULT as its owner"
    if version >= GENERATED_SINCE and item.generated:
        columns = ", ".join(map(ident, item.generated))
        return (
            f"run {alter} USING INDEX with a unique index of NOT NULL columns without {columns} as its owner, "
            f"{OWN_SOURCE} (docs/operations.md)"
        )
    return f"run {alter} FULL as its owner, {OWN_SOURCE} (docs/operations.md)"
