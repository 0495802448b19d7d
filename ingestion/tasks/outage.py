"""Servers that do not answer or refuse, told in one line. None of them loses anything: the next cycle starts anew."""

import psycopg
from py4j.protocol import Py4JNetworkError
from sqlalchemy.exc import SQLAlchemyError

from lakehouse.errors import LakehouseError
from lakehouse.servers.outage import JVM_ENDED, of_ended_jvm, said

OUTAGES = (psycopg.Error, SQLAlchemyError, OSError, Py4JNetworkError)


def outage(source: str, error: Exception) -> LakehouseError:
    """One of OUTAGES as the error for people. PyIceberg reaches the catalog by SQLAlchemy, the store by OSError."""
    if of_ended_jvm(error):
        return LakehouseError(f"source {source!r}: {JVM_ENDED}; nothing is lost, the next run goes on from here")
    where = (
        "Postgres" if isinstance(error, psycopg.Error)
        else "catalog database" if isinstance(error, SQLAlchemyError)
        else "object store or disk"
    )  # fmt: skip
    return LakehouseError(f"source {source!r}: {where}: {said(error)}; nothing is lost, the next run goes on from here")
