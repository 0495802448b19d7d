"""The loop of `lakehouse watch`: look, remember, tell, measure. One watch per lake; a second one stands by.

What cannot be stored, because the catalog database is down, is kept in memory and told all the same.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

import psycopg

from lakehouse.declarations.dbt.changes import changes_of_settings
from lakehouse.errors import LakehouseError
from lakehouse.metrics import METRICS, REGISTRY, Sample, sample
from lakehouse.migrations import ensure_state, refuse_former_state
from lakehouse.servers.database import CatalogConnection, connect_catalog
from lakehouse.servers.exporter import served
from lakehouse.servers.outage import expected
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import DebeziumSettings, Settings, connected_now
from lakehouse_watch import asking, store
from lakehouse_watch.alerts import Occasion, State, advance
from lakehouse_watch.asking import Asking, NoAnswer
from lakehouse_watch.parsing import keep_parsed
from lakehouse_watch.probes import (
    built,
    dagster_state,
    exports,
    lake,
    loads,
    messages,
    mirrors,
    models,
    project,
    servers,
    sources,
    worker,
)
from lakehouse_watch.probes.limits import Misdeclared
from lakehouse_watch.probes.reading import Probe, Reading
from lakehouse_watch.targets.delivery import Delivery, declared_targets
from lakehouse_watch.targets.text import hider

log = logging.getLogger("lakehouse.watch")
LOCK = 20_476_102  # of the catalog database: whoever has it tells
UNREADABLE_SECONDS = 20.0
OWN, UNREADABLE = "watch", "unreadable"
MEASURED = tuple(name for name, metric in METRICS.items() if metric.kind == "gauge")


def declared_probes(settings: Settings) -> list[Probe]:
    """Every look there is."""
    probes = [
        Probe(f"source {name}", partial(sources.read_source, settings, name), source=name, needs_catalog=True)
        for name in sorted(settings.sources)
    ]
    probes += [
        Probe(f"connector {name}", partial(sources.read_connector, settings, name), every=60, needs_catalog=True)
        for name, of in sorted(settings.sources.items())
        if isinstance(of, DebeziumSettings) and of.url is not None
    ]
    probes += [
        Probe("lake", partial(lake.read_lake, settings), every=60, needs_catalog=True),
        Probe("loads", partial(loads.read_loads, settings), every=60, needs_catalog=True),
        Probe("project", partial(project.read_project, settings)),
        Probe("models", partial(models.read_models, settings)),
        Probe("worker", partial(worker.read_worker, settings), needs_catalog=True),
        Probe("mirrors", partial(mirrors.read_mirrors, settings), every=10, needs_catalog=True),
        Probe("exports", partial(exports.read_exports, settings), needs_catalog=True),
        Probe("messages", partial(messages.read_messages, settings), every=60, needs_catalog=True),
        Probe("backups", partial(lake.read_backups, settings), every=60, needs_catalog=True),
        Probe("servers", partial(servers.read_servers, settings)),
        Probe("disk", partial(servers.read_disk, settings), every=60),
    ]
    if settings.dagster.storage_url is not None:
        probes += [
            Probe("dagster", partial(dagster_state.read_runs, settings)),
            Probe("dagster checks", partial(dagster_state.read_checks, settings), every=60),
            Probe("built", partial(built.read_built, settings), every=60, needs_catalog=True),
        ]
    return probes


@dataclass
class Watch:
    """What one watch knows between two looks."""

    settings: Settings
    probes: Sequence[Probe]
    delivery: Delivery
    hide: Callable[[str], str]
    state: State = field(default_factory=State)
    stored: State | None = None  # what this watch has last read from, or written to, the catalog database
    connection: CatalogConnection | None = None
    asking: Asking = field(default_factory=Asking)
    readings: dict[str, Reading | None] = field(default_factory=dict)
    read_at: dict[str, float] = field(default_factory=dict)

    def connect(self, settings: Settings) -> None:
        """Watches the sources of these settings from now on; targets stay."""
        self.settings, self.probes, self.hide = settings, declared_probes(settings), hider(settings)
        names = {probe.name for probe in self.probes}
        self.readings = {name: reading for name, reading in self.readings.items() if name in names}

    def look(self) -> None:
        """One round."""
        _, down = self._take_lock()
        found = self._read(down)
        tells, down = self._take_lock()  # another one may have told meanwhile, while this one was suspended
        if tells:
            before = self.state
            unknown = tuple(key for reading in self.readings.values() if reading for key in reading.unknown)
            self.state = advance(before, found, self.delivery.targets, datetime.now(UTC), unknown)
            _log(before, self.state)
            self._save(down)  # first: a message that was sent and not stored would be sent again
            self.state = replace(self.state, outbox=self.delivery.deliver(self.state.outbox, time.monotonic()))
            self._save(down)
        self._measure()

    def peek(self) -> list[Occasion]:
        """What one round would find."""
        try:
            with connect_catalog(self.settings) as connection:
                ensure_state(connection)
            down = None
        except (LakehouseError, psycopg.Error) as error:
            down = " ".join(str(error).split())
        return [occasion for occasions in self._read(down).values() for occasion in occasions or ()]

    def _take_lock(self) -> tuple[bool, str | None]:
        """Whether this watch tells (also while the catalog is down, when no other can ask), and why the catalog is."""
        try:
            connection, stored = self.asking.ask(
                "catalog", partial(_locked, self.settings, self.connection), asking.SOON
            )
        except NoAnswer as error:
            return True, str(error)
        except (LakehouseError, psycopg.Error) as error:
            self._disconnect()
            return True, " ".join(str(error).split())
        if stored is not None:
            self._take_up(stored)
        elif connection is None:  # another watch tells, and knows what became of what this one has told
            self.state, self.stored = State(), None
        self.connection = connection
        return connection is not None, None

    def _take_up(self, stored: State) -> None:
        """Goes on from what is stored, unless it is what this watch itself has left there before it was cut off."""
        if self.stored is None:
            self.state = _merged(stored, self.state)
        elif stored != self.stored:
            self.state = stored
        self.stored = stored

    def _read(self, catalog_down: str | None) -> dict[str, Sequence[Occasion] | None]:
        now = time.monotonic()
        own: dict[str, list[Occasion] | None] = {
            OWN: [*self.delivery.refused(now), *([_catalog_down(catalog_down)] if catalog_down else [])]
        }
        until = now + asking.SECONDS
        for probe in self.probes:
            answers = f"{UNREADABLE}/{probe.name}"  # as if by a probe of its own, which cannot tell while none is asked
            own[answers] = []
            if catalog_down and probe.needs_catalog:
                self.readings[probe.name] = own[answers] = None
            elif self.readings.get(probe.name) is None or now - self.read_at[probe.name] >= probe.every:
                self.read_at[probe.name] = now
                try:
                    self.readings[probe.name] = self.asking.ask(
                        probe.name, probe.read, max(asking.LEAST, until - time.monotonic())
                    )
                except Misdeclared as error:
                    self.readings[probe.name] = None  # one alert tells it: see probes/project.py
                    own[answers] = [_unreadable(probe, error)] if probe.source else []
                except Exception as error:
                    self.readings[probe.name] = None
                    own[answers] = [_unreadable(probe, error)]
        found = {name: reading.occasions if reading else None for name, reading in self.readings.items()}
        return {name: _hidden(occasions, self.hide) for name, occasions in {**found, **own}.items()}

    def _save(self, catalog_down: str | None) -> None:
        if self.connection is None or self.stored is None or catalog_down:
            return
        try:
            self.asking.ask("saving", partial(store.save, self.connection, self.stored, self.state), asking.SOON)
            self.stored = self.state
        except NoAnswer:
            return
        except psycopg.Error:
            self._disconnect()

    def _disconnect(self) -> None:
        if self.connection is not None:
            with suppress(psycopg.Error):
                self.connection.close()
        self.connection = None

    def _measure(self) -> None:
        samples: list[Sample] = [s for reading in self.readings.values() if reading for s in reading.samples]
        samples += [
            sample("lakehouse_source_up", 0, source=probe.source)
            for probe in self.probes if probe.source and self.readings.get(probe.name) is None
        ]  # fmt: skip
        told = [alert.occasion for alert in self.state.alerts.values() if alert.told]
        kinds = {(occasion.kind, occasion.severity) for occasion in told}
        for kind, severity in sorted(kinds):
            count = sum((o.kind, o.severity) == (kind, severity) for o in told)
            samples.append(sample("lakehouse_open_alerts", count, kind=kind, severity=severity))
        for target in sorted(self.delivery.targets):
            waiting = sum(message.target == target for message in self.state.outbox)
            samples.append(sample("lakehouse_undelivered_messages", waiting, target=target))
        REGISTRY.set_gauges(MEASURED, samples)

    def ready(self) -> Mapping[str, str]:
        """By source, what keeps it from being ready."""
        return {
            probe.source: reading.not_ready.get(probe.source, "never ingested") if reading else "it cannot be read"
            for probe in self.probes
            if probe.source
            for reading in [self.readings.get(probe.name)]
        }


def _locked(settings: Settings, connection: CatalogConnection | None) -> tuple[CatalogConnection | None, State | None]:
    """A session that has the lock, or None while another watch has it; and what is stored, where it is a new one."""
    if connection is not None:
        with suppress(psycopg.Error):  # where it was cut, another watch may have the lock by now
            connection.execute("SELECT 1")
            return connection, None
        connection.close()
    connection = connect_catalog(settings, tcp_user_timeout="10000")
    try:
        ensure_state(connection)
        if connection.execute("SELECT pg_try_advisory_lock(%s)", (LOCK,)).fetchone() == (True,):
            return connection, store.load(connection)
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None, None


def new_watch(settings: Settings) -> Watch:
    """A watch over everything that the settings name."""
    targets = declared_targets(settings.alerts)
    return Watch(settings, declared_probes(settings), Delivery(targets), hider(settings))


def watch(settings: Settings, stop: threading.Event) -> None:
    """Looks until `stop` is set."""
    changes, this = changes_of_settings(settings), new_watch(settings)
    if not this.delivery.targets:
        log.warning("no alert target is set: nobody is told; set LAKEHOUSE_ALERTS__WEBHOOK or …MAIL")
    if settings.dagster.storage_url is None:
        log.warning(
            "Dagster's database is not set: nobody is told of its runs, checks, sensors and daemon; set "
            "LAKEHOUSE_DAGSTER__STORAGE_URL"
        )
    threading.Thread(target=keep_parsed, args=(settings, stop), name="parsing", daemon=True).start()
    with served(settings.metrics.host, settings.metrics.watch_port, this.ready) as port:
        log.info("watching%s", f"; metrics at http://{settings.metrics.host}:{port}/metrics" if port else "")
        while not stop.is_set():
            begun = time.monotonic()
            if changes.settled():
                this.connect(connected_now(settings))
            this.look()
            stop.wait(max(1.0, settings.alerts.every_seconds - (time.monotonic() - begun)))


def _merged(stored: State, mine: State) -> State:
    """What was stored, and what was found while it could not be read."""
    alerts = {**stored.alerts, **{key: alert for key, alert in mine.alerts.items() if key not in stored.alerts}}
    ids = {message.id for message in stored.outbox}
    return State(alerts, (*stored.outbox, *(message for message in mine.outbox if message.id not in ids)))


def _hidden(occasions: Iterable[Occasion] | None, hide: Callable[[str], str]) -> list[Occasion] | None:
    if occasions is None:
        return None
    return [replace(found, summary=hide(found.summary), to_do=hide(found.to_do)) for found in occasions]


def _log(before: State, after: State) -> None:
    for key, alert in after.alerts.items():
        was = before.alerts.get(key)
        is_more = was is not None and alert.is_more_than(was)
        if alert.told and (is_more or not (was and was.told and was.told_worst >= alert.told_worst)):
            log.warning("%s", alert.occasion.summary)
    for key, alert in before.alerts.items():
        if alert.told and key not in after.alerts:
            log.info("over: %s", alert.occasion.summary)


def _catalog_down(why: str) -> Occasion:
    return Occasion(
        f"{UNREADABLE}/catalog", f"the catalog's database cannot be read: {why}", "start it: nothing works without it",
        patience=UNREADABLE_SECONDS,
    )  # fmt: skip


def _unreadable(probe: Probe, error: Exception) -> Occasion:
    text = expected(error) or f"{type(error).__name__}: {error}"
    remedy = "correct it" if isinstance(error, Misdeclared) else "see that it runs and can be reached"
    return Occasion(
        f"{UNREADABLE}/{probe.name}", f"{probe.name} cannot be read: {text}", remedy,
        source=probe.source, patience=UNREADABLE_SECONDS,
    )  # fmt: skip


def look_once(settings: Settings) -> list[Occasion]:
    """What needs attention at this moment; nothing is told or stored.

    Raises LakehouseError if the state is of another release.
    """
    with suppress(Unreachable):  # which is among what needs attention
        refuse_former_state(settings)
    return new_watch(settings).peek()
