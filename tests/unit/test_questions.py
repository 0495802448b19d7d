"""Questions of the page: what is typed goes beside a query, never into it."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.responses import PlainTextResponse

from lakehouse.errors import LakehouseError
from lakehouse.settings import PROJECT_DIR, Settings
from lakehouse_page.asked import read_dashboard
from lakehouse_page.contents import contents
from lakehouse_page.page import WithPage, render, render_answer
from lakehouse_page.questions import Answer, Question

FIELDS: list[dict[str, str]] = [
    {"name": "customer", "kind": "number", "example": "1"},
    {"name": "moment", "kind": "moment"},
    {"name": "word", "kind": "text"},
]
SQL = "SELECT :customer, :moment, :word, ':other', a::date FROM t WHERE at <= :moment AND n = :customer"
QUESTION = Question.model_validate({"title": "A Customer, then?", "fields": FIELDS, "sql": SQL})
GIVEN = {"customer": "7", "moment": "2026-11-20T10:00:00", "word": "'; DROP TABLE t --"}


def test_values_are_parameters_in_the_order_of_their_use() -> None:
    at = datetime(2026, 11, 20, 10, tzinfo=UTC)
    assert QUESTION.statement(GIVEN) == (
        "SELECT ?, ?, ?, ':other', a::date FROM t WHERE at <= ? AND n = ?",
        [7, at, "'; DROP TABLE t --", at, 7],
    )


def test_a_moment_is_of_utc_unless_it_says_otherwise() -> None:
    """An offset was dropped: 12:00+02:00 was noon."""
    field = QUESTION.fields[1]
    for given in ("2026-11-20T10:00", "2026-11-20T10:00Z", "2026-11-20T12:00+02:00", "2026-11-20T04:30-05:30"):
        assert field.value(given) == datetime(2026, 11, 20, 10, tzinfo=UTC)
        assert field.value(given).tzinfo is UTC


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("customer", "1 OR 1=1", "no number"),
        ("moment", "yesterday", "no moment"),
        ("moment", "2026-11-20-05:00", "no moment"),
        ("moment", "0001-01-01T00:00+02:00", "no moment"),
        ("word", "", "say which"),
    ],
)
def test_what_is_no_value_of_its_kind_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(LakehouseError, match=f"{name}.*{said}"):
        QUESTION.statement(GIVEN | {name: value})


def test_a_field_that_the_query_does_not_use_is_a_mistake() -> None:
    with pytest.raises(ValidationError, match="does not use :word"):
        Question.model_validate({"title": "a", "fields": FIELDS, "sql": "SELECT :customer, :moment, :words"})


def test_its_address_and_its_first_values_are_made_of_the_declaration() -> None:
    assert QUESTION.slug == "a-customer-then"
    assert QUESTION.values(datetime(2026, 11, 20, 10, tzinfo=UTC)) == {
        "customer": "1", "moment": "2026-11-20T10:00:00", "word": "",
    }  # fmt: skip


def test_an_answer_is_text_and_no_html() -> None:
    values = GIVEN | {"word": '"><script>'}
    shown = render_answer(Answer(QUESTION, values, ["<b>"], [["<i>"]], cut=True))
    assert not any(tag in shown for tag in ("<script", "<b>", "<i>")) and "The first 1 rows" in shown
    assert "no number" in render_answer(Answer(QUESTION, values, trouble="no number"))
    assert "No rows" in render_answer(Answer(QUESTION, values))


def test_the_page_leads_to_each_question_with_its_first_values() -> None:
    shown = render(contents([], [], {}, [], datetime(2026, 11, 20, 10, tzinfo=UTC), [QUESTION]))
    assert 'href="/lake/a-customer-then?customer=1&amp;moment=2026-11-20T10%3A00%3A00&amp;word="' in shown


def test_a_question_that_nobody_declared_is_not_found() -> None:
    scope = {"type": "http", "method": "GET", "path": "/lake/other", "headers": [], "query_string": b""}
    assert _status(scope) == 404


def test_the_demo_asks_for_a_customer_as_of_a_moment() -> None:
    (question,) = read_dashboard(Settings(home=Path("home"), project_dir=PROJECT_DIR)).questions
    sql, parameters = question.statement({"customer": "1", "moment": "2026-11-20T10:00"})
    assert question.slug == "a-customer-as-of-a-moment" and sql.count("?") == len(parameters) == 4


def _status(scope: dict[str, Any]) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(WithPage(PlainTextResponse("Dagster"), Settings(home=Path("home")))(scope, receive, send))
    return int(sent[0]["status"])
