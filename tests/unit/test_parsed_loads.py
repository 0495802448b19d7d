"""What a load of a parsed table reads: every raw row once, whatever is published, declared or derived again meanwhile."""

from tests.unit.embedded_parsed import Parsed


def test_a_backfill_that_reads_a_later_cut_passes_no_row_over() -> None:
    """The watermark went to the newest row of its days, past those of other days published before it."""
    parsed = Parsed("a")
    parsed.land("c", 1, 10, "20 08:00", "22 09:00", a="loaded")
    parsed.load(cut=20)
    parsed.land("c", 2, 30, "20 12:00", "22 09:01", a="of Friday, published meanwhile")
    parsed.land("c", 3, 40, "22 08:00", "22 09:02", a="of Sunday, published meanwhile")
    parsed.land("t", None, 45, "22 08:30", "22 09:02")
    assert not parsed.load(cut=50, day=22)
    parsed.load(cut=60)
    assert parsed.rows("select id, _op from parsed order by 1, 2") == [
        (1, "c"), (1, "t"), (2, "c"), (2, "t"), (3, "c"), (3, "t"),
    ]  # fmt: skip


def test_a_backfill_takes_no_truncate_that_the_loads_have_not_reached() -> None:
    parsed = Parsed("a")
    parsed.land("c", 1, 10, "20 08:00", "22 09:00", a="x")
    parsed.land("t", None, 20, "20 09:00", "22 09:00")
    parsed.land("c", 2, 30, "20 10:00", "22 09:00", a="y")
    parsed.load(cut=30)
    parsed.land("t", None, 40, "21 09:00", "22 09:05")
    parsed.rows("delete from parsed where id = 2")
    assert parsed.load(cut=50, day=20)
    assert parsed.rows("select max(_loaded_at) = timestamptz '2026-11-22 09:00+00' from parsed") == [(True,)]
    parsed.load(cut=50)
    assert parsed.rows("select id, _op from parsed order by _commit_lsn") == [(1, "c"), (1, "t"), (2, "c"), (2, "t")]


def test_a_backfill_of_a_table_with_nothing_loaded_is_its_first_load() -> None:
    """Its day alone would move the watermark past the others."""
    for rows_before in (None, 0):
        parsed = Parsed("a")
        if rows_before == 0:
            parsed.load(cut=5)
        parsed.land("c", 1, 10, "20 08:00", "22 09:00", a="x")
        parsed.land("c", 2, 20, "22 08:00", "22 09:01", a="y")
        parsed.load(cut=20, day=22)
        assert parsed.current() == [(1, "x"), (2, "y")]
