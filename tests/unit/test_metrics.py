"""Metrics as Prometheus reads them, readiness, and logs as lines of JSON."""

import json
import logging
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import yaml

from lakehouse.metrics import METRICS, Registry, sample
from lakehouse.servers.exporter import AT_ONCE, served
from lakehouse.settings import PROJECT_DIR
from lakehouse.text.log_lines import JsonFormatter, about, as_here

LINE = re.compile(r"^(lakehouse_\w+)(\{(\w+=\"(\\.|[^\"\\])*\",?)*\})? (-?[\d.e+-]+|[+-]Inf|NaN)$")


def get(port: int | None, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_counters_gauges_and_histograms_are_rendered_as_prometheus_reads_them() -> None:
    registry = Registry()
    registry.add("lakehouse_rows_published_total", 3, source="shop", table="orders", op="c")
    registry.add("lakehouse_rows_published_total", 2, source="shop", table="orders", op="c")
    for seconds in (0.07, 0.2, 7200):
        registry.observe("lakehouse_publish_seconds", seconds, source="shop")
    registry.set_gauges(["lakehouse_parked_tables"], [sample("lakehouse_parked_tables", 1, source='a"b\\c\nd')])
    text = registry.render()
    assert 'lakehouse_rows_published_total{source="shop",table="orders",op="c"} 5\n' in text
    assert 'lakehouse_publish_seconds_bucket{source="shop",le="0.1"} 1\n' in text
    assert 'lakehouse_publish_seconds_bucket{source="shop",le="0.25"} 2\n' in text
    assert 'lakehouse_publish_seconds_bucket{source="shop",le="+Inf"} 3\n' in text
    assert 'lakehouse_publish_seconds_count{source="shop"} 3\n' in text
    assert 'lakehouse_parked_tables{source="a\\"b\\\\c\\nd"} 1\n' in text
    assert [line for line in text.splitlines() if not line.startswith("# ") and not LINE.match(line)] == []


def test_what_is_no_longer_measured_disappears() -> None:
    registry = Registry()
    registry.set_gauges(["lakehouse_behind_bytes"], [sample("lakehouse_behind_bytes", 5, source="gone")])
    registry.set_gauges(["lakehouse_behind_bytes"], [])
    assert "lakehouse_behind_bytes" not in registry.render()


def test_a_sample_with_other_labels_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="labels"):
        Registry().add("lakehouse_conflicts_total", table="orders")


def test_names_follow_the_conventions_of_prometheus() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"lakehouse_[a-z_]+", name)
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert metric.kind != "histogram" or name.endswith(("_seconds", "_bytes")), name
        assert "timestamp" not in name or name.endswith("_timestamp_seconds"), name


def test_metrics_and_readiness_are_served() -> None:
    registry, ready = Registry(), {"shop": "", "bank": "its slot is lost"}
    registry.add("lakehouse_conflicts_total", source="shop")
    with served("127.0.0.1", 0, lambda: ready, registry) as port:
        assert get(port, "/metrics") == (200, registry.render())
        assert get(port, "/ready/shop") == (200, '{"shop": "ready"}')
        assert get(port, "/ready/bank") == (503, '{"bank": "its slot is lost"}')
        assert get(port, "/ready")[0] == get(port, "/ready/other")[0] == 503
        ready["bank"] = ""
        assert get(port, "/ready")[0] == 200
        assert get(port, "/")[0] == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:{port}", 200), ("127.0.0.1", 200), ("[::1]:{port}", 200), ("evil.example:{port}", 421), ("[", 421)],
)
def test_a_page_whose_name_leads_here_reads_no_metrics(host: str, status: int) -> None:
    with served("127.0.0.1", 0, dict) as port:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Host": host.format(port=port)})
        if status == 200:
            assert urllib.request.urlopen(request, timeout=10).status == 200
        else:
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=10)
            assert refused.value.code == status


def test_a_network_address_answers_to_any_name() -> None:
    """Prometheus names the machine as it likes."""
    with served("0.0.0.0", 0, dict) as port:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Host": "lake.example:1"})
        assert urllib.request.urlopen(request, timeout=10).status == 200


@pytest.mark.slow
def test_requests_without_end_take_no_connections_of_the_catalog(capfd: pytest.CaptureFixture[str]) -> None:
    """Readiness asks the database: a local user had it out of connections, and the pipeline stood still."""
    asked, enough, answered = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)

    def ready() -> dict[str, str]:
        asked.release()
        if enough.wait(30):
            answered.release()
        return {}

    with served("127.0.0.1", 0, ready) as port, ExitStack() as clients:
        for _ in range(5 * AT_ONCE):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            with suppress(ConnectionError):  # of those that were hung up on
                client.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
        assert all(asked.acquire(timeout=10) for _ in range(AT_ONCE))
        assert not asked.acquire(timeout=1), "more are being answered"
        enough.set()
        assert all(answered.acquire(timeout=10) for _ in range(AT_ONCE))
    assert not asked.acquire(timeout=1), "those of too many are answered after the others"
    assert capfd.readouterr().err == "", "a client that has gone is nobody's error"


def test_a_port_that_is_taken_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with served("127.0.0.1", 0, dict) as port, served("127.0.0.1", port, dict) as second:
        assert second is None and "no metrics at" in caplog.text
    [said] = caplog.records
    assert said.levelname == "WARNING" and not said.exc_info, "a second worker is no error"
    assert "as by another follower, watch or worker on this machine" in said.message and "Errno" not in said.message


def test_log_lines_of_json_say_what_the_work_was_about() -> None:
    def line(message: str) -> dict[str, str]:
        record = logging.LogRecord("lakehouse.follow", logging.INFO, __file__, 1, message, (), None)
        return json.loads(JsonFormatter().format(record))  # type: ignore[no-any-return]

    with about(source="shop"), about(cycle="c1"):
        found = line("published\x1b[31m\nrows")
        assert (found["level"], found["source"], found["cycle"]) == ("info", "shop", "c1")
        assert found["message"] == "published\x1b[31m\nrows" and "T" in found["time"]
        others: list[dict[str, str]] = []
        thread = threading.Thread(target=lambda: others.append(line("x")))
        thread.start()
        thread.join()
        assert "source" not in others[0], "another thread works on something else"
        thread = threading.Thread(target=as_here(lambda text: others.append(line(text))), args=("y",))
    thread.start()
    thread.join()
    assert (others[1]["source"], others[1]["cycle"]) == ("shop", "c1"), "unless this one has it work on the same"
    assert "source" not in line("after") and "cycle" not in line("after")


def test_alert_rules_name_metrics_that_exist() -> None:
    """Promtool knows the syntax, not our names."""
    named = re.findall(r"lakehouse_[a-z_]+", (PROJECT_DIR / "docker" / "prometheus-rules.yml").read_text())
    assert len(set(named)) > 10 and not set(named) - set(METRICS)


MEASURED = {  # kinds of alerts with a metric of their own, which the rules compare
    "lag": "lakehouse_lag_seconds", "slot": "lakehouse_slot_wal_status", "parked": "lakehouse_parked_tables",
    "unclaimed": "lakehouse_unclaimed_parts", "dead_letters": "lakehouse_quarantined_rows",
    "disk": "lakehouse_disk_free_bytes", "run": "lakehouse_job_failures", "check": "lakehouse_failed_checks",
    "server": "lakehouse_server_up", "daemon": "lakehouse_daemon_heartbeat_age_seconds",
}  # fmt: skip


def test_each_kind_of_alert_has_a_rule() -> None:
    """Who alerts with Prometheus alone heard of a dead follower by its lag, and of a dead worker not at all."""
    rules = yaml.safe_load((PROJECT_DIR / "docker" / "prometheus-rules.yml").read_text())["groups"][0]["rules"]
    expressions = "\n".join(rule["expr"] for rule in rules)
    matched = re.findall(r'lakehouse_open_alerts\{kind=~?"([^"]+)"(?:,severity="error")?\} > 0', expressions)
    told = {kind for kinds in matched for kind in kinds.split("|")}
    told |= {kind for kind, metric in MEASURED.items() if metric in expressions}
    alerts = (PROJECT_DIR / "docs" / "operations.md").read_text().partition("### Alerts")[2].partition("### ")[0]
    kinds = {
        kind for line in re.findall(r"^\| (`.*?) \|", alerts, re.MULTILINE) for kind in re.findall(r"`(\w+)`", line)
    }
    assert "follower" in kinds and kinds - {"kind"} == told


def test_the_labels_of_a_metric_are_scraped_as_they_are() -> None:
    """Prometheus has a label `job` of its own: rules named the job of the scrape, and the dashboard added all jobs."""
    rules = (PROJECT_DIR / "docker" / "prometheus-rules.yml").read_text()
    page = (PROJECT_DIR / "docs" / "operations.md").read_text()
    [example] = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(scrape_configs:.*?)```", page, re.DOTALL)]
    assert {"job"} <= {label for metric in METRICS.values() for label in metric.labels}
    assert example["scrape_configs"][0]["honor_labels"] is True and "$labels.job" in rules


def test_a_watch_that_is_not_there_is_told_by_a_rule_of_its_own() -> None:
    """The others compare with numbers that are not there then."""
    rules = yaml.safe_load((PROJECT_DIR / "docker" / "prometheus-rules.yml").read_text())["groups"][0]["rules"]
    assert "absent(lakehouse_source_up)" in {rule["expr"] for rule in rules}


def used(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The metrics of a PromQL expression with the labels that each selects by, as the product declares them."""
    for name, selector in re.findall(r"(lakehouse_\w+)(?:\{([^}]*)\})?", expression):
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        known = family if family in METRICS and METRICS[family].kind == "histogram" else name
        yield known, set(re.findall(r"(\w+)\s*[=!]~?", selector))


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def test_the_dashboard_shows_metrics_and_labels_that_exist() -> None:
    dashboard = json.loads((PROJECT_DIR / "docker" / "grafana-dashboard.json").read_text())
    shown: set[str] = set()
    for target in (target for panel in panels(dashboard) for target in panel["targets"]):
        found = dict(used(target["expr"]))
        assert found and not set(found) - set(METRICS), target["expr"]
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])).union(*found.values())
        for by in re.findall(r"by \(([^)]*)\)", target["expr"]):
            named |= set(by.replace(" ", "").split(",")) - {"le"}
        assert named <= set().union(*(METRICS[name].labels for name in found)), target["expr"]
        shown |= set(found)
    assert len(shown) > 20, "it shows most of what there is"


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """What Grafana rejects or draws wrongly: an id twice, panels that overlap, variables that nobody sets."""
    dashboard = json.loads((PROJECT_DIR / "docker" / "grafana-dashboard.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids) and dashboard["uid"] and dashboard["schemaVersion"] >= 39
    places = [(panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y) for panel in dashboard["panels"]
              for x in range(panel["gridPos"]["w"]) for y in range(panel["gridPos"]["h"])]  # fmt: skip
    assert len(set(places)) == len(places) and max(x for x, _ in places) < 24
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    for panel in panels(dashboard):
        assert panel["title"] and panel["description"] and panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables | {"__rate_interval"}
