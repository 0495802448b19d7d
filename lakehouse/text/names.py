"""What sources, tables and columns of the lake are called."""

import re

NAME = re.compile(r"[a-z][a-z0-9_]*")
