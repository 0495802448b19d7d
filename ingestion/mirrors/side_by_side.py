"""Runs work with Spark in several threads, each with the scheduler's pool and the job group of the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lakehouse.text.log_lines import as_here

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(threads: int, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`[work(item) for item in items]`; raises the first error when what has begun has ended, and begins no more."""
    from pyspark import inheritable_thread_target

    pool, target = ThreadPoolExecutor(threads), as_here(work)
    try:
        return [future.result() for future in [pool.submit(inheritable_thread_target(target), item) for item in items]]
    finally:
        pool.shutdown(cancel_futures=True)
