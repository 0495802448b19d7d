"""Health check of the container `ingestion`: every declared source has a live follower."""

import sys

from ingestion import source_status
from lakehouse.declarations import load_declarations
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings

settings = load_settings()
try:
    names = [source.name for source in load_declarations(settings).sources]
    idle = [name for name in names if not source_status(settings, name).follower_alive]
except LakehouseError as error:
    sys.exit(str(error))
if idle:
    sys.exit(f"nobody follows {', '.join(idle)}")
