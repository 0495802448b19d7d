"""A Kafka Connect worker as a process, and its REST API."""

import json
import subprocess
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil

from lakehouse.errors import LakehouseError


def start(command: list[str], log: Path) -> psutil.Process:
    """Starts a server with its output in a file."""
    with log.open("wb") as output:
        return psutil.Process(subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL).pid)


def has_ended(process: psutil.Process) -> bool:
    """Whether the process of a server is gone."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def until(done: Callable[[], bool], check: Callable[[float], None], pause: float) -> None:
    """Waits until `done`, which is asked after each pause; `check` is told every two seconds how long it has taken."""
    begun = checked = time.monotonic()
    while not done():
        now = time.monotonic()
        if now - checked > 2.0:
            checked = now
            check(now - begun)
        time.sleep(pause)


def answers(port: int) -> bool:
    """Whether the worker serves."""
    try:
        request(port, "GET", "/connectors")
    except (OSError, LakehouseError):
        return False
    return True


def request(port: int, method: str, path: str, body: object = None) -> Any:
    """Kafka Connect's REST API. Raises LakehouseError with its message when it refuses."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if answer.status >= 400:
        raise LakehouseError(f"Kafka Connect refused {method} {path}: {text}")
    return json.loads(text) if text else None
