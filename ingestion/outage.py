"""Servers that do not answer or refuse, told in one line. None of them loses anything: the next cycle starts anew."""

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from lakehouse.errors import LakehouseError

OUTAGES = (psycopg.Error, SQLAlchemyError, OSError)


def outage(source: str, error: Exception) -> LakehouseError:
    """One of OUTAGES as the error for people. PyIceberg reaches the catalog by SQLAlchemy, the store by OSError."""
    where = (
        "Postgres" if isinstance(error, psycopg.Error)
        else "catalog database" if isinstance(error, SQLAlchemyError)
        else "object store or disk"
    )  # fmt: skip
    said = " ".join(str(error).split("\n[SQL", maxsplit=1)[0].split())[:300] or type(error).__name__
    return LakehouseError(f"source {source!r}: {where}: {said}; nothing is lost, the next run goes on from here")
