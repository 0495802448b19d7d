"""What a user does to several tables at once is done to all of them, or to none."""

from typing import Any, cast

import pytest
from test_planning import TABLE

from ingestion.run import operate
from ingestion.schema.positions import Lsn
from ingestion.state import store
from ingestion.state.store import Cluster, TablePosition, TableState
from lakehouse.errors import LakehouseError
from lakehouse.migrations import ensure_state
from lakehouse.settings import Settings

pytestmark = pytest.mark.stack
FIRST, SECOND, UNKNOWN = (TABLE.model_copy(update={"name": name}) for name in ("first", "second", "unknown"))


@pytest.fixture
def states(catalog_settings: Settings) -> Any:
    with store.connect_catalog(catalog_settings) as connection:
        connection.execute("DROP SCHEMA IF EXISTS lakehouse CASCADE")
        ensure_state(cast(Any, connection))
        store.create_stream(connection, "shop", "slot", Cluster("7", 1), 2)
        for name, state in (("first", "parked"), ("second", "streaming")):
            for to in ("loading", state):
                at = TablePosition(name, 1, Lsn(9), cast(TableState, to), Lsn(0))
                store.put_position(connection, "shop", at, "load")
        yield connection


def stands(states: Any) -> dict[str, str]:
    return {name: position.state for name, position in store.read_positions(states, "shop").items()}


def test_no_table_is_resumed_beside_one_that_cannot_be(catalog_settings: Settings, states: Any) -> None:
    """The first was left resuming, no cycle ran, and only the second was spoken of."""
    with pytest.raises(LakehouseError, match="'second': it is streaming: only a parked or paused table"):
        operate.resume(catalog_settings, FIRST, SECOND)
    assert stands(states) == {"first": "parked", "second": "streaming"}
    operate.pause(catalog_settings, SECOND)
    operate.resume(catalog_settings, FIRST, SECOND)
    assert stands(states) == {"first": "resuming", "second": "resuming"}


def test_no_table_is_read_anew_beside_one_that_was_never_ingested(
    catalog_settings: Settings, states: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operate, "source_of", lambda *_: type("Of", (), {"holds_tables": True}))
    with pytest.raises(LakehouseError, match="'unknown': it has not been ingested yet"):
        operate.read_anew(catalog_settings, FIRST, UNKNOWN)
    assert stands(states) == {"first": "parked", "second": "streaming"}
    operate.read_anew(catalog_settings, FIRST, SECOND)
    assert stands(states) == {"first": "new", "second": "new"}
