"""What a mirror says of itself, in a property of its own metadata: of which cut its rows are, and which columns it has.

Rows and property change in one commit, so a mirror that was restored to an older state, as by a backup, goes on from
there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from lakehouse.catalog.open import MIRROR_POSITION, MIRROR_STATE, changes_data, history, total
from lakehouse.files.stored import known_fields

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

MOMENTS = ("ingested_at", "seen")
_OF_CHANGES = ("append", "delete")  # the operations of a refresh that writes what changed
LISTS = ("key", "nulls")


@dataclass(frozen=True)
class MirrorState:
    """Where a mirror stands.

    Its rows are those of (`epoch`, `cut_lsn`); every event that was ingested until `ingested_at`, and is not after that
    cut, is in them. `raw_snapshot` is the raw table's that was read, `snapshot` the mirror's own that holds the rows.
    `columns` are the ids of the raw table's fields by name, `last_field` is the newest field that the raw table had.
    Every publish until `seen` was known. `raw` is the UUID of the raw table, `key` are the ids of its fields that tell
    rows apart. `nulls` are the key's columns in which a row may have a null. These four are None of a mirror that an
    earlier release has written.
    """

    epoch: int
    cut_lsn: int
    position: str
    ingested_at: datetime
    raw_snapshot: int | None
    snapshot: int
    columns: Mapping[str, int]
    last_field: int
    seen: datetime | None = None
    raw: str | None = None
    key: tuple[int, ...] | None = None
    nulls: tuple[str, ...] | None = None

    def properties(self) -> dict[str, str]:
        """What is stored."""
        stored = asdict(self) | {name: at.isoformat() for name in MOMENTS if (at := getattr(self, name)) is not None}
        return {MIRROR_POSITION: f"{self.epoch}:{self.position}", MIRROR_STATE: json.dumps(stored)}


def read_state(mirror: Table, epoch: int, raw: str, key: tuple[int, ...]) -> MirrorState | None:
    """Where the mirror stands; None if all its rows are to be read again.

    They are if they are not those that were stored with it, because somebody rolled it back, and in a new epoch: a
    restored raw table may have lost events that the mirror has, and a recovery repairs only what raw has wrong. So are
    those of another raw table, and those that were told apart by another key: events would be merged into other rows.
    """
    stored = mirror.properties.get(MIRROR_STATE)
    if stored is None:
        return None
    fields = known_fields(MirrorState, json.loads(stored))
    told: dict[str, Any] = {n: datetime.fromisoformat(fields[n]) for n in MOMENTS if fields.get(n)}
    told |= {name: tuple(fields[name]) for name in LISTS if fields.get(name) is not None}
    state = MirrorState(**fields | told)
    is_of_these = state.raw in (None, raw) and state.key in (None, key)
    return state if state.epoch == epoch and is_of_these and data_snapshot(mirror) == state.snapshot else None


def data_snapshot(table: Table) -> int | None:
    """The newest snapshot that changed rows; a compaction does not."""
    newest = next(filter(changes_data, history(table.metadata)), None)
    return newest.snapshot_id if newest else None


def added_files(metadata: TableMetadata) -> int:
    """How many data files refreshes have added since a mirror's files were last merged, compacted or all written."""
    added = takewhile(lambda found: found.summary and found.summary.operation.value in _OF_CHANGES, history(metadata))
    return sum(total(snapshot, "added-data-files") for snapshot in added)


def columns_with_nulls(
    mirror: Table, snapshot: int, columns: Iterable[str], before: MirrorState | None = None
) -> tuple[str, ...]:
    """Those of these columns in which a row of the snapshot may have a null, by what its files say of themselves.

    Of a state before, which had these columns, what is known is taken over: only what was added since is read.
    """
    from pyiceberg.manifest import ManifestContent

    def manifests(of: int) -> dict[str, ManifestFile]:
        found = mirror.snapshot_by_id(of)
        assert found is not None, f"{mirror.name()} has no snapshot {of}"
        return {m.manifest_path: m for m in found.manifests(mirror.io) if m.content == ManifestContent.DATA}

    known, read = (before.nulls or (), manifests(before.snapshot)) if before else ((), {})
    added = [manifest for path, manifest in manifests(snapshot).items() if path not in read]
    files = [entry.data_file for manifest in added for entry in manifest.fetch_manifest_entry(mirror.io)]
    ids = {name: mirror.schema().find_field(name).field_id for name in columns}
    return tuple(
        name
        for name, field in ids.items()
        if name in known or any((file.null_value_counts or {}).get(field, 1) for file in files)
    )
