"""What PySpark says on the user's terminal."""

import pytest

from lakehouse.servers.spark import quiet_accumulators


def test_a_jvm_that_ends_first_leaves_no_traceback_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """As on Ctrl-C, which the whole process group gets: the JVM closes its connection to PySpark's accumulators."""
    from pyspark.accumulators import AccumulatorTCPServer

    quiet_accumulators()
    server = AccumulatorTCPServer.__new__(AccumulatorTCPServer)
    try:
        raise EOFError
    except EOFError:
        server.handle_error(None, ("127.0.0.1", 1))
    assert capfd.readouterr().err == ""
