"""Health check of the container `worker`: a worker has its session in the catalog database."""

import sys

from lakehouse.errors import LakehouseError
from lakehouse.servers.worker_sessions import is_there
from lakehouse.settings import load_settings

try:
    if not is_there(load_settings()):
        sys.exit("no worker is connected to the catalog database")
except LakehouseError as error:
    sys.exit(str(error))
