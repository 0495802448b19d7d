"""How much ingestion reads and writes at a time, and how long it waits."""

from pydantic import Field

from lakehouse.settings.section import Section


class IngestionSettings(Section):
    """How changes are brought into the raw layer."""

    flush_bytes: int = Field(
        64 * 1024 * 1024,
        gt=0,
        description=(
            "the follower publishes after this much WAL; a larger backlog is peeked instead, so this also bounds its "
            "memory"
        ),
    )
    flush_interval_seconds: float = Field(
        1.0,
        gt=0,
        description=(
            "otherwise it publishes this long after the last publish began, or after twice the shorter duration of "
            "the last two; an isolated change is published at once"
        ),
    )
    poll_seconds: float = Field(
        0.5, gt=0, description="how often the follower checks whether a table was paused or the WAL has grown"
    )
    cycle_max_bytes: int = Field(1024 * 1024 * 1024, gt=0, description="maximum WAL that one cycle reads")
    decoding_memory_bytes: int = Field(
        256 * 1024 * 1024,
        ge=64 * 1024,
        description=(
            "memory of the source for open transactions; beyond it, the source sends them unfinished to a peek, and "
            "spills them for the follower's stream"
        ),
    )
    batch_bytes: int = Field(
        16 * 1024 * 1024, gt=0, description="bytes received and decoded at a time, of a backlog or a snapshot"
    )
    file_bytes: int = Field(
        256 * 1024 * 1024,
        gt=0,
        description="Arrow bytes after which a new data file begins; rows are written as they arrive",
    )
    max_snapshots: int = Field(
        500,
        ge=10,
        description=(
            "if a table that is appended to has more snapshots, the older half is removed from its metadata, whatever"
            " the retention"
        ),
    )
    snapshot_chunk_bytes: int = Field(128 * 1024 * 1024, gt=0, description="heap bytes per snapshot chunk")
    lease_seconds: float = Field(
        30.0, gt=1, description="a writer that shows no activity for this long loses its lease"
    )
    wait_seconds: float = Field(
        300.0,
        gt=0,
        description=(
            "how long a load waits for a follower to reach a position, or for others' transactions in the source, and"
            " an erasure for queries and for maintenance of its tables to end"
        ),
    )
