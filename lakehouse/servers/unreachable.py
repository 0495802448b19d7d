"""The error for a source that cannot be reached: its name, its address and the remedy."""

from typing import TYPE_CHECKING

from lakehouse.servers.embedded import embedded_sources
from lakehouse.servers.retry import Unreachable
from lakehouse.text.urls import parse_url

if TYPE_CHECKING:
    from lakehouse.settings import Settings


def unreachable_source(settings: "Settings", source: str, error: Exception, key: str = "url") -> Unreachable:
    """The error for a failed connection to a source; `key` names the URL that was used."""
    variable = f"LAKEHOUSE_SOURCES__{source.upper()}__{key.upper()}"
    configured = settings.source(source)
    url = {"owner_url": configured.owner_url, "primary_url": configured.primary_url}.get(key) or configured.url
    at = parse_url(url.get_secret_value(), variable)
    lines = str(error).strip().splitlines()
    reason = lines[0].rstrip(".;: ") if lines else type(error).__name__
    if "unsupported startup parameter" in reason:
        remedy = f"that is a pooler, such as PgBouncer: give the address of the server itself in {variable}"
    elif (at.host, at.port) in {(url.host, url.port) for url in embedded_sources(settings).values()}:
        remedy = f"run `lakehouse up`, or correct {variable}"
    else:
        remedy = f"start that server, or correct {variable}"
    return Unreachable(f"source {source!r}: no connection to {at.host}:{at.port} ({reason}): {remedy}")
