"""Everything that is downloaded has a known licence, and the lists that are handed out follow the declarations."""

import json
import re
from typing import Any

import yaml
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from license_expression import get_spdx_licensing

from lakehouse.settings import PROJECT_DIR
from lakehouse_stack.downloads.artifacts import kafka_jars, read_manifest
from lakehouse_stack.downloads.licences import PERMISSIVE, declared, notice, of_package
from lakehouse_stack.downloads.sbom import PINNED, bom


def packages(lock: str = "requirements.lock") -> dict[str, str]:
    return dict(PINNED.findall((PROJECT_DIR / lock).read_text()))


def test_every_licence_is_one_that_spdx_knows() -> None:
    entries: list[Any] = [*read_manifest(), *kafka_jars(), *declared("other"), *declared("image")]
    for licence in {entry.licence for entry in entries}:
        assert get_spdx_licensing().validate(licence).errors == [], licence


def test_every_package_that_runs_is_permissively_licensed_or_declared() -> None:
    known = {name: of_package(name) for name in packages()}
    others = {other.name for other in declared("other") if other.inside is None and other.name in known}
    installed = {name: licence for name, licence in known.items() if licence is not None}
    assert len(installed) > 140
    assert {name for name, licence in installed.items() if not PERMISSIVE.search(licence)} == others


def test_every_image_of_the_containers_is_declared() -> None:
    used = set(re.findall(r"^FROM (\S+?):", (PROJECT_DIR / "docker" / "Dockerfile").read_text(), re.MULTILINE))
    for file in ("docker-compose.yml", "oidc.yml", "kafka.yml"):
        services = yaml.safe_load((PROJECT_DIR / "docker" / file).read_text())["services"].values()
        used |= {service["image"].rsplit(":", 1)[0] for service in services if "image" in service}
    assert used - {"lakehouse"} == {image.name for image in declared("image")}


def test_the_notice_is_that_of_the_declarations() -> None:
    assert (PROJECT_DIR / "NOTICE").read_text() == notice(), "run `make docs`"


def test_the_bill_of_materials_is_whole_and_valid() -> None:
    text = JsonV1Dot6(bom()).output_as_string()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {component["purl"] for component in json.loads(text)["components"]}
    assert {f"pkg:pypi/{name}@{version}".lower() for name, version in packages().items()} <= {p.lower() for p in listed}
    assert len([p for p in listed if p.startswith("pkg:maven/")]) == len(read_manifest()) + len(kafka_jars())


def test_what_runs_is_pinned_alike_in_both_locks() -> None:
    everything = packages("requirements-dev.lock")
    assert packages().items() <= everything.items()
    assert not {"pytest", "mypy", "hypothesis", "pre-commit", "pip-audit"} & packages().keys()


def test_the_audit_covers_every_lock() -> None:
    """Those of the product are among those for development, see above."""
    recipe = (PROJECT_DIR / "Makefile").read_text().split("\naudit:")[1].split("\n\n")[0]
    audited = set(re.findall(r"--requirement (\S+)", recipe))
    locks = {*PROJECT_DIR.glob("*.lock"), *PROJECT_DIR.glob("lakehouse_stack/**/*.lock")}
    assert {str(lock.relative_to(PROJECT_DIR)) for lock in locks} - audited == {"requirements.lock"}
