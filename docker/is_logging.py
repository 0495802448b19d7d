"""Health check of the container `trino-reads`: Trino has answered it lately."""

import sys

from lakehouse.settings import load_settings
from lakehouse_stack.servers.reads import asked_file, check_health

sys.exit(check_health(asked_file(load_settings().home)))
