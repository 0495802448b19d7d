"""Every file that a table's metadata refers to, in any snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

Sizes = dict[str, int | None]
READERS = 8


def reachable_files(table: Table) -> set[str]:
    """Metadata files, manifest lists, manifests, statistics, data and delete files of all snapshots."""
    return metadata_files(table) | set(files_of(table, table.metadata.snapshots))


def metadata_files(table: Table) -> set[str]:
    """What the table's metadata names without reading a manifest list."""
    metadata = table.metadata
    files = {table.metadata_location}
    files.update(entry.metadata_file for entry in metadata.metadata_log)
    files.update(snapshot.manifest_list for snapshot in metadata.snapshots if snapshot.manifest_list)
    files.update(statistics.statistics_path for statistics in metadata.statistics)
    files.update(statistics.statistics_path for statistics in metadata.partition_statistics)
    return files


def files_of(table: Table, snapshots: Iterable[Snapshot]) -> Sizes:
    """Manifest lists, manifests, data and delete files of some snapshots, with their sizes where they are known."""
    snapshots = list(snapshots)
    sizes: Sizes = {snapshot.manifest_list: None for snapshot in snapshots if snapshot.manifest_list}
    for manifest, files in _read(table, manifests_of(table, snapshots).values()):
        sizes[manifest.manifest_path] = manifest.manifest_length
        sizes |= files
    return sizes


def only_of(table: Table, gone: Iterable[Snapshot], kept: Iterable[Snapshot]) -> Sizes:
    """The files that the snapshots `gone` refer to and none of `kept` does, with their sizes.

    A manifest that both have is read once, and for what is kept.
    """
    gone, kept = list(gone), list(kept)
    living = manifests_of(table, kept)
    dying = {path: manifest for path, manifest in manifests_of(table, gone).items() if path not in living}
    sizes: Sizes = {snapshot.manifest_list: None for snapshot in gone if snapshot.manifest_list}
    for manifest, files in _read(table, dying.values()):
        sizes[manifest.manifest_path] = manifest.manifest_length
        sizes |= files
    for _, files in _read(table, living.values()):
        for path in files:
            sizes.pop(path, None)
    return sizes


def manifests_of(table: Table, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
    """The manifests of some snapshots by path."""
    with ThreadPoolExecutor(READERS) as pool:
        lists = pool.map(lambda snapshot: snapshot.manifests(table.io), snapshots)
        return {manifest.manifest_path: manifest for manifests in lists for manifest in manifests}


def _read(table: Table, manifests: Iterable[ManifestFile]) -> list[tuple[ManifestFile, Sizes]]:
    def files(manifest: ManifestFile) -> tuple[ManifestFile, Sizes]:
        entries = manifest.fetch_manifest_entry(table.io)
        return manifest, {entry.data_file.file_path: entry.data_file.file_size_in_bytes for entry in entries}

    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(files, manifests))
