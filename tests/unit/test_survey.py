"""How often a table is inspected: a survey of all tables precedes each group of tables that is loaded."""

from dataclasses import dataclass, field, replace
from typing import Any, cast

from pyiceberg.exceptions import NoSuchTableError
from test_planning import FACTS, TABLE

from ingestion.pipeline.session import Session
from ingestion.pipeline.survey import survey
from ingestion.schema.facts import Leaf, TableFacts
from ingestion.schema.positions import Lsn
from ingestion.schema.problem import TableProblem
from ingestion.state.store import TablePosition
from lakehouse.declarations import Source
from lakehouse.declarations.policies import LoadPolicy
from lakehouse.settings import Settings

SOURCE = Source(name="shop", description="", load=LoadPolicy(), tables=(TABLE,))


@dataclass
class Inspected:
    """A source of one table, which counts its inspections."""

    facts: TableFacts = FACTS
    problem: TableProblem | None = None
    digest: str = "as it is"
    holds_tables: bool = True
    asked: list[int | None] = field(default_factory=list)

    def fingerprints(self, tables: Any) -> dict[str, str]:
        return {table.name: self.digest for table in tables}

    def inspect(self, table: Any, oid: int | None) -> tuple[TableFacts, TableProblem | None]:
        self.asked.append(oid)
        return self.facts, self.problem


class NoRawTable:
    """A catalog in which nothing has landed."""

    def load_table(self, identifier: Any) -> None:
        raise NoSuchTableError


def surveyed(source: Inspected, times: int = 2, position: TablePosition | None = None) -> int:
    nothing = cast(Any, None)
    session = Session(Settings(), cast(Any, NoRawTable()), nothing, nothing, SOURCE)
    for _ in range(times):
        outlook = survey(session, cast(Any, source), {"orders": position} if position else {})["orders"]
        assert (outlook.facts or outlook.seen) is not None
    return len(source.asked)


def test_a_new_table_is_inspected_once_while_its_fingerprint_stays() -> None:
    """A thousand new tables were inspected a thousand times each: more than an hour."""
    assert surveyed(Inspected(), times=5) == 1


def test_one_that_was_altered_is_inspected_again() -> None:
    source = Inspected()
    assert surveyed(source) == 1
    source.digest = "altered"
    assert surveyed(source) == 2


def test_what_the_fingerprint_does_not_say_is_looked_at_each_time() -> None:
    partitioned = replace(FACTS, leaves=(Leaf(2, "public.part", 2, 1, True),))
    assert surveyed(Inspected(partitioned)) == 2, "rows of a partition"
    assert surveyed(Inspected(problem=TableProblem("shop", "orders", "no right"))) == 2, "a right"
    assert surveyed(Inspected(holds_tables=False)) == 2, "messages of a topic"


def test_one_that_was_landed_is_described_by_its_position() -> None:
    stands = TablePosition("orders", 1, Lsn(100), "streaming", Lsn(50), versions=(FACTS,), fingerprint="another")
    assert surveyed(Inspected(), position=stands) == 2
