"""`lakehouse maintain`: keeps the lake's tables fast and small."""

from maintenance.command import maintain

__all__ = ["maintain"]
