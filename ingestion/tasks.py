"""Runs a Python function in Spark tasks, one task per item, and brings the results back.

The functions read the source and write the warehouse themselves, in columns; Spark places them, on this machine or
on a cluster's executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from ingestion.outage import OUTAGES, outage
from ingestion.writer import pack, unpack
from lakehouse.errors import LakehouseError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_tasks(session: SparkSession, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`[work(item) for item in items]`, each in a Spark task of its own; raises the first task's LakehouseError."""
    packed = [pack(item) for item in items]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column("id").to_pylist():
                yield pa.RecordBatch.from_pydict({"index": [index], "result": [pack(_outcome(work, packed[index]))]})

    frame = session.range(0, len(items), 1, len(items)).mapInArrow(run, "index long, result binary")
    outcomes: list[Any] = [
        unpack(bytes(row["result"])) for row in sorted(frame.collect(), key=lambda row: row["index"])
    ]
    for outcome in outcomes:
        if isinstance(outcome, LakehouseError):
            raise outcome
    return outcomes


def _outcome(work: Callable[[Any], Any], packed: bytes) -> Any:
    """Errors for people travel as values: Spark would wrap them in a page of traceback, after retries in vain."""
    item: Any = unpack(packed)
    try:
        return work(item)
    except LakehouseError as error:
        return error
    except OUTAGES as error:
        return outage(item.source, error)
