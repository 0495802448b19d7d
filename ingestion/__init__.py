"""Source to raw: snapshots and the logical slot, typed, published in consistent cuts, on PySpark.

Importing this package is cheap; what it exports loads Spark, Arrow and the catalog when first used.
"""

from typing import Any

_EXPORTS = {
    "bring_up": "ingestion.run.api",
    "recover_source": "ingestion.run.api",
    "move_source": "ingestion.run.move",
    "resnapshot": "ingestion.run.api",
    "resume": "ingestion.run.api",
    "replay": "ingestion.run.api",
    "up_to_date_alone": "ingestion.run.api",
    "nobody_ingests": "ingestion.run.operate",
    "pause": "ingestion.run.operate",
    "forget": "ingestion.run.operate",
    "forget_source": "ingestion.run.operate",
    "forget_live": "ingestion.run.operate",
    "forget_aside": "ingestion.sink.aside",
    "kept_aside": "ingestion.sink.aside",
    "list_schemas": "ingestion.state.schemas",
    "source_status": "ingestion.run.api",
    "why_refused": "ingestion.run.api",
    "connector_trouble": "ingestion.run.connector",
    "refresh_mirrors": "ingestion.run.mirrors",
    "mirrors_held": "ingestion.run.mirrors",
    "follow_sources": "ingestion.run.follow",
    "setup_statements": "ingestion.sources.postgres.setup",
    "SourceReport": "ingestion.run.reports",
    "SourceStatus": "ingestion.run.reports",
    "TableReport": "ingestion.run.reports",
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'ingestion' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_EXPORTS[name]), name)
