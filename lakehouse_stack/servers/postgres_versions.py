"""The major versions of clusters and programs: Postgres cannot open the data of another major version."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.settings import ENDPOINTS_FILE, Settings
from lakehouse_stack.home.config import StackSettings
from lakehouse_stack.processes.accounts import Placement, find_placement, packaged_programs

CLUSTERS = ("sources", "catalog")
DEBIAN = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class OldCluster:
    """A cluster whose data has another major version than the programs."""

    name: str
    data: Path
    major: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.name}: its data is of Postgres {self.major}, this release brings Postgres {self.wanted}"


def refuse_other_versions(settings: Settings, stack: StackSettings) -> None:
    """Raises LakehouseError, before any server starts, if a cluster needs an upgrade."""
    if found := old_clusters(find_placement(settings.home, stack.system_dir)):
        raise LakehouseError(
            f"{'; '.join(map(str, found))}: nothing was started; run `lakehouse upgrade`, which moves it and keeps the "
            "old data, or go back to the release that wrote it"
        )


def old_clusters(placement: Placement) -> tuple[OldCluster, ...]:
    """The clusters written by another major version of Postgres."""
    wanted = _major_of_programs(placement.programs)
    found = [(name, placement.data / name, major_of(placement.data / name) or wanted) for name in CLUSTERS]
    return tuple(OldCluster(name, data, major, wanted) for name, data, major in found if major != wanted)


def lost_clusters(settings: Settings, stack: StackSettings) -> dict[str, Path]:
    """The clusters that a home with a stack has no longer, by name, with their folders: `up` makes empty ones."""
    if not (settings.home / ENDPOINTS_FILE).exists():
        return {}
    data = find_placement(settings.home, stack.system_dir, make=False).data
    return {name: data / name for name in CLUSTERS if not any(map(major_of, (data / name, upgraded_path(data / name))))}


def major_of(data: Path) -> str | None:
    """The major version of a data folder; None if it does not exist yet."""
    file = data / "PG_VERSION"
    return file.read_text().strip() if file.is_file() else None


def upgraded_path(data: Path) -> Path:
    """The path of an upgraded and verified cluster before it replaces the old one, where a link leads if it is one."""
    return data.resolve().with_name(f"{data.name}.moved")


def finish_upgrade(data: Path) -> None:
    """Renames an upgraded cluster to its final path; also completes an upgrade that was killed before this step."""
    if not data.exists() and upgraded_path(data).exists():
        upgraded_path(data).rename(data.resolve())


def programs_for(major: str) -> Path:
    """The programs of an earlier major version, from the wheel or Debian's packages. Raises LakehouseError."""
    wheel = sorted(packaged_programs().parents[1].glob("pginstall*/bin"))
    for folder in (*wheel, DEBIAN / major / "bin"):
        if (folder / "postgres").exists() and _major_of_programs(folder) == major:
            return folder
    raise LakehouseError(
        f"moving a cluster of Postgres {major} needs its programs once, and neither the wheel nor {DEBIAN / major} has "
        f"them: install Debian's postgresql-{major}, then run this again"
    )


def _major_of_programs(folder: Path) -> str:
    output = subprocess.run([str(folder / "postgres"), "--version"], capture_output=True, text=True, check=True).stdout
    return output.split()[2].partition(".")[0]  # postgres (PostgreSQL) 18.4
