"""Publishes, refreshes and readers of a current view in any order: no reader goes back, or sees what is not whole.

Tables, tags, views and cuts are real, and so is what decides on tags and texts. A version is a number; what a reader
would see is worked out from the text that he read and from what he finds then. A text has the JSON of what it names.
`RANDOM_SEED` runs one seed.
"""

import json
import os
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from ingestion.mirrors import copies, refresh, views
from ingestion.mirrors.fresh_sql import Kind
from ingestion.mirrors.view_parts import Position
from ingestion.schema.positions import Lsn
from ingestion.sink import publish as sink
from ingestion.sink.publication import Cut, Publication, TableAppend
from ingestion.state import store
from lakehouse.catalog.open import load_table
from lakehouse.catalog.relations import list_views, read_metadata
from lakehouse.catalog.views.current_views import CUT, MIRROR, TAIL, past_of, with_past
from lakehouse.catalog.views.tags import after_rewrites
from lakehouse.catalog.views.view_versions import LONG, NextView, Plain, with_version, write_view
from lakehouse.catalog.writing.commit import until_committed
from tests.marks import slow
from tests.unit.test_irregular import NOW, RAW, VIEW, Shop, shop  # noqa: F401

SEEDS = [int(os.environ["RANDOM_SEED"])] if "RANDOM_SEED" in os.environ else [1, slow(2), slow(3)]
STEPS = int(os.environ.get("STEPS", "120"))


@dataclass(frozen=True)
class Text:
    """What a text of the view names; the short one has a tag. The mirror has the versions up to `snapshot`, and the
    plain text says no more."""

    snapshot: int
    cut_lsn: int
    seen: str
    tag: str | None
    plain: bool = False


@dataclass
class Reader:
    """One that has read a text, and looks at the tables later. He may see nothing older than `floor`."""

    text: Text
    floor: int


@dataclass
class Lake:
    """What has happened to one table; `odd` are the versions that a short text cannot follow, and `plain` counts the
    readers of a plain one."""

    shop: Shop
    rng: random.Random
    lsn: int = 100
    state: str = "streaming"
    spool: list[int] = field(default_factory=list)
    landed: list[int] = field(default_factory=list)
    odd: set[int] = field(default_factory=set)
    stops: set[int] = field(default_factory=set)
    mirror: int = 0
    newest: int = 0
    plain: int = 0
    log: list[str] = field(default_factory=list)
    refreshing: Iterator[None] | None = None
    readers: list[Reader] = field(default_factory=list)

    @property
    def stream(self) -> store.Stream:
        found = store.read_stream(self.shop.states, "shop")
        assert found is not None
        return found

    def publish(self) -> None:
        """With a cut, of rows or of none; the table is in it if it streams."""
        kinds = ["regular", "regular", "left out", "truncate", "none"]
        self.publish_of(self.rng.choice(kinds if self.state == "streaming" else ["regular", "none", "none", "none"]))

    def publish_of(self, kind: str) -> None:
        """The same of rows of this kind."""
        self.lsn += 10
        appends: list[TableAppend] = []
        if self.state != "streaming":
            self.spool += [self.lsn] * (kind != "none")
        elif kind != "none":
            self.landed.append(self.lsn)
            self.odd |= {self.lsn} if kind != "regular" else set()
            self.stops |= {self.lsn} if kind == "truncate" else set()
            op, left_out = ("t" if kind == "truncate" else "u"), (["big"] if kind == "left out" else None)
            appends.append(self.shop.append(op, self.lsn, left_out))
        in_cut = ("items",) if self.state == "streaming" else ()
        joins = bool(in_cut) and "items" not in self.stream.cut_tables
        if joins and not appends:
            appends.append(TableAppend(RAW, (), {}))
        self._publish([replace(each, joins=joins) for each in appends], Cut(1, Lsn(self.lsn + 1), NOW, in_cut))
        self.log.append(f"publish {kind} {self.lsn} {in_cut} {'joins' if joins else ''}")

    def _publish(self, appends: list[TableAppend], cut: Cut | None) -> None:
        self.shop.number += 1
        to = cut.position if cut else None
        made = Publication(f"c{self.shop.number}", "shop", 1, tuple(appends), cut=cut, advance_to=to)
        sink.publish(self.shop.settings, self.shop.catalog, self.shop.lease, made)

    def pause_or_resume(self) -> None:
        """What was spooled lands in no cut, and the next one has the table."""
        if self.state == "streaming":
            self.state = "paused"
        else:
            self.land_in_no_cut(self.spool)
            self.state, self.spool = "streaming", []
        self.log.append(self.state)

    def land_in_no_cut(self, lsns: list[int]) -> None:
        """As what was spooled does, and what a repair or a replay brings."""
        files = tuple(file for lsn in lsns for file in self.shop.append(lsn=lsn).data_files)
        self._publish([TableAppend(RAW, files, {"lakehouse.rows.u": "2"})] if files else [], None)
        self.landed += lsns
        self.odd |= set(lsns)

    def rewrite(self) -> None:
        """A compaction, and what expiry does to the tags."""
        with self.shop.catalog.load_table(RAW).transaction() as rewriting:
            rewriting.update_snapshot().fast_append().commit()
        if self.rng.random() < 0.5:
            until_committed(self.shop.catalog, RAW, lambda found: after_rewrites(found.metadata))
        self.log.append("rewrite")

    def refresh(self) -> None:
        """The next part of a refresh."""
        self.refreshing = self.refreshing or self._refresh()
        try:
            next(self.refreshing)
        except StopIteration:
            self.refreshing = None

    def refresh_alone(self) -> None:
        """A whole refresh, beside which nothing happens."""
        self.refresh()
        while self.refreshing:
            self.refresh()

    def _refresh(self) -> Iterator[None]:
        table = SimpleNamespace(name="items", identifier=RAW)
        session: Any = SimpleNamespace(catalog=self.shop.catalog, name="shop", source=SimpleNamespace(mirrored=[table]))
        before, tags = refresh._raw_snapshots(session)
        self.log.append(f"refresh: tags {tags}")
        yield
        stream, seen, positions = self.stream, self.shop.seen, {"items": SimpleNamespace(state=self.state)}
        self.log.append(f"refresh: cut {stream.cut_lsn} {stream.cut_tables}")
        yield
        if "items" not in stream.cut_tables:
            return
        item: Any = SimpleNamespace(table=table, raw=self.shop.catalog.load_table(RAW))
        assert stream.cut_lsn is not None
        self.mirror = max((lsn for lsn in self.landed if lsn <= stream.cut_lsn), default=0)
        yield
        given: Any = (session, self.shop.states, [item], positions, tags, seen)
        tag = refresh._regular(*given).get("items")
        text = Text(self.mirror, stream.cut_lsn, seen.isoformat(), tag)
        yield
        if (view := self._next(text, before.get(RAW))) is None:
            return
        yield
        made = copies.Published("shop", seen, stream.cut_lsn, (), (view,), None)
        copies.publish(self.shop.settings, self.shop.catalog, self.shop.mirrors, made)
        self.log.append(f"refresh: {text}, now {self.text}")

    def _next(self, text: Text, read: int | None) -> NextView | None:
        """As a refresh makes it that has read raw up to that snapshot: a long version, a short and a plain one."""
        base = list_views(self.shop.catalog, [VIEW])[VIEW]
        metadata = read_metadata(self.shop.catalog.file_io, base)
        assert metadata is not None
        io, raw = self.shop.catalog.file_io, self.shop.catalog.load_table(RAW)
        at, table = Position(text.snapshot, 1, text.cut_lsn, NOW, text.tag), SimpleNamespace(name="items")
        kind = views._kind(views.Mirrored(table, None, at, raw_snapshot=read), raw)  # type: ignore[arg-type]
        named = self.text
        if named and (named.tag is None) == (text.tag is None) and named.plain == (kind == Kind.PLAIN):
            is_due = (named.snapshot, named.tag) != (text.snapshot, text.tag)
            if not is_due:
                return None
        long = with_version(
            metadata, {"trino": with_past(json.dumps(asdict(replace(text, tag=None))), CUT, "", "")}, {}
        )
        if text.tag is None:
            return NextView(VIEW, base, write_view(io, long), "items")
        summary = {LONG: str(long["current-version-id"])}
        short = with_version(long, {"trino": with_past(json.dumps(asdict(text)), TAIL, "", "")}, summary)
        made = NextView(VIEW, base, write_view(io, short), "items", is_short=True)
        if kind == Kind.SHORT:
            return made
        told = with_past(json.dumps(asdict(replace(text, plain=True))), MIRROR, "", "")
        plain = write_view(io, with_version(short, {"trino": told}, summary))
        return replace(made, plain=Plain(plain, RAW, raw.metadata_location))

    @property
    def text(self) -> Text | None:
        found = past_of(self.shop.text)
        return Text(**json.loads(found)) if found.startswith("{") else None

    def read(self) -> None:
        """Somebody reads the text, and looks at the tables at once or later."""
        if self.readers and self.rng.random() < 0.2:
            self._look(self.readers.pop(self.rng.randrange(len(self.readers))))
        if (text := self.text) is not None:
            self.plain += text.plain
            later = [lsn for lsn in self.landed if lsn > text.snapshot]
            assert not (text.plain and later), f"{later} behind a plain text"
            self._look(Reader(text, self.newest))
            if self.rng.random() < 0.2:
                self.readers.append(Reader(text, self.newest))

    def _look(self, reader: Reader) -> None:
        text = reader.text
        shown = text.snapshot if text.plain else self._short(text) if text.tag else self._long(text)
        self.log.append(f"read {text}: {shown}")
        assert shown >= reader.floor, f"{shown} after {reader.floor}"
        self.newest = max(self.newest, shown)

    def _short(self, text: Text) -> int:
        raw = self.shop.catalog.load_table(RAW)
        at = raw.metadata.refs.get(text.tag or "")
        if at is None:  # an engine refuses a text that is so old
            assert text != self.text, f"{text.tag} is gone"
            return self.newest
        rows = raw.scan(snapshot_id=at.snapshot_id).to_arrow()["_commit_lsn"].to_pylist()
        tail = {lsn for lsn in rows if lsn > text.cut_lsn and lsn % 10 == 0}
        newest = max(tail, default=text.snapshot)
        assert not tail & self.odd, f"{sorted(tail & self.odd)} behind a short text"
        assert tail == {lsn for lsn in self.landed if text.cut_lsn < lsn <= newest}, "a prefix"
        return newest

    def _long(self, text: Text) -> int:
        until = text.cut_lsn
        cuts = load_table(self.shop.catalog, "meta", "cuts")
        assert cuts is not None
        since = datetime.fromisoformat(text.seen)
        for cut in sorted(cuts.scan().to_arrow().to_pylist(), key=lambda row: row["published_at"]):
            if cut["published_at"] > since:
                if "items" not in dict(cut["snapshots"]):
                    break
                until = cut["cut_lsn"]
        stop = min((lsn for lsn in self.stops if lsn > text.cut_lsn), default=until + 1)
        followed = [lsn for lsn in self.landed if text.cut_lsn < lsn <= until and lsn < stop]
        return max(followed, default=text.snapshot)


@pytest.mark.parametrize("has_cut", [False, True])
@pytest.mark.parametrize("kind", ["left out", "regular"])
@pytest.mark.parametrize("parts", [3, 5])
def test_a_row_that_a_repair_lands_during_a_refresh_stays_in_sight(
    shop: Shop,  # noqa: F811
    parts: int,
    kind: str,
    has_cut: bool,
) -> None:
    """It is of the cut that the refresh has read, and neither in the mirror nor behind the position of the new text."""
    lake = Lake(shop, random.Random(1))
    lake.landed, lake.mirror = [10], 10
    lake.publish_of("regular")
    lake.refresh_alone()
    lake.publish_of(kind)
    for _ in range(parts):
        lake.refresh()
    cut = lake.stream.cut_lsn
    assert cut is not None
    if has_cut:  # as `reconcile --repair`; `--replay` has none
        repaired = TableAppend(RAW, lake.shop.append(lsn=cut).data_files, {"lakehouse.rows.r": "2"})
        lake._publish([repaired], Cut(1, Lsn(cut + 1), NOW, ("items",)))
    else:
        lake.land_in_no_cut([cut])
    assert lake.text and lake.text.cut_lsn < cut, "readers have seen it"
    while lake.refreshing:
        lake.refresh()
    assert lake.text.cut_lsn < cut


@pytest.mark.parametrize("seed", SEEDS)
def test_no_reader_of_a_view_goes_back_or_sees_what_its_text_cannot_follow(shop: Shop, seed: int) -> None:  # noqa: F811
    lake = Lake(shop, random.Random(seed))
    lake.landed, lake.mirror = [10], 10
    steps = [
        (8, lake.publish),
        (2, lake.pause_or_resume),
        (1, lake.rewrite),
        (8, lake.refresh),
        (2, lake.refresh_alone),
    ]
    try:
        for _ in range(STEPS):
            lake.rng.choices([step for _, step in steps], [weight for weight, _ in steps])[0]()
            lake.read()
    except AssertionError as error:
        raise AssertionError("\n".join([f"seed {seed}: {error}", *lake.log])) from error
    assert lake.plain, "nobody has read a plain text"
