"""`python -m benchmarks.plots RESULTS.json [FOLDER]` draws mirrors beside a plain copy, as SVG for docs/images."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

WIDTH, LABELS, RIGHT, BAR, GAP, HEAD = 760, 285, 60, 14, 14, 46
COLOURS = ("#00897b", "#4db6ac", "#b2dfdb")
INK, LINE = "#37474f", "#c62828"
VERSIONS = (1, 10, 100)
ANEW, LATER, KEPT = "mirror, written anew", "mirror, 3 refreshes later", "mirror, after maintenance"
FRESH, TAIL = "fresh view, nothing after the refresh", "fresh view, 60,000 changes in 60 publishes after the refresh"
SCAN = {ANEW: 1.4, LATER: 1.4, KEPT: 1.15, FRESH: 1.6, TAIL: 1.6}
LOOKUP = dict.fromkeys(SCAN, 1.3)
Json = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Bars that belong together, by series, and the value that they should not exceed."""

    label: str
    bars: Mapping[str, float]
    target: float | None = None


def pictures(results: Json) -> dict[str, str]:
    """The pictures of the scenarios that are there, by the name of their files."""
    found, made = results["results"], dict[str, str]()
    for scenario, of in (("mirror_reads", "a million rows"), ("large_mirror_reads", "10 million rows")):
        for kind, targets in (("scan", SCAN), ("lookup", LOOKUP)):
            if groups := list(_reads(found.get(scenario), kind, targets)):
                name = f"{scenario.replace('_', '-')}-{kind}.svg"
                made[name] = bar_chart(f"{kind.title()}: seconds, times a plain copy ({of})", groups)
    if groups := list(_refreshes(found)):
        made["mirror-refreshes.svg"] = bar_chart("A refresh with 10,000 changes: seconds", groups)
    return made


def _reads(scenario: Json | None, kind: str, targets: Mapping[str, float]) -> Iterator[Group]:
    contenders = scenario["contenders"] if scenario else {}
    for contender, target in targets.items():
        named = {n: contenders.get(f"{n} versions: {contender}") for n in VERSIONS}
        bars = {_of(n): of[f"{kind}, times a plain copy"] for n, of in named.items() if of}
        if bars:
            yield Group("fresh view, 60,000 changes in 60 publishes" if contender == TAIL else contender, bars, target)


def _of(versions: int) -> str:
    return f"{versions} {'version' if versions == 1 else 'versions'} per key"


def _refreshes(found: Json) -> Iterator[Group]:
    """Seconds of a refresh; the target is that of 10 million rows."""
    for scenario, of in (("mirror_refreshes", "1 million wide rows"), ("large_mirror_refreshes", "10 million rows")):
        for keys in ("newest keys", "random keys"):
            if scenario in found:
                seconds = found[scenario]["contenders"][keys]["median"]
                yield Group(f"{of}, {keys}", {"a refresh": seconds}, 10.0 if scenario.startswith("large") else None)


def bar_chart(title: str, groups: Sequence[Group]) -> str:
    """Horizontal bars in groups with a legend; a dashed line is a group's target. The same in, the same text out."""
    series = list(dict.fromkeys(name for group in groups for name in group.bars))
    top = max(value for group in groups for value in (*group.bars.values(), group.target or 0))
    height = HEAD + sum(len(group.bars) * BAR + GAP for group in groups) + 8

    def x(value: float) -> float:
        return round(LABELS + value / top * (WIDTH - LABELS - RIGHT), 1)

    parts, y = [_text(10, 18, title, weight="bold")], HEAD
    for n, name in enumerate(series):
        left = LABELS + n * 150
        parts += [_bar(left, 26, 10, COLOURS[n]), _text(left + 15, 35, name)]
    for group in groups:
        parts.append(_text(10, y + len(group.bars) * BAR // 2 + 4, group.label))
        bottom, places = y + len(group.bars) * BAR, dict(zip(group.bars, count(y, BAR), strict=False))
        for name, value in group.bars.items():
            parts.append(_bar(LABELS, places[name], round(x(value) - LABELS, 1), COLOURS[series.index(name)]))
        if group.target is not None:
            at_target = f'x1="{x(group.target)}" y1="{y - 3}" x2="{x(group.target)}" y2="{bottom + 1}"'
            parts.append(f'<line {at_target} stroke="{LINE}" stroke-dasharray="4 2"/>')
            parts.append(_text(x(group.target) + 2, bottom + 9, f"target {group.target:g}", size=9, colour=LINE))
        parts += [_text(x(value) + 4, places[name] + 10, f"{value:g}", size=11) for name, value in group.bars.items()]
        y = bottom + GAP
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
    paper = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    return "\n".join([f'{svg} role="img" aria-label="{escape(title)}">', paper, *parts, "</svg>"]) + "\n"


def _bar(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{BAR - 2}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, size: int = 12, colour: str = INK, weight: str = "normal") -> str:
    halo = 'stroke="#ffffff" stroke-width="3" paint-order="stroke"'  # over a line
    look = f'fill="{colour}" {halo} font-size="{size}" font-weight="{weight}"'
    return f'<text x="{x}" y="{y}" {look}>{escape(text)}</text>'


def main(results: Path, folder: Path) -> None:
    """Writes the pictures of a results file into the folder."""
    for name, text in pictures(json.loads(results.read_text())).items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "docs/images"))
