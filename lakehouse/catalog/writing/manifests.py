"""Appends that keep the number of a table's manifests small without ever rewriting many of their entries at once.

A publish adds a manifest to each table it touches. Iceberg's own merging waits for so many of them and then rewrites
all, what it merged before included, up to 8 MB: a stall of seconds, in all tables of the cycle together. Here the
manifests stand in tiers by how many files they name (below 10, 100, 1,000), as in a log-structured merge tree, and ten
of one tier become one of the next. An entry is rewritten three times in its life; larger manifests are left to
maintenance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pyiceberg.manifest import ManifestContent, ManifestFile

from lakehouse.catalog.private_pyiceberg import MergingAppend

FAN = 10
TIERS = 3
GROWING, FULL_ROWS = 16, 64


class TieredAppend(MergingAppend):
    """An append that merges one tier at most, of manifests that were there before."""

    def to_merge(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        return full_tier(manifests)


class GrowingAppend(TieredAppend):
    """One to a table whose writers replace their newest file until it is full: the manifests of such files stay alone.

    `FULL_ROWS` are in a full one. Of more writers than `GROWING` at a time some begin files anew.
    """

    def to_merge(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        newest = sorted(manifests, key=lambda manifest: manifest.sequence_number)[-GROWING:]
        grows = {m.manifest_path for m in newest if (m.added_rows_count or 0) < FULL_ROWS}
        return full_tier([manifest for manifest in manifests if manifest.manifest_path not in grows])


def full_tier(manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
    """Ten manifests or more of data files, of one partition spec and of the lowest tier that has so many; or none."""
    tiers: dict[tuple[int, int], list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        tier = len(str(_files(manifest))) - 1
        if manifest.content == ManifestContent.DATA and tier < TIERS:
            tiers[tier, manifest.partition_spec_id].append(manifest)
    return next((tiers[key] for key in sorted(tiers) if len(tiers[key]) >= FAN), [])


def _files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
