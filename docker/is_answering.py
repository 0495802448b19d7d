"""Health check of the container `serve`: it answers, and so does the catalog's database."""

import sys

from lakehouse.settings import load_settings
from lakehouse_stack.servers.serve import check_health

sys.exit(check_health(load_settings().serve.port, has_tls=True))
