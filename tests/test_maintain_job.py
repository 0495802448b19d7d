"""The Dagster job `maintain` and the tables' health on the real stack, with the project's own declarations."""

import uuid
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from ingestion.sink.publish import CUTS, ensure_cuts
from lakehouse.catalog.open import open_catalog
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from orchestration.assets.table_health import KEY

pytestmark = pytest.mark.stack

CUTS_PAGE = dg.AssetKey(CUTS)
ENOUGH = 25  # small files; the declaration asks for twenty


@pytest.fixture
def many_cuts(settings: Settings) -> str:
    """A source whose cuts are a file each, and old enough that its writer will not replace it any more."""
    source, now = f"mnt{uuid.uuid4().hex[:8]}", datetime.now(UTC) - timedelta(hours=1)
    row = {"source": source, "epoch": 1, "cut_at": now, "published_at": now, "snapshots": []}
    with closing(open_catalog(settings)) as catalog:
        for lsn in range(ENOUGH):
            cuts = ensure_cuts(catalog)
            cuts.append(pa.Table.from_pylist([row | {"cut_lsn": lsn}], cuts.schema().as_arrow()))
    return source


@pytest.fixture
def defs(settings: Settings) -> dg.Definitions:
    from orchestration.definitions import definitions

    return definitions(settings)


def launch(defs: dg.Definitions, job: str, **config: Any) -> dg.ExecuteInProcessResult:
    with dg.DagsterInstance.ephemeral() as instance:
        return defs.resolve_job_def(job).execute_in_process(instance=instance, run_config=config)


def observations(result: dg.ExecuteInProcessResult) -> list[dict[str, Any]]:
    """Numbers observed on the page of `meta.cuts`."""
    found = [event.asset_observation_data.asset_observation for event in result.get_asset_observation_events()]
    return [{k: v.value for k, v in seen.metadata.items()} for seen in found if seen.asset_key == CUTS_PAGE]


def test_maintain_acts_on_what_needs_it_and_tells_it_on_the_tables_page(
    settings: Settings, spark: Any, defs: dg.Definitions, many_cuts: str
) -> None:
    config = {"tables": ["meta.cuts"], "budget_minutes": 5}
    files = f"""SELECT count(DISTINCT "$path") FROM meta.cuts WHERE source = '{many_cuts}'"""
    assert query(settings, files) == [[ENOUGH]]
    result = launch(defs, "maintain", ops={"plan_maintenance": {"config": config}})
    [compaction] = [seen for seen in observations(result) if seen["action"] == "compact"]
    assert compaction["status"] == "done"
    assert compaction["files_before"] >= ENOUGH
    assert query(settings, files) == [[1]]
    steps = {event.step_key for event in result.all_events if event.is_step_success}
    assert steps == {"plan_maintenance", "maintain_table[1_meta_cuts]", "conclude"}
    assert query(settings, f"SELECT count(*) FROM meta.cuts WHERE source = '{many_cuts}'") == [[ENOUGH]]
    history = "SELECT status, files_before FROM meta.maintenance WHERE \"table\" = 'meta.cuts' AND action = 'compact'"
    assert query(settings, f"{history} ORDER BY started_at DESC LIMIT 1") == [["done", compaction["files_before"]]]


def test_the_health_of_the_lake_is_measured_and_changes_nothing(
    settings: Settings, defs: dg.Definitions, many_cuts: str
) -> None:
    before = query(settings, 'SELECT snapshot_id FROM meta."cuts$snapshots"')
    result = launch(defs, "measure_table_health")
    [event] = result.get_asset_materialization_events()
    assert event.asset_key == KEY
    lake = {name: value.value for name, value in event.materialization.metadata.items()}
    assert lake["tables"] >= 1 and lake["small_files"] >= ENOUGH
    [cuts] = observations(result)
    assert cuts["files"] == query(settings, 'SELECT count(*) FROM meta."cuts$files"')[0][0]
    assert "compact" in cuts["due"]
    assert query(settings, 'SELECT snapshot_id FROM meta."cuts$snapshots"') == before
