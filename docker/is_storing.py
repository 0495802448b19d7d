"""Health check of the container `s3`: it asks for a signature."""

import sys

from lakehouse_stack.s3 import CONTAINER_PORT, trouble

sys.exit(trouble(CONTAINER_PORT))
