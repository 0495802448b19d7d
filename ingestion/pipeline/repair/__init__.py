"""Makes the raw log right at a point: what the source has there and the log does not say is written as new events.

Both servers spell their own values (`spelling`) and hash them. A digest of each range of the hashed keys tells where
the two differ; only there are rows fetched, joined by key, and compared. Nothing but digests reaches the driver.
"""

from ingestion.pipeline.repair.stage import stage_repair
from ingestion.schema.compared import KeyRange

__all__ = ["KeyRange", "stage_repair"]
