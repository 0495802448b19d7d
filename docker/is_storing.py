"""Health check of the container `s3`: it asks for a signature."""

import sys

from lakehouse_stack.servers.s3 import CONTAINER_PORT, check_health

sys.exit(check_health(CONTAINER_PORT))
