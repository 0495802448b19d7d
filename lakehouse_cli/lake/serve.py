"""`lakehouse serve`: the Iceberg REST catalog, for engines that read."""

from lakehouse.settings import load_settings
from lakehouse.text.shown import say


def serve() -> None:
    """Serve tables and views as a read-only Iceberg REST catalog, by Trino's logins; `lakehouse up` does so as well."""
    from lakehouse_serve.run import serve as run

    settings = load_settings()
    say(f"Iceberg REST catalog at {settings.serve.address()}; Ctrl-C ends it")
    run(settings)
