"""Finds a Java that Spark runs on: 17 or 21 (Spark 4.1 does not run on 25, Trino 476 does not run below 24)."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings

SPARK_JAVA = (17, 21)


def spark_java_home(settings: Settings) -> Path:
    """A JAVA_HOME for Spark: the configured one, the machine's, or the private one that was downloaded.

    Raises LakehouseError when the configured one does not fit or none is found.
    """
    if settings.spark.java_home is not None:
        if java_version(settings.spark.java_home) not in SPARK_JAVA:
            raise LakehouseError(f"spark.java_home {settings.spark.java_home} is not a Java 17 or 21")
        return settings.spark.java_home
    for home in (*_installed(), private_java_home(settings)):
        if java_version(home) in SPARK_JAVA:
            return home
    raise LakehouseError(
        "no Java 17 or 21 for Spark: run `python -m lakehouse_stack jars` (it fetches one) or set "
        "LAKEHOUSE_SPARK__JAVA_HOME"
    )


def installed_spark_java() -> Path | None:
    """A Java 17 or 21 of this machine, or None."""
    return next((home for home in _installed() if java_version(home) in SPARK_JAVA), None)


def private_java_home(settings: Settings) -> Path:
    """Where the private Java 21 is installed when the machine has none."""
    return settings.artifacts / "jre21"


def java_version(home: Path) -> int | None:
    """The feature version of the Java below `home`, or None if none runs."""
    try:
        done = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(match.group(1)) if match and done.returncode == 0 else None


def _installed() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java"):
        yield Path(java).resolve().parent.parent
