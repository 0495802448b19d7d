"""The process that Spark forks its Python workers from, with everything loaded that ingestion's tasks need.

Spark ends a worker after a minute without work. A new one would spend a second of CPU on imports before its first row:
at the beginning of every snapshot, and in a follower at the first change after a pause.
"""

import os
from importlib import import_module

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a thread would not be there after a fork

import adbc_driver_postgresql.dbapi  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pyiceberg.io.pyarrow  # noqa: F401
from pyspark.daemon import manager

import ingestion.tasks.changes
import ingestion.tasks.replay
import ingestion.tasks.snapshot  # noqa: F401
from ingestion.sources.kinds import KINDS

for kind in KINDS.values():  # their readers come with the tasks
    import_module(kind)

if __name__ == "__main__":
    manager()
