"""The Spark session's JVM."""

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.stack


def test_the_heap_grows_when_work_needs_it(spark: SparkSession) -> None:
    """A heap that only collects when it is full, and does not grow, makes a large compaction take hours."""
    jvm, mebibyte = spark._jvm, 1 << 20
    assert jvm is not None
    runtime = jvm.java.lang.Runtime.getRuntime()
    begun = _collections(jvm)
    held = jvm.java.util.ArrayDeque()
    try:
        for _ in range(runtime.maxMemory() * 6 // 10 // mebibyte):
            held.add(jvm.java.nio.ByteBuffer.allocate(mebibyte))
        assert _collections(jvm) - begun < 60
    finally:
        held.clear()
        jvm.java.lang.System.gc()


def _collections(jvm: object) -> int:
    beans = jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()  # type: ignore[attr-defined]
    return sum(bean.getCollectionCount() for bean in beans)
