"""Columns of the stream are told apart by number as far as can be, and what may be withheld is known in time."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random

import pytest
from test_planning import FACTS, TABLE, column

from ingestion.schema.changes import Relation, RelationColumn
from ingestion.schema.declared_columns import check_columns
from ingestion.schema.facts import TableFacts
from ingestion.schema.match import possible_numbers
from ingestion.schema.problem import TableProblem
from ingestion.schema.streamed_columns import UnknownRowSchema
from ingestion.sink.rows import TableTarget
from ingestion.state.withheld import check_still_withheld
from ingestion.tasks.withheld import form_of, withheld_in
from lakehouse.declarations import Column

NAMES = ["id", "a", "b", "c", "secret", "x"]


@dataclass
class Columns:
    """A table's columns as Postgres keeps them: numbers that are never used again, and who last altered each."""

    live: dict[int, str] = field(default_factory=lambda: {1: "id", 2: "a", 3: "secret", 4: "b"})
    altered_by: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(1, 5), 700))
    xid: int = 700

    def alter(self, random: Random) -> None:
        """One ALTER TABLE of any kind."""
        self.xid += 1
        free = [name for name in NAMES if name not in self.live.values()]
        number = random.choice(list(self.live))
        how = random.choice(["add", "drop", "rename", "rename", "touch"])
        if how == "add" and free:
            number = max(self.altered_by) + 1
            self.live[number] = random.choice(free)
        elif how == "drop" and len(self.live) > 1:
            del self.live[number]
        elif how == "rename" and free:
            self.live[number] = random.choice(free)
        self.altered_by[number] = self.xid

    def look(self, hidden: tuple[str, ...] = ("secret",)) -> TableFacts:
        return replace(
            FACTS,
            columns=tuple(column(name, n) for n, name in sorted(self.live.items()) if name not in hidden),
            hidden=tuple((n, name) for n, name in sorted(self.live.items()) if name in hidden),
            attribute_rows=tuple(sorted(self.altered_by.items())),
        )


def test_what_a_name_stood_for_is_always_among_what_it_may_stand_for() -> None:
    random = Random(7)
    sure = 0
    for _ in range(600):
        table = Columns()
        looks, forms = [table.look()], [dict(table.live)]
        for _ in range(random.randint(1, 3)):
            for _ in range(random.randint(0, 4)):
                table.alter(random)
                forms.append(dict(table.live))
            looks.append(table.look())
        for form in forms:
            numbers = sorted(form)
            possible = possible_numbers(looks, [form[number] for number in numbers])
            assert possible is not None
            assert all(number in may_be for number, may_be in zip(numbers, possible, strict=True)), (looks, form)
            sure += all(len(may_be) == 1 for may_be in possible)
    assert sure > 600, "most forms are known exactly"


def streamed(*names: str, oid: int = FACTS.oid) -> Relation:
    return Relation(oid, "public", "orders", "d", tuple(RelationColumn(name, 23, -1, name == "id") for name in names))


def look(*columns: tuple[int, str, int], excluded: str = "secret") -> TableFacts:
    """By number, name and the transaction that last altered it; a number that is gone has no name."""
    return replace(
        FACTS,
        columns=tuple(column(name, n) for n, name, _ in columns if name not in ("", excluded)),
        hidden=tuple((n, name) for n, name, _ in columns if name == excluded),
        attribute_rows=tuple((n, altered_by) for n, _, altered_by in columns),
    )


def target(*looks: TableFacts, **given: object) -> TableTarget:
    made = TableTarget(
        "shop", "orders", "", looks[-1].columns, looks, frozenset({"secret"}), {}, ("id",), "error", 0, 0,
        datetime.now(UTC),
    )  # fmt: skip
    return replace(made, **given)  # type: ignore[arg-type]


BEFORE = look((1, "id", 7), (2, "a", 7), (3, "secret", 7), (4, "b", 7))
LENT = look((1, "id", 7), (2, "", 8), (3, "secret", 9), (4, "b", 7))
BACK = look((1, "id", 7), (2, "a", 9), (3, "secret", 9), (4, "b", 7))


def lands(target: TableTarget, relation: Relation) -> list[str]:
    return [column.name for column in form_of(target, relation)[1]]


def test_rows_from_before_and_after_land_and_those_with_ambiguous_names_do_not() -> None:
    lent = target(BEFORE, LENT)
    assert lands(lent, streamed("id", "a", "secret", "b")) == ["id", "a", "b"]
    assert lands(lent, streamed("id", "secret", "b")) == ["id", "b"]
    with pytest.raises(UnknownRowSchema, match="'a' may have been one that is left out"):
        form_of(lent, streamed("id", "a", "b"))
    assert withheld_in(lent, streamed("id", "a", "b")) == {"secret", "a"}
    assert withheld_in(lent, streamed("id", "a", "secret", "b")) == {"secret"}


def test_a_column_that_is_left_out_is_so_by_its_number() -> None:
    back = target(BEFORE, BACK)
    assert lands(back, streamed("id", "a", "x", "b")) == ["id", "a", "b"]
    assert withheld_in(back, streamed("id", "a", "x", "b")) == {"secret", "x"}
    assert withheld_in(back, streamed("id", "secret", "a", "b")) == {"secret", "a"}


def test_a_masked_column_is_masked_by_its_number() -> None:
    masks = {"excluded": frozenset[str](), "mask": {"secret": "sha256"}}
    before, lent, back = (
        replace(f, columns=(*f.columns, column("secret", 3)), hidden=()) for f in (BEFORE, LENT, BACK)
    )
    before, lent, back = (
        replace(f, columns=tuple(sorted(f.columns, key=lambda c: c.number))) for f in (before, lent, back)
    )
    for looks, names in (((before, lent), ("id", "a", "b")), ((before, back), ("id", "secret", "a", "b"))):
        with pytest.raises(UnknownRowSchema):
            form_of(target(*looks, **masks), streamed(*names))
        assert "a" in withheld_in(target(*looks, **masks), streamed(*names))
    assert withheld_in(target(before, back, **masks), streamed("id", "a", "secret", "b")) == frozenset()
    hidden = replace(back, columns=tuple(replace(c, name="hidden") if c.number == 3 else c for c in back.columns))
    both = target(before, hidden, excluded=frozenset(), mask={"hidden": "sha256"})
    masked, columns = form_of(both, streamed("id", "a", "secret", "b"))
    assert [c.name for c in columns] == ["id", "a", "secret", "b"] and masked.mask["secret"] == "sha256"


def test_of_a_relation_that_nobody_looked_at_since_nothing_is_kept() -> None:
    """It was dropped, or another table has its place: whatever became of its columns shows nowhere."""
    names, all_names = ("id", "a", "secret", "b"), {"id", "a", "secret", "b"}
    for unseen in (target(BEFORE, replace(BEFORE, oid=2)), target(BEFORE, is_there=False)):
        with pytest.raises(UnknownRowSchema):
            form_of(unseen, streamed(*names))
        assert withheld_in(unseen, streamed(*names)) == all_names
    plain = target(BEFORE, replace(BEFORE, oid=2), excluded=frozenset())
    assert withheld_in(plain, streamed(*names)) == frozenset()


def test_a_look_that_the_lake_does_not_follow_tells_columns_apart_too() -> None:
    renamed = look((1, "id", 7), (2, "a", 7), (3, "open", 9), (4, "b", 7))
    parked = target(BEFORE, seen=renamed)
    assert withheld_in(parked, streamed("id", "a", "open", "b")) == {"secret", "open"}
    assert lands(parked, streamed("id", "a", "open", "b")) == ["id", "a", "b"]


def test_descriptions_of_earlier_versions_do_not_make_ordinary_rows_ambiguous() -> None:
    older = replace(BEFORE, attribute_rows=None)
    for looks in ((older,), (older, BEFORE), (older, LENT)):
        assert lands(target(*looks), streamed("id", "a", "secret", "b")) == ["id", "a", "b"]
    with pytest.raises(UnknownRowSchema):
        form_of(target(older, LENT), streamed("id", "a", "b"))


@pytest.mark.parametrize("written", ["Secret", "secert"])
def test_a_column_to_leave_out_that_the_table_does_not_have_is_refused_by_name(written: str) -> None:
    """A misspelt one would land in clear."""
    raw = TABLE.raw.model_copy(update={"exclude": ("secret",)})
    check_columns(TABLE.model_copy(update={"raw": raw}), BEFORE)
    misspelt = TABLE.model_copy(update={"raw": raw.model_copy(update={"exclude": ("secret", written)})})
    with pytest.raises(TableProblem, match=rf"meta.raw.exclude names {written}, .* has a, b, id, secret: correct it"):
        check_columns(misspelt, BEFORE)


def test_a_declared_column_that_is_there_and_does_not_arrive_is_not_called_missing() -> None:
    """A generated one was said not to exist."""
    twice = TABLE.model_copy(update={"columns": (Column(name="twice", data_type=None, description=""),)})
    with pytest.raises(TableProblem, match=r"twice of public\.orders does not arrive, because"):
        check_columns(twice, replace(BEFORE, hidden=((9, "twice"),)))
    with pytest.raises(TableProblem, match="declared column twice does not exist"):
        check_columns(twice, BEFORE)


@pytest.mark.parametrize(
    ("was", "takes", "is_weaker"),
    [
        ("secret", "mail", True), ("phone", "mail", True), ("mail", "id", True),
        ("secret", "phone", False), ("mail", "phone", False), ("phone", "phone", False),
    ],
)  # fmt: skip
def test_a_column_that_takes_the_name_of_another_withheld_one_is_hidden_no_less(
    was: str, takes: str, is_weaker: bool
) -> None:
    """A digest of what was to be left out can be guessed."""
    raw = TABLE.raw.model_copy(update={"exclude": ("secret",), "mask": {"mail": "sha256", "phone": "null"}})
    table = TABLE.model_copy(update={"raw": raw})
    before = look((1, "id", 7), (2, was, 7))
    now = look((1, "id", 7), (2, takes, 8))
    if is_weaker:
        with pytest.raises(TableProblem, match=rf"column {was} is called {takes} now, and was left out or masked"):
            check_still_withheld(table, before, now)
    else:
        check_still_withheld(table, before, now)
