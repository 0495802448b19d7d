"""The log of long-running processes: on stderr, one line per record, as text or JSON."""

import logging
import sys

from lakehouse.settings import Settings
from lakehouse.text.log_lines import JsonFormatter
from lakehouse.text.shown import LineFormatter

# Not by the level of their loggers: Trino's client gives each of its own a level of INFO.
CHATTY = ("py4j", "pyiceberg", "alembic", "trino")


def log_to_stderr(settings: Settings) -> None:
    """Logs as the settings say."""
    as_text = LineFormatter("%(asctime)s %(levelname)s %(message)s")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log.format == "json" else as_text)
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or record.name.split(".")[0] not in CHATTY)
    logging.basicConfig(level=settings.log.level.upper(), handlers=[handler])
