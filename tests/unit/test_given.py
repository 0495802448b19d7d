"""What takes back publication and rights, of everything that a database may have of them."""

import pytest

from ingestion.sources.postgres.setup.given import (
    Carried,
    Given,
    carried_too,
    of_nobody,
    of_others,
    readable_still,
    taking_back,
)

ORDERS, LINES, PEOPLE, OTHER = (("app", name) for name in ("orders", "lines", "people", "other"))
NAMES = {1: ORDERS, 2: LINES, 3: PEOPLE, 4: OTHER}
REVOKES = {number: f'REVOKE SELECT ON TABLE "app"."{name}" FROM "lake"' for number, (_, name) in NAMES.items()}
USAGE, DROP = 'REVOKE USAGE ON SCHEMA "app" FROM "lake"', 'DROP PUBLICATION "lakehouse"'


def given(*numbers: int, others: tuple[int, ...] = (), readable: tuple[int, ...] = (1, 2, 3)) -> Given:
    """The publication carries tables of these numbers, and another one the `others`."""
    carried = [Carried("lakehouse", NAMES[n], n) for n in numbers] + [Carried("dbz", NAMES[n], n) for n in others]
    return Given(frozenset(carried), {n: NAMES[n] for n in readable}, frozenset({"app", "public"}))


def outs(*numbers: int) -> list[str]:
    return [f'ALTER PUBLICATION "lakehouse" DROP TABLE "app"."{NAMES[n][1]}"' for n in numbers]


@pytest.mark.parametrize(
    ("has", "ours", "whole", "statements"),
    [
        (given(1, 2, 3), None, True, [REVOKES[2], REVOKES[1], REVOKES[3], USAGE, DROP]),
        (given(1, 2, 3), {ORDERS, LINES, PEOPLE}, True, [REVOKES[2], REVOKES[1], REVOKES[3], USAGE, DROP]),
        (given(1, 2, 3), {ORDERS}, False, [REVOKES[1], *outs(1)]),
        (given(1, readable=(1,)), {ORDERS}, False, [REVOKES[1], USAGE, *outs(1)]),
        (given(1, 2, 3), {ORDERS, LINES}, True, [REVOKES[2], REVOKES[1], *outs(2, 1)]),
        (given(1, others=(1, 4)), None, True, [DROP]),
        (given(1, readable=(1, 4)), None, True, [REVOKES[1], DROP]),
        (given(1, readable=()), {ORDERS}, False, outs(1)),
        (given(), None, True, [DROP]),
    ],
)
def test_what_is_the_projects_alone_is_taken_back(
    has: Given, ours: set[tuple[str, str]] | None, whole: bool, statements: list[str]
) -> None:
    assert list(taking_back(has, "lakehouse", "lake", ours, whole=whole)) == statements


def test_partitions_go_with_their_table() -> None:
    """Their rights do; and what a publication names leaf by leaf is its table's."""
    carried = {Carried("lakehouse", ORDERS, 1), Carried("lakehouse", ORDERS, 2), Carried("lakehouse", LINES, 2, False)}
    has = Given(frozenset(carried), {1: ORDERS, 2: LINES}, frozenset())
    assert of_others(has, "lakehouse", {ORDERS}) == []
    assert list(taking_back(has, "lakehouse", "lake", {ORDERS}, whole=False)) == [REVOKES[2], REVOKES[1], *outs(1)]


def test_what_stays_is_known() -> None:
    assert of_others(given(1, 2, others=(3,)), "lakehouse", {ORDERS}) == [LINES]
    assert of_others(given(1, 2), "lakehouse", None) == []
    assert carried_too(given(1, 2, others=(1,)), "lakehouse", None) == ["dbz"]
    assert carried_too(given(1, 2, others=(1,), readable=(2,)), "lakehouse", None) == []


def test_what_no_table_of_the_project_is_is_known() -> None:
    """A table that was renamed before the lake read it has a name that nobody knows."""
    assert of_nobody(given(1, 2, 3), "lakehouse", {ORDERS, LINES}) == [PEOPLE]
    by_schema = {Carried("lakehouse", ORDERS, 1), Carried("lakehouse", PEOPLE, 3, listed=False)}
    assert of_nobody(Given(frozenset(by_schema), {}, frozenset()), "lakehouse", {ORDERS}) == []
    assert readable_still(given(1, others=(2,), readable=(1, 2, 3, 4)), {OTHER}) == [PEOPLE]
