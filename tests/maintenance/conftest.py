"""A source of its own for each module of tests, and a table to maintain for each test."""

import uuid
from collections.abc import Iterator

import pytest

from lakehouse.settings import Settings
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from tests.maintained import make_table


@pytest.fixture
def session(settings: Settings) -> Iterator[Session]:
    session = Session(settings)
    yield session
    session.close()


@pytest.fixture(scope="module")
def source() -> str:
    """A source of this run only, so that the tests leave everybody else's tables alone."""
    return f"mnt{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def schema(settings: Settings, source: str) -> Iterator[str]:
    session, name = Session(settings), f"raw_{source}"
    session.catalog.create_namespace(name)
    yield name
    for table in session.catalog.list_tables(name):
        session.catalog.drop_table(table)
    for view in session.trino(f"SELECT table_name FROM information_schema.views WHERE table_schema = '{name}'"):
        session.trino(f'DROP VIEW {name}."{view[0]}"')
    session.catalog.drop_namespace(name)
    session.close()


@pytest.fixture
def table(session: Session, schema: str) -> TableName:
    """Eight small appends."""
    return make_table(session, schema, appends=8)
