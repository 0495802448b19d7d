"""A source and its follower: slot, lag, tables. The judgements are pure; `read_source` is the only one that asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from ingestion import SourceStatus, connector_trouble, source_status, why_refused
from ingestion.sources.findings import in_two
from lakehouse.declarations.policies import LagLevel, LagPolicy
from lakehouse.metrics import Sample, sample
from lakehouse.settings import AlertSettings, Settings
from lakehouse_stack.control.connectors import connector_failure
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.limits import declared_limits, declared_still
from lakehouse_watch.probes.reading import Reading

RESTART_SECONDS = 30.0  # a supervised follower that was killed is back by then
SLOT_SECONDS = 10.0
CLAIM_SECONDS = 30.0  # followers that are there have claimed by then what another one has left
FORMER_SLOT_SECONDS = 60.0  # a move drops it at its end
CONNECTOR_SECONDS = 300.0  # Connect moves tasks to other workers, or starts them again
LOAD_SECONDS = 60.0  # a load that begins anew says why, and goes on at once
CATCH_UP_SECONDS = 60.0  # after a pause `lakehouse dev` is behind until its follower has started


def read_source(settings: Settings, source: str) -> Reading:
    """The source at this moment; nothing to tell of one that is removed and retains nothing, nor of one that was never
    ingested, until a follower has tried to.

    Raises LakehouseError.
    """
    status, there = source_status(settings, source), declared_still(settings)
    is_removed = there is not None and source not in there.sources and status.slot_state == "missing"
    if status.position_lsn is None or is_removed:
        is_wanted = status.follower != "none" and not is_removed
        begins = (*_follower(status), *_refused(status, why_refused(settings, source))) if is_wanted else ()
        return Reading(begins, (sample("lakehouse_source_up", 1, source=source),))
    found = (
        *judge(status, declared_limits(settings, source), settings.alerts),
        *_refused(status, why_refused(settings, source)),
    )
    errors = [occasion.key.replace("/", ": ", 1) for occasion in found if occasion.severity == "error"]
    return Reading(found, tuple(measure(status, datetime.now(UTC))), {source: "; ".join(errors)})


def read_connector(settings: Settings, source: str) -> Reading:
    """Whether the connector behind a source's topics has stopped, which they do not show. Raises LakehouseError."""
    there = declared_still(settings)
    is_read = there is None or source in there.sources
    says = (connector_failure(settings, source) or connector_trouble(settings, source)) if is_read else None
    if says is None:
        return Reading()
    return Reading((
        Occasion(
            f"connector/{source}", f"nothing new comes by the topics of {source}: {says}",
            "look at the connector in Kafka Connect, and restart what has failed: its slot retains WAL meanwhile",
            source=source, patience=CONNECTOR_SECONDS,
        ),
    ))  # fmt: skip


def judge(status: SourceStatus, limits: Mapping[str, LagPolicy], defaults: AlertSettings) -> Iterator[Occasion]:
    """What of the source needs attention."""
    yield from _follower(status)
    if status.unclaimed:
        yield Occasion(
            f"unclaimed/{status.source}", f"no follower of {status.source} reads {_named(status.unclaimed)}",
            "look at the followers' logs, and start one that is missing: `lakehouse ingest --follow --share`",
            source=status.source, patience=CLAIM_SECONDS,
        )  # fmt: skip
    yield from _slot(status)
    yield from _lag(status, limits, defaults)
    for table in status.tables:
        name = f"{status.source}.{table.name}"
        if table.state == "parked":
            yield Occasion(
                f"parked/{name}", f"{name} is parked: {table.reason}", what_to_do(name, table.state),
                source=status.source,
            )  # fmt: skip
        elif table.state == "new" and table.reason:
            yield Occasion(
                f"parked/{name}", f"{name} cannot be loaded: {table.reason}", what_to_do(name, table.state),
                source=status.source, patience=LOAD_SECONDS,
            )  # fmt: skip


def what_to_do(table: str, state: str) -> str:
    """Of a table that is in no cut, by its state."""
    return {
        "paused": f"`lakehouse ingest --resume {table}` lands what it has missed",
        "parked": f"fix the cause, then `lakehouse ingest --resume {table}`",
        "new": "fix the cause: the next cycle loads it",
    }.get(state, "nothing: the next cycle goes on with it")


def _follower(status: SourceStatus) -> Iterator[Occasion]:
    states = {
        "dead": ("was killed, lost its machine, or fails at each try", RESTART_SECONDS),
        "hung": ("does not renew its lease: it is stopped, or hangs", 0.0),
    }
    if status.follower in states:
        what, patience = states[status.follower]
        yield Occasion(
            f"follower/{status.source}", f"the follower of {status.source} {what}",
            "look at its log, then start `lakehouse ingest --follow` again; nothing is lost meanwhile, but the source "
            "retains WAL", source=status.source, patience=patience,
        )  # fmt: skip


def _slot(status: SourceStatus) -> Iterator[Occasion]:
    if status.slot_state == "unreserved" or not status.slot_is_sound:
        yield Occasion(
            f"slot/{status.source}", f"the slot of {status.source} is {status.slot_state}",
            f"`lakehouse ingest --recover {status.source}`" if not status.slot_is_sound else
            "ingest at once, or raise max_slot_wal_keep_size: the next checkpoint may remove WAL that the lake needs",
            severity="error" if not status.slot_is_sound else "warning", source=status.source, patience=SLOT_SECONDS,
        )  # fmt: skip
    if status.former_slot is not None:
        yield Occasion(
            f"former_slot/{status.source}", f"{status.source} has moved to topics, and its slot {status.former_slot} "
            "still retains WAL", f"`lakehouse ingest --move {status.source}` drops it", source=status.source,
            patience=FORMER_SLOT_SECONDS,
        )  # fmt: skip


def _refused(status: SourceStatus, why: str | None) -> Iterator[Occasion]:
    """One where each ingestion is refused, for another reason than the state of the slot."""
    if why is not None and status.slot_is_sound:
        says, remedy = in_two(why)
        yield Occasion(
            f"refused/{status.source}",
            f"{status.source} is not ingested: {says}",
            remedy,
            source=status.source,
            patience=SLOT_SECONDS,
        )


def _lag(status: SourceStatus, limits: Mapping[str, LagPolicy], defaults: AlertSettings) -> Iterator[Occasion]:
    """One for the source, named by the tables whose limits are reached; the default holds for all others."""
    usual = LagPolicy(warn_bytes=defaults.slot_bytes, error_seconds=defaults.lag_seconds)
    lag = (status.lag_bytes, status.lag_seconds)
    levels = {table.name: limits.get(table.name, usual).level(*lag) for table in status.tables}
    worst: LagLevel = "error" if "error" in levels.values() else "warn" if "warn" in levels.values() else "ok"
    if worst == "ok":
        return
    shown = _named(sorted(name for name, level in levels.items() if level == worst))
    yield Occasion(
        f"lag/{status.source}",
        f"{status.source} is {status.lag_seconds:,.0f} s and {status.behind_bytes:,} bytes behind, and retains "
        f"{status.slot_lag_bytes:,} bytes of WAL: beyond the limits of {shown}",
        "see that a follower runs and what it logs; an open transaction in the source retains WAL too, or holds back "
        "what is behind its begin in a topic",
        "error" if worst == "error" else "warning", status.source, CATCH_UP_SECONDS,
    )  # fmt: skip


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def measure(status: SourceStatus, now: datetime) -> Iterator[Sample]:
    """The source in numbers."""
    source, states = status.source, Counter(table.state for table in status.tables)
    yield sample("lakehouse_source_up", 1, source=source)
    yield sample("lakehouse_follower_up", status.follower_alive, source=source)
    yield sample("lakehouse_followers", status.followers, source=source)
    yield sample("lakehouse_unclaimed_parts", len(status.unclaimed), source=source)
    for mode, held in (("follow", status.follower_alive), ("once", bool(status.holder) and not status.follower_alive)):
        yield sample("lakehouse_lease_held", held, source=source, mode=mode)
    if status.cut_at is not None:
        age = (now - status.cut_at).total_seconds()
        yield sample("lakehouse_cut_age_seconds", max(0.0, age, status.lag_seconds), source=source)
    yield sample("lakehouse_lag_seconds", status.lag_seconds, source=source)
    yield sample("lakehouse_behind_bytes", status.behind_bytes, source=source)
    yield sample("lakehouse_slot_lag_bytes", status.slot_lag_bytes, source=source)
    yield sample("lakehouse_slot_active", status.slot_active, source=source)
    yield sample("lakehouse_slot_wal_status", 1, source=source, status=status.slot_state)
    for state, count in sorted(states.items()):
        yield sample("lakehouse_tables", count, source=source, state=state)
    yield sample("lakehouse_parked_tables", states["parked"], source=source)
