"""A short hunt with every run of the tests: the same generator as `make hunt`, for seconds.

`HUNT_SEED` plays the world of one seed again; `HUNT_VERSION` is the version of Postgres.
"""

import os
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import psycopg
import pytest

from lakehouse.settings import Settings
from tests.clusters import NEWEST, cluster
from tests.hunt.eye import SECRET
from tests.hunt.history import USER, History, Look, Shape, Step, dump, load
from tests.hunt.hunting import SERVER, Size, Tally, cases_of, hunt_world
from tests.hunt.known import NOT_MENDED
from tests.hunt.oracle import difference
from tests.hunt.scripts import replay_world
from tests.hunt.shapes import PLAIN, SHAPES
from tests.hunt.shrink import Case, shrink
from tests.hunt.world import Finding, Played, Site
from tests.marks import slow
from tests.world import Row

pytestmark = pytest.mark.stack
SIZE = Size(cases=8, looks=5)
SAME = 20261127  # each time; other ones are for the slow tests and `make hunt`


@pytest.fixture(scope="module")
def site(settings: Settings, spark: Any) -> Any:
    with cluster(os.environ.get("HUNT_VERSION", NEWEST), **SERVER) as made:
        yield Site(made, settings, spark)


@pytest.mark.parametrize("seed", [SAME, slow(None)])
def test_no_history_at_random_makes_the_lake_wrong(
    site: Site, record_property: Callable[[str, object], None], seed: int | None
) -> None:
    seed = int(os.environ.get("HUNT_SEED") or seed or random.SystemRandom().randrange(1 << 31))
    print(f"HUNT_SEED={seed}")
    record_property("seed", seed)
    played = hunt_world(site, seed, SIZE, NOT_MENDED, tally := Tally())
    told = [f"{case.finding.text}\n{case.history.as_sql(case.looks)}" for case in cases_of(played)]
    assert not played.findings, f"HUNT_SEED={seed}: {[(f.kind, f.text) for f in played.findings]}\n" + "\n\n".join(told)
    assert tally.compared > 0


def test_a_history_whose_declaration_follows_a_renamed_key_is_right_and_one_that_shows_a_secret_is_not(
    site: Site,
) -> None:
    steps = (
        Step(0, "UPDATE t SET id = 205 WHERE id = 2"), Step(0, "ALTER TABLE t RENAME id TO pk"),
        Step(0, "UPDATE t SET pk = 206 WHERE pk = 3"), Step(USER, "declare pk"),
    )  # fmt: skip
    shown = Step(0, f"UPDATE t SET a = '{SECRET}' WHERE id = 3")  # into a column that is not withheld
    shapes = {shape.name: shape for _, shape in SHAPES}
    histories = [History(shapes[name], ((), steps, ())) for name in ("plain", "full", "deferrable", "index")]
    histories += [History(shapes["withheld"], ((), one, ())) for one in (steps, (shown,))]
    played = replay_world(site, histories, ("full", "catch", "full"))
    assert [(finding.kind, finding.case, finding.round) for finding in played.findings] == [("shown", 5, 1)]
    assert played.compared == 3 * len(histories) - 2


def test_the_oracle_tells_a_wrong_value_a_lost_row_and_a_position_that_comes_twice(site: Site) -> None:
    site.cluster.admin(
        "CREATE TABLE told (id int, d numeric(8,2), z timestamptz)",
        "INSERT INTO told VALUES (1, 2.5, '2026-01-01 03:00+02'), (2, NULL, NULL)",
    )
    moments = {1: datetime(2026, 1, 1, 1, tzinfo=UTC), 2: None}

    def row(id_: int, value: str | None, seq: int) -> Row:
        meta = {"_op": "c", "_epoch": 1, "_commit_lsn": 9, "_seq": seq, "_unchanged": None, "_old_key": None}
        return {"id": id_, "d": value and Decimal(value), "z": moments.get(id_), **meta}

    with psycopg.connect(site.cluster.url()) as connection:
        rows = [row(1, "2.50", 0), row(2, None, 2)]
        assert difference(connection, "told", ("id",), rows) is None
        assert "only in the source" in str(difference(connection, "told", ("id",), [rows[0], row(2, "0.00", 2)]))
        assert "only in the source" in str(difference(connection, "told", ("id",), rows[:1]))
        assert "only in the lake: []" not in str(difference(connection, "told", ("id",), [*rows, row(3, None, 4)]))
        assert "one position" in str(difference(connection, "told", ("id",), [rows[0], row(2, None, 0)]))
        without = [{name: value for name, value in one.items() if name != "d"} for one in rows]
        assert "not in the lake" in str(difference(connection, "told", ("id",), without))


def test_a_finding_becomes_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a history with much else the two steps are left that make it wrong, with one look between them."""
    first, second = Step(0, "ALTER TABLE t ADD x1 int", "add"), Step(0, "UPDATE t SET x1 = 3", "rows")

    def played(site: Site, histories: Sequence[History], looks: Sequence[Look], **_: bool) -> Played:
        found = []
        for case, history in enumerate(histories):
            before = [first in round_ for round_ in history.rounds]
            wrong = [n for n, round_ in enumerate(history.rounds) if second in round_ and any(before[:n])]
            late = len(looks) - len(history.rounds)
            found += [Finding("wrong", case, late + number, "") for number in wrong[:1]]
        return Played(list(histories), tuple(looks), found)

    monkeypatch.setattr("tests.hunt.shrink.replay_world", played)
    noise = [Step(0, f"UPDATE t SET n = {i}", "rows") for i in range(40)]
    rounds = (tuple(noise[:9]), (*noise[9:20], first), tuple(noise[20:29]), (second, *noise[29:]), ())
    case = Case(History(PLAIN, rounds), ("full", "catch", "full", "catch", "full"), Finding("wrong", 0, 3, ""))
    small = shrink(cast(Site, None), case, 60)
    assert small is not None
    assert small.history.rounds == ((first,), (second,))
    assert small.looks == ("full", "full")


def test_a_history_is_read_back_as_it_was_written() -> None:
    shape = Shape("one", ("CREATE TABLE t (id int)",), (("t", ("id",)),), (("s", "exclude"),))
    history = History(shape, ((Step(0, "BEGIN"), Step(-1, "resume")), (Step(1, "DELETE FROM t", "rows"),)))
    assert load(dump(history, ("full", "catch"))) == (history, ("full", "catch"))
