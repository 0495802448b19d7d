"""`python -m lakehouse_stack.downloads.sbom` prints the bill of materials of an installation as CycloneDX JSON.

It lists all runtime packages and files in the lock files and artifacts.toml, installed or not, without the development
tools.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from lakehouse.settings import PROJECT_DIR
from lakehouse_stack.downloads.artifacts import Artifact, kafka_jars, read_manifest
from lakehouse_stack.downloads.java import LOCK_FILE
from lakehouse_stack.downloads.licences import declared, of_package

PINNED = re.compile(r"^([A-Za-z0-9_.-]+)==([^ ;\\]+)", re.MULTILINE)


def bom() -> Bom:
    """Every pinned package and file."""
    project = tomllib.loads((PROJECT_DIR / "pyproject.toml").read_text())["project"]
    result = Bom()
    result.metadata.component = root = Component(
        name=project["name"], version=project["version"], type=ComponentType.APPLICATION, bom_ref="lakehouse"
    )
    for lock in (PROJECT_DIR / "requirements.lock", LOCK_FILE):
        for component in _packages(lock):
            result.components.add(component)
    for artifact in (*read_manifest(), *kafka_jars()):
        result.components.add(_file(artifact))
    result.register_dependency(root, result.components)
    return result


def _packages(lock: Path) -> Iterator[Component]:
    licences = {other.name: other.licence for other in declared("other")}
    for name, version in PINNED.findall(lock.read_text()):
        yield _component(PackageURL("pypi", name=name, version=version), licences.get(name) or of_package(name))


def _file(artifact: Artifact) -> Component:
    qualifiers = {"type": artifact.ext} | ({"classifier": artifact.classifier} if artifact.classifier else {})
    component = _component(
        PackageURL("maven", artifact.org, artifact.name, artifact.version, qualifiers), artifact.licence
    )
    component.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=artifact.sha256))
    return component


def _component(url: PackageURL, licence: str | None) -> Component:
    return Component(
        name=url.name,
        group=url.namespace,
        version=url.version,
        purl=url,
        bom_ref=url.to_string(),
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
    )


if __name__ == "__main__":
    print(JsonV1Dot6(bom()).output_as_string(indent=2))
