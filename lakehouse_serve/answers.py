"""What the catalog answers to a login, as Iceberg's REST catalog specification has it (rest-catalog-open-api.yaml).

A table is answered with the text of its metadata file, parsed only where it has to be changed, and keys for its files.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lakehouse.catalog.pins import CUT
from lakehouse.catalog.views.current_views import as_loaded
from lakehouse.servers.logins import Rights
from lakehouse_serve.access.tokens import Tokens
from lakehouse_serve.past.cuts import Cut, Cuts, NoCut, is_exactly
from lakehouse_serve.past.moments import Moment, parse_warehouse, prefix_of, warehouse_of
from lakehouse_serve.past.reads import Read, refuse_unread, said_of_unread, unread
from lakehouse_serve.past.snapshots import AsOf, Chosen, NoSnapshot, at_snapshot, has_snapshot, kept_since, without_pins
from lakehouse_serve.past.states import positions_of
from lakehouse_serve.reading import OF_SOURCES, Document, Kind
from lakehouse_serve.relations import Personal, Relations

Snapshots = Mapping[tuple[str, str], Chosen]
PREFIX = "/v1/{prefix}"
NAMESPACE = "/namespaces/{namespace}"
READS: tuple[tuple[str, str], ...] = (
    ("GET", "/namespaces"),
    ("GET", NAMESPACE),
    ("HEAD", NAMESPACE),
    ("GET", f"{NAMESPACE}/tables"),
    ("GET", f"{NAMESPACE}/tables/{{table}}"),
    ("HEAD", f"{NAMESPACE}/tables/{{table}}"),
    ("GET", f"{NAMESPACE}/tables/{{table}}/credentials"),
    ("POST", f"{NAMESPACE}/tables/{{table}}/metrics"),
    ("GET", f"{NAMESPACE}/views"),
    ("GET", f"{NAMESPACE}/views/{{view}}"),
    ("HEAD", f"{NAMESPACE}/views/{{view}}"),
)
"""Clients learn from this list what they may ask for. They compare it with the specification letter by letter."""
NOT_IN_STATE = (
    " in that state: no cut of its source has it, or the source was not read until then; ask for the source's position"
)


class Refused(Exception):
    """An answer that is an error: HTTP status, the specification's type of error, and a text."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass(frozen=True)
class Access:
    """Where clients find the store, and what they have to know of it."""

    endpoint: str
    region: str


@dataclass(frozen=True)
class Caller:
    """Who asks; `mark` is that of the token, and goes into keys."""

    login: str
    rights: Rights
    mark: str


@dataclass(frozen=True)
class Answers:
    """Answers to one caller at a time; keeps no state of callers. `cuts` are those of raw tables."""

    catalog: str
    relations: Relations
    cuts: Cuts
    mirrors: Cuts
    tokens: Tokens
    access: Access

    def config(self, caller: Caller, warehouse: str) -> dict[str, Any]:
        """What a client has to know first. Raises Refused for a warehouse that is none, or has nothing for the caller.

        A moment becomes the cuts that it stands for, so that all that the client reads is of these cuts, also when a
        cut of an earlier time is published meanwhile.
        """
        moment = self._moment(warehouse)
        prefix = self.catalog if moment is None else prefix_of(f"{self.catalog}@{self._fixed(caller, moment)}")
        if moment is not None and not self._has_any(caller, prefix):
            instead = self._said_of_late(caller, moment) or self._oldest(caller, self._readable(caller))
            raise Refused(
                404, "NotFoundException", f"{warehouse} has nothing for the role {caller.rights.role}{instead}"
            )
        endpoints = [f"{method} {PREFIX}{path}" for method, path in READS]
        return {"defaults": {}, "overrides": {"prefix": prefix}, "endpoints": endpoints}

    def namespaces(self, caller: Caller, prefix: str, parent: str | None) -> dict[str, Any]:
        """All namespaces with something for the caller; they have one level."""
        return {"namespaces": [] if parent else [[name] for name in self._namespaces(caller, prefix)]}

    def namespace(self, caller: Caller, prefix: str, namespace: str) -> dict[str, Any]:
        """A namespace; it has no properties of its own."""
        if namespace not in self._namespaces(caller, prefix):
            raise Refused(404, "NoSuchNamespaceException", f"there is no namespace {namespace}")
        return {"namespace": [namespace], "properties": {}}

    def names(self, caller: Caller, prefix: str, namespace: str, kind: Kind) -> dict[str, Any]:
        """The tables or views of a namespace."""
        self.namespace(caller, prefix, namespace)
        names = [name for found, name in self._relations(caller, prefix, kind) if found == namespace]
        return {"identifiers": [{"namespace": [namespace], "name": name} for name in names]}

    def table(self, caller: Caller, prefix: str, namespace: str, name: str) -> bytes:
        """A table's metadata and keys for its files, as JSON."""
        snapshots = self._snapshots(caller, prefix)
        document = self._document(caller, snapshots, namespace, name, "TABLE")
        content, location = document.content, document.location
        if snapshots is not None:
            state = AsOf(location, snapshots[namespace, name])
            try:
                content = json.dumps(at_snapshot(document.metadata, state.chosen)).encode()
            except NoSnapshot:
                text = f"{_expired(namespace, name)}{self._oldest(caller, [document])}"
                raise Refused(404, "NoSuchTableException", text) from None
            location = state.location
        elif caller.rights.namespaces is not None and CUT.encode() in content:
            content = json.dumps(without_pins(document.metadata)).encode()
        keys = self._keys(caller, namespace, name, document)
        rest = {"config": keys, "storage-credentials": [_credential(document, keys)]}
        return _joined({"metadata-location": location}, content, rest)

    def credentials(self, caller: Caller, prefix: str, namespace: str, name: str) -> dict[str, Any]:
        """New keys for a table's files."""
        document = self._document(caller, self._snapshots(caller, prefix), namespace, name, "TABLE")
        return {"storage-credentials": [_credential(document, self._keys(caller, namespace, name, document))]}

    def view(self, caller: Caller, prefix: str, namespace: str, name: str) -> bytes:
        """A view's metadata, as JSON; a current view as of the last load, for its caller reads with his own rights."""
        document = self._document(caller, self._snapshots(caller, prefix), namespace, name, "VIEW")
        content = json.dumps(as_loaded(document.metadata)).encode()
        return _joined({"metadata-location": document.location}, content, {"config": {}})

    def _namespaces(self, caller: Caller, prefix: str) -> list[str]:
        found = {namespace for kind in _KINDS for namespace, _ in self._relations(caller, prefix, kind)}
        return sorted(found)

    def _relations(self, caller: Caller, prefix: str, kind: Kind) -> list[tuple[str, str]]:
        """What the caller may know of; as of a moment, the tables that it covers."""
        found, covered = self.relations.names(caller.rights, kind), self._snapshots(caller, prefix)
        if covered is None and kind == "TABLE":
            return sorted({*found, *self.relations.live_names(caller.rights)})
        return found if covered is None else [name for name in found if name in covered and kind == "TABLE"]

    def _document(self, caller: Caller, covered: Snapshots | None, namespace: str, name: str, kind: Kind) -> Document:
        document = None
        try:
            if covered is None or ((namespace, name) in covered and kind == "TABLE"):
                document = self.relations.find(caller.rights, kind, namespace, name)
        except Personal as columns:
            text = f"{namespace}.{name} has personal columns ({columns}): use a login that may read them"
            raise Refused(403, "ForbiddenException", text) from None
        if document is None:
            what = "table" if kind == "TABLE" else "view"
            is_of_then = covered is not None and caller.rights.namespaces is None and namespace.startswith(OF_SOURCES)
            why = NOT_IN_STATE if is_of_then else ""
            raise Refused(404, f"NoSuch{what.title()}Exception", f"there is no {what} {namespace}.{name}{why}")
        return document

    def _snapshots(self, caller: Caller, prefix: str) -> Snapshots | None:
        """The tables that a prefix stands for, each at a snapshot; None is all that there is now."""
        moment = self._moment(self._warehouse(prefix))
        if moment is None:
            return None
        if moment.pin is not None:
            kept = self._pinned(moment.pin)
            if moment.state not in (None, _told(kept)):
                raise Refused(
                    404, "NotFoundException", f"the pin {moment.pin!r} is of another state now: connect again"
                )
            return kept
        cuts = self._cuts(caller, moment)
        if moment.names_cuts and not is_exactly(moment, cuts):
            raise _listed_no_more()
        listed = (*cuts, *self._mirrored(moment, cuts))
        return {name: Chosen(found, cut.position) for cut in listed for name, found in cut.tables.items()}

    def _fixed(self, caller: Caller, moment: Moment) -> str:
        """What names the same state also when newer cuts have been published."""
        if moment.pin is None:
            reads = self.relations.rows.reads()  # first: what is read meanwhile is in a later cut
            cuts = self._read(moment, self._cuts(caller, moment), reads)
            return f"{positions_of(cuts)}!{positions_of(self._mirrored(moment, cuts))}"
        return f"pin:{moment.pin}!{_told(self._pinned(moment.pin))}"

    def _pinned(self, pin: str) -> Snapshots:
        if kept := self.relations.rows.pinned(pin):
            return kept
        raise Refused(404, "NotFoundException", f"there is no pin {pin!r}")

    def _moment(self, warehouse: str) -> Moment | None:
        try:
            return parse_warehouse(warehouse, self.catalog)
        except ValueError as error:
            raise Refused(404, "NotFoundException", str(error)) from None

    def _cuts(self, caller: Caller, moment: Moment) -> tuple[Cut, ...]:
        """Those of all sources, whose names are not for everybody."""
        if caller.rights.namespaces is not None:
            text = f"a login with namespaces of its own reads {self.catalog} and its pins: cuts are of raw tables"
            raise Refused(404, "NotFoundException", text)
        try:
            return self.cuts.at(moment, datetime.now(UTC))
        except NoCut as error:
            raise Refused(404, "NotFoundException", str(error)) from None

    def _read(self, moment: Moment, cuts: tuple[Cut, ...], reads: Mapping[str, Read]) -> tuple[Cut, ...]:
        """The cuts of those sources that were read until the moment. Raises Refused if there is none.

        No client shows a remark, so a source that was not read until then has no tables there. Those of the others are
        what was asked for. A client that asks for now gets what a follower has read by its pace.
        """
        try:
            refuse_unread(moment, cuts, reads)
        except NoCut as error:
            raise Refused(404, "NotFoundException", str(error)) from None
        late = unread(moment, cuts, reads, self.relations.rows.pace)
        if known := tuple(cut for cut in cuts if cut.source not in late):
            return known
        latest = max(read.until for read in late.values()).astimezone(UTC)
        ask = f"ask for {self.catalog}@{latest:%Y-%m-%dT%H:%M:%S} or earlier, or for a cut by its position"
        raise Refused(404, "NotFoundException", f"{_said_of(late)}; {ask}")

    def _said_of_late(self, caller: Caller, moment: Moment) -> str:
        """Says which sources were not read until the moment; nothing where all were."""
        if moment.at is None:
            return ""
        rows = self.relations.rows
        late = unread(moment, self._cuts(caller, moment), rows.reads(), rows.pace)
        return f"; {_said_of(late)}" if late else ""

    def _mirrored(self, moment: Moment, cuts: tuple[Cut, ...]) -> tuple[Cut, ...]:
        """The cuts at which the mirrors of these sources stand: the newest until theirs, unless the moment names them.

        Never those of an earlier epoch: such mirrors may have rows that the source has lost.
        """
        if moment.mirrors is None:
            newest = self.mirrors.newest(Moment(positions=tuple(cut.position for cut in cuts)))
            epochs = {cut.source: cut.epoch for cut in cuts}
            return tuple(cut for cut in newest if cut.epoch == epochs.get(cut.source))
        if not moment.mirrors:
            return ()
        asked = Moment(positions=moment.mirrors)
        try:
            found = self.mirrors.at(asked, datetime.now(UTC))
        except NoCut:
            raise _listed_no_more() from None
        if not is_exactly(asked, found):
            raise _listed_no_more()
        return found

    def _has_any(self, caller: Caller, prefix: str) -> bool:
        """Whether the caller sees a table of the past that still has its snapshot of then."""
        covered = self._snapshots(caller, prefix) or {}
        seen = self._relations(caller, prefix, "TABLE")
        documents = ((name, self.relations.rows.document("TABLE", *name)) for name in seen)
        return any(found and has_snapshot(found.metadata, covered[name].snapshot) for name, found in documents)

    def _readable(self, caller: Caller) -> Iterator[Document]:
        """The raw tables and mirrors that the caller may read now."""
        for namespace, name in self.relations.names(caller.rights, "TABLE"):
            with suppress(Personal):
                is_of_source = namespace.startswith(OF_SOURCES)
                if is_of_source and (found := self.relations.find(caller.rights, "TABLE", namespace, name)):
                    yield found

    def _oldest(self, caller: Caller, documents: Iterable[Document]) -> str:
        """Says what the caller can ask for of these tables; whoever reads some namespaces only has no moments."""
        if caller.rights.namespaces is not None:
            return ""
        since = min((at for found in documents if (at := kept_since(found.metadata))), default=None)
        return f"; the oldest state that is left is {self.catalog}@{since:%Y-%m-%dT%H:%M:%S}" if since else ""

    def _warehouse(self, prefix: str) -> str:
        warehouse = warehouse_of(prefix, self.catalog)
        if warehouse is None:
            raise Refused(404, "NotFoundException", f"there is no prefix {prefix!r}: ask /v1/config for it")
        return warehouse

    def _keys(self, caller: Caller, namespace: str, name: str, document: Document) -> dict[str, str]:
        who = caller.login, caller.mark
        keys = self.tokens.issue_storage(*who, namespace, name, document.folder, time.time())
        return {
            "s3.access-key-id": keys.access_key,
            "s3.secret-access-key": keys.secret_key,
            "s3.session-token": keys.session_token,
            "s3.endpoint": f"{self.access.endpoint}/",  # the slash is for ClickHouse, which misses files without it
            "s3.region": self.access.region,
            "client.region": self.access.region,
            "s3.path-style-access": "true",
        }


_KINDS: tuple[Kind, ...] = ("TABLE", "VIEW")


def _credential(document: Document, keys: Mapping[str, str]) -> dict[str, Any]:
    return {"prefix": document.folder, "config": keys}


def _expired(namespace: str, name: str) -> str:
    return f"{namespace}.{name} has no snapshot of that cut any more: its retention has passed"


def _said_of(late: Mapping[str, Read]) -> str:
    return "; ".join(said_of_unread(source, read) for source, read in sorted(late.items()))


def _listed_no_more() -> Refused:
    return Refused(404, "NotFoundException", "a cut that was connected to is listed no more: connect again")


def _told(snapshots: Snapshots) -> str:
    """What tells the state of a pin from another one."""
    named = sorted((*table, chosen.snapshot) for table, chosen in snapshots.items())
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]


def _joined(before: Mapping[str, Any], metadata: bytes, after: Mapping[str, Any]) -> bytes:
    """One JSON object of them, with the metadata's text as it is."""
    return b'%s,"metadata":%s,%s' % (json.dumps(before).encode()[:-1], metadata, json.dumps(after).encode()[1:])
