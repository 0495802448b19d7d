"""Runs a Python function in Spark tasks, one task per item, and brings the results back.

The functions read the source and write the warehouse themselves, in columns; Spark places them, on this machine or
on a cluster's executors.
"""

from __future__ import annotations

import sys
import zipimport
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from ingestion.sink.writer import pack, unpack
from ingestion.tasks.outage import OUTAGES, outage
from lakehouse.errors import LakehouseError
from lakehouse.text.log_lines import as_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_tasks(session: SparkSession, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`[work(item) for item in items]`, each in a Spark task of its own; raises the first task's LakehouseError."""
    packed = [pack(item) for item in items]

    def run(indices: Iterable[int]) -> Iterator[bytes]:
        for index in indices:
            yield pack(_outcome(work, packed[index]))
        _forget_archives()

    # Not a DataFrame: planning one and its Arrow streams cost as much as a small cycle's whole work.
    results = session.sparkContext.parallelize(range(len(items)), len(items)).mapPartitions(run).collect()
    return _results([unpack(result) for result in results])


def run_threads(threads: int, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The same in threads of this process, for work that waits for servers; after an error nothing more begins."""

    def outcome(item: Item) -> Any:
        return _outcome(work, pack(item))

    pool = ThreadPoolExecutor(threads)
    try:
        return _results(pool.map(as_here(outcome), items))
    finally:
        pool.shutdown(cancel_futures=True)


def _results(outcomes: Iterable[Any]) -> list[Any]:
    results: list[Any] = []
    for outcome in outcomes:
        if isinstance(outcome, LakehouseError):
            raise outcome
        results.append(outcome)
    return results


def _outcome(work: Callable[[Any], Any], packed: bytes) -> Any:
    """Errors for people travel as values: Spark would wrap them in a page of traceback, after retries in vain."""
    item: Any = unpack(packed)
    try:
        return work(item)
    except LakehouseError as error:
        return error
    except OUTAGES as error:
        return outage(item.source, error)


def _forget_archives() -> None:
    """Lets the worker's next task begin without reading Spark's archives anew.

    PySpark calls `importlib.invalidate_caches` before each task, and for each zip and jar on its path that parses the
    whole directory of the archive: some 70 ms. An importer that is missing is made again from zipimport's own cache.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]
