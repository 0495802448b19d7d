"""Consistent points of the source, and the patience it takes to make one: others' transactions and locks come first."""

from ingestion.sources.postgres.points.patience import Blocked, Patience
from ingestion.sources.postgres.points.point import NotThere, Point, consistent_point

__all__ = ["Blocked", "NotThere", "Patience", "Point", "consistent_point"]
