"""Ends queries that a dead dbt left in Trino.

A dbt that was killed cannot cancel its queries. An insert among them would still commit, and the next run, which does
not see its rows yet, would insert them too; a mart among them would replace one that was built and tested since.
`query-comment` in dbt_project.yml marks each query with the run, or the session of a worker, that it is of.
"""

import time
from contextlib import suppress
from uuid import uuid4

import dagster as dg

from lakehouse.errors import LakehouseError
from lakehouse.servers.worker_sessions import WORKER, is_held
from lakehouse.settings import Settings
from orchestration.runs.processes.workers import FINISHED, is_orphan

PATIENCE_SECONDS = 330.0  # Trino itself gives a query up five minutes after its client was last heard
POLL_SECONDS = 0.2
RUNNING = r"""
SELECT query_id, regexp_extract(query, '^/\* \{"app": "dbt", "lakehouse_run": "([^"]+)"', 1)
FROM system.runtime.queries WHERE state NOT IN ('FINISHED', 'FAILED')
"""


def session_name(settings: Settings) -> str:
    """A name for the session of a worker, which locks it. Of the lakes that share a Trino, each has its own catalog."""
    return f"{WORKER}/{settings.trino.catalog}/{uuid4()}"


def end_abandoned_queries(settings: Settings, instance: dg.DagsterInstance, own: str) -> None:
    """Ends what dbt left running in this run, or session of a worker, and in those that are over, before it starts dbt.

    Raises LakehouseError if a query does not end, which happens if Trino does not let us end it.
    """
    from trino.exceptions import TrinoQueryError

    from lakehouse.servers.trino import answering, query

    deadline = time.monotonic() + PATIENCE_SECONDS
    with answering(settings):
        while left := {
            found: of for found, of in query(settings, RUNNING) if of and _is_over(settings, instance, of, own)
        }:
            if time.monotonic() > deadline:
                found, of = next(iter(left.items()))
                raise LakehouseError(f"Trino: query {found} of {of} does not end: end it, then run this again")
            for found in left:
                with suppress(TrinoQueryError):  # it has ended by now, or is not ours to end
                    query(settings, f"CALL system.runtime.kill_query('{found}', 'its dbt was killed')")
            time.sleep(POLL_SECONDS)


def _is_over(settings: Settings, instance: dg.DagsterInstance, of: str, own: str) -> bool:
    """Whether no dbt of it is alive. What is of another instance, or another lake, is unknown here, and left alone."""
    if of == own:
        return True
    if of.startswith(f"{WORKER}/"):
        return of.startswith(f"{WORKER}/{settings.trino.catalog}/") and not is_held(settings, of)
    run = instance.get_run_by_id(of)
    return run is not None and (run.status in FINISHED or is_orphan(run))
