"""What a load of a parsed table reads: each raw row once, whatever is published or declared or derived meanwhile."""

from datetime import UTC, datetime

import pytest

from ingestion.schema.former_names import sourced
from tests.unit.dbt_macros import Refused
from tests.unit.embedded_parsed import Parsed, Raw

PLACES = "select id, _op, _epoch, _commit_lsn, _seq, _loaded_at from parsed order by all"


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


@pytest.mark.parametrize("first", [True, False], ids=["first load", "later load"])
def test_a_row_that_was_replayed_while_a_run_waited_passes_none_over_that_is_beyond_its_cut(first: bool) -> None:
    """The watermark went to the dead letter's moment, past that of a row which no cut had had yet."""
    parsed = Parsed("a")
    parsed.land("c", 1, 10, "20 07:00", "20 07:01", a="x")
    if not first:
        parsed.load(cut=10)
    parsed.land("c", 4, 40, "20 09:30", "20 09:31", a="published after the run's cut")
    parsed.land("c", 2, 20, "20 08:00", "20 09:32", a="dead letter, replayed")
    parsed.land("t", None, 5, "20 06:00", "20 09:33")
    assert parsed.load(cut=30) == first
    assert not parsed.load(cut=30), "nothing that may be loaded"
    assert parsed.load(cut=50)
    parsed.land("c", 5, 60, "20 10:30", "20 10:31", a="y")
    parsed.load(cut=60)
    assert [key for key, _ in parsed.current()] == [1, 2, 4, 5]


def test_what_is_published_after_the_first_look_waits_for_the_next_load() -> None:
    """The look had seen no row that lacks a value, so the load did not fill it."""
    parsed = Parsed("a", "b")
    parsed.land("c", 1, 10, "20 07:00", "20 07:01", a="long", b="1")
    parsed.load(cut=10)
    parsed.land("c", 2, 20, "20 08:00", "20 08:01", a="long", b="2")
    parsed.after_look = lambda: parsed.land("u", 1, 15, "20 07:30", "20 08:02", b="3", _unchanged=["a"])
    assert parsed.load(cut=20) and parsed.load(cut=20)
    assert parsed.current() == [(1, "long", "3"), (2, "long", "2")]


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


@pytest.mark.parametrize("day", [None, 20, 27])
def test_a_column_declared_later_than_it_landed_is_there_for_every_row(day: int | None) -> None:
    """The rows loaded before were null for ever, also after a backfill."""
    parsed = Parsed("name", "phone")
    parsed.declared = ("name",)
    parsed.land("c", 1, 10, "20 08:00", "20 08:01", name="Ada", phone="1815")
    parsed.land("d", 1, 20, "20 09:00", "20 09:01")
    parsed.land("c", 2, 30, "20 10:00", "20 10:01", name="Alan", phone="1912")
    parsed.land("t", None, 35, "20 11:00", "20 11:01")
    parsed.land("c", 3, 40, "21 10:00", "21 10:01", name="Grace", phone="1906")
    parsed.load(cut=40)
    places = parsed.rows(PLACES)
    parsed.declared = ("name", "phone")
    assert parsed.load(cut=50, day=day)
    assert parsed.current() == [(3, "Grace", "1906")]
    assert parsed.rows("select id, phone, _op from parsed order by _commit_lsn") == [
        (1, "1815", "c"), (1, None, "d"), (2, "1912", "c"), (2, None, "t"), (3, "1906", "c"),
    ]  # fmt: skip
    assert parsed.rows(PLACES) == places, "what is below would load again"
    assert not parsed.load(cut=50)


def test_a_table_that_no_cut_covers_waits_for_the_column_rather_than_having_nulls() -> None:
    parsed = Parsed("name", "phone")
    parsed.declared = ("name",)
    parsed.land("c", 1, 10, "20 08:00", "20 08:01", name="Ada", phone="1815")
    parsed.load(cut=10)
    parsed.declared = ("name", "phone")
    assert not parsed.load(cut=10, covered=False)
    assert parsed.load(cut=10)
    assert parsed.current() == [(1, "Ada", "1815")]


def test_a_table_rolled_back_to_before_it_was_made_anew_for_a_column_is_made_anew_again() -> None:
    """It kept the column, with nulls for all rows of that state, and nobody missed their values."""
    parsed = Parsed("name", "phone")
    parsed.declared = ("name",)
    parsed.land("c", 1, 10, "20 08:00", "20 08:01", name="Ada", phone="1815")
    parsed.load(cut=10)
    parsed.declared = ("name", "phone")
    parsed.land("c", 2, 20, "20 09:00", "20 09:01", name="Alan", phone="1912")
    parsed.load(cut=20)
    for _ in range(2):
        parsed.roll_back(1)
        assert parsed.current() == [(1, "Ada", None)]
        assert parsed.load(cut=20)
        assert parsed.current() == [(1, "Ada", "1815"), (2, "Alan", "1912")]
    parsed.land("c", 3, 30, "20 10:00", "20 10:01", name="Grace", phone="1906")
    parsed.load(cut=30)
    parsed.roll_back(4)
    parsed.rows("update parsed set name = 'of that state' where id = 2")
    parsed.load(cut=30)
    assert parsed.current() == [(1, "Ada", "1815"), (2, "of that state", "1912"), (3, "Grace", "1906")], "no need"


def undeclared_for_a_while() -> Parsed:
    """Parsed with rows from before `phone` was taken out of the declaration, from that time, and undeclared still."""
    parsed = Parsed("name", "phone")
    parsed.land("c", 1, 10, "20 08:00", "20 08:01", name="Ada", phone="1815")
    parsed.land("c", 3, 12, "20 08:00", "20 08:01", name="Grace", phone="1906")
    parsed.load(cut=12)
    parsed.declared = ("name",)
    parsed.land("u", 1, 20, "20 09:00", "20 09:01", name="Ada", phone="1852")
    parsed.land("c", 2, 30, "20 10:00", "20 10:01", name="Alan", phone="1912")
    parsed.load(cut=30)
    return parsed


@pytest.mark.parametrize("day", [None, 20, 27])
@pytest.mark.parametrize("upgraded", ["before", "meanwhile", "after"])
def test_a_column_that_was_not_declared_for_a_while_has_its_values_for_every_row(
    upgraded: str, day: int | None
) -> None:
    """Parsed had the column still, with nulls for the rows loaded meanwhile, and nobody missed their values."""
    parsed = undeclared_for_a_while()
    assert parsed.rows("select count(phone) from parsed") == [(2,)] and not parsed.is_made_anew()
    if upgraded != "before":
        parsed.forget()
    if upgraded == "meanwhile":
        assert not parsed.load(cut=30)
    places = parsed.rows(PLACES)
    parsed.declared = ("name", "phone")
    assert not parsed.load(cut=30, covered=False)
    assert parsed.load(cut=30, day=day) and parsed.is_revised()
    assert parsed.current() == [(1, "Ada", "1852"), (2, "Alan", "1912"), (3, "Grace", "1906")]
    assert parsed.rows(PLACES) == places
    assert not parsed.load(cut=30)
    parsed.land("u", 2, 40, "20 11:00", "20 11:01", name="Alan", phone="1954")
    made = parsed.rows("select * from parsed_properties where key like '%made-anew%'")
    assert parsed.load(cut=40) and parsed.current()[1] == (2, "Alan", "1954")
    assert parsed.rows("select * from parsed_properties where key like '%made-anew%'") == made, "once is enough"


def test_a_column_is_not_made_anew_where_nothing_was_loaded_while_it_was_not_declared() -> None:
    parsed = Parsed("name", "phone")
    parsed.land("c", 1, 10, "20 08:00", "20 08:01", name="Ada", phone="1815")
    parsed.load(cut=10)
    parsed.declared = ("name",)
    assert not parsed.load(cut=10)
    parsed.declared = ("name", "phone")
    parsed.land("c", 2, 20, "20 09:00", "20 09:01", name="Alan", phone="1912")
    assert parsed.load(cut=20) and not parsed.is_made_anew()
    assert parsed.current() == [(1, "Ada", "1815"), (2, "Alan", "1912")]


def test_a_load_that_is_killed_before_it_inserts_has_noted_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = undeclared_for_a_while()
    parsed.declared = ()
    parsed.land("u", 1, 40, "20 11:00", "20 11:01", name="Ada L.", phone="1852")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(parsed, "insert", killed)
    with pytest.raises(KeyboardInterrupt):
        parsed.load(cut=40)
    [[noted]] = parsed.rows("select value from parsed_properties where key = 'lakehouse.left-out'")
    assert noted == '["name", "phone"]'


def test_a_table_of_an_earlier_release_is_compared_once_and_not_made_anew_where_it_has_all_values() -> None:
    """Of a column that is not declared then nobody knows what was left out."""
    parsed = Parsed("name", "phone", "bio")
    parsed.land("c", 1, 10, "20 08:00", "20 08:01", name="Ada", phone=None, bio="long")
    parsed.land("u", 1, 20, "20 09:00", "20 09:01", name="Ada L.", _unchanged=["bio"])
    parsed.land("d", 1, 30, "20 09:30", "20 09:31", name="Ada L.", phone="of a full identity")
    parsed.land("c", 2, 40, "20 09:40", "20 09:41", name="Alan", phone="1912", bio="short")
    parsed.land("t", None, 45, "20 09:50", "20 09:51")
    parsed.land("c", 3, 50, "20 09:52", "20 09:53", name="Grace", phone="1906", bio="long")
    parsed.load(cut=35)
    parsed.load(cut=50)
    parsed.declared = ("name", "bio")
    parsed.forget()
    assert not parsed.load(cut=50)
    noted = "select value from parsed_properties where key = 'lakehouse.left-out'"
    assert parsed.rows(noted) == [('["phone"]',)] and not parsed.is_made_anew()
    parsed.land("u", 3, 60, "20 10:00", "20 10:01", name="Grace", phone="1907", bio="x")
    assert parsed.load(cut=60) and parsed.rows(noted) == [('["phone"]',)] and not parsed.is_made_anew()
    parsed.declared = ("name", "bio", "phone")
    assert parsed.load(cut=60) and parsed.rows(noted) == [("[]",)]
    assert parsed.current() == [(3, "Grace", "x", "1907")]


def test_a_table_rolled_back_to_rows_that_were_loaded_without_a_column_is_made_anew_again() -> None:
    parsed = undeclared_for_a_while()
    parsed.declared = ("name", "phone")
    parsed.load(cut=30)
    parsed.roll_back(2)
    assert parsed.rows("select count(phone) from parsed") == [(2,)]
    assert parsed.load(cut=30)
    assert parsed.current() == [(1, "Ada", "1852"), (2, "Alan", "1912"), (3, "Grace", "1906")]


def test_a_renamed_column_keeps_its_values_and_fills_what_was_left_out_under_any_of_its_names() -> None:
    parsed = Parsed("bio", "note")
    parsed.land("r", 1, 10, "20 08:00", "20 08:01", bio="long", note="short")
    parsed.land("u", 1, 20, "20 09:00", "20 09:01", note="n", _unchanged=["bio"])
    parsed.load(cut=20)
    parsed.rename("bio", "life", "20 09:30")
    parsed.land("u", 1, 30, "20 10:00", "20 10:01", note="m", _unchanged=["life"])
    parsed.rename("life", "biography", "20 10:30")
    parsed.land("u", 1, 40, "20 11:00", "20 11:01", note="l", _unchanged=["biography"])
    assert parsed.load(cut=40)
    assert parsed.rows("select distinct biography from parsed") == [("long",)]
    parsed.land("u", 1, 50, "20 12:00", "20 12:01", biography="new", note="k", _unchanged=["bio"])
    parsed.load(cut=50)
    assert parsed.current() == [(1, "new", "k")], "`bio` is another column by now"


def test_a_value_is_filled_also_where_another_column_has_its_former_name_by_now() -> None:
    """Parsed is made anew then, from rows that say of the one what would be true of the other."""
    parsed = Parsed("body", "summary")
    parsed.land("c", 1, 10, "20 08:00", "20 08:01", body="long", summary="s1")
    parsed.land("u", 1, 20, "20 09:00", "20 09:01", summary="s2", _unchanged=["body"])
    parsed.load(cut=20)
    parsed.rename("body", "old_body", "20 10:00")
    parsed.add("body")
    assert parsed.load(cut=20)
    assert parsed.rows("select old_body, summary, body from parsed order by _commit_lsn") == [
        ("long", "s1", None), ("long", "s2", None),
    ]  # fmt: skip
    parsed.land("u", 1, 30, "20 11:00", "20 11:01", summary="s2", old_body="long", body="longer")
    parsed.land("u", 1, 40, "20 12:00", "20 12:01", summary="s2", _unchanged=["body"])
    parsed.load(cut=40)
    assert parsed.current() == [(1, None, "s2", "longer")], "old_body was emptied, body left out"


def test_a_column_that_does_not_land_is_not_taken_for_the_one_that_bears_its_name() -> None:
    parsed = Parsed("document_redacted", "document", exclude=["document"], alias={"document_redacted": "document"})
    parsed.land("c", 1, 10, "20 08:00", "20 08:01", document="old")
    parsed.land("u", 1, 20, "20 09:00", "20 09:01", document="new", _unchanged=["document"])
    parsed.load(cut=20)
    assert parsed.current() == [(1, "new")]


def test_a_value_follows_a_key_change_also_once_the_key_is_called_otherwise() -> None:
    """Twice within a load, and parsed is made anew because the declaration follows."""
    parsed = Parsed("body", "note")
    parsed.land("c", 1, 10, "20 08:00", "20 08:01", body="long", note="a")
    for old, new, lsn in ((1, 2, 20), (2, 3, 30)):
        parsed.land("d", old, lsn, "20 09:00", "20 09:01")
        moved = {"_unchanged": ["body"], "_old_key": f'{{"id":"{old}"}}'}
        parsed.land("c", new, lsn + 1, "20 09:00", "20 09:01", note="b", **moved)
    parsed.load(cut=40)
    assert parsed.current() == [(3, "long", "b")]
    parsed.rename("id", "order_id", "20 10:00")
    assert parsed.load(cut=40)
    assert parsed.current() == [(3, "long", "b")]


def test_a_value_follows_a_key_change_where_a_column_of_the_key_has_anothers_former_name() -> None:
    """Key (id, b): `id` became `x`, then `b` became `id`; the key (1, 2) was looked for as (2, 2)."""
    parsed = Parsed("b", "body", key=["id", "b"])
    parsed.land("c", 2, 10, "20 08:00", "20 08:01", b="2", body="another row's")
    parsed.land("c", 2, 11, "20 08:00", "20 08:01", b="1", body="long")
    parsed.land("d", 2, 20, "20 09:00", "20 09:01", b="1")
    parsed.land("c", 3, 21, "20 09:00", "20 09:01", b="1", _unchanged=["body"], _old_key='{"id":"2","b":"1"}')
    parsed.rename("id", "x", "20 10:00")
    parsed.rename("b", "id", "20 11:00")
    parsed.policy["key"] = ["x", "id"]
    parsed.load(cut=30)
    assert parsed.rows("select x, id, body from parsed where _op = 'c' order by _commit_lsn") == [
        (2, "2", "another row's"), (2, "1", "long"), (3, "1", "long"),
    ]  # fmt: skip


def test_a_value_follows_a_key_change_under_an_alias_whatever_the_source_calls_the_key() -> None:
    """A row has the lake's name of the key; one of an earlier version the source's, which has changed since."""
    parsed = Parsed("body", alias={"ident": "id"})
    ((name, stated),) = sourced("id", "number", datetime(2026, 11, 20, 10, tzinfo=UTC), {}).items()
    parsed.db.execute("insert into raw_properties values (?, ?)", [name, stated])
    parsed.land("c", 1, 10, "20 08:00", "20 08:01", body="long")
    for old, new, lsn, name in ((1, 2, 20, "number"), (2, 3, 30, "id"), (3, 4, 40, "ident")):
        parsed.land("d", old, lsn, "20 09:00", "20 09:01")
        moved = {"_unchanged": ["body"], "_old_key": f'{{"{name}":"{old}"}}'}
        parsed.land("c", new, lsn + 1, "20 09:00", "20 09:01", **moved)
    parsed.load(cut=50)
    assert parsed.current() == [(4, "long")]


def test_a_column_of_another_type_than_declared_stops_the_load_before_a_row_is_changed() -> None:
    parsed = Parsed("a")
    parsed.land("c", 1, 10, "20 08:00", "20 08:01", a="1.5")
    parsed.load(cut=10)
    parsed.land("c", 2, 20, "20 09:00", "20 09:01", a="2.5")
    parsed.rows("alter table raw alter a type double")
    with pytest.raises(Refused, match="column a is double in raw, and as text it would be varchar"):
        parsed.load(cut=20)
    assert parsed.current() == [(1, "1.5")]


@pytest.mark.parametrize("is_empty", [False, True])
def test_parsed_is_made_anew_where_a_column_cannot_get_the_type_that_is_declared_now(is_empty: bool) -> None:
    """Raw has begun the column again: versions from before have no value in it, and one that is in no cut yet waits."""
    parsed = Parsed("a", "b")
    parsed.retype("a", "integer")
    if not is_empty:
        parsed.land("c", 1, 10, "20 08:00", "20 08:01", a=1, b="B")
    parsed.load(cut=10)
    parsed.retype("a", "text")
    assert parsed.load(cut=10, covered=False) == is_empty
    parsed.land("r", 1, 20, "20 09:00", "20 09:01", a="x1", b="B")
    assert parsed.load(cut=20) and parsed.is_made_anew() and not parsed.is_revised()
    former = [] if is_empty else [(10, None, "B")]
    assert parsed.rows("select _commit_lsn, a, b from parsed order by 1") == [*former, (20, "x1", "B")]
    assert not parsed.load(cut=20)


@pytest.mark.parametrize("covered", [False, True])
def test_a_table_without_rows_gets_the_declared_type_before_its_first_row(covered: bool) -> None:
    """It kept the former one, and its stage's view waited for the new one, and each table that is made of that view."""
    parsed = Parsed("a", "B")
    parsed.load(cut=10)
    parsed.retype("a", "integer")
    assert parsed.load(cut=20, covered=covered) and parsed.is_made_anew() and not parsed.is_revised()
    assert parsed.rows("select typeof(a) from (values (1)) left join parsed on true") == [("INTEGER",)]
    assert parsed.rows("select * from parsed") == []
    assert not parsed.load(cut=20, covered=covered), "and has it then"
    parsed.land("c", 1, 30, "20 09:00", "20 09:01", a=1, b="B")
    assert parsed.load(cut=30) and parsed.rows("select a, b from parsed") == [(1, "B")]


def test_a_table_without_rows_gets_no_text_of_a_type_that_postgres_does_not_have() -> None:
    """The first row is refused where raw has no text of it, which parsed as text would have let pass."""
    parsed = Parsed("a")
    parsed.retype("a", "integer")
    parsed.load(cut=10)
    parsed.types["a"] = "price"
    assert not parsed.load(cut=20) and not parsed.is_made_anew()
    parsed.land("c", 1, 30, "20 09:00", "20 09:01", a=1)
    with pytest.raises(Refused, match="column a is integer in raw, and as price it would be varchar"):
        parsed.load(cut=30)


def test_parsed_is_not_made_anew_where_a_column_only_gets_wider() -> None:
    parsed = Parsed("a")
    parsed.retype("a", "integer")
    parsed.land("c", 1, 10, "20 08:00", "20 08:01", a=1)
    parsed.load(cut=10)
    parsed.rows("alter table raw alter a type bigint")
    parsed.types["a"] = "bigint"
    parsed.land("u", 1, 20, "20 09:00", "20 09:01", a=2)
    assert parsed.load(cut=20) and not parsed.is_made_anew()


def test_a_raw_table_may_be_called_as_parsed_is_in_its_own_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with itself, every new row was taken for one that is there."""
    monkeypatch.setattr(Raw, "identifier", "known")
    parsed = Parsed("a")
    parsed.land("c", 1, 10, "20 08:00", "22 09:00", a="x")
    parsed.load(cut=10)
    parsed.land("c", 2, 20, "20 08:01", "22 09:01", a="y")
    parsed.load(cut=20)
    assert parsed.current() == [(1, "x"), (2, "y")]


def test_columns_may_bear_the_names_that_the_models_sql_had() -> None:
    """TOASTed values through a key change and a truncate, in one load and over two."""
    parsed = Parsed("position", "kind", "born", "life", "nth", "dead", "versions", "filled_1", "version_from_newest")
    names = parsed.declared
    row = dict.fromkeys(names, "long")
    parsed.land("c", 1, 10, "20 08:00", "22 09:00", **row)
    parsed.load(cut=10)
    key = '{"id": "1"}'
    left_out = list(names[:2])
    parsed.land("d", 1, 20, "20 08:01", "22 09:01")
    parsed.land("c", 2, 21, "20 08:01", "22 09:01", **row | dict.fromkeys(left_out), _unchanged=left_out, _old_key=key)
    parsed.land("c", 3, 22, "20 08:01", "22 09:01", **row)
    parsed.load(cut=22)
    assert parsed.current() == [(2, *row.values()), (3, *row.values())]
    parsed.land("t", None, 30, "20 08:02", "22 09:02")
    parsed.land("c", 4, 40, "20 08:03", "22 09:02", **row)
    parsed.load(cut=40)
    assert parsed.current() == [(4, *row.values())]


@pytest.mark.parametrize("name", ["_valid_from", "_IS_DELETED", "_lh_position"])
def test_a_name_that_parsed_gives_itself_is_refused_for_that_table_with_the_remedy(name: str) -> None:
    parsed = Parsed(name)
    with pytest.raises(Refused, match=rf"s\.t: column {name} bears a name .* declare meta\.raw\.alias, .*another_name"):
        parsed.load(cut=10)


def test_a_table_of_an_earlier_release_is_refused_until_it_is_upgraded_and_gets_no_second_flag() -> None:
    parsed = Parsed("a")
    parsed.land("c", 1, 10, "20 08:00", "22 09:00", a="x")
    parsed.load(cut=10)
    parsed.rows("alter table parsed rename column _is_deleted to _deleted")
    parsed.land("d", 1, 20, "20 09:00", "22 09:01")
    with pytest.raises(Refused, match=r"^parsed is of an earlier release, .*: run `lakehouse upgrade`, then load"):
        parsed.load(cut=20)
    parsed.rows("alter table parsed rename column _deleted to _is_deleted")
    assert parsed.load(cut=20) and parsed.current() == []
