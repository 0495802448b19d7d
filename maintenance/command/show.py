"""Plans, outcomes and the state of tables, as text for people."""

from collections.abc import Iterable, Sequence

from lakehouse.text.shown import print_table, say
from maintenance.inventory.outcome import Figures, Outcome
from maintenance.planning.plan import NOT_THERE, Passed, Plan
from maintenance.planning.survey import Survey
from maintenance.runner.result import Result

FIGURES = ("files", "bytes", "manifests", "snapshots")
FEW = 10
LONG = ("why", "what", "estimated gain")  # columns that wrap on a narrow terminal
UNITS = ("B", "kB", "MB", "GB", "TB")


def print_plan(plan: Plan, dry_run: bool) -> None:
    """The steps by rank, and postponed steps if they are few; of a dry run also all postponed and skipped ones."""
    rows = [
        (
            str(rank), str(step.table.name), step.action, step.reason, size(step.expected_bytes),
            f"{step.expected_seconds:.1f} s ({step.expected_from})", f"{step.gain_seconds:.2f} s/read",
            size(step.gain_bytes),
        )
        for rank, step in enumerate(plan.steps, start=1)
    ]  # fmt: skip
    if rows:
        _print(("", "table", "action", "why", "read and written", "takes", "saves", "frees"), rows)
    if dry_run or len(plan.put_off) <= FEW:
        _passed(plan.put_off)
    if dry_run:
        _passed(plan.skipped)
    say(f"{len(plan.steps)} steps planned, {len(plan.put_off)} put off, {len(plan.skipped)} tables need nothing")
    if plan.put_off:
        say("--budget-minutes overrides declared budgets and windows")


def print_outcomes(result: Result) -> None:
    """Actions done, failures, skipped actions if they are few, and a count by status."""
    shown = [outcome for outcome in result.outcomes if outcome.status in ("done", "planned")]
    rows = [
        (
            str(o.table), o.action, o.reason, *(_change(o, figure) for figure in FIGURES), _probes(o),
            f"{o.seconds:.2f}",
        )
        for o in shown
    ]  # fmt: skip
    if rows:
        _print(("table", "action", "what", *FIGURES, "probes", "seconds"), rows)
    for outcome in result.failed[:FEW]:
        say(f"{outcome.action} of {outcome.table} failed: {outcome.error}")
    skipped = [outcome for outcome in result.outcomes if outcome.status == "skipped"]
    if len(skipped) <= FEW:
        for outcome in skipped:
            say(f"{outcome.action} of {outcome.table} skipped: {outcome.reason}")
    counts = ", ".join(f"{count} {status}" for status, count in result.as_dict()["counts"].items())
    say(counts if max(len(skipped), len(result.failed)) <= FEW else f"{counts} (--json says why)")


def print_status(seen: Survey) -> None:
    """A line per table in the lake, the largest estimated gain first, and the number of missing tables."""
    rows, absent = [], 0
    for line in seen.as_dict()["tables"]:
        health, last = line["health"], line["last"]
        if line["reason"] == NOT_THERE:
            absent += 1
            continue
        numbers: tuple[str, ...] = ("",) * 8
        if health:
            numbers = (
                f"{health['files']:,}", f"{health['small_share']:.0%}", f"{health['delete_files']:,}",
                f"{health['snapshots']:,}", f"{health['manifests']:,}", size(health["metadata_bytes"]),
                size(health["orphan_bytes"]), size(health["bytes"]),
            )  # fmt: skip
        done = f"{last['action']} {last['status']} {last['started_at'][:16]}" if last else ""
        gain = line["reason"].partition(": ")[0] if health else line["reason"]
        if line["due"]:
            gain = f"{line['gain_seconds']:.2f} s/read, {size(line['gain_bytes'])}"
        rows.append((line["table"], *numbers, done, gain))
    headings = ("table", "files", "small", "deletes", "snapshots", "manifests", "metadata", "orphans", "size")
    if rows:
        _print((*headings, "last action", "estimated gain"), rows)
    if absent:
        say(f"{absent} declared tables are not in the lake yet")


def size(number: int) -> str:
    """Bytes in the largest unit in which the number is at least 1."""
    value, unit = float(number), 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {UNITS[unit]}" if unit == 0 else f"{value:.1f} {UNITS[unit]}"


def _passed(items: Iterable[Passed]) -> None:
    for item in items:
        say(f"{item.table}{f' {item.action}' if item.action else ''}: {item.reason}")


def _print(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print_table(headings, rows, kept_whole=set(headings).difference(LONG))


def _probes(outcome: Outcome) -> str:
    after = outcome.probes_after
    return ", ".join(
        f"{name} {seconds:.2f} → {after[name]:.2f} s"
        for name, seconds in outcome.probes_before.items()
        if name in after
    )


def _change(outcome: Outcome, field: str) -> str:
    before, after = (_text(figures, field) for figures in (outcome.before, outcome.after))
    return f"{before} → {after}" if before and after and before != after else before or after


def _text(figures: Figures, field: str) -> str:
    value = getattr(figures, field)
    return "" if value is None else f"{value:,}"
