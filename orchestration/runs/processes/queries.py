"""Ends queries that a dead dbt left in Trino.

A dbt that was killed cannot cancel its queries. An insert among them would still commit, and the next run, which does
not see its rows yet, would insert them too. `query-comment` in dbt_project.yml marks each query with the run it is of.
"""

import time
from contextlib import suppress

import dagster as dg

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from orchestration.runs.processes.workers import FINISHED, is_orphan

PATIENCE_SECONDS = 330.0  # Trino itself gives a query up five minutes after its client was last heard
POLL_SECONDS = 0.2
RUNNING = r"""
SELECT query_id, regexp_extract(query, '^/\* \{"app": "dbt", "lakehouse_run": "([0-9a-f-]{36})"', 1)
FROM system.runtime.queries WHERE state NOT IN ('FINISHED', 'FAILED')
"""


def end_abandoned_queries(settings: Settings, instance: dg.DagsterInstance, run_id: str) -> None:
    """Ends what dbt left running in this run and in runs that are over, before this run starts dbt.

    Raises LakehouseError if a query does not end, which happens if Trino does not let us end it.
    """
    from trino.exceptions import TrinoQueryError

    from lakehouse.servers.trino import answering, query

    deadline = time.monotonic() + PATIENCE_SECONDS
    with answering(settings):
        while left := {found: of for found, of in query(settings, RUNNING) if of and _is_over(instance, of, run_id)}:
            if time.monotonic() > deadline:
                found, of = next(iter(left.items()))
                raise LakehouseError(f"Trino: query {found} of run {of[:8]} does not end: end it, then run this again")
            for found in left:
                with suppress(TrinoQueryError):  # it has ended by now, or is not ours to end
                    query(settings, f"CALL system.runtime.kill_query('{found}', 'its dbt was killed')")
            time.sleep(POLL_SECONDS)


def _is_over(instance: dg.DagsterInstance, run_id: str, own: str) -> bool:
    """Whether no dbt of the run is alive. Runs of another instance are unknown here, and left alone."""
    run = instance.get_run_by_id(run_id)
    return run_id == own or (run is not None and (run.status in FINISHED or is_orphan(run)))
