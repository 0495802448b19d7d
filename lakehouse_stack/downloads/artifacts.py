"""The manifest of pinned downloads, and the artifacts that are missing; `download.py` fetches them."""

import hashlib
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict

MANIFEST = Path(__file__).with_name("artifacts.toml")
KAFKA_JARS = Path(__file__).with_name("kafka.jars")
KAFKA = "kafka-4.3.1-debezium-3.7.0"


class Artifact(BaseModel):
    """One pinned file of a Maven repository."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    org: str
    name: str
    version: str
    ext: str
    sha256: str
    size: int
    licence: str  # SPDX identifier
    classifier: str | None = None
    unpack_to: str | None = None
    folder: str = "jars"

    @property
    def file_name(self) -> str:
        """The file's name in the repository."""
        return f"{self.name}-{self.version}{f'-{self.classifier}' if self.classifier else ''}.{self.ext}"

    @property
    def target(self) -> str:
        """The path below the artifacts folder: of the unpacked folder or of the file."""
        return self.unpack_to or f"{self.folder}/{self.file_name}"


def read_manifest(path: Path = MANIFEST) -> tuple[Artifact, ...]:
    """All pinned artifacts."""
    return tuple(Artifact.model_validate(entry) for entry in tomllib.loads(path.read_text())["artifact"])


def kafka_jars() -> tuple[Artifact, ...]:
    """The jars of Kafka, Connect and Debezium with all that they need, which only some installations download."""
    found, folder = [], kafka_folder()
    for line in _kafka_lines():
        module, sha256, size, licence = line.split(maxsplit=3)
        org, name, version, *classifier = module.split(":")
        found.append(
            Artifact(
                org=org, name=name, version=version, ext="jar", classifier=next(iter(classifier), None),
                folder=folder, sha256=sha256, size=int(size), licence=licence,
            )
        )  # fmt: skip
    return tuple(found)


def kafka_folder() -> str:
    """The folder of these jars, which is the class path: each list of jars has its own."""
    return f"{KAFKA}-{hashlib.sha256(repr(_kafka_lines()).encode()).hexdigest()[:8]}"


def _kafka_lines() -> list[str]:
    return [line for line in KAFKA_JARS.read_text().splitlines() if line and not line.startswith("#")]


def missing(artifacts: tuple[Artifact, ...], root: Path) -> tuple[Artifact, ...]:
    """The artifacts that are not in `root`; files are verified before they are moved there."""
    return tuple(artifact for artifact in artifacts if not _present(artifact, root / artifact.target))


def artifact(name: str) -> Artifact:
    """The pinned artifact of that name."""
    return next(artifact for artifact in read_manifest() if artifact.name == name)


def _present(artifact: Artifact, target: Path) -> bool:
    if artifact.unpack_to:
        return target.is_dir()
    return target.is_file() and target.stat().st_size == artifact.size
