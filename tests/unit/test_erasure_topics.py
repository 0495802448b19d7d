"""A person is erased from topics of plain events: from raw, what is kept aside and what a follower has shown."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from held_topics import AT, FLUSH, Lake, make_lake
from pyiceberg.io.pyarrow import PyArrowFileIO

from erasure import run, steps
from erasure.steps import Erasure
from ingestion.pipeline.cycle import run_cycle
from ingestion.pipeline.session import Session
from ingestion.run import api, operate
from ingestion.run.recover import begin_next_epoch
from ingestion.sources.kafka import source as module
from ingestion.sources.kafka.events import EVENTS_SCHEMA
from ingestion.sources.kafka.reading import TopicReader
from ingestion.state import lease as leases
from ingestion.state import store
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.declarations import Column, Declarations, RawTable, Source
from lakehouse.declarations.policies import FlushPolicy, LoadPolicy, RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.erasing import holds

pytestmark = pytest.mark.stack
COLUMNS = {"id": "bigint", "user_id": "bigint", "device": "uuid", "email": "text", "page": "text"}
DEVICE = "0f3c1a52-9d4e-4b7a-8c11-aabbccddeeff"
ANN, BEN = "ann.person@example.com", "ben.person@example.com"
Event = tuple[Any, Any]  # the key and the value of a message


def clicks(*key: str, flush: FlushPolicy | None = None, columns: dict[str, str] = COLUMNS, **policy: Any) -> Source:
    table = RawTable(
        source="web", name="clicks", description="", kind="kafka", owners=(), flush=flush, load=LoadPolicy(),
        raw=RawPolicy.model_validate({"topic": "clicks", "key": key, "personal": ("email",)} | policy),
        columns=tuple(Column(name=n, data_type=kind, description="") for n, kind in columns.items()),
        maintenance=None, mirror="none",
    )  # fmt: skip
    return Source(name="web", description="", load=LoadPolicy(), tables=(table,))


class People:
    """The lake, what is sent to it, and its erasures."""

    def __init__(self, lake: Lake, folder: Path) -> None:
        self.lake, self.folder = lake, folder

    @property
    def declared(self) -> Declarations:
        return Declarations(sources=(self.lake.source,))

    def begin(self, *events: Any, declared: Source | None = None) -> None:
        """The table, with these events."""
        self.lake.source = declared or clicks()
        self.send(*events)
        self.lake.once()

    def send(self, *events: Any) -> None:
        """Events without a key, those of (key, value) with one."""
        pairs = (event if isinstance(event, tuple) else (None, event) for event in events)
        self.lake.broker.logs["clicks", 0].extend(cast(Any, [(_bytes(key), _bytes(value)) for key, value in pairs]))

    def erase(self, *words: str) -> Erasure:
        return run.erase(self.lake.settings, self.declared, {}, "web.clicks", words, cast(Any, None))

    def repeat(self) -> tuple[list[Erasure], list[str]]:
        return run.repeat(self.lake.settings, self.declared, {}, "web", cast(Any, None))

    def found(self) -> list[str]:
        """The tables that hold somebody who was erased."""
        traces = run.verify(self.lake.settings, {}, self.lake.source.table("clicks")).traces
        return sorted({trace.table for trace in traces})

    def rows(self, name: str = "raw_web.clicks") -> list[dict[str, Any]]:
        table = load_table(self.lake.catalog, *name.split("."))
        rows = table.scan().to_arrow().to_pylist() if table else []
        return sorted(rows, key=lambda row: row.get("_offset", row.get("offset")))

    def files_with(self, *texts: str) -> list[str]:
        needles = [text.encode() for text in texts]
        return [p.name for p in self.folder.rglob("*") if p.is_file() and holds(p, needles)]


def _bytes(given: Any) -> bytes | None:
    return given if isinstance(given, bytes | None) else json.dumps(given).encode()


@pytest.fixture
def people(
    catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[People]:
    settings = catalog_settings.model_copy(update={"warehouse": f"file://{tmp_path}", "home": tmp_path / "home"})
    lake = make_lake(settings, postgres_catalog, monkeypatch)

    def fetched(reader: TopicReader) -> Iterator[tuple[str, pa.Table]]:
        for r in reader.ranges:
            log = cast(list[Event], lake.broker.logs[r.topic, r.partition])
            rows = [
                {"partition": r.partition, "offset": n, "at": AT, "key": log[n][0], "value": log[n][1]}
                for n in range(r.first, r.end)
            ]
            yield r.topic, pa.Table.from_pylist(rows, schema=EVENTS_SCHEMA)

    @contextmanager
    def alone(*given: Any) -> Iterator[Session]:
        with store.connect_catalog(lake.settings) as states:
            lease = leases.take_over(states, "web", 60)
            origin = module.KafkaSource(lake.settings, "web")
            session = Session(lake.settings, lake.catalog, cast(Any, None), lease, lake.source, origin=origin)
            try:
                run_cycle(session)
                yield session
            finally:
                leases.release(states, lease)

    monkeypatch.setattr(lake.broker, "fetched", fetched)
    monkeypatch.setattr(run, "up_to_date_alone", alone)
    monkeypatch.setattr(run, "open_catalog", lambda _: _Open(lake.catalog))
    for part in (run, steps):
        monkeypatch.setattr(part, "open_io", lambda _: PyArrowFileIO())
    monkeypatch.setattr(steps, "await_readers", lambda _: None)
    monkeypatch.setattr(steps, "refresh", lambda *_: SimpleNamespace(aside=()))
    yield People(lake, tmp_path)
    if lake.follower is not None:
        lake.kill()


class _Open:
    """The catalog, which another one closes."""

    def __init__(self, catalog: LakeCatalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def close(self) -> None:
        pass


def click(number: int, user: int | None, email: str | None, **more: Any) -> dict[str, Any]:
    return {"id": number, "user_id": user, "email": email, "page": f"/{number}"} | more


def test_events_without_a_key_are_emptied_by_the_column_that_names_the_person(people: People) -> None:
    people.begin(click(0, 42, ANN), click(1, 43, BEN), click(2, None, "nobody@example.com"), click(3, 42, ANN))
    erasure = people.erase("user_id=042")
    assert erasure.left == [] and erasure.subjects == ["web.clicks user_id=42"] and erasure.nameless == 1
    assert "topic clicks has the events until its retention" in erasure.elsewhere
    rows = people.rows()
    assert [row["email"] for row in rows] == [None, BEN, "nobody@example.com", None]
    assert [(row["id"], row["user_id"], row["page"]) for row in rows] == [
        (0, 42, "/0"), (1, 43, "/1"), (2, None, "/2"), (3, 42, "/3"),
    ]  # fmt: skip
    assert people.files_with(ANN) == [] and people.files_with(BEN) and people.found() == []
    people.send(click(4, 42, ANN))
    people.lake.once()
    assert people.found() == ["raw_web.clicks"], "who comes again is found, and erased again"
    [again], problems = people.repeat()
    assert again.left == [] and problems == [] and people.files_with(ANN) == []


def test_a_topic_that_is_read_from_its_beginning_brings_nobody_back(people: People) -> None:
    events = [click(0, 42, ANN), click(1, 43, BEN)]
    people.begin(*events)
    people.erase("user_id=42")
    people.lake.broker.create_again("clicks")
    people.send(*events)
    people.lake.once(begin_next_epoch)
    people.lake.once()
    assert people.found() == ["raw_web.clicks"]
    [again], problems = people.repeat()  # as `ingest --recover` does
    assert again.left == [] and problems == [] and people.files_with(ANN) == []
    assert [row["email"] for row in people.rows()] == [None, None, BEN, BEN]


def test_people_are_named_by_different_columns_of_the_same_events(people: People) -> None:
    people.begin(click(0, 42, ANN, device=DEVICE), click(1, 43, BEN), click(2, 44, "cyd.person@example.com"))
    for words in (("user_id=43",), ("user_id=42", f"device={DEVICE}")):
        assert people.erase(*words).left == []
    assert people.files_with(ANN, BEN) == [] and people.files_with("cyd.person@example.com")
    assert {tuple(stone.key) for stone in run.remembered(people.lake.settings)} == {
        ("user_id",), ("device", "user_id"),
    }  # fmt: skip
    people.send(click(3, 42, ANN, device=DEVICE), click(4, 42, "ann.other@example.com"))
    people.lake.once()
    assert people.found() == ["raw_web.clicks"]
    done, problems = people.repeat()
    assert [erasure.left for erasure in done] == [[], []] and problems == []
    assert people.files_with(ANN) == [] and people.files_with("ann.other@example.com")


def test_a_value_that_is_written_in_several_ways_names_one_person(people: People) -> None:
    spelled = (DEVICE, DEVICE.upper(), DEVICE.replace("-", ""))
    people.begin(*(click(n, n, f"{n}.{ANN}", device=device) for n, device in enumerate(spelled)))
    people.send(click(9, 9, BEN, device=DEVICE.replace("0", "1")))
    people.lake.once()
    operate.pause(people.lake.settings, people.lake.source.table("clicks"))
    people.send(click(10, 10, f"10.{ANN}", device="{" + DEVICE.upper() + "}"))
    assert people.erase(f"device={DEVICE.upper()}").left == []
    assert people.files_with(ANN) == [] and people.files_with(BEN)
    assert [row["device"] for row in people.rows()][:3] == list(spelled), "what names them is as it was"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["email=x"], "its events have no key: name the subject by the value of id or user_id or device, which are"),
        (["page=x"], "neither personal nor masked"),
        (["nothing=x"], "neither personal nor masked"),
        ([], "neither personal nor masked"),
        (["user_id=x"], "user_id=x is no bigint that the lake can hold"),
        (["user_id=42.0"], "user_id=42.0 is no bigint"),
        (["user_id=99"], "the lake has no row with user_id=99"),
    ],
)
def test_what_cannot_name_somebody_is_refused_in_one_line(people: People, words: list[str], says: str) -> None:
    people.begin(click(0, 42, ANN), declared=clicks(mask={"page": "sha256"}))
    with pytest.raises(LakehouseError, match=says) as told:
        people.erase(*words)
    assert "\n" not in str(told.value) and run.remembered(people.lake.settings) == ()
    assert people.rows()[0]["email"] == ANN


def test_a_column_that_is_declared_no_more_names_nobody_and_is_in_nobody_elses_way(people: People) -> None:
    people.begin(click(0, 42, ANN, device=DEVICE), click(1, 43, BEN))
    people.erase("user_id=43")
    people.erase(f"device={DEVICE}")
    people.lake.source = clicks(columns={name: kind for name, kind in COLUMNS.items() if name != "device"})
    people.lake.once()
    done, problems = people.repeat()
    assert [erasure.subjects for erasure in done] == [["web.clicks user_id=43"]]
    assert "key column device is not among those that were ingested: declare it again" in problems[0]
    assert people.found() == ["raw_web.clicks"], "and the daily check says so"


# ----------------------------------------------------------------------------------------------- events with a key


def user(number: int, email: str | None, **more: Any) -> Event:
    return str(number).encode(), {"id": number, "email": email} | more


GONE: Callable[[int], Event] = lambda number: (str(number).encode(), None)  # noqa: E731


def test_a_key_is_erased_once_its_topic_says_that_its_row_is_gone(people: People) -> None:
    people.begin(user(5, ANN), user(6, BEN), user(5, f"new.{ANN}"), declared=clicks("id"))
    says = (
        "web.clicks id=5: the newest event of id=5 in topic clicks has personal data, so its row is there: "
        "write an event without a value for that key, then run this again"
    )
    with pytest.raises(LakehouseError) as told:
        people.erase("id=5")
    assert str(told.value) == says and run.remembered(people.lake.settings) == ()
    _, look, problem = run.preview(people.lake.settings, people.declared, {}, "web.clicks", ["id=5"])
    assert problem is not None and "the newest event of id=5" in problem and len(look.traces) > 0
    people.send(GONE(5))
    assert people.erase("id=5").left == []
    assert [(row["_op"], row["id"], row["email"]) for row in people.rows()] == [
        ("c", 5, None), ("c", 6, BEN), ("c", 5, None), ("d", 5, None),
    ]  # fmt: skip
    assert people.files_with(ANN) == [] and people.found() == []
    people.send(user(5, ANN))
    people.lake.once()
    assert people.repeat()[1][0] == says and people.found() == ["raw_web.clicks"]
    people.send((b'{"id": 5}', {"id": 5, "email": None, "page": None}))
    [again], problems = people.repeat()
    assert again.left == [] and problems == [], "an event that leaves nothing personal is as good as a delete"


def test_a_dry_run_names_the_pin_that_keeps_the_person(people: People) -> None:
    people.begin(user(5, ANN), GONE(5), declared=clicks("id"))
    with closing(open_catalog(people.lake.settings)) as catalog:
        table = catalog.load_table(("raw_web", "clicks"))
        table.manage_snapshots().create_tag(table.snapshots()[-1].snapshot_id, "pin_report").commit()
    _, _, problem = run.preview(people.lake.settings, people.declared, {}, "web.clicks", ["id=5"])
    assert problem == "raw_web.clicks: pin report keeps old snapshots: run `lakehouse maintain unpin report` first"


def test_who_is_in_a_topic_again_is_in_nobody_elses_way(people: People) -> None:
    events = [user(5, ANN), GONE(5), user(6, BEN), GONE(6)]
    people.begin(*events, declared=clicks("id"))
    people.erase("id=5"), people.erase("id=6")
    people.lake.broker.create_again("clicks")
    people.send(*events, user(6, BEN))
    people.lake.once(begin_next_epoch)
    people.lake.once()
    done, problems = people.repeat()
    assert [erasure.subjects for erasure in done] == [["web.clicks id=5"]] and people.files_with(ANN) == []
    assert len(problems) == 2 and problems[0].startswith("web.clicks id=6: the newest event of id=6 in topic clicks")


def test_what_is_kept_aside_of_a_key_loses_the_person_and_lands_later(people: People) -> None:
    people.begin(user(5, ANN), user(6, BEN), declared=clicks("id"))
    table = people.lake.source.table("clicks")
    operate.pause(people.lake.settings, table)
    secret = {"secret": f"undeclared.{ANN}"}
    tombstone = json.dumps({"id": 5, "email": ANN}).encode()
    people.send((ANN.encode(), user(5, f"spooled.{ANN}", **secret)[1]), user(6, f"new.{BEN}"))
    with pytest.raises(LakehouseError, match="the newest event of id=5"):
        people.erase("id=5")
    people.send((tombstone, None))
    assert people.erase("id=5").left == []
    assert people.files_with(ANN) == [] and len(people.rows("meta.spool")) == 3
    assert all(ANN not in _opened(row["message"]) for row in people.rows("meta.spool"))
    operate.resume(people.lake.settings, table)
    people.lake.once()
    assert [(row["_op"], row["id"], row["email"]) for row in people.rows()] == [
        ("c", 5, None), ("c", 6, BEN), ("c", 5, None), ("c", 6, f"new.{BEN}"), ("d", 5, None),
    ]  # fmt: skip
    assert people.files_with(ANN) == []


def _opened(message: bytes) -> str:
    from base64 import b64decode

    head, _, value = message.partition(b"\n")
    return f"{b64decode(json.loads(head)['key'] or '')!r} {value!r}"


def test_dead_letters_lose_the_person_whether_they_can_be_read_or_not(people: People) -> None:
    people.begin(
        click(0, 42, ANN), click(1, 43, BEN),
        click(2, 42, ANN, device=7, id="no number"),  # its key is told, and it lands once it is declared so
        click(3, 43, BEN, id="no number"),
        f'{{"user_id": 42, "email": "{ANN}'.encode(), f'{{"user_id": 43, "email": "{BEN}'.encode(),  # cut off
        (json.dumps({"user_id": 42, "email": ANN}).encode(), None), (ANN.encode(), None), (BEN.encode(), None),
    )  # fmt: skip
    assert [row["offset"] for row in people.rows("meta.quarantine")] == [*range(2, 9)]
    erasure = people.erase("user_id=42")
    assert erasure.left == [] and people.files_with(ANN) == []
    left = people.rows("meta.quarantine")
    assert [row["offset"] for row in left] == [2, 3, 5, 6, 8] and erasure.unreadable_records == 2
    assert all(ANN not in _opened(row["message"]) for row in left)
    assert sum(BEN in _opened(row["message"]) for row in left) == 3
    people.lake.source = clicks(columns=COLUMNS | {"id": "text"})
    people.lake.once()
    operate.resume(people.lake.settings, people.lake.source.table("clicks"))
    people.lake.once(lambda session: api.try_again(session, ["clicks"]))
    landed = {row["_offset"]: (row["user_id"], row["email"]) for row in people.rows()}
    assert landed[2] == (42, None) and landed[3] == (43, BEN) and people.files_with(ANN) == []


def test_what_a_follower_has_shown_and_not_published_does_not_keep_the_person(people: People) -> None:
    lake = people.lake
    people.begin(click(0, 42, ANN), click(1, 43, BEN), declared=clicks(flush=FLUSH))
    follower = lake.start()
    people.send(click(2, 42, f"live.{ANN}"), click(3, 43, BEN))
    assert follower.read() == 0 and [*lake.shown()] == [0, 1, 2, 3] and lake.committed() == [0, 1]
    with pytest.raises(LakehouseError, match="is at work: stop it"):
        people.erase("user_id=42")
    location = lake.document().location
    lake.kill()
    with store.connect_catalog(lake.settings) as states:
        states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp()")
    assert people.erase("user_id=42").left == []
    assert people.files_with(ANN) == []
    assert lake.document().location != location and lake.shown() == [0, 1, 2, 3]
    assert [row["email"] for row in people.rows()] == [None, BEN, None, BEN]
    assert lake.start().read() == 0 and people.files_with(ANN) == []
