"""Questions of `dashboard.yml`: a query with fields that the reader of the page fills in, answered with a table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse.text.moments import parse_moment
from lakehouse.text.shown import shortened

ROWS = 200
WITHIN = {"query_max_execution_time": "60s"}  # session properties of whatever the page asks
INPUTS = {"number": "number", "text": "text", "moment": "datetime-local"}
MOMENT = "%Y-%m-%dT%H:%M:%S"


class Field(BaseModel):
    """What a question asks for: a number, a text, or a moment in UTC, which begins as now."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kind: Literal["number", "text", "moment"]
    example: str = ""

    @property
    def input(self) -> str:
        """The type of the field in HTML."""
        return INPUTS[self.kind]

    def value(self, given: str) -> int | str | datetime:
        """What the query gets; raises LakehouseError for anything else."""
        try:
            if self.kind == "number":
                return int(given)
            return parse_moment(given) if self.kind == "moment" else given
        except ValueError:
            raise LakehouseError(f"{self.name}: {given!r} is no {self.kind}") from None


class Question(BaseModel):
    """A query whose `:name` stand for the values of its fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    fields: tuple[Field, ...]
    sql: str

    @model_validator(mode="after")
    def _uses_each_field(self) -> Question:
        used = set(self._names.findall(self.sql))
        if unused := [field.name for field in self.fields if field.name not in used]:
            raise ValueError(f"the query of {self.title!r} does not use :{unused[0]}")
        return self

    @property
    def slug(self) -> str:
        """The last part of its address."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")

    @property
    def _names(self) -> re.Pattern[str]:
        return re.compile(rf"(?<![:\w]):({'|'.join(re.escape(field.name) for field in self.fields)})\b")

    def values(self, now: datetime) -> dict[str, str]:
        """What its form shows at first."""
        return {each.name: f"{now:{MOMENT}}" if each.kind == "moment" else each.example for each in self.fields}

    def statement(self, given: Mapping[str, str]) -> tuple[str, list[Any]]:
        """The query with a placeholder for each use of a field, and the values; raises LakehouseError."""
        if missing := [field.name for field in self.fields if not given.get(field.name)]:
            raise LakehouseError(f"{missing[0]}: say which")
        values = {field.name: field.value(given[field.name]) for field in self.fields}
        return self._names.sub("?", self.sql), [values[name] for name in self._names.findall(self.sql)]


@dataclass(frozen=True)
class Answer:
    """The table of an answer, or why there is none. `cut`: there are more rows than are shown."""

    question: Question
    values: Mapping[str, str]
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    cut: bool = False
    trouble: str = ""


def answer(settings: Settings, question: Question, given: Mapping[str, str]) -> Answer:
    """Asks Trino as a reader. The values go beside the query, never into it."""
    from trino.exceptions import TrinoQueryError

    from lakehouse.servers.trino import answering, connect

    values = {field.name: given.get(field.name, "") for field in question.fields}
    try:
        sql, parameters = question.statement(given)
        with answering(settings):
            cursor = connect(settings, "reader", WITHIN).cursor()
            cursor.execute(sql, parameters)
            rows = cursor.fetchmany(ROWS + 1)
    except (LakehouseError, TrinoQueryError) as error:
        said = error.message if isinstance(error, TrinoQueryError) else str(error)
        return Answer(question, values, trouble=shortened(" ".join(said.split()), 300))
    columns = [column[0] for column in cursor.description or ()]
    return Answer(question, values, columns, [list(map(shown, row)) for row in rows[:ROWS]], len(rows) > ROWS)


def shown(value: object) -> str:
    """A value of Trino as text."""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC) if value.tzinfo else value:%Y-%m-%d %H:%M:%S}"
    return "–" if value is None else str(value)
