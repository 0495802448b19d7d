"""Pictures of a run: what is in it becomes bars and targets, and nothing else is drawn."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.plots import Group, bar_chart, main, pictures
from lakehouse.settings import PROJECT_DIR

SVG = "{http://www.w3.org/2000/svg}"


def test_a_bar_is_as_long_as_its_value_and_a_target_has_a_line() -> None:
    drawn = ElementTree.fromstring(
        bar_chart("a < b", [Group("one & all", {"x": 1.0, "y": 2.0}, 4.0), Group("z", {"x": 4})])
    )
    bars = list(drawn.iter(f"{SVG}rect"))[3:]  # after the paper and the legend of two
    one, two, four = (float(bar.attrib["width"]) for bar in bars)
    assert two == pytest.approx(2 * one, abs=0.2) and four == pytest.approx(4 * one, abs=0.2)
    [line] = drawn.iter(f"{SVG}line")
    assert float(line.attrib["x1"]) == float(bars[-1].attrib["x"]) + four
    assert next(drawn.iter(f"{SVG}text")).text == "a < b"


def test_what_a_run_has_not_measured_has_no_picture() -> None:
    contender = {"scan, times a plain copy": 1.2, "lookup, times a plain copy": 1.1}
    found: dict[str, Any] = {"mirror_reads": {"contenders": {"1 versions: mirror, written anew": contender}}}
    made = pictures({"results": found})
    assert set(made) == {"mirror-reads-scan.svg", "mirror-reads-lookup.svg"}
    assert "1 version per key" in made["mirror-reads-scan.svg"] and "10 versions" not in made["mirror-reads-scan.svg"]


def test_each_picture_of_the_documentation_is_that_of_a_run_that_it_names(tmp_path: Path) -> None:
    page = (PROJECT_DIR / "docs" / "benchmarks.md").read_text().partition("\n## Mirrors\n")[2].partition("\n## ")[0]
    drawn: dict[str, set[str]] = {}
    for run in re.findall(r"\d{8}T\d{6}Z", page):
        main(PROJECT_DIR / "benchmarks" / "results" / f"{run}.json", tmp_path)
        for file in tmp_path.iterdir():
            drawn.setdefault(file.name, set()).add(file.read_text())
    shown = re.findall(r"\(images/(.+?\.svg)\)", page)
    assert sorted(shown) == sorted(drawn)
    for name in shown:
        assert (PROJECT_DIR / "docs" / "images" / name).read_text() in drawn[name]
