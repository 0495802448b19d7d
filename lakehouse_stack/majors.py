"""The major version of Postgres that a cluster's data is of, and that of the programs: another one cannot open it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_stack.accounts import Placement, packaged_programs, place
from lakehouse_stack.config import StackSettings

CLUSTERS = ("sources", "catalog")
DEBIAN = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class OldCluster:
    """A cluster of this home whose data is of another major version than the programs."""

    name: str
    data: Path
    major: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.name}: its data is of Postgres {self.major}, this release brings Postgres {self.wanted}"


def refuse_other_majors(settings: Settings, stack: StackSettings) -> None:
    """Raises LakehouseError, before anything is started, when a cluster has to be moved to another major version."""
    if found := old_clusters(place(settings.home, stack.system_dir)):
        raise LakehouseError(
            f"{'; '.join(map(str, found))}: nothing was started; run `lakehouse upgrade`, which moves it and keeps the "
            "old data, or go back to the release that wrote it"
        )


def old_clusters(where: Placement) -> tuple[OldCluster, ...]:
    """The clusters that another major version of Postgres has written."""
    wanted = _major_of_programs(where.programs)
    found = [(name, where.data / name, major_of(where.data / name) or wanted) for name in CLUSTERS]
    return tuple(OldCluster(name, data, major, wanted) for name, data, major in found if major != wanted)


def major_of(data: Path) -> str | None:
    """The major version that wrote a data folder; None where there is none yet."""
    file = data / "PG_VERSION"
    return file.read_text().strip() if file.is_file() else None


def moved(data: Path) -> Path:
    """Where a cluster that was moved, and has been compared, waits for its place."""
    return data.with_name(f"{data.name}.moved")


def finish_move(data: Path) -> None:
    """Puts a moved cluster in its place; also where a process was killed after it had put the old one aside."""
    if not data.exists() and moved(data).exists():
        moved(data).rename(data)


def programs_for(major: str) -> Path:
    """Programs of an earlier major version: the wheel has some, Debian's packages others. Raises LakehouseError."""
    wheel = sorted(packaged_programs().parents[1].glob("pginstall*/bin"))
    for folder in (*wheel, DEBIAN / major / "bin"):
        if (folder / "postgres").exists() and _major_of_programs(folder) == major:
            return folder
    raise LakehouseError(
        f"moving a cluster of Postgres {major} needs its programs once, and neither the wheel nor {DEBIAN / major} has "
        f"them: install Debian's postgresql-{major}, then run this again"
    )


def _major_of_programs(folder: Path) -> str:
    said = subprocess.run([str(folder / "postgres"), "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[2].partition(".")[0]  # postgres (PostgreSQL) 18.4
