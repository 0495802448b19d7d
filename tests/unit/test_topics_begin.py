"""Tables of topics that begin, or are declared again: each has all events of its topic, or is kept out with the reason.

Where the stream stands in a topic outlasts the table that was read from it.
"""

import pytest
from held_topics import Lake, declared, make_lake

from ingestion.pipeline.session import RowCounts
from ingestion.run import api, operate
from ingestion.run.recover import begin_next_epoch
from ingestion.state import store
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.declarations import Column, RawTable, Source
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings

pytestmark = pytest.mark.stack
ALL = declared("clicks", "views", flush=None)
CLICKS = declared("clicks", flush=None)
KEYED = ALL.table("views").model_copy(update={"raw": RawPolicy(topic="views", key=("id",))})


@pytest.fixture
def lake(catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake that has read ten events of each of two topics."""
    return begun(make_lake(catalog_settings, postgres_catalog, monkeypatch), ALL)


@pytest.fixture
def keyed_lake(catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """The same, of which the second has a key."""
    source = ALL.model_copy(update={"tables": (ALL.table("clicks"), KEYED)})
    return begun(make_lake(catalog_settings, postgres_catalog, monkeypatch), source)


def begun(made: Lake, source: Source) -> Lake:
    made.source = source
    made.broker.create("views")
    made.broker.send("clicks", 10)
    made.broker.send("views", 10)
    made.once()
    assert made.committed("views") == [*range(10, 20)]
    return made


def renamed(to: str) -> RawTable:
    """The table of topic views under another name."""
    return ALL.table("views").model_copy(update={"name": to})


def declare(lake: Lake, *tables: RawTable) -> None:
    lake.source = ALL.model_copy(update={"tables": (ALL.table("clicks"), *tables)})


def reason(lake: Lake, name: str) -> str:
    """Why the table is kept out; nothing of one that streams."""
    with store.connect_catalog(lake.settings) as states:
        position = store.read_positions(states, "web")[name]
    assert position.state in ("streaming", "new")
    return "" if position.state == "streaming" else str(position.reason)


def recover(lake: Lake) -> None:
    lake.once(begin_next_epoch)
    lake.broker.send("clicks", 1)
    lake.once()
    assert reason(lake, "clicks") == "" and rows(lake, "clicks")[-1] == (epoch_of(lake), lake.broker.sent - 1)


def sent(lake: Lake) -> list[int]:
    """What topic views has."""
    return sorted(event["id"] for (topic, _), log in lake.broker.logs.items() if topic == "views" for event in log)


def epoch_of(lake: Lake) -> int:
    with store.connect_catalog(lake.settings) as states:
        stream = store.read_stream(states, "web")
    assert stream is not None
    return stream.epoch


def spooled(lake: Lake) -> int:
    return int(lake.catalog.load_table(("meta", "spool")).scan().to_arrow().num_rows)


def rows(lake: Lake, name: str) -> list[tuple[int, int]]:
    raw = lake.catalog.load_table(("raw_web", name)).scan().to_arrow().to_pylist()
    return sorted((row["_epoch"], row["id"]) for row in raw)


def test_a_topic_that_is_created_again_while_it_is_not_declared_is_not_read_from_its_middle(lake: Lake) -> None:
    """Its first events were never read, without a word: as many as had been read of the former one."""
    lake.source = CLICKS
    lake.once()
    lake.broker.delete("views")
    lake.broker.create_again("views")
    lake.broker.send("views", 30)
    lake.broker.send("clicks", 5)
    lake.source = ALL
    lake.once()
    assert "topic views was deleted and created again" in reason(lake, "views")
    assert "`lakehouse ingest --recover web`" in reason(lake, "views") and len(lake.committed("views")) == 10
    assert len(lake.committed("clicks")) == 15, "the other table goes on"
    recover(lake)
    assert reason(lake, "views") == "" and len(sent(lake)) == 30
    assert [number for epoch, number in rows(lake, "views") if epoch == 2] == sent(lake)


@pytest.mark.parametrize("recovered", [False, True])
def test_a_topic_that_is_declared_again_goes_on_where_it_was(lake: Lake, recovered: bool) -> None:
    lake.source = CLICKS
    lake.once()
    lake.broker.send("views", 5)
    lake.source = ALL
    if recovered:
        recover(lake)
    lake.once()
    assert lake.committed("views") == [*range(10, 25)]


@pytest.mark.parametrize("how", ["renamed", "dropped"])
def test_a_table_of_a_topic_that_was_read_as_another_is_kept_out_with_the_reason(lake: Lake, how: str) -> None:
    """It had nothing but what came after it was declared, as if the topic began there."""
    name = "seen" if how == "renamed" else "views"
    if how == "dropped":
        lake.source = CLICKS
        lake.once()
        lake.catalog.drop_table(("raw_web", "views"))
    declare(lake, renamed(name))
    lake.broker.send("views", 5)
    for _ in range(2):
        lake.once()
        says = reason(lake, name)
        assert "topic views was read before" in says and ("as table 'views'" in says) == (how == "renamed")
        assert "`lakehouse ingest --recover web`" in says
    recover(lake)
    assert reason(lake, name) == "" and rows(lake, name) == [(2, number) for number in sent(lake)]


def test_a_table_that_gets_its_name_back_is_not_taken_for_the_one_that_was_read_since(lake: Lake) -> None:
    declare(lake, renamed("seen"))
    lake.once()
    recover(lake)
    lake.broker.send("views", 5)
    lake.once()
    lake.source = ALL
    lake.broker.send("views", 5)
    lake.once()
    assert "topic views was read before" in reason(lake, "views")
    recover(lake)
    assert [row for row in rows(lake, "views") if row[0] > 1] == [(3, number) for number in sent(lake)]


def test_a_topic_whose_read_events_are_all_gone_begins_with_what_is_left(lake: Lake) -> None:
    lake.broker.send("views", 10)
    lake.broker.send("clicks", 10)
    lake.once()
    lake.broker.gone = 10  # of each partition, which is what was read
    declare(lake, renamed("seen"))
    lake.broker.send("views", 4)
    lake.once()
    assert reason(lake, "seen") == "" and rows(lake, "seen") == [(1, number) for number in range(40, 44)]


def test_a_parked_table_goes_on_after_a_recovery(lake: Lake) -> None:
    """Its record survives, and its topic goes on with it."""
    operate.pause(lake.settings, ALL.table("views"))
    recover(lake)
    operate.resume(lake.settings, ALL.table("views"))
    lake.broker.send("views", 5)
    lake.once()
    assert reason(lake, "views") == "" and [number for _, number in rows(lake, "views")] == sent(lake)


@pytest.mark.parametrize("resumed", ["before", "after"])
def test_what_was_kept_aside_before_a_recovery_lands_after_it(lake: Lake, resumed: str) -> None:
    """Nobody looked for it in the next epoch, and the table streamed on with a hole."""
    operate.pause(lake.settings, ALL.table("views"))
    lake.broker.send("views", 8)
    lake.once()
    if resumed == "before":
        operate.resume(lake.settings, ALL.table("views"))
    recover(lake)
    if resumed == "after":
        operate.resume(lake.settings, ALL.table("views"))
    lake.broker.send("views", 5)
    lake.once()
    assert [number for _, number in rows(lake, "views")] == sent(lake) == lake.committed("views")
    assert reason(lake, "views") == "" and spooled(lake) == 0


def test_a_paused_table_is_kept_aside_over_recoveries(lake: Lake) -> None:
    """From the first one on, its events were left to the retention of the topic; after the second it was read anew."""
    operate.pause(lake.settings, ALL.table("views"))
    for kept in (3, 6):
        recover(lake)
        lake.broker.send("views", 3)
        lake.once()
        assert spooled(lake) == kept
    operate.resume(lake.settings, ALL.table("views"))
    lake.once()
    assert lake.committed("views") == sent(lake) and spooled(lake) == 0
    assert {epoch for epoch, _ in rows(lake, "views")} == {1, 2, 3}


@pytest.mark.parametrize("came", ["by a load", "by a move"])
@pytest.mark.parametrize("aside", [False, True])
def test_a_recovery_that_is_repeated_before_its_cycle_reads_nothing_twice(lake: Lake, came: str, aside: bool) -> None:
    """The cycle of the first one failed; the second one found no table described, and read all topics anew."""
    if came == "by a move":
        with store.connect_catalog(lake.settings) as states:
            states.execute("UPDATE lakehouse.streams SET topics = '{}'")
    if aside:
        operate.pause(lake.settings, ALL.table("views"))
        operate.resume(lake.settings, ALL.table("views"))
    for _ in range(2):
        lake.once(begin_next_epoch)
    lake.broker.send("views", 3)
    lake.once()
    assert lake.committed("views") == sent(lake) and [epoch for epoch, _ in rows(lake, "views")] == 10 * [1] + 3 * [3]


def test_a_topic_that_is_created_again_between_two_recoveries_begins_anew(lake: Lake) -> None:
    lake.once(begin_next_epoch)
    lake.broker.delete("views")
    lake.broker.create_again("views")
    lake.broker.send("views", 30)
    recover(lake)
    assert [number for epoch, number in rows(lake, "views") if epoch == 3] == sent(lake)


def test_a_topic_that_cannot_be_described_at_a_recovery_goes_on_once_it_can(lake: Lake) -> None:
    lake.broker.closed.add("views")
    lake.once()
    for _ in range(2):
        recover(lake)
    lake.broker.closed.clear()
    operate.resume(lake.settings, ALL.table("views"))
    lake.broker.send("views", 3)
    lake.once()
    assert lake.committed("views") == sent(lake)


def test_what_is_kept_aside_of_a_topic_and_of_the_next_one_of_its_name_lands(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    operate.pause(lake.settings, ALL.table("views"))
    lake.broker.send("views", 8)
    lake.once()
    before = sent(lake)
    lake.broker.delete("views")
    lake.broker.create_again("views")
    lake.broker.send("views", 4)
    recover(lake)
    lake.broker.send("views", 3)
    lake.once()
    assert spooled(lake) == 8 + 4 + 3
    operate.resume(lake.settings, ALL.table("views"))
    for _ in range(2):
        lake.once()
    assert rows(lake, "views") == [*((1, number) for number in before), *((2, number) for number in sent(lake))]
    assert reason(lake, "views") == "" and spooled(lake) == 0 and "is another one" not in caplog.text


@pytest.mark.parametrize("aside", [False, True])
def test_a_table_that_was_dropped_by_hand_begins_anew_with_the_next_recovery(lake: Lake, aside: bool) -> None:
    if aside:
        operate.pause(lake.settings, ALL.table("views"))
        lake.broker.send("views", 8)
        lake.once()
    lake.catalog.drop_table(("raw_web", "views"))
    lake.broker.send("views", 1)
    with pytest.raises(LakehouseError, match=r"raw_web\.views is not in the catalog any more: .* --recover web"):
        lake.once()
    recover(lake)
    assert reason(lake, "views") == "" and rows(lake, "views") == [(2, number) for number in sent(lake)]


def test_a_table_is_renamed_and_recovered_at_once(lake: Lake) -> None:
    declare(lake, renamed("seen"))
    recover(lake)
    assert reason(lake, "seen") == "" and rows(lake, "seen") == [(2, number) for number in sent(lake)]


@pytest.mark.parametrize("how", ["created again", "created again while paused", "declared"])
def test_rows_that_another_topic_may_not_know_of_are_told_once(
    keyed_lake: Lake, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """What was deleted between the two topics stayed current, without a word."""
    lake, topic = keyed_lake, "views"
    if how == "declared":
        topic = "later"
        lake.broker.create(topic)
        declare(lake, KEYED.model_copy(update={"raw": RawPolicy(topic=topic, key=("id",))}))
    else:
        if "paused" in how:
            operate.pause(lake.settings, KEYED)
        lake.broker.delete(topic)
        lake.broker.create_again(topic)
        lake.once(begin_next_epoch)
    lake.broker.send(topic, 4)
    lake.once()
    assert f"table 'views': topic {topic} is another one than the table was read from before" in caplog.text
    assert "rows that were deleted in between stay" in caplog.text and "table 'clicks'" not in caplog.text
    recover(lake)
    assert caplog.text.count("rows that were deleted in between stay") == 1


def test_events_that_are_gone_are_told_by_a_recovery_that_had_another_reason(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    lake.broker.send("views", 10)
    lake.broker.send("clicks", 10)
    lake.broker.gone = 8
    recover(lake)
    for topic in ("clicks", "views"):
        for partition in (0, 1):
            says = f"topic {topic}, partition {partition}: events 5 to 7 were deleted before the lake had read them"
            assert says in caplog.text
    caplog.clear()
    recover(lake)
    assert "were deleted" not in caplog.text


def test_what_was_kept_aside_of_a_table_lands_when_it_is_declared_again(lake: Lake) -> None:
    """It stayed in the spool, and the table streamed on with a hole."""
    operate.pause(lake.settings, ALL.table("views"))
    lake.broker.send("views", 8)
    lake.once()
    lake.source = CLICKS
    lake.once()
    lake.broker.send("views", 3)
    lake.source = ALL
    lake.once()
    assert lake.committed("views") == [*range(10, 31)] and reason(lake, "views") == ""
    lake.broker.send("views", 2)
    lake.once()
    assert lake.committed("views") == [*range(10, 33)]
    assert spooled(lake) == 0


def test_a_topic_that_is_declared_later_is_read_from_its_beginning(lake: Lake) -> None:
    lake.broker.create("later")
    lake.broker.send("later", 6)
    later = replace_topic(renamed("new"), "later")
    declare(lake, renamed("views"), later)
    lake.once()
    assert rows(lake, "new") == [(1, number) for number in range(20, 26)]


def replace_topic(table: RawTable, topic: str) -> RawTable:
    return table.model_copy(update={"raw": RawPolicy(topic=topic)})


AGAIN = ["recovered", "recovered twice", "declared again"]


def begin_again(lake: Lake, how: str, *columns: Column) -> None:
    """Declares views with these columns, and has it begin again."""
    if how == "declared again":
        lake.source = CLICKS
        lake.once()
    declare(lake, ALL.table("views").model_copy(update={"columns": columns}))
    for _ in range({"declared again": 0, "recovered": 1, "recovered twice": 2}[how]):
        lake.once(begin_next_epoch)


def typed(data_type: str) -> Column:
    return Column(name="id", data_type=data_type, description="")


def altered(lake: Lake) -> list[tuple[str, str | None, str | None]]:
    found = lake.catalog.load_table(("meta", "schema_changes")).scan().to_arrow().to_pylist()
    return [(row["before"], row["after"], row["effect"]) for row in found if row["kind"] == "type changed"]


@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize("how", AGAIN)
def test_a_type_that_the_lake_cannot_follow_parks_a_table_that_begins_again(lake: Lake, how: str, aside: bool) -> None:
    """The column began anew without a word, and every row that had landed lacked its value."""
    if aside:
        operate.pause(lake.settings, ALL.table("views"))
        lake.broker.send("views", 2)
        lake.once()
        operate.resume(lake.settings, ALL.table("views"))
    begin_again(lake, how, typed("numeric"))
    lake.broker.send("views", 3)
    lake.broker.send("clicks", 3)
    lake.once()
    with store.connect_catalog(lake.settings) as states:
        position = store.read_positions(states, "web")["views"]
    assert position.state == "parked"
    assert "column id was bigint and is numeric, which the lake's type cannot become" in str(position.reason)
    assert altered(lake) == [("bigint", "numeric", "parked")]
    assert lake.committed("views") == [*range(10, 20)] and len(lake.committed("clicks")) == 13
    lake.broker.send("views", 3)
    lake.once()
    assert spooled(lake) == 6 + 2 * aside
    operate.resume(lake.settings, ALL.table("views"))
    lake.once()
    raw = lake.catalog.load_table(("raw_web", "views")).scan().to_arrow().to_pylist()
    assert reason(lake, "views") == "" and spooled(lake) == 0
    assert sorted(int(row["id"] or row["id__long"]) for row in raw) == sent(lake)
    assert [row["id__long"] for row in raw if row["id__long"] is not None] != []


@pytest.mark.parametrize("how", AGAIN)
def test_a_type_that_the_lake_can_follow_is_followed_by_a_table_that_begins_again(lake: Lake, how: str) -> None:
    narrow = replace_topic(renamed("new"), "later").model_copy(update={"columns": (typed("integer"),)})
    lake.broker.create("later")
    lake.broker.send("later", 4)
    declare(lake, narrow)
    lake.once()
    if how == "declared again":
        lake.source = CLICKS
        lake.once()
    wide = (typed("bigint"), Column(name="page", data_type="text", description=""))
    declare(lake, narrow.model_copy(update={"columns": wide}))
    for _ in range({"declared again": 0, "recovered": 1, "recovered twice": 2}[how]):
        lake.once(begin_next_epoch)
    lake.broker.says = "p"
    lake.broker.send("later", 2)
    lake.once()
    assert reason(lake, "new") == "" and altered(lake) == [("integer", "bigint", "applied")]
    raw = lake.catalog.load_table(("raw_web", "new"))
    assert str(raw.schema().find_field("id").field_type) == "long"
    assert sorted((row["id"], row["page"]) for row in raw.scan().to_arrow().to_pylist()) == [
        *((number, None) for number in range(20, 24)), (24, "p"), (25, "p"),
    ]  # fmt: skip


def test_a_table_whose_topic_was_deleted_goes_on_by_what_its_reason_says(lake: Lake) -> None:
    """It named the recovery alone, which leaves a parked table parked, with the same words."""
    lake.broker.delete("views")
    lake.once()
    with store.connect_catalog(lake.settings) as states:
        says = str(store.read_positions(states, "web")["views"].reason)
    assert "topic views was deleted" in says
    assert "`lakehouse ingest --recover web` and `lakehouse ingest --resume web.views`" in says
    lake.broker.create_again("views")
    lake.broker.send("views", 4)
    recover(lake)
    operate.resume(lake.settings, ALL.table("views"))
    lake.once()
    assert reason(lake, "views") == "" and [n for epoch, n in rows(lake, "views") if epoch == 2] == sent(lake)


def test_what_a_topic_had_that_was_created_again_is_told_by_the_recovery_once(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """A table without a key went on as if it had every event."""
    lake.broker.delete("views")
    lake.broker.create_again("views")
    for _ in range(2):
        lake.once(begin_next_epoch)
    says = "topic views was deleted and created again: what the former one had from these offsets on is in no table"
    assert caplog.text.count(says) == 1 and f"{says}: 5 of partition 0, 5 of partition 1" in caplog.text
    assert "topic clicks" not in caplog.text


def parked_for(lake: Lake, *columns: Column) -> None:
    """Declares table views with these columns, which the lake cannot follow, and lets events come meanwhile."""
    declare(lake, ALL.table("views").model_copy(update={"columns": columns}))
    lake.broker.send("views", 3)
    lake.once()
    with store.connect_catalog(lake.settings) as states:
        assert store.read_positions(states, "web")["views"].state == "parked"


@pytest.mark.parametrize("noticed", [False, True])
@pytest.mark.parametrize("mistaken", [1, 2])
def test_a_type_that_is_declared_as_it_was_again_leaves_the_values_where_they_are(
    lake: Lake, mistaken: int, noticed: bool
) -> None:
    """They were set aside, by way of the mistaken type, of which no event had ever been read."""
    for data_type in ("numeric", "text")[:mistaken]:
        parked_for(lake, typed(data_type))
    lake.source = ALL
    if noticed:
        lake.broker.send("views", 2)
        lake.once()
    operate.resume(lake.settings, ALL.table("views"))
    lake.broker.send("views", 2)
    lake.once()
    raw = lake.catalog.load_table(("raw_web", "views"))
    assert reason(lake, "views") == "" and spooled(lake) == 0
    assert {field.name for field in raw.schema().fields if not field.name.startswith("_")} == {"id"}
    assert lake.committed("views") == sent(lake)


def test_a_type_that_is_declared_in_place_of_a_mistaken_one_is_followed_from_what_has_landed(lake: Lake) -> None:
    parked_for(lake, typed("numeric"), Column(name="page", data_type="text", description=""))
    parked_for(lake, typed("text"))
    for _ in range(2):  # the first is told what becomes of the values: the reason was another type's
        operate.resume(lake.settings, ALL.table("views"))
        lake.once()
    raw = lake.catalog.load_table(("raw_web", "views"))
    assert {field.name for field in raw.schema().fields if not field.name.startswith("_")} == {"id", "id__long"}
    rows = raw.scan().to_arrow().to_pylist()
    assert sorted(int(row["id"] or row["id__long"]) for row in rows) == sent(lake)


def test_a_topic_that_the_login_may_not_describe_is_not_called_deleted(lake: Lake) -> None:
    lake.broker.closed.add("views")
    declare(lake, ALL.table("views").model_copy(update={"columns": (typed("integer"),)}))
    lake.once()
    with store.connect_catalog(lake.settings) as states:
        says = str(store.read_positions(states, "web")["views"].reason)
    assert "topic views: the login may not describe and read it" in says and "deleted" not in says


PAGE = Column(name="page", data_type="text", description="")


def pages(lake: Lake) -> dict[int, str | None]:
    return {
        row["id"]: row["page"] for row in lake.catalog.load_table(("raw_web", "views")).scan().to_arrow().to_pylist()
    }


def test_kept_events_have_the_columns_that_are_declared_when_they_land(lake: Lake) -> None:
    """Those of a table that was resumed before a cycle had seen its new declaration lacked the values of new columns,
    and those whose type had changed became dead letters."""
    operate.pause(lake.settings, ALL.table("views"))
    lake.once()
    lake.broker.says = "p"
    lake.broker.send("views", 4)
    lake.once()
    assert spooled(lake) == 4
    declare(lake, ALL.table("views").model_copy(update={"columns": (typed("bigint"), PAGE)}))
    operate.resume(lake.settings, ALL.table("views"))
    lake.once()
    assert pages(lake) == dict.fromkeys(range(10, 20)) | dict.fromkeys(range(20, 24), "p")


def test_a_dead_letter_is_tried_again_as_its_table_is_declared_now(lake: Lake) -> None:
    """It was by the columns of the last cycle: the corrected type was not there yet, nor a column that was added."""
    narrow = replace_topic(renamed("new"), "later").model_copy(update={"columns": (typed("integer"),)})
    lake.broker.create("later")
    lake.broker.logs["later", 0] += [{"id": 1, "page": "a"}, {"id": 1 << 40, "page": "b"}]
    declare(lake, narrow)
    lake.once()
    assert lake.committed("new") == [1]
    declare(lake, narrow.model_copy(update={"columns": (typed("bigint"), PAGE)}))
    landed: list[RowCounts] = []
    lake.once(lambda session: landed.append(api.try_again(session, names=["new"])))
    assert landed == [{"new": {"c": 1}}], "and the command says so"
    rows = lake.catalog.load_table(("raw_web", "new")).scan().to_arrow().to_pylist()
    assert [(row["id"], row["page"]) for row in sorted(rows, key=lambda row: row["id"])] == [(1, None), (1 << 40, "b")]
    assert lake.catalog.load_table(("meta", "quarantine")).scan().to_arrow().num_rows == 0


def test_an_event_that_cannot_be_read_holds_up_no_other_where_it_comes_alone(lake: Lake) -> None:
    """A read that had nothing else of its topic failed, and with it every one of the source."""
    lake.broker.logs["views", 0].append({"id": "no number"})
    lake.broker.send("clicks", 4)
    lake.once()
    assert reason(lake, "views") == "" and len(lake.committed("views")) == 10 and len(lake.committed("clicks")) == 14
    assert lake.catalog.load_table(("meta", "quarantine")).scan().to_arrow().num_rows == 1


def test_a_paused_table_whose_type_changes_is_told_before_its_values_are_set_aside(lake: Lake) -> None:
    """Its column was empty for every row of before, and nothing said so: no topic is read anew."""
    operate.pause(lake.settings, ALL.table("views"))
    lake.once()
    declare(lake, ALL.table("views").model_copy(update={"columns": (typed("numeric"),)}))
    for state in ("parked", "streaming"):
        operate.resume(lake.settings, ALL.table("views"))
        lake.once()
        with store.connect_catalog(lake.settings) as states:
            position = store.read_positions(states, "web")["views"]
        assert position.state == state
        if state == "parked":
            assert "the values so far stay under the name id__long" in str(position.reason)
            assert lake.committed("views") == [*range(10, 20)]
    raw = lake.catalog.load_table(("raw_web", "views"))
    assert {field.name for field in raw.schema().fields if not field.name.startswith("_")} == {"id", "id__long"}
