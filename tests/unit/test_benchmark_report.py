"""The report of a results file in docs/benchmarks.md."""

from benchmarks.report import markdown


def test_records_of_a_contender_become_a_table_of_their_own() -> None:
    found = {
        "unit": "s", "does": "works", "runs": [2.0], "median": 2.0, "spread_percent": 0.0,
        "cpu_seconds": [{"source": 1}],
        "plots": {}, "again": 0.5, "actions": [{"action": "compact", "MiB_written": 1.5, "objects": 5000}],
    }  # fmt: skip
    machine = {"cores": 2, "memory_gib": 24, "system": "Linux", "python": "3.11"}
    scenario = {"title": "Maintenance", "contenders": {"ours": found}}
    results = {"machine": machine, "versions": {}, "settings": {"scale": 1, "runs": 1}, "results": {"m": scenario}}
    text = markdown(results)
    assert "ours: again: 0.5\n" in text
    assert text.count("ours: ") == 2
    assert "| ours: action | MiB written | objects |\n|---|---|---|\n| compact | 1.5 | 5,000 |" in text
