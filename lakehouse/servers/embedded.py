"""What the embedded stack serves, at the addresses that `lakehouse up` wrote: its catalog, and samples as sources."""

import tomllib
from typing import TYPE_CHECKING, Any

from lakehouse.errors import LakehouseError
from lakehouse.settings.filling import is_another_source
from lakehouse.text.urls import PostgresUrl, parse_url

if TYPE_CHECKING:
    from lakehouse.settings import Settings


def embedded_sources(settings: "Settings") -> dict[str, PostgresUrl]:
    """The address of each source of the embedded stack, by name; empty without a stack."""
    sources = _written(settings).get("sources", {})
    try:
        return {name: parse_url(source["url"]) for name, source in sources.items() if "url" in source}
    except LakehouseError:
        return {}


def is_own_catalog(settings: "Settings") -> bool:
    """Whether the catalog is that of the embedded stack."""
    url = settings.catalog_url
    return url is not None and url.get_secret_value() == _written(settings).get("catalog_url")


def is_sample(settings: "Settings", source: str) -> bool:
    """Whether the source is one that `lakehouse samples` fills."""
    if source not in settings.databases:
        return False
    here = parse_url(settings.source(source).url.get_secret_value())
    there = embedded_sources(settings).get(source)
    return there is not None and here.place == there.place


def refuse_namesake(settings: "Settings", source: str) -> None:
    """Raises LakehouseError where a source has the name of a sample of the stack and is none: a sample in it would
    change what is somebody's own."""
    sample, given = _written(settings).get("sources", {}).get(source), settings.sources.get(source)
    if sample is not None and given is not None and is_another_source(sample, [dict(given)]):
        raise LakehouseError(
            f"source {source!r} has the name of a sample and leads elsewhere than to the embedded stack: no sample is "
            "written there; leave it out, or call the source otherwise"
        )


def _written(settings: "Settings") -> dict[str, Any]:
    file = settings.home / "endpoints.toml"
    return tomllib.loads(file.read_text()) if file.exists() else {}
