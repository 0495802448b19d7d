"""Health check of the container `worker`: a worker has its session in the catalog database."""

import sys

from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from orchestration.runs.processes.presence import WORKER, is_served

try:
    if not is_served(load_settings(), WORKER):
        sys.exit("no worker is connected to the catalog database")
except LakehouseError as error:
    sys.exit(str(error))
