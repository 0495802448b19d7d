"""The licences of downloads, packages and images: `python -m lakehouse_stack.downloads.licences` prints NOTICE.

They are declared in artifacts.toml, except for packages whose own metadata states a permissive licence.
"""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata

from pydantic import BaseModel, ConfigDict

from lakehouse_stack.downloads.artifacts import MANIFEST, kafka_jars, read_manifest

PERMISSIVE = re.compile(r"Apache|MIT\b|BSD|ISC|Python Software|PSF|Unlicense|Zope", re.IGNORECASE)
HEAD = """Lakehouse
Licensed under the Apache License, Version 2.0: see LICENSE.

This repository holds its own code alone. What it downloads, installs and runs has licences of its own; each file brings
its text. `make docs` writes this list from artifacts.toml, `make sbom` lists every package and file with version.
"""


class Other(BaseModel):
    """A package or bundled component without a permissive licence, or an image."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    licence: str
    inside: str | None = None


def declared(kind: str) -> tuple[Other, ...]:
    """The entries of one kind, `other` or `image`."""
    return tuple(Other.model_validate(entry) for entry in tomllib.loads(MANIFEST.read_text())[kind])


def of_package(name: str) -> str | None:
    """The licence in an installed package's metadata; None if it is not installed on this platform."""
    try:
        about = metadata(name).json
    except PackageNotFoundError:
        return None
    classifiers = [line.split(" :: ")[-1] for line in about.get("classifier", ()) if line.startswith("License")]
    first = str(about.get("license", "")).strip().splitlines()[:1]
    return str(about.get("license_expression") or ", ".join(classifiers) or "".join(first))


def notice() -> str:
    """The text of NOTICE."""
    files, of_kafka = (
        {(a.org, a.name): f"{a.name} {a.version} ({a.org}): {a.licence}" for a in artifacts}
        for artifacts in (read_manifest(), kafka_jars())
    )
    parts = [f"{o.name}{f', in {o.inside}' if o.inside else ''}: {o.licence}" for o in declared("other")]
    images = [f"{image.name}: {image.licence}" for image in declared("image")]
    sections = (
        ("Downloaded by `lakehouse up`", files.values()),
        ("Downloaded by `lakehouse up --with kafka`", of_kafka.values()),
        ("Packages, and parts of packages and files, that are not Apache, MIT, BSD, ISC or PSF", parts),
        ("Images that docker/ names", images),
    )
    return HEAD + "".join(f"\n{title}\n" + "".join(f"  {line}\n" for line in lines) for title, lines in sections)


if __name__ == "__main__":
    print(notice(), end="")
