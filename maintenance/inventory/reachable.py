"""Every file that a table's metadata refers to, in any snapshot; paths are in one spelling (`locations`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lakehouse.catalog.locations import one_spelling
from maintenance.inventory import manifest_files
from maintenance.inventory.manifest_files import Manifest

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

Sizes = dict[str, int | None]
READERS, BATCH = 8, 256
METADATA_FILE = ".metadata.json"
CLOSE_MS, SKEW_MS = 60_000, 5_000  # usual time from writing a file to its commit; difference of clocks


def reachable_files(table: Table) -> set[str]:
    """Metadata files, manifest lists, manifests, statistics, data and delete files of all snapshots."""
    return metadata_files(table) | set(files_of(table, table.metadata.snapshots))


def metadata_files(table: Table) -> set[str]:
    """The files that the metadata file names: metadata files, manifest lists and statistics."""
    metadata = table.metadata
    files = {table.metadata_location}
    files.update(entry.metadata_file for entry in metadata.metadata_log)
    files.update(snapshot.manifest_list for snapshot in metadata.snapshots if snapshot.manifest_list)
    files.update(statistics.statistics_path for statistics in metadata.statistics)
    files.update(statistics.statistics_path for statistics in metadata.partition_statistics)
    return set(map(one_spelling, files))


def files_of(table: Table, snapshots: Iterable[Snapshot]) -> Sizes:
    """Manifest lists, manifests, data and delete files of some snapshots, with their sizes if known."""
    snapshots = list(snapshots)
    sizes: Sizes = dict.fromkeys(_manifest_lists(snapshots))
    for manifest, files in _read(table, manifests_of(table, snapshots).values()):
        sizes[manifest.path] = manifest.length
        sizes |= files
    return sizes


def only_of(table: Table, gone: Iterable[Snapshot], kept: Iterable[Snapshot]) -> Sizes:
    """The files that only the snapshots `gone` refer to, and none of `kept`, with their sizes.

    A manifest that both name is read once, for the kept ones.
    """
    gone, kept = list(gone), list(kept)
    living = manifests_of(table, kept)
    dying = {path: manifest for path, manifest in manifests_of(table, gone).items() if path not in living}
    sizes: Sizes = dict.fromkeys(_manifest_lists(gone))
    for manifest, files in _read(table, dying.values()):
        sizes[manifest.path] = manifest.length
        sizes |= files
    for _, files in _read(table, living.values()):
        for path in files:
            sizes.pop(path, None)
    return sizes


def without_reference(table: Table, written: Mapping[str, int]) -> set[str]:
    """The objects that no snapshot of the table refers to; `written` maps paths to write times in epoch milliseconds.

    A file is usually named by the first commit after it was written, and by most later ones. Therefore snapshots that
    were committed shortly after an unresolved object are read first, newest first; the rest only while an object
    remains without a reference.
    """
    unnamed = written.keys() - metadata_files(table)
    sought = {path: written[path] for path in unnamed if not path.endswith(METADATA_FILE)}  # manifests name no others
    seen: set[str] = set()
    for snapshots in _most_promising_first(table, sought):
        manifests = {path: found for path, found in manifests_of(table, snapshots).items() if path not in seen}
        seen.update(manifests)
        for path in manifests:
            sought.pop(path, None)
        if sought:
            for _, files in _read(table, manifests.values()):
                for path in files:
                    sought.pop(path, None)
    return {path for path in unnamed if path in sought or path.endswith(METADATA_FILE)}


def _most_promising_first(table: Table, sought: Mapping[str, int]) -> Iterator[list[Snapshot]]:
    """The table's snapshots, a few at a time, until `sought` is empty."""
    others: list[Snapshot] = []
    times, of = list[int](), -1
    for snapshot in sorted(table.metadata.snapshots, key=lambda snapshot: -snapshot.timestamp_ms):
        if not sought:
            return
        if len(sought) != of:
            times, of = sorted(sought.values()), len(sought)
        first = bisect_left(times, snapshot.timestamp_ms - CLOSE_MS)
        if first < of and times[first] <= snapshot.timestamp_ms + SKEW_MS:
            yield [snapshot]
        else:
            others.append(snapshot)
    while others and sought:
        yield others[:BATCH]
        del others[:BATCH]


def manifests_of(table: Table, snapshots: Iterable[Snapshot]) -> dict[str, Manifest]:
    """The manifests of some snapshots by path."""
    listed = _manifest_lists(snapshots)
    with ThreadPoolExecutor(READERS) as pool:
        lists = pool.map(lambda path: manifest_files.manifests(table.io, path), listed)
        return {manifest.path: manifest for found in lists for manifest in found}


def _manifest_lists(snapshots: Iterable[Snapshot]) -> list[str]:
    return [one_spelling(snapshot.manifest_list) for snapshot in snapshots if snapshot.manifest_list]


def _read(table: Table, manifests: Iterable[Manifest]) -> list[tuple[Manifest, dict[str, int]]]:
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda manifest: (manifest, manifest_files.files(table.io, manifest.path)), manifests))
