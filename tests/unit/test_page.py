"""The page of the lake: what it says of the watch's numbers."""

import asyncio
import re
import threading
from collections.abc import Sequence
from concurrent.futures import wait
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message

from lakehouse.errors import LakehouseError
from lakehouse.metrics import METRICS, Sample, sample
from lakehouse.settings import PROJECT_DIR, Settings
from lakehouse_page import asked, page
from lakehouse_page import contents as made
from lakehouse_page.asked import aside_tables, bars_of, from_catalog, last_cuts, read_dashboard, rows_per_minute
from lakehouse_page.contents import Chart, Contents, LastCut, Noted, contents
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.asking import Asking
from lakehouse_watch.watch import declared_probes
from tests.unit.test_irregular import Shop, shop  # noqa: F401

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SAMPLES = [
    sample("lakehouse_lag_seconds", 3, source="shop"),
    sample("lakehouse_follower_up", 1, source="shop"),
    sample("lakehouse_cut_age_seconds", 12_000, source="shop"),
    sample("lakehouse_tables", 2, source="shop", state="streaming"),
    sample("lakehouse_tables", 1, source="shop", state="parked"),
    sample("lakehouse_table_rows", 1_234, source="shop", table="orders"),
    sample("lakehouse_table_bytes", 3 * 1024**2, source="shop", table="orders"),
    sample("lakehouse_maintenance_last_timestamp_seconds", NOW.timestamp(), action="compact"),
    sample("lakehouse_maintenance_removed_files", 56, action="compact"),
    sample("lakehouse_maintenance_removed_bytes", 7 * 1024**3, action="compact"),
    sample("lakehouse_failed_checks", 2, severity="ERROR"),
]


def _page(
    occasions: Sequence[Occasion] = (), samples: Sequence[Sample] = SAMPLES, charts: Sequence[Chart] = (),
    sees_runs: bool = True,
) -> Contents:  # fmt: skip
    cut = LastCut("shop", NOW, "0/1A2B", 4_321)
    return contents(occasions, samples, {"shop": [0, 5, 10]}, charts, NOW, cuts=[cut], sees_runs=sees_runs)


def test_what_others_follow_from_comes_first() -> None:
    """Marts that were refused stood before the hub whose key was there twice."""
    keys = ["check/marts.dim_store", "check/vault.hub_store", "run/build_marts", "server/trino"]
    found = _page([Occasion(key, key, "mend it") for key in keys]).occasions
    assert [occasion.key for occasion in found] == [
        "server/trino", "run/build_marts", "check/vault.hub_store", "check/marts.dim_store",
    ]  # fmt: skip


def test_it_says_how_far_each_source_is_and_what_maintenance_did() -> None:
    text = page.render(_page())
    for said in (
        "alive",
        "3 h ago",
        "2 streaming, 1 parked",
        "1,234",
        "3.0 MiB",
        "compact",
        "56",
        "7.0 GiB",
        "2 checks failed",
        "0/1A2B",
        "4,321",
    ):
        assert said in text, said
    assert 'class="good">Nothing.' in text and "at most 10" in text


def test_checks_that_nobody_could_read_are_not_known() -> None:
    """It said that no check failed, in docker/ at all times: the web server did not know Dagster's database."""
    passed = [sample("lakehouse_failed_checks", 0, severity=level) for level in ("error", "warning")]
    assert "No check failed." in page.render(_page(samples=passed))
    settings = Settings.model_validate({"home": "home", "dagster": {"storage_url": "postgresql://h/dagster"}})
    assert made.UNREADABLE in {f"unreadable/{probe.name}" for probe in declared_probes(settings)}
    down = Occasion(made.UNREADABLE, "dagster checks cannot be read: <no answer>", "see that it runs")
    for occasions, sees_runs, why in (
        ([], False, "LAKEHOUSE_DAGSTER__STORAGE_URL is not set"),
        ([down], True, "dagster checks cannot be read: &lt;no answer&gt;"),
        ([], True, "Dagster has recorded nothing yet"),
    ):
        text = page.render(_page(occasions, [], sees_runs=sees_runs))
        assert f"Whether checks failed is not known: {why}." in text and "No check failed" not in text


def test_what_nobody_looked_at_is_not_said_to_be_well() -> None:
    text = page.render(_page(sees_runs=False))
    assert "Nothing among what is looked at." in text and 'class="good">Nothing' not in text
    assert "runs, sensors and checks are not looked at: LAKEHOUSE_DAGSTER__STORAGE_URL is not set" in text


def test_numbers_that_cannot_be_read_are_not_zero() -> None:
    """It said that a cut had 0 rows, and that none came in the last hour."""
    cuts = last_cuts([("shop", "postgres", NOW, 26, None)])
    text = page.render(contents([], SAMPLES, None, [], NOW, cuts=cuts))
    assert "<small>not known</small>" in text and "<small>none</small>" not in text
    assert '<td class="n">0/1A</td><td class="n">–</td>' in text


def test_a_source_that_cannot_be_read_is_listed_with_what_the_catalog_knows() -> None:
    """It was not there at all, when its freshness mattered."""
    noted = {"bank": Noted(True, 500.0, "3 streaming, 1 parked")}
    text = page.render(contents([], SAMPLES, {}, [], NOW, noted=noted))
    row = text[text.index("<td>bank</td>") :].partition("</tr>")[0]
    assert all(said in row for said in ("alive", "8 min ago", "cannot be read", "3 streaming, 1 parked"))
    assert "<td>shop</td>" in text, "which can be read"


def test_a_table_in_no_cut_is_named_with_why_and_what_to_do() -> None:
    """A paused one was a number, `1 paused`; a parked one was too, while its source could not be read."""
    aside = aside_tables(
        [("shop", "items", "paused", "paused by the user"), ("shop", "notes", "parked", "<its key is gone>"),
         ("bank", "loans", "new", "it has no key"), ("gone", "old", "parked", "another kind")]
    )  # fmt: skip
    noted = {"bank": Noted(True, 500.0, "1 new")}
    text = page.render(contents([], SAMPLES, {}, [], NOW, noted=noted, aside=aside))
    rows = re.findall(r"<tr><td>(\w+\.\w+)</td><td>(\w+)</td><td>(.*?)</td><td>(.*?)</td></tr>", text)
    assert rows == [
        (
            "shop.items",
            "paused",
            "paused by the user",
            "`lakehouse ingest --resume shop.items` lands what it has missed",
        ),
        (
            "shop.notes",
            "parked",
            "&lt;its key is gone&gt;",
            "fix the cause, then `lakehouse ingest --resume shop.notes`",
        ),
        ("bank.loans", "new", "it has no key", "fix the cause: the next cycle loads it"),
    ], "a source that is not shown has no tables here"
    parked = Occasion("parked/shop.notes", "shop.notes is parked: its key is gone", "fix the cause")
    text = page.render(contents([parked], SAMPLES, {}, [], NOW, noted=noted, aside=aside))
    assert text.count("shop.notes") == 1, "what needs attention says it"
    assert "Tables in no cut" not in page.render(_page())


def test_charts_that_are_not_answered_keep_nobody_from_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a Trino that hung there was no page for minutes, and not what needed attention. One that is slow shows each
    time what it has answered since the time before."""
    hangs, queries = threading.Event(), list[str]()

    def query(settings: Settings, sql: str, **more: Any) -> list[list[Any]]:
        queries.append(sql)
        hangs.wait(20)
        return [["a", len(queries)]]

    monkeypatch.setattr("lakehouse.servers.trino.query", query)
    monkeypatch.setattr(asked, "SECONDS", 0.2)
    settings, asking = Settings(home=Path("home")), Asking()
    charts = [asked.DeclaredChart(title="a", sql=f"SELECT {number}") for number in range(2)]
    try:
        for _ in range(2):
            found = list(asked.answered(settings, charts, asking))
            assert ["not answered yet" in chart.trouble for chart in found] == [True, True] and len(queries) == 2
    finally:
        hangs.set()
    wait([asking.begin(f"{number} a", lambda: None) for number in range(2)])
    late = list(asked.answered(settings, charts, asking))
    assert [len(chart.bars) for chart in late] == [1, 1]


def test_bars_that_are_left_out_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse.servers.trino.query", lambda *given, **more: [[f"store {n}", n] for n in range(45)])
    declared = asked.DeclaredChart(title="a", sql="SELECT 1")
    [chart] = asked.answered(Settings(home=Path("home")), [declared], Asking())
    assert len(chart.bars) == 30 and "15 more are left out" in page.render(_page(charts=[chart]))


def test_two_questions_of_one_address_are_refused(tmp_path: Path) -> None:
    """The second one answered with the query of the first: titles in Japanese had all the same address."""
    field = "fields: [{name: n, kind: number}], sql: 'SELECT :n'"
    settings, file = Settings(home=tmp_path, project_dir=tmp_path), tmp_path / "dashboard.yml"
    file.write_text(f"questions: [{{title: 売上, {field}}}, {{title: 在庫, {field}}}]")
    assert [question.slug for question in read_dashboard(settings).questions] == ["売上", "在庫"]
    file.write_text(f"questions: [{{title: 'Who?', {field}}}, {{title: 'who', {field}}}]")
    with pytest.raises(LakehouseError, match=r"two have the address 'who', .*change a title"):
        read_dashboard(settings)
    app = page.WithPage(PlainTextResponse("Dagster"), settings)
    assert asyncio.run(_asked(app, "GET", "/lake/who"))["status"] == 404


def test_bars_are_labelled_with_their_numbers_and_null_is_no_number() -> None:
    """0.4 was 0, 1.5 was 2, and NULL was 0."""
    rows: list[list[Any]] = [
        ["small", Decimal("0.40")], ["half", 1.5], ["many", 1_234_567], ["huge", Decimal("1E+3")], ["none", 0],
        [None, None], ["below", -2], ["odd", float("nan")], ["text", "7"],
    ]  # fmt: skip
    chart = Chart("c", bars_of(rows))
    text = page.render(_page(charts=[chart]))
    shown = re.findall(r'<td title="([^"]*)">.*?<td class="n">([^<]*)</td>', text)
    assert shown == [
        ("small", "0.40"), ("half", "1.5"), ("many", "1,234,567"), ("huge", "1,000"), ("none", "0"), ("–", "–"),
        ("below", "-2"), ("odd", "nan"), ("text", "7.0"),
    ]  # fmt: skip
    assert [chart.width(value) for value in (1_234_567, Decimal("617283.5"), None, -2, float("nan"))] == [
        100,
        50,
        0,
        0,
        0,
    ]
    assert Chart("c", [("a", -1), ("b", -2)]).width(-2) == 0 and text.count('class="bar"') == len(rows) - 1


def test_a_follower_that_hangs_is_missed_and_one_that_was_stopped_is_not() -> None:
    """Both were "none"."""
    stopped = [sample("lakehouse_lag_seconds", 3, source="shop"), sample("lakehouse_follower_up", 0, source="shop")]
    hangs = Occasion("follower/shop", "the follower of shop hangs", "look at its log")
    assert "missed" in page.render(_page([hangs], stopped))
    assert "missed" not in page.render(_page((), stopped))


def test_every_number_that_it_reads_is_one_that_the_watch_measures() -> None:
    named = set(re.findall(r'"(lakehouse_\w+)"', Path(made.__file__).read_text()))
    assert named and named <= set(METRICS)


def test_errors_come_first_and_text_of_a_source_is_no_html() -> None:
    occasions = [
        Occasion("parked/a", "<script>alert(1)</script>", "look", "warning"),
        Occasion("slot/b", "the slot is lost", "recover", "error"),
    ]
    text = page.render(_page(occasions, charts=[Chart("<b>", [("<i>x</i>", 2.0)]), Chart("c", trouble="<u>")]))
    assert text.index("the slot is lost") < text.index("&lt;script&gt;")
    assert not any(tag in text for tag in ("<script", "<b>", "<i>", "<u>"))


def test_without_a_source_it_says_so() -> None:
    assert "No source has been ingested yet" in page.render(_page(samples=[]))


def test_rows_are_counted_by_the_minute_in_which_they_were_published() -> None:
    """They were those of the snapshots that a table keeps: of an hour at a publish a second, the last four minutes."""
    minutes = rows_per_minute([("shop", 1, 5), ("shop", 0, 1), ("web", 59, 3)])
    assert minutes == {"shop": [*[0] * 58, 5, 1], "web": [3, *[0] * 59]}
    assert rows_per_minute([("shop", 1, 5), ("shop", 0, None)]) == {"shop": None}, "of an earlier release"


def test_a_cut_has_the_rows_that_came_since_the_one_before() -> None:
    """Those of a first load were published before the first cut, and stood nowhere."""
    cycles = [
        ("shop", "postgres", NOW, None, 2), ("shop", "postgres", NOW - timedelta(minutes=1), 0x1_0000_00FF, 5),
        ("shop", "postgres", NOW - timedelta(minutes=2), None, 41),
        ("shop", "postgres", NOW - timedelta(minutes=3), 16, 9), ("web", "kafka", NOW, 7, 0),
        ("old", "postgres", NOW - timedelta(minutes=9), 26, None),
    ]  # fmt: skip
    found = [(cut.source, cut.position, cut.rows) for cut in last_cuts(cycles)]
    assert found == [("web", "7", 0), ("shop", "1/FF", 46), ("shop", "0/10", 9), ("old", "0/1A", None)]


@pytest.mark.stack
def test_what_ingestion_has_published_outlasts_the_snapshots_that_it_came_in(
    shop: Shop,  # noqa: F811
) -> None:
    for number in range(3):
        shop.publish(shop.append(lsn=200 + number), lsn=201 + number)
    shop.publish(lsn=300)
    known = from_catalog(shop.settings)
    assert known.rows and sum(known.rows["shop"]) == 8 and [cut.rows for cut in known.cuts] == [0, 2, 2, 2, 2]
    assert known.noted.keys() == {"shop"} and not known.noted["shop"].follows and not known.aside
    shop.states.execute(
        'INSERT INTO lakehouse.positions (source, "table", epoch, lsn, state, reason)'
        " VALUES ('shop', 'items', 1, 0, 'paused', 'paused by the user'), ('shop', 'tags', 1, 0, 'streaming', NULL)"
    )
    assert [(of.name, of.state, of.reason) for of in from_catalog(shop.settings).aside] == [
        ("shop.items", "paused", "paused by the user")
    ]
    shop.states.execute("UPDATE lakehouse.cycles SET published_at = published_at - interval '1 hour' WHERE rows = 2")
    assert from_catalog(shop.settings).rows == {}


async def _asked(app: ASGIApp, method: str, path: str) -> dict[str, Any]:
    """Status, headers and text of an answer."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    await app({"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}, receive, send)
    text = b"".join(message.get("body", b"") for message in sent[1:]).decode()
    return {"status": sent[0]["status"], "headers": dict(sent[0]["headers"]), "text": text}


def test_many_readers_cost_one_look_and_other_paths_are_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(page.WithPage, "_made", lambda self: looks.append(1) or "page")

    async def all_asked() -> list[dict[str, Any]]:
        app = page.WithPage(PlainTextResponse("Dagster"), Settings(home=Path("home")))
        asked = [("GET", "/lake"), ("GET", "/lake"), ("POST", "/lake"), ("GET", "/assets")]
        return list(await asyncio.gather(*(_asked(app, *each) for each in asked)))

    first, second, posted, other = asyncio.run(all_asked())
    assert first["text"] == second["text"] == "page" and len(looks) == 1
    assert first["headers"][b"content-security-policy"].startswith(b"default-src 'none'")
    assert posted["status"] == 405 and other["text"] == "Dagster"


def test_the_charts_of_the_demo_are_read_and_a_mistake_is_named(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, project_dir=PROJECT_DIR)
    assert [chart.title for chart in read_dashboard(settings).charts][:2] == ["Revenue by store", "Revenue by day"]
    assert read_dashboard(settings.model_copy(update={"project_dir": tmp_path})).charts == ()
    (tmp_path / "dashboard.yml").write_text("charts: [{title: a, query: SELECT 1}]")
    with pytest.raises(LakehouseError, match=r"dashboard.yml.*query"):
        read_dashboard(settings.model_copy(update={"project_dir": tmp_path}))
