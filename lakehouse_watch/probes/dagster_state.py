"""Dagster seen from outside, in its database: runs, checks, ticks, heartbeats. So it is told too when Dagster is down.

The tables are those of the pinned release; a test writes them with Dagster and reads them here.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, LiteralString

import psycopg

from lakehouse.errors import LakehouseError
from lakehouse.metrics import REGISTRY, Sample, sample
from lakehouse.servers.database import unreachable
from lakehouse.settings import Settings
from lakehouse.text.shown import shortened
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.limits import declared_still
from lakehouse_watch.probes.reading import Reading
from lakehouse_watch.probes.said import without_values
from lakehouse_watch.probes.still_there import Declared

RECENT_RUNS, RECENT_TICKS = 30, 1000
LATE_EVENTS = 2000  # are read again: their numbers are given before they commit
MOST_EVENTS = 50_000  # in one look: after more it begins anew
LONGEST = 300  # characters of an error
UNSAID = "without a message"
HEARTBEAT_SECONDS = 120.0
LOADED_AT = time.monotonic()  # when this watch has begun
INTERRUPTS = ("KeyboardInterrupt", "DagsterExecutionInterruptedError")
UNREACHABLE = "DagsterUserCodeUnreachableError"
CODE_SERVER = "Dagster's code server "
TOOK = re.compile(r"longer than (\d+) seconds")
TICK_SECONDS = 75.0  # another tick of a sensor fails before it is told
TOLD_TICKS = {"SENSOR": 2, "SCHEDULE": 1}  # that failed: a sensor may tick every three minutes, a schedule once a night
UNKNOWN_SECONDS = 300.0  # in which `lakehouse dev` has the code loaded again, and each sensor has ticked
SILENT_SECONDS = 200.0  # sensors of lag tick every three minutes, and may be all that are on
LEFT_BEHIND_SECONDS = 600.0  # or every three
HELD = ".dagster/lakehouse_held"  # what a run has not loaded, and why: see orchestration/runs/state/load_state.py
CHECKS_ALONE = "failed_checks"  # of a failure that they alone have made: see orchestration/assets/dbt_assets.py
CHECKED_SECONDS = 900.0  # in which a run that has passed its checks comes to its end
BEGUN = ".dagster/lakehouse_begun"  # by a run that has begun to load parsed and vault: see orchestration/runs/tags.py
MODE, INCREMENTAL = "lakehouse/mode", "incremental"  # no backfill, though it has a partition
FIRST = ["dagster/partition", "dagster/asset_partition_range_start"]
LAST = ["dagster/partition", "dagster/asset_partition_range_end"]
BY_HAND = "__ASSET_JOB"  # materialized in the UI: whoever did it looks at it, but for what it leaves half loaded
BELOW_MARTS = ("raw_", "parsed.", "vault.")
FOUND = re.compile(r"Got (\d+) results?, configured to \w+ if != 0")
OUTDATED = "code/project"
JUDGED_HERE = "lag_within_limits"  # the watch judges lag itself, also where no daemon runs

# The newest of each job, however many runs of others have ended since: one that runs once a night has failed until it
# succeeds. Jobs are found one by one in the index. Of a backfill that has failed no other load says anything.
_RUNS: LiteralString = """WITH RECURSIVE jobs AS (
 (SELECT pipeline_name FROM runs ORDER BY pipeline_name LIMIT 1)
 UNION ALL
 SELECT (SELECT r.pipeline_name FROM runs r WHERE r.pipeline_name > jobs.pipeline_name ORDER BY 1 LIMIT 1)
 FROM jobs WHERE jobs.pipeline_name IS NOT NULL)
 SELECT ended.* FROM jobs CROSS JOIN LATERAL (
 SELECT id, pipeline_name, run_id, status, start_time, end_time,
 (SELECT value FROM run_tags WHERE run_tags.run_id = runs.run_id AND key = %s) FROM runs
 WHERE pipeline_name = jobs.pipeline_name AND (status = 'SUCCESS' OR (status = 'FAILURE' AND backfill_id IS NULL))
 ORDER BY id DESC LIMIT %s) AS ended
 WHERE jobs.pipeline_name <> %s ORDER BY coalesce(end_time, 0), id"""
# The newest that have failed, with their days, and whether a run has derived these since.
_BACKFILLS: LiteralString = """WITH failed AS (
 SELECT id, pipeline_name, run_id, (SELECT min(value) FROM run_tags t WHERE t.run_id = runs.run_id
 AND key = ANY(%(first)s)) AS first, (SELECT max(value) FROM run_tags t WHERE t.run_id = runs.run_id
 AND key = ANY(%(last)s)) AS last FROM runs WHERE backfill_id IS NOT NULL AND status = 'FAILURE'
 AND pipeline_name <> %(by_hand)s ORDER BY id DESC LIMIT %(limit)s)
 SELECT id, pipeline_name, run_id, first, last FROM failed WHERE NOT EXISTS (SELECT FROM runs s
 WHERE s.pipeline_name = failed.pipeline_name AND s.id > failed.id AND s.status = 'SUCCESS'
 AND NOT EXISTS (SELECT FROM run_tags t WHERE t.run_id = s.run_id AND key = %(mode)s AND value = %(incremental)s)
 AND EXISTS (SELECT FROM run_tags t WHERE t.run_id = s.run_id AND key = ANY(%(first)s) AND value <= first)
 AND EXISTS (SELECT FROM run_tags t WHERE t.run_id = s.run_id AND key = ANY(%(last)s) AND value >= last))
 ORDER BY id DESC"""
# By the order of events: a row is made when the check is planned, and a clock may have been ahead.
_CHECKS: LiteralString = """WITH evaluated AS (
 SELECT id, asset_key, check_name, execution_status, evaluation_event_storage_id AS event FROM asset_check_executions
 WHERE execution_status <> 'PLANNED'),
 newest AS (SELECT asset_key, check_name, max(event) AS event FROM evaluated GROUP BY asset_key, check_name)
 SELECT e.asset_key, e.check_name, c.evaluation_event FROM evaluated AS e
 JOIN newest USING (asset_key, check_name, event)
 LEFT JOIN asset_check_executions AS c ON c.id = e.id AND e.execution_status = 'FAILED'"""
# Those rows have no index by event: what a row that was planned long ago has become is in the log of events.
_CHECKS_SINCE: LiteralString = """WITH evaluated AS MATERIALIZED (
 SELECT id, event, event::json #> '{dagster_event,event_specific_data}' AS of FROM event_logs
 WHERE dagster_event_type = 'ASSET_CHECK_EVALUATION' AND id > %s)
 SELECT DISTINCT ON (1, 2) of #>> '{asset_key,path}', of ->> 'check_name',
 CASE WHEN of ->> 'success' IS DISTINCT FROM 'true' THEN event END FROM evaluated ORDER BY 1, 2, id DESC"""
_NEWEST_EVENT: LiteralString = "SELECT coalesce(max(id), 0) FROM event_logs"
# Of a sensor that others have left behind, the last tick says nothing: it is turned off, or gone. A schedule may tick
# once a month: its newest tick counts as long as Dagster keeps it. Selectors are found one by one in the index.
_TICKS: LiteralString = """WITH RECURSIVE selectors AS (
 SELECT min(selector_id) AS id FROM job_ticks
 UNION ALL
 SELECT (SELECT min(t.selector_id) FROM job_ticks t WHERE t.selector_id > selectors.id) FROM selectors
 WHERE selectors.id IS NOT NULL),
 recent AS (
 SELECT id, selector_id, status, tick_body, type, max("timestamp") OVER (PARTITION BY selector_id) AS ticked,
 max("timestamp") OVER () AS last_tick
 FROM job_ticks WHERE id > (SELECT coalesce(max(id), 0) FROM job_ticks) - %s AND type = 'SENSOR')
 SELECT selector_id, status, tick_body, type FROM (
 SELECT id, selector_id, status, CASE WHEN status = 'FAILURE' THEN tick_body END AS tick_body, type FROM recent
 WHERE status <> 'STARTED' AND ticked > last_tick - %s * interval '1 second'
 UNION ALL
 SELECT newest.id, selector_id, status, CASE WHEN status = 'FAILURE' THEN tick_body END, type
 FROM selectors CROSS JOIN LATERAL (SELECT * FROM job_ticks t WHERE t.selector_id = selectors.id
 AND t.status <> 'STARTED' ORDER BY "timestamp" DESC LIMIT 1) AS newest
 WHERE type = 'SCHEDULE' AND NOT EXISTS (
 SELECT FROM instigators i WHERE i.selector_id = newest.selector_id AND i.status = 'STOPPED')) AS told ORDER BY id"""
_HEARTBEAT: LiteralString = """SELECT extract(epoch FROM (now() AT TIME ZONE 'utc') - min("timestamp"))::float8
 FROM daemon_heartbeats WHERE daemon_type IN ('SENSOR', 'SCHEDULER', 'QUEUED_RUN_COORDINATOR')"""
_SILENCE: LiteralString = """SELECT extract(epoch FROM (now() AT TIME ZONE 'utc') - max("timestamp"))::float8
 FROM job_ticks WHERE id > (SELECT coalesce(max(id), 0) FROM job_ticks) - %s AND type = 'SENSOR'
 AND NOT EXISTS (SELECT FROM instigators i WHERE i.selector_id = job_ticks.selector_id AND i.status = 'STOPPED')"""
_KNOWN: LiteralString = """SELECT instigator_type, instigator_body::json -> 'origin' ->> 'job_name' FROM instigators
 WHERE instigator_type IN ('SENSOR', 'SCHEDULE')"""
# A run whose code could not be loaded has no failed step: the error is in an event of the engine.
_ERRORS: LiteralString = """SELECT event FROM event_logs WHERE run_id = %s AND (
 dagster_event_type IN ('STEP_FAILURE', 'PIPELINE_FAILURE')
 OR (dagster_event_type = 'ENGINE_EVENT' AND strpos(event, 'SerializableErrorInfo') > 0))
 ORDER BY array_position(ARRAY['STEP_FAILURE', 'PIPELINE_FAILURE', 'ENGINE_EVENT'], dagster_event_type), id LIMIT 9"""
_STEP_FAILURES: LiteralString = """SELECT event FROM event_logs
 WHERE run_id = %s AND dagster_event_type = 'STEP_FAILURE' ORDER BY id"""
# The record of a load that the worker has made since: see orchestration/runs/state/loaded.py
_LOADED: LiteralString = """WITH since AS (SELECT id, run_id, asset_key, event FROM event_logs
 WHERE id > (SELECT coalesce(max(id), 0) FROM event_logs WHERE run_id = %s)
 AND dagster_event_type = 'ASSET_MATERIALIZATION')
 SELECT EXISTS (SELECT FROM since WHERE run_id = '' AND strpos(event, %s) > 0)
 AND NOT EXISTS (SELECT FROM unnest(%s::text[]) AS behind WHERE behind NOT IN (SELECT asset_key FROM since))"""
# Runs from the asset graph that began to load and have failed, with the tables that were not made since they were to.
_HALF: LiteralString = """SELECT r.id, r.pipeline_name, r.run_id, array_agg(p.asset_key ORDER BY p.asset_key)
 FROM (SELECT * FROM runs WHERE pipeline_name = %s AND status IN ('FAILURE', 'CANCELED')
 AND EXISTS (SELECT FROM run_tags t WHERE t.run_id = runs.run_id AND t.key = %s AND strpos(t.value, runs.run_id) = 1)
 ORDER BY id DESC LIMIT %s) AS r
 JOIN event_logs p ON p.run_id = r.run_id AND p.dagster_event_type = 'ASSET_MATERIALIZATION_PLANNED'
 AND (p.asset_key LIKE '["parsed"%%' OR p.asset_key LIKE '["vault"%%')
 AND NOT EXISTS (SELECT FROM event_logs m WHERE m.asset_key = p.asset_key AND m.id > p.id
 AND m.dagster_event_type = 'ASSET_MATERIALIZATION')
 GROUP BY r.id, r.pipeline_name, r.run_id ORDER BY r.id DESC LIMIT 1"""


@dataclass(frozen=True)
class Run:
    """A run that ended; `left` are the tables that have failed, in it or before, and that it has not loaded."""

    number: int
    job: str
    run_id: str
    succeeded: bool
    started: float | None
    ended: float | None
    left: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether nothing of the job fails. A run succeeds also if it leaves out a table that is tried again later."""
        return self.succeeded and not self.left


def read_runs(settings: Settings) -> Reading:
    """Jobs of the project whose last run failed, and failing sensors; raises LakehouseError."""
    with connect(settings) as connection:
        if not is_used(connection):
            return Reading()
        ended, there = connection.execute(_RUNS, (HELD, RECENT_RUNS, BY_HAND)).fetchall(), declared_still(settings)
        runs = [run for run in map(_run, ended) if there is None or there.has_job(run.job)]
        ticks = connection.execute(_TICKS, (RECENT_TICKS, LEFT_BEHIND_SECONDS)).fetchall()
        age = connection.execute(_HEARTBEAT).fetchone()
        silence = connection.execute(_SILENCE, (RECENT_TICKS,)).fetchone()
        known = set(connection.execute(_KNOWN).fetchall())
        observe_loads(runs)
        failing = [run for run in failing_runs(runs) if not _is_loaded_since(connection, run)]
        told = {f"{table}/{name}" for table, name, _ in _known_checks(connection, there)} if failing else set[str]()
        refused = {run: _refused_by(connection, run) for run in failing}
        failed = [
            _run_failed(run, connection, settings, CHECKED_SECONDS if refused[run] else 0.0)
            for run in failing if not refused[run] or not refused[run] <= told
        ]  # fmt: skip
        failed += [_run_failed(run, connection, settings) for run in _left_half(connection)]
        failed += _backfills_failed(connection, there, settings)
    ticking, tick_samples = judge_ticks(ticks, there)
    heartbeat, beat_samples = judge_heartbeat(age[0] if age else None)
    silent = judge_silence(silence[0] if silence else None) if age and not heartbeat else []
    lives = beat_samples and not heartbeat and not silent
    wanted = {("SENSOR", name) for name in there.sensors} if there else set[tuple[str, str]]()
    wanted |= {("SCHEDULE", name) for name in there.schedules} if there else set()
    outdated = judge_known({name for _, name in wanted - known}) if lives else []
    found = (*failed, *ticking, *heartbeat, *silent, *outdated)
    samples = (*measure_runs(runs), *tick_samples, *beat_samples)
    return Reading(found, samples, unknown=() if there else (OUTDATED,))


def read_checks(settings: Settings) -> Reading:
    """Tables with failed checks that the project has; raises LakehouseError."""
    with connect(settings) as connection:
        if not is_used(connection):
            return Reading()
        known = _known_checks(connection, declared_still(settings))
    checks = [(table, name, *_evaluation(event)) for table, name, event in known]
    tables = sorted({table for table, *_ in checks})
    counts = {level: sum(level == severity for _, _, severity, _ in checks) for level in ("error", "warning")}
    return Reading(
        tuple(_checks_failed(table, [check[1:] for check in checks if check[0] == table]) for table in tables),
        tuple(sample("lakehouse_failed_checks", count, severity=level) for level, count in counts.items()),
    )


def _known_checks(connection: psycopg.Connection[Any], there: Declared | None) -> list[tuple[str, str, str]]:
    """Table, name and evaluation of each check that has failed last, and that the project has."""
    found = _failing_checks(connection)
    named = [(table, name, event) for (table, name), event in sorted(found.items())]
    return [check for check in named if check[1] != JUDGED_HERE and (there is None or check[:2] in there.checks)]


def _refused_by(connection: psycopg.Connection[Any], run: Run) -> frozenset[str]:
    """The checks that alone have made a run fail, as `schema.table/name`; none if anything else did."""
    events = connection.execute(_STEP_FAILURES, (run.run_id,)).fetchall()
    checks = [_checks_alone(event) for (event,) in events]
    return frozenset[str]().union(*checks) if all(checks) else frozenset()


def _checks_alone(event: str) -> frozenset[str]:
    entries = (_data(event).get("user_failure_data") or {}).get("metadata_entries") or ()
    found = [entry.get("entry_data") or {} for entry in entries if entry.get("label") == CHECKS_ALONE]
    return frozenset(check for data in found for check in data.get("data") or ())


Failing = dict[tuple[str, str], str]
_failing: dict[str, tuple[int, Failing]] = {}


def _failing_checks(connection: psycopg.Connection[Any]) -> Failing:
    """By table and name the evaluation of each check that has failed last. All are read at first, then those since: a
    check that runs once a night has failed until it passes, however often others run.
    """
    [(newest,)] = connection.execute(_NEWEST_EVENT).fetchall()  # first: what comes meanwhile is read again
    seen, known = _failing.get(connection.info.dsn, (newest + 1, Failing()))
    if not seen <= newest < seen + MOST_EVENTS:  # also where the database was made anew
        rows, known = connection.execute(_CHECKS), Failing()
    else:
        rows = connection.execute(_CHECKS_SINCE, (seen - LATE_EVENTS,))
    found = {(".".join(json.loads(key)), name): event for key, name, event in rows.fetchall()}
    failing = {check: event for check, event in {**known, **found}.items() if event}
    _failing[connection.info.dsn] = (newest, failing)
    return failing


def failing_runs(runs: Sequence[Run]) -> list[Run]:
    """Of each job whose newest run is not sound, the run that failed last, with what is left behind by now.

    Where that was too long ago to be among these, it is the newest one.
    """
    newest = {run.job: run for run in runs}
    failed = newest | {run.job: run for run in runs if not run.succeeded}
    return [replace(failed[job], left=newest[job].left) for job in sorted(newest) if not newest[job].is_sound]


def _is_loaded_since(connection: psycopg.Connection[Any], run: Run) -> bool:
    """Whether the worker has done since what the run failed to do; then no run will."""
    record = f'{{"job": {json.dumps(run.job)}, "snapshots": {{"'
    left = [json.dumps(table.split(".", 1)) for table in run.left]
    return connection.execute(_LOADED, (run.run_id, record, left)).fetchone() == (True,)


def _left_half(connection: psycopg.Connection[Any]) -> list[Run]:
    """The newest run from the asset graph that has left tables half loaded, if there is one: no sensor retries it."""
    rows = connection.execute(_HALF, (BY_HAND, BEGUN, RECENT_RUNS)).fetchall()
    named = [(*row, tuple(".".join(json.loads(key)) for key in keys)) for *row, keys in rows]
    return [Run(number, job, run_id, False, None, None, left) for number, job, run_id, left in named]


def measure_runs(runs: Sequence[Run]) -> Iterator[Sample]:
    """By job, the last success, and the failures since the last one that has left nothing behind."""
    for job in sorted({run.job for run in runs}):
        mine = [run for run in runs if run.job == job]
        since = max((index for index, run in enumerate(mine) if run.is_sound), default=-1) + 1
        failures = sum(not run.succeeded for run in mine[since:])
        yield sample("lakehouse_job_failures", max(failures, not mine[-1].is_sound), job=job)
        successes = [run for run in mine if run.succeeded]
        if successes and (ended := successes[-1].ended) is not None:
            yield sample("lakehouse_job_last_success_timestamp_seconds", ended, job=job)


_seen_runs: set[str] = set()


def observe_loads(runs: Sequence[Run]) -> None:
    """Counts the durations of runs that have ended since the last look; the first look only notes which there are."""
    fresh = [run for run in runs if run.run_id not in _seen_runs]
    if _seen_runs:
        for run in fresh:
            if run.started is not None and run.ended is not None:
                REGISTRY.observe("lakehouse_load_seconds", run.ended - run.started, job=run.job)
    _seen_runs.clear()
    _seen_runs.update(run.run_id for run in runs)


def judge_ticks(
    ticks: Sequence[tuple[str, str, str | None, str]], there: Declared | None = None
) -> tuple[list[Occasion], list[Sample]]:
    """Sensors and schedules whose newest ticks failed, without schedules that the project has no more; oldest tick
    first. Each has its selector, status, body, type.
    """
    failures: dict[str, int] = {}
    last_body: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for selector, status, body, kinds[selector] in ticks:
        failures[selector] = failures.get(selector, 0) + 1 if status == "FAILURE" else 0
        last_body |= {selector: body} if body else {}
    named = {selector: _tick(last_body[selector]) for selector, count in failures.items() if count}
    if there is not None:
        named = {s: tick for s, tick in named.items() if kinds[s] == "SENSOR" or there.has_schedule(tick[0])}
    failing = {selector: failures[selector] for selector in named}
    occasions = [
        Occasion(
            f"sensor/{name}", f"{name} fails at each tick: {error}",
            "it launches nothing meanwhile; it goes on by itself once the cause is gone", patience=TICK_SECONDS,
        )
        for name, error in sorted(named[s] for s, count in failing.items() if count >= TOLD_TICKS[kinds[s]])
    ]  # fmt: skip
    counted = [sample("lakehouse_sensor_failures", failing[s], sensor=name) for s, (name, _) in named.items()]
    return occasions, counted


def judge_heartbeat(age: float | None) -> tuple[list[Occasion], list[Sample]]:
    """Whether the daemon is alive; None where none ever ran. What has just been started with it says nothing yet of the
    time before: the daemon has as long for its first heartbeat as for each other."""
    if age is None:
        return [], []
    measured = [sample("lakehouse_daemon_heartbeat_age_seconds", age)]
    if age < HEARTBEAT_SECONDS:
        return [], measured
    dead = Occasion(
        "daemon/dagster",
        f"Dagster's daemon has given no sign of life for {age:,.0f} s: nothing is loaded or maintained",
        "start `lakehouse dev`, or `python -m orchestration.daemon`, and look at its log",
        patience=age + HEARTBEAT_SECONDS if time.monotonic() - LOADED_AT < HEARTBEAT_SECONDS else 0.0,
    )  # fmt: skip
    return [dead], measured


def judge_silence(seconds: float | None) -> list[Occasion]:
    """Whether sensors tick while the daemon lives; None where none that is turned on ever did."""
    if seconds is None or seconds < SILENT_SECONDS:
        return []
    silent = Occasion(
        "code/dagster",
        f"Dagster's daemon lives, but no sensor has run for {seconds:,.0f} s: its code server does not answer",
        "look at the code server's log and start it again; only what the worker loads is loaded meanwhile",
        patience=TICK_SECONDS,
    )
    return [silent]


def judge_known(missing: Collection[str]) -> list[Occasion]:
    """Whether there are sensors and schedules of the project that Dagster has never seen."""
    if not missing:
        return []
    unknown = Occasion(
        OUTDATED,
        f"Dagster does not know {', '.join(sorted(missing))}: it has loaded the project as it was before",
        "have it load the code location again, in the UI at Deployment; `lakehouse dev` does so by itself, and its"
        " dagster-code.log says why where it could not", patience=UNKNOWN_SECONDS,
    )  # fmt: skip
    return [unknown]


def _run_failed(run: Run, connection: psycopg.Connection[Any], settings: Settings, patience: float = 0.0) -> Occasion:
    url = f"http://{settings.dagster.host}:{settings.dagster.port}/runs/{run.run_id}"
    error = _error(run.run_id, lambda: connection.execute(_ERRORS, (run.run_id,)).fetchall())
    if error.startswith(CODE_SERVER):
        failed = f"was not started, and a load is tried again within minutes: {error}"
    else:
        failed = f"has failed: {error}"
    told = f"run {run.run_id[:8]} of {run.job} {failed}"
    left = f"; left behind until then: {', '.join(run.left)}" if run.left else ""
    parts = run.left or ("all of it",)
    if run.job == BY_HAND:
        told, retried = told.replace(run.job, "the asset graph"), "load its tables again; marts of them wait"
        return Occasion("run/asset_graph", told, f"{url}; {retried}{left}", parts=parts)
    return Occasion(f"run/{run.job}", told, f"{url}; a load is retried{left}", patience=patience, parts=parts)


def _backfills_failed(
    connection: psycopg.Connection[Any], there: Declared | None, settings: Settings
) -> Iterator[Occasion]:
    """One for each job, by the newest run: the next load succeeds, and derives none of these days. A run that checks
    alone have made fail has derived them.
    """
    of_run = {"first": FIRST, "last": LAST, "mode": MODE, "incremental": INCREMENTAL}
    rows = connection.execute(_BACKFILLS, {**of_run, "by_hand": BY_HAND, "limit": RECENT_RUNS}).fetchall()
    days: dict[str, list[str]] = {}
    newest: dict[str, Run] = {}
    for number, job, run_id, first, last in rows:
        run = Run(number, job, run_id, False, None, None)
        if not _refused_by(connection, run):
            days.setdefault(job, []).append(first if first == last else f"{first} to {last}")
            newest.setdefault(job, run)
    for job in sorted(job for job in newest if there is None or there.has_job(job)):
        failed, mine = _run_failed(newest[job], connection, settings), sorted(set(days[job]))
        named = ", ".join(mine[:5]) + (f" and {len(mine) - 5} more" if len(mine) > 5 else "")
        url = failed.to_do.partition(";")[0]
        yield replace(
            failed, key=f"run/{job}/backfill", summary=f"the backfill of {named}: {failed.summary}", parts=tuple(mine),
            to_do=f"{url}; launch it again for these days, since no load derives them, or delete the run",
        )  # fmt: skip


_known_errors: dict[str, str] = {}


def _error(run_id: str, fetch: Callable[[], Sequence[tuple[str]]]) -> str:
    """What the first event says that names a cause, or one that says anything."""
    if run_id not in _known_errors:
        _known_errors.clear()
        events = [event for (event,) in fetch()]
        said = (*map(_cause, events), *(_one_line(_event(event).get("message") or "") for event in events))
        _known_errors[run_id] = next(filter(None, said), UNSAID)
    return _known_errors[run_id]


def _checks_failed(table: str, checks: list[tuple[str, str, str]]) -> Occasion:
    names = ", ".join(f"{name} ({text})" if text else name for name, _, text in checks[:5])
    more = f" and {len(checks) - 5} more" if len(checks) > 5 else ""
    worst = "error" if any(severity == "error" for _, severity, _ in checks) else "warning"
    return Occasion(
        f"check/{table}", f"checks of {table} have failed: {names}{more}", _to_do(table),
        "error" if worst == "error" else "warning", parts=tuple(name for name, _, _ in checks),
    )  # fmt: skip


def _to_do(table: str) -> str:
    """Where to look: what a mart is refused for is mostly wrong in the vault."""
    if table.startswith(BELOW_MARTS):
        return "see the asset's checks in the UI; marts that are made of it keep their last sound state meanwhile"
    return "first see the failed checks of tables it is made of, then its own; readers keep its last sound state"


def _evaluation(event: str | None) -> tuple[str, str]:
    """Severity and description of a check's evaluation; a check that could not run is an error."""
    data = _data(event)
    severity = "warning" if "WARN" in str(data.get("severity")) else "error"
    return severity, without_values(FOUND.sub(_rows, _one_line(data.get("description") or "")))


def _rows(found: re.Match[str]) -> str:
    return f"{int(found[1]):,} row{'s' if found[1] != '1' else ''}"


def _cause(event: str) -> str:
    """What a failure event says, on one line: the description, or the innermost error; empty if it has neither."""
    data = _data(event)
    described = (data.get("user_failure_data") or {}).get("description")
    if described:
        return _one_line("; ".join(map(without_values, described.splitlines())))
    return _innermost(data.get("error"))


def _innermost(error: dict[str, Any] | None) -> str:
    while error and error.get("cause") and error.get("cls_name") != UNREACHABLE:
        error = error["cause"]
    if error and error.get("cls_name") == UNREACHABLE:
        took = TOOK.search(error.get("message") or "")
        return f"{CODE_SERVER}did not answer within {took[1]} s" if took else f"{CODE_SERVER}cannot be reached"
    if error and error.get("cls_name") in INTERRUPTS:
        return "it was interrupted: its process was asked to end"
    said = " ".join(((error or {}).get("message") or "").split())
    return _one_line(without_values(said.removeprefix(f"{LakehouseError.__module__}.LakehouseError: ")))


def _one_line(text: str) -> str:
    return shortened(" ".join(text.split()), LONGEST)


def _event(event: str | None) -> dict[str, Any]:
    try:
        return json.loads(event or "{}").get("dagster_event") or {}
    except (ValueError, AttributeError):
        return {}


def _data(event: str | None) -> dict[str, Any]:
    return _event(event).get("event_specific_data") or {}


@lru_cache(maxsize=64)
def _tick(body: str) -> tuple[str, str]:
    """Name and error of a failed tick."""
    tick = json.loads(body)
    return str(tick["job_name"]), _innermost(tick.get("error")) or UNSAID


def _run(row: tuple[Any, ...]) -> Run:
    number, job, run_id, status, started, ended, held = row
    return Run(number, job, run_id, status == "SUCCESS", started, ended, _left(run_id, held))


def _left(run_id: str, held: str | None) -> tuple[str, ...]:
    """The tables that have failed, without those that only wait; none if the run did not come to record them."""
    state = json.loads(held or "{}")
    tables = state.get("tables", {}) if state.get("by") == run_id else {}
    return tuple(sorted(table for table, (tries, *_) in tables.items() if tries))


def is_used(connection: psycopg.Connection[Any]) -> bool:
    """Whether Dagster has made its tables there."""
    return connection.execute("SELECT to_regclass('runs') IS NOT NULL").fetchone() == (True,)


def connect(settings: Settings) -> psycopg.Connection[Any]:
    """A session in Dagster's database. Raises LakehouseError."""
    if settings.dagster.storage_url is None:
        raise LakehouseError("Dagster's database is not set: LAKEHOUSE_DAGSTER__STORAGE_URL")
    try:
        return psycopg.connect(settings.dagster.storage_url.get_secret_value(), autocommit=True, connect_timeout=10)
    except psycopg.OperationalError as error:
        reason = str(unreachable(error)).removeprefix("catalog database: ").partition("; check")[0]
        raise LakehouseError(f"Dagster's database: {reason}; check LAKEHOUSE_DAGSTER__STORAGE_URL") from None
