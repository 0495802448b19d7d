"""How far each source is in the lake, for `lakehouse status`: slot, lag in bytes and seconds, state of the tables."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakehouse.declarations import load_declarations
from lakehouse.errors import LakehouseError
from lakehouse.migrations import refuse_former_state
from lakehouse.servers.embedded import is_sample
from lakehouse.settings import Settings
from lakehouse.text.shown import shortened, table

if TYPE_CHECKING:
    from rich.table import Table

    from ingestion.state.progress import Progress


def source_lags(settings: Settings) -> list[dict[str, Any]]:
    """One entry per source with a connection; `trouble` says why nothing is known of one.

    The embedded stack serves the samples to every project: one that this project does not use is left out.
    """
    lags = [_lag(settings, name) for name in sorted(settings.sources)]
    unused = {lag["source"] for lag in lags if _may_be_unused(settings, lag)} - _declared(settings, lags)
    return [lag for lag in lags if lag["source"] not in unused]


def _may_be_unused(settings: Settings, lag: dict[str, Any]) -> bool:
    return lag.get("position_lsn") is None and is_sample(settings, lag["source"])


def _declared(settings: Settings, lags: list[dict[str, Any]]) -> set[str]:
    """What the project declares; all of them where nothing can be told, and dbt is not asked without need."""
    if any(_may_be_unused(settings, lag) for lag in lags):
        try:
            return {source.name for source in load_declarations(settings).sources}
        except LakehouseError:
            pass
    return {lag["source"] for lag in lags}


def _lag(settings: Settings, name: str) -> dict[str, Any]:
    import psycopg

    from ingestion import source_status, why_refused
    from lakehouse_stack.control.connectors import connector_failure

    try:
        refuse_former_state(settings)
        status, refused = source_status(settings, name), why_refused(settings, name)
    except (LakehouseError, psycopg.Error) as error:
        return {"source": name, "trouble": _line(error)}
    values = {key: value.isoformat() if isinstance(value, datetime) else value for key, value in asdict(status).items()}
    values["progress"] = _progress(status.progress) if status.progress else None
    trouble = connector_failure(settings, name) or _trouble(values, refused) or _connector(settings, name)
    return {**values, "trouble": trouble}


def _connector(settings: Settings, name: str) -> str | None:
    """What is wrong with the connector behind topics."""
    import psycopg

    from ingestion import connector_trouble

    try:
        return connector_trouble(settings, name)
    except (LakehouseError, psycopg.Error) as error:
        return _line(error)


def _line(error: Exception) -> str:
    return shortened(" ".join(str(error).split()), 300)


def _progress(at: "Progress") -> dict[str, Any]:
    left = None if at.seconds_left is None else round(at.seconds_left)
    return {
        "phase": at.phase, "done": at.done, "total": at.total, "rows": at.rows,
        "rows_per_second": round(at.rows_per_second), "seconds_left": left,
    }  # fmt: skip


def _trouble(values: dict[str, Any], refused: str | None = None) -> str | None:
    """What is wrong with the source; `refused` is why it would not be ingested now."""
    if values["position_lsn"] is None:
        return "never ingested" + (f": {refused}" if refused else "")
    if refused is not None:
        return refused
    if not values["slot_is_sound"]:
        return f"slot {values['slot_state']}: `lakehouse ingest --recover {values['source']}`"
    if values["former_slot"]:
        return f"slot {values['former_slot']} still retains WAL: `lakehouse ingest --move {values['source']}` drops it"
    return None


def lag_table(lags: list[dict[str, Any]]) -> "Table":
    """The same for people; tables are named only when the stream does not reach them. Why is in `lag_reasons`."""
    return table(("source", "writer", "WAL kept", "behind", "lag", "tables"), map(_row, lags))


def lag_reasons(lags: list[dict[str, Any]]) -> list[str]:
    """A line for each source with trouble, and for each table that the stream does not reach for a reason."""
    found = []
    for lag in lags:
        if lag["trouble"]:
            found.append(f"{lag['source']}: {lag['trouble']}")
            continue
        odd = (t for t in lag["tables"] if t["state"] != "streaming" and t["reason"])
        found += [f"{lag['source']}.{t['name']} {t['state']}: {t['reason']}" for t in odd]
    return found


def _row(lag: dict[str, Any]) -> Sequence[str]:
    if lag["trouble"]:
        return lag["source"], "trouble, see below"
    writer = "follower" if lag["follower_alive"] else "running once" if lag["holder"] else "none"
    writer = f"{lag['followers']} followers" if lag["followers"] > 1 else writer
    if lag["unclaimed"]:
        writer += f"; nobody reads {', '.join(lag['unclaimed'])}"
    if at := lag["progress"]:
        writer += f": {at['phase']} {at['done'] / at['total']:.0%}, {at['rows_per_second']:,} rows/s"
    sizes = [f"{lag[key]:,} B" for key in ("slot_lag_bytes", "behind_bytes")]
    return lag["source"], writer, *sizes, f"{lag['lag_seconds']:,.0f} s", _tables(lag["tables"])


def _tables(tables: list[dict[str, Any]]) -> str:
    odd = [t for t in tables if t["state"] != "streaming"]
    return "; ".join([f"{len(tables) - len(odd)} streaming", *(f"{t['name']} {t['state']}" for t in odd)])
