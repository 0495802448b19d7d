"""Runs work with Spark in several threads, each with the scheduler's pool and the job group of the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from lakehouse.text.log_lines import as_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(
    spark: SparkSession, threads: int, work: Callable[[Item], Result], items: Sequence[Item]
) -> list[Result]:
    """`[work(item) for item in items]`; raises the first error when what has begun has ended, and begins no more."""
    from pyspark import inheritable_thread_target

    pool, target = ThreadPoolExecutor(threads), as_here(work)
    try:
        begun = [pool.submit(inheritable_thread_target(spark)(target), item) for item in items]
        return [future.result() for future in begun]
    finally:
        pool.shutdown(cancel_futures=True)
