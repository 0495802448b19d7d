"""`lakehouse maintain`: keeps the lake's tables fast and small."""

from maintenance.command.maintain import app

__all__ = ["app"]
