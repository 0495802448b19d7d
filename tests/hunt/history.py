"""A history as data: what sessions and the user do to one case, in rounds; a look of ingestion ends each round."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

USER = -1
SCHEMA = "{s}"  # stands for the case's schema in statements: a history is played in any

Look = Literal["catch", "full"]
"""`catch` reads the stream alone, also while transactions are open; `full` loads and repairs as well."""


@dataclass(frozen=True)
class Step:
    """A statement of a session, or what the user tells ingestion (`resume`, `resnapshot`, or `declare` with another
    key of the first table); `move` is its kind.

    `inside` names the function of ingestion before which it comes in the look that ends the round.
    """

    session: int
    sql: str
    move: str = ""
    inside: str = ""


@dataclass(frozen=True)
class Shape:
    """What a case begins with: statements, and its declared tables by name with their key.

    `withheld` are columns of the first one that are left out (`exclude`) or masked (`null`, `sha256`). They have a
    comment, by which a session knows them under any name.
    """

    name: str
    setup: tuple[str, ...]
    tables: tuple[tuple[str, tuple[str, ...]], ...]
    withheld: tuple[tuple[str, str], ...] = ()


Round = tuple[Step, ...]


@dataclass(frozen=True)
class History:
    """All of one case."""

    shape: Shape
    rounds: tuple[Round, ...]

    @property
    def moves(self) -> frozenset[str]:
        """The kinds of its steps, plain changes of rows left out."""
        return frozenset(step.move for round_ in self.rounds for step in round_) - {"", "rows"}

    @property
    def size(self) -> tuple[int, int]:
        """Steps and looks."""
        return sum(map(len, self.rounds)), len(self.rounds)

    def until(self, number: int) -> "History":
        """Its rounds up to and with one of them."""
        return replace(self, rounds=self.rounds[: number + 1])

    def as_sql(self, looks: Iterable[Look]) -> str:
        """The history for people."""
        lines = [f"{statement};" for statement in self.shape.setup]
        for round_, look in zip(self.rounds, looks, strict=True):
            sessions = {step.session for step in round_ if step.session != USER}
            lines += [_line(step, len(sessions) > 1) for step in round_]
            lines.append(f"-- look ({look})")
        return "\n".join(lines)


def _line(step: Step, several: bool) -> str:
    if step.session == USER and step.sql.startswith("declare"):
        return f"-- the user: {step.sql} as the key"
    if step.session == USER:
        return f"-- the user: {step.sql} of every table that is parked"
    when = [f"session {step.session}"] * several + [f"within the look, before {step.inside}"] * bool(step.inside)
    return f"{step.sql};" + (f"  -- {', '.join(when)}" if when else "")


def dump(history: History, looks: Iterable[Look]) -> str:
    """A line of JSON that `load` reads back."""
    return json.dumps({"looks": list(looks), **asdict(history)})


def load(line: str) -> tuple[History, tuple[Look, ...]]:
    """The history of such a line, and its looks."""
    given: dict[str, Any] = json.loads(line)
    shape = given["shape"]
    tables = tuple((name, tuple(key)) for name, key in shape["tables"])
    withheld = tuple((name, how) for name, how in shape.get("withheld", ()))
    rounds = tuple(tuple(Step(**step) for step in round_) for round_ in given["rounds"])
    return History(Shape(shape["name"], tuple(shape["setup"]), tables, withheld), rounds), tuple(given["looks"])
