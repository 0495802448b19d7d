"""The columns, by number, that the columns which the stream describes may be.

The stream sends columns in the order of their numbers and says what they were called, not which they were. A number is
never used again, and a column whose row in the catalog is the same in two descriptions kept its name in between.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ingestion.schema.facts import TableFacts

Numbers = frozenset[int]


@dataclass(frozen=True)
class _Candidate:
    """A column between two descriptions; `name` where it kept it, `certain` where the stream always had it."""

    number: int
    name: str | None
    certain: bool


def possible_numbers(descriptions: Sequence[TableFacts], names: Sequence[str]) -> tuple[Numbers, ...] | None:
    """For each of the streamed names the columns that bore it, at a time between the first description and the last.

    None where a relation between these descriptions cannot have had such columns.
    """
    found = [_between(before, now, names) for before, now in pairwise((descriptions[0], *descriptions))]
    explained = [possible for possible in found if all(possible)]
    return tuple(frozenset().union(*column) for column in zip(*explained, strict=True)) if explained else None


def names_by_number(facts: TableFacts) -> dict[int, str]:
    """All columns of a description, also those that do not land."""
    return {column.number: column.name for column in facts.columns} | dict(facts.hidden)


def _between(before: TableFacts, now: TableFacts, names: Sequence[str]) -> list[Numbers]:
    """What each name stands for in all the ways to lay the names over the candidates, in order, the certain ones all
    covered."""
    candidates = _candidates(before, now)
    fixed = {candidate.name for candidate in candidates if candidate.name is not None}
    ahead = _reached(names, candidates, fixed)
    behind = _reached(names[::-1], candidates[::-1], fixed)
    last, end = len(candidates) - 1, len(names) - 1
    return [
        frozenset(
            candidates[at].number
            for at in ahead[i]
            if at <= last and last - at in behind[end - i] and _fits(name, candidates[at], fixed)
        )
        for i, name in enumerate(names)
    ]


def _candidates(before: TableFacts, now: TableFacts) -> list[_Candidate]:
    was, now_is = names_by_number(before), names_by_number(now)
    altered_by, now_by = dict(before.attribute_rows or ()), dict(now.attribute_rows or ())
    published_alike = (before.member, before.publishes) == (now.member, now.publishes)
    landing = {column.number for column in before.columns} & {column.number for column in now.columns}

    def candidate(number: int) -> _Candidate:
        same_row = number in altered_by and altered_by[number] == now_by.get(number)
        kept = before is now or same_row
        return _Candidate(number, was.get(number) if kept else None, published_alike and number in landing)

    newest = max((*altered_by, *was), default=0)
    came = {number for number in now_by if number > newest}
    return [candidate(number) for number in sorted(was.keys() | now_is.keys() | came)]


def _reached(names: Sequence[str], candidates: Sequence[_Candidate], fixed: Collection[str]) -> list[set[int]]:
    """By the number of leading names, how many leading candidates may be behind them."""
    reached = [_passing({0}, candidates)]
    for name in names:
        taken = {at + 1 for at in reached[-1] if at < len(candidates) and _fits(name, candidates[at], fixed)}
        reached.append(_passing(taken, candidates))
    return reached


def _passing(reached: Collection[int], candidates: Sequence[_Candidate]) -> set[int]:
    """Also past those candidates that the stream need not have had."""
    found: set[int] = set()
    for at in reached:
        while at not in found:
            found.add(at)
            if at < len(candidates) and not candidates[at].certain:
                at += 1
    return found


def _fits(name: str, candidate: _Candidate, fixed: Collection[str]) -> bool:
    return candidate.name == name if candidate.name is not None else name not in fixed
