"""Source to raw: snapshots and the logical slot, typed, published in consistent cuts, on PySpark.

Importing this package is cheap; what it exports loads Spark, Arrow and the catalog when first used.
"""

from typing import Any

_EXPORTS = {
    "bring_up": "ingestion.api",
    "recover_source": "ingestion.api",
    "resnapshot": "ingestion.api",
    "resume": "ingestion.api",
    "replay": "ingestion.api",
    "up_to_date_alone": "ingestion.api",
    "pause": "ingestion.operate",
    "forget": "ingestion.operate",
    "source_status": "ingestion.api",
    "follow_sources": "ingestion.follow",
    "setup_statements": "ingestion.setup",
    "SourceReport": "ingestion.reports",
    "SourceStatus": "ingestion.reports",
    "TableReport": "ingestion.reports",
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'ingestion' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_EXPORTS[name]), name)
