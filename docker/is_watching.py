"""Health check of the container `watch`: it has looked, and answers Prometheus."""

import sys
from urllib.request import urlopen

from lakehouse.settings import load_settings

with urlopen(f"http://127.0.0.1:{load_settings().metrics.watch_port}/metrics", timeout=10) as answer:
    if b"lakehouse_disk_free_bytes" not in answer.read():
        sys.exit("it has not looked yet")
