"""A change of a row's key: Debezium sends it as two events. Pure."""

from collections.abc import Sequence

from ingestion.sources.debezium.join.heads import Heads
from ingestion.sources.debezium.join.joined import Joined


def key_changes(heads: Heads, joined: Joined, relations: Sequence[str]) -> dict[int, int]:
    """The create and the delete of one record: an update that changed the key comes as both, at one LSN."""

    def record(index: int) -> tuple[int, int, str]:
        return heads.xid[index], heads.lsn[index], relations[heads.partition[index]]

    landing = [i for i in range(len(heads)) if joined.numbers[i] >= 0]
    deletes = {record(i): i for i in landing if heads.op[i] == ord("d")}
    creates = [i for i in landing if heads.op[i] == ord("c")] if deletes else []
    return {i: deletes[record(i)] for i in creates if record(i) in deletes}
