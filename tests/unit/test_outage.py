"""A server that goes away or a disk that is full during a command is one line with the remedy, whoever met it."""

import psycopg
import psycopg2
import pytest
from py4j.protocol import Py4JError
from sqlalchemy.exc import OperationalError
from trino.exceptions import HttpError, TrinoConnectionError

from lakehouse.servers.database import unreachable
from lakehouse.servers.outage import said, told
from lakehouse_cli.commands import complain

CALLED = "An error occurred while calling o1.save.\n: "
REFUSED = "connection refused\nIs the server running?"


@pytest.mark.parametrize(
    ("error", "begin", "remedy"),
    [
        (psycopg.OperationalError(REFUSED), "Postgres: connection refused", "lakehouse up"),
        (OperationalError("SELECT 1", {}, psycopg.OperationalError(REFUSED)), "Postgres: connection", "CATALOG_URL"),
        (OperationalError("SELECT 1", {}, psycopg2.OperationalError(REFUSED)), "Postgres: ", "DAGSTER__STORAGE_URL"),
        (OSError("AWS Error NETWORK_CONNECTION during GetObject"), "object store: AWS Error", "S3__ENDPOINT"),
        (TrinoConnectionError("failed to fetch"), "Trino: failed to fetch", "TRINO__HOST"),
        (HttpError("error 401: b'Unauthorized'"), "Trino: error 401", "TRINO__USER and …__PASSWORD"),
        (OSError(28, "No space left on device", "/x/y"), "/x/y: No space left on device", "make room"),
        (OSError(122, "Disk quota exceeded"), "a disk of this machine: Disk quota", "make room"),
        (psycopg.errors.DiskFull('extend file "base/1"\nNo space left on device'), "Postgres: extend", "; make room"),
        (OperationalError("SELECT 1", {}, psycopg2.OperationalError("No space left on device")), "Postgres", "; make"),
        (Py4JError(f"{CALLED}java.io.IOException: No space left on device\n\tat java.io"), "Spark: java.io", "; make"),
    ],
)
def test_each_server_is_named_with_what_to_do(error: Exception, begin: str, remedy: str) -> None:
    line = told(error)
    assert line is not None and line.startswith(begin) and remedy in line
    assert "\n" not in line and "SELECT 1" not in line and "sqlalche.me" not in line


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [("FATAL:  could not write init file: No space left on device", "make room"), (REFUSED, "lakehouse up")],
)
def test_a_catalog_that_does_not_answer_is_told_with_what_helps(reason: str, remedy: str) -> None:
    assert remedy in str(unreachable(psycopg.OperationalError(reason)))
    link = OperationalError(None, None, psycopg2.OperationalError(reason))  # no statement: it did not connect
    line = told(link)
    assert line is not None and remedy in line and "sqlalche.me" not in line


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyError("x"), psycopg.DataError("x")])
def test_what_is_no_outage_keeps_its_traceback(error: Exception) -> None:
    assert told(error) is None


def test_a_library_that_wraps_the_error_does_not_hide_it() -> None:
    wrapped = RuntimeError("too many retries")
    wrapped.__cause__ = psycopg.OperationalError(REFUSED)
    line = told(wrapped)
    assert line is not None and line.startswith("Postgres: connection refused")


@pytest.mark.parametrize("answer", [Py4JError("there is no JVM"), ConnectionRefusedError()])
def test_an_error_whose_text_went_with_its_jvm_is_told_all_the_same(
    answer: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended the command with a second traceback, of what told the first."""

    class Gone(Py4JError):
        def __str__(self) -> str:
            raise answer

    complain(Gone())
    assert "Gone" in capsys.readouterr().err
    assert said(Gone()) == "Gone"
