"""Writes results to docs/benchmarks.md: a table per scenario, and plots as Mermaid charts."""

from pathlib import Path
from typing import Any

BEGIN, END = "<!-- results: written by `python -m benchmarks --docs` -->", "<!-- end of results -->"
KNOWN = ("unit", "does", "runs", "median", "spread_percent", "cpu_seconds", "plots")
MOST_BARS = 6
Json = dict[str, Any]


def write_report(document: Path, results: Json) -> None:
    """Replaces the text between the two markers of the document; raises ValueError if they are missing."""
    text = document.read_text()
    before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
    document.write_text(text[:before] + "\n\n" + markdown(results) + "\n" + text[after:])


def markdown(results: Json) -> str:
    """The scenarios of one results file as Markdown."""
    machine, versions = results["machine"], results["versions"]
    parts = [
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, Python {machine['python']}; "
        f"scale {results['settings']['scale']}; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + "."
    ]
    for scenario in results["results"].values():
        parts += [f"### {scenario['title']}", _table(scenario["contenders"]), *_bars(scenario)]
        for contender, found in scenario["contenders"].items():
            parts += _remarks(contender, found)
            parts += [_rows(contender, rows) for key, rows in found.items() if key not in KNOWN and _is_table(rows)]
            parts += [_line(f"{contender}: {title}", points) for title, points in found["plots"].items()]
    return "\n\n".join(parts) + "\n"


def _table(contenders: Json) -> str:
    head = ("", "median", "unit", "runs", "spread", "CPU s, source", "CPU s, client", "CPU s, store", "does")
    rows: list[tuple[Any, ...]] = [head, ("---",) * len(head)]
    for name, found in contenders.items():
        cpu = found["cpu_seconds"]
        spent = [_mean([run[side] for run in cpu if side in run]) for side in ("source", "ingestion", "store")]
        median, spread = f"{found['median']:,}", f"{found['spread_percent']} %"
        rows.append((name, median, found["unit"], len(found["runs"]), spread, *spent, found["does"]))
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def _remarks(contender: str, found: Json) -> list[str]:
    remarks = [
        f"{key.replace('_', ' ')}: {_words(value)}"
        for key, value in found.items()
        if key not in KNOWN and not _is_table(value)
    ]
    return [f"{contender}: " + "; ".join(remarks)] if remarks else []


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _rows(contender: str, rows: list[Json]) -> str:
    """Records with the same keys as a table; the first heading includes the contender's name."""
    first, *others = rows[0]
    lines = [f"| {contender}: {first} | " + " | ".join(other.replace("_", " ") for other in others) + " |"]
    lines.append("|---" * len(rows[0]) + "|")
    lines += ["| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row.values()) + " |"
              for row in rows]  # fmt: skip
    return "\n".join(lines)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_words(item)}" for key, item in value.items())
    return ", ".join(map(_words, value)) if isinstance(value, list) else str(value)


def _mean(values: list[float]) -> str:
    return f"{sum(values) / len(values):.2f}" if values else ""


def _bars(scenario: Json) -> list[str]:
    """A bar chart of the medians, if there are several in one unit."""
    contenders = scenario["contenders"]
    units = {found["unit"] for found in contenders.values()}
    if not (2 <= len(contenders) <= MOST_BARS and len(units) == 1):
        return []
    names, medians = ", ".join(f'"{name}"' for name in contenders), [found["median"] for found in contenders.values()]
    return [_chart(scenario["title"], f"x-axis [{names}]", units.pop(), "bar", medians)]


def _line(title: str, points: list[list[float]]) -> str:
    """A line chart; the title has the form `y by x`."""
    across, up = zip(*points, strict=True)
    upward, _, onward = title.rpartition(": ")[2].partition(" by ")
    span = f'x-axis "{onward}" {across[0]} --> {max(across[-1], across[0] + 1)}'
    return _chart(title, span, upward, "line", list(up))


def _chart(title: str, across: str, unit: str, form: str, values: list[float]) -> str:
    top = max(values) * 1.1 or 1
    return "\n".join(
        (
            "```mermaid", "xychart-beta", f'  title "{title}"', f"  {across}",
            f'  y-axis "{unit}" 0 --> {top:.3g}', f"  {form} [{', '.join(map(str, values))}]", "```",
        )
    )  # fmt: skip
