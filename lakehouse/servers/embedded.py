"""The sources of the embedded stack: the samples, at the addresses that `lakehouse up` wrote."""

import tomllib
from typing import TYPE_CHECKING

from lakehouse.errors import LakehouseError
from lakehouse.text.urls import PostgresUrl, parse_url

if TYPE_CHECKING:
    from lakehouse.settings import Settings


def embedded_sources(settings: "Settings") -> dict[str, PostgresUrl]:
    """The address of each source of the embedded stack, by name; empty without a stack."""
    file = settings.home / "endpoints.toml"
    sources = tomllib.loads(file.read_text()).get("sources", {}) if file.exists() else {}
    try:
        return {name: parse_url(source["url"]) for name, source in sources.items() if "url" in source}
    except LakehouseError:
        return {}


def is_sample(settings: "Settings", source: str) -> bool:
    """Whether the source is one that `lakehouse samples` fills."""
    if source not in settings.databases:
        return False
    here = parse_url(settings.source(source).url.get_secret_value())
    there = embedded_sources(settings).get(source)
    return there is not None and (here.host, here.port, here.database) == (there.host, there.port, there.database)
