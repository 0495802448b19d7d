"""Every file that a table's metadata refers to, in any snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table


def reachable_files(table: Table) -> set[str]:
    """Metadata files, manifest lists, manifests, statistics, data and delete files of all snapshots."""
    manifests = _manifests(table)
    files = metadata_files(table) | set(manifests)
    for manifest in manifests.values():
        files.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))
    return files


def metadata_files(table: Table) -> set[str]:
    """What the table's metadata names without reading a manifest list."""
    metadata = table.metadata
    files = {table.metadata_location}
    files.update(entry.metadata_file for entry in metadata.metadata_log)
    files.update(snapshot.manifest_list for snapshot in metadata.snapshots if snapshot.manifest_list)
    files.update(statistics.statistics_path for statistics in metadata.statistics)
    files.update(statistics.statistics_path for statistics in metadata.partition_statistics)
    return files


def _manifests(table: Table) -> dict[str, ManifestFile]:
    return {
        manifest.manifest_path: manifest
        for snapshot in table.metadata.snapshots
        for manifest in snapshot.manifests(table.io)
    }
