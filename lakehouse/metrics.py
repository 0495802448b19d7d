"""Metrics in Prometheus' text format: counters, gauges and histograms of one process, and what they mean.

Every metric of the system is declared in METRICS; dashboards, alert rules and documentation are checked against it.

prometheus_client would make this some 45 lines shorter, for one more dependency. But its gauges can only be cleared and
set one by one, so a scrape in between misses samples; a collector of our own for them would be most of what is here.
"""

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[tuple[str, str], ...]
SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Metric:
    """A family of samples: its kind, its labels and its meaning."""

    kind: Kind
    labels: tuple[str, ...]
    help: str


METRICS: Mapping[str, Metric] = {
    # of a follower
    "lakehouse_rows_published_total": Metric("counter", ("source", "table", "op"), "Rows that cycles have published."),
    "lakehouse_publish_seconds": Metric("histogram", ("source",), "Duration of cycles that published rows."),
    "lakehouse_conflicts_total": Metric(
        "counter", ("source",), "Publishes staged again because another commit was first."
    ),
    "lakehouse_mirror_refresh_seconds": Metric("histogram", ("source",), "Duration of refreshes of mirrors."),
    "lakehouse_cycle_failures_total": Metric("counter", ("source",), "Cycles that ended with an error."),
    # of a worker, and of the watch for the runs of Dagster
    "lakehouse_load_seconds": Metric(
        "histogram", ("job",), "Duration of a worker's loads, and of the runs that ended while the watch ran."
    ),
    # of a worker
    "lakehouse_worker_serves": Metric("gauge", ("job",), "1 if the worker loads what the job would; else runs do."),
    "lakehouse_worker_failures_total": Metric("counter", ("job",), "Loads that the worker has left to Dagster."),
    "lakehouse_tests_waiting_seconds": Metric(
        "gauge", (), "Seconds since the whole-table test that has been due longest became due; 0 if none is."
    ),
    # of the watch: ingestion
    "lakehouse_follower_up": Metric("gauge", ("source",), "1 if a follower holds the source's lease."),
    "lakehouse_followers": Metric("gauge", ("source",), "Followers at work; several share a source's partitions."),
    "lakehouse_unclaimed_parts": Metric("gauge", ("source",), "Partitions that no follower of a shared source reads."),
    "lakehouse_lease_held": Metric("gauge", ("source", "mode"), "1 if a writer of this mode holds the lease."),
    "lakehouse_cut_age_seconds": Metric("gauge", ("source",), "Seconds since the source's state of the newest cut."),
    "lakehouse_mirror_behind_seconds": Metric(
        "gauge", ("source",), "Seconds since the first publish that the mirrors lack; 0 if they have the newest cut."
    ),
    "lakehouse_lag_seconds": Metric(
        "gauge", ("source",), "Seconds since the position moved; 0 if no WAL lies beyond it."
    ),
    "lakehouse_behind_bytes": Metric("gauge", ("source",), "WAL beyond the lake's position."),
    "lakehouse_slot_lag_bytes": Metric("gauge", ("source",), "WAL that the source retains for the slot."),
    "lakehouse_slot_active": Metric("gauge", ("source",), "1 if a session reads the slot."),
    "lakehouse_slot_wal_status": Metric("gauge", ("source", "status"), "1 for the slot's state."),
    "lakehouse_source_up": Metric("gauge", ("source",), "1 if source and catalog answer."),
    "lakehouse_tables": Metric("gauge", ("source", "state"), "Tables by state."),
    "lakehouse_parked_tables": Metric("gauge", ("source",), "Tables that cannot go on until their cause is fixed."),
    "lakehouse_quarantined_rows": Metric("gauge", (), "Records in meta.quarantine."),
    "lakehouse_spool_rows": Metric("gauge", (), "Records in meta.spool."),
    "lakehouse_spool_bytes": Metric("gauge", (), "Size of the files of meta.spool."),
    "lakehouse_table_rows": Metric("gauge", ("source", "table"), "Rows of a raw table."),
    "lakehouse_table_bytes": Metric("gauge", ("source", "table"), "Size of a raw table's files."),
    # of the watch: Dagster, servers, backup
    "lakehouse_job_last_success_timestamp_seconds": Metric("gauge", ("job",), "End of the job's last successful run."),
    "lakehouse_job_failures": Metric("gauge", ("job",), "Failed runs since the last one that left no failed table."),
    "lakehouse_failed_checks": Metric("gauge", ("severity",), "Asset checks whose last evaluation failed."),
    "lakehouse_sensor_failures": Metric("gauge", ("sensor",), "Failed ticks since the sensor's last other one."),
    "lakehouse_worker_up": Metric("gauge", (), "1 if a worker lives."),
    "lakehouse_daemon_heartbeat_age_seconds": Metric("gauge", (), "Age of the Dagster daemon's oldest heartbeat."),
    "lakehouse_server_up": Metric("gauge", ("server",), "1 if a server of this machine is healthy."),
    "lakehouse_disk_free_bytes": Metric("gauge", (), "Free space on the disk of the home."),
    "lakehouse_last_backup_timestamp_seconds": Metric("gauge", (), "When the last backup was made."),
    "lakehouse_last_export_timestamp_seconds": Metric(
        "gauge", ("target",), "When a second catalog that is kept up to date was exported last."
    ),
    "lakehouse_maintenance_last_timestamp_seconds": Metric("gauge", ("action",), "When maintenance last acted."),
    "lakehouse_maintenance_removed_files": Metric("gauge", ("action",), "Files fewer after the last time it acted."),
    "lakehouse_maintenance_removed_bytes": Metric("gauge", ("action",), "Bytes fewer after the last time it acted."),
    # of the watch: itself
    "lakehouse_open_alerts": Metric("gauge", ("kind", "severity"), "Alerts that are open."),
    "lakehouse_undelivered_messages": Metric("gauge", ("target",), "Messages that wait for their target."),
    "lakehouse_refused_messages_total": Metric(
        "counter", ("target",), "Messages that a target refuses for good, or that not all recipients of a mail got."
    ),
}


@dataclass
class _Histogram:
    counts: list[int]
    sum: float = 0.0


class Registry:
    """The samples of one process; safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, _Histogram]] = {}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Increases a counter."""
        with self._lock:
            samples = self._values.setdefault(name, {})
            key = _key(name, "counter", labels)
            samples[key] = samples.get(key, 0.0) + amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Counts a value in a histogram."""
        with self._lock:
            found = self._histograms.setdefault(name, {}).setdefault(
                _key(name, "histogram", labels), _Histogram([0] * (len(SECONDS) + 1))
            )
            found.counts[next((i for i, bound in enumerate(SECONDS) if value <= bound), len(SECONDS))] += 1
            found.sum += value

    def set_gauges(self, names: Iterable[str], samples: Iterable["Sample"]) -> None:
        """Replaces all samples of these gauges: what is no longer measured disappears."""
        fresh: dict[str, dict[Labels, float]] = {name: {} for name in names}
        for sample in samples:
            fresh[sample.name][_key(sample.name, "gauge", dict(sample.labels))] = sample.value
        with self._lock:
            self._values.update(fresh)

    def render(self) -> str:
        """All samples in Prometheus' text format."""
        with self._lock:
            lines = [line for name in METRICS for line in self._family(name)]
        return "\n".join(lines) + "\n"

    def _family(self, name: str) -> list[str]:
        values, histograms = self._values.get(name, {}), self._histograms.get(name, {})
        lines = [f"{name}{_text(labels)} {_number(value)}" for labels, value in sorted(values.items())]
        for labels, histogram in sorted(histograms.items()):
            total = 0
            for bound, count in zip((*SECONDS, math.inf), histogram.counts, strict=True):
                total += count
                lines.append(f"{name}_bucket{_text((*labels, ('le', _number(bound))))} {total}")
            lines += [f"{name}_sum{_text(labels)} {_number(histogram.sum)}", f"{name}_count{_text(labels)} {total}"]
        metric = METRICS[name]
        return [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}", *lines] if lines else []


@dataclass(frozen=True)
class Sample:
    """One value of a gauge."""

    name: str
    value: float
    labels: Labels = ()


def sample(name: str, value: float, **labels: str) -> Sample:
    """A value of a gauge."""
    return Sample(name, float(value), tuple(labels.items()))


REGISTRY = Registry()
"""The one of this process."""


def _key(name: str, kind: Kind, labels: Mapping[str, str]) -> Labels:
    metric = METRICS[name]
    if metric.kind != kind or set(labels) != set(metric.labels):
        raise ValueError(f"{name} is a {metric.kind} with the labels {metric.labels}")
    return tuple((label, labels[label]) for label in metric.labels)


def _text(labels: Labels) -> str:
    return "{" + ",".join(f'{label}="{_escaped(value)}"' for label, value in labels) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
