"""What Debezium says of one change: its operation, its row before and after, and its place in a transaction."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ingestion.sources.debezium.message.opened import Opened, Types
from ingestion.sources.kafka.values import Unread

Row = Mapping[str, Any]
Origin = tuple[str, str]
OPERATIONS = frozenset("rcudt")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Unwrapped(Unread):
    """A row without its envelope, as the transform ExtractNewRecordState leaves it, or some other object; `names` are
    those of its fields. The transform may add fields, so that it has an `op` all the same."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__("it is a row without an envelope")
        self.names = frozenset(names)


@dataclass(frozen=True, slots=True)
class Transaction:
    """The place of an event: `order` among all of its transaction, `in_table` among those of its table, from 1 on."""

    xid: int
    order: int
    in_table: int


@dataclass(frozen=True, slots=True)
class Envelope:
    """One change. `lsn` is the record's own, by which nothing may be ordered, `snapshot` as the source block has it.
    `xid` is that of the change, None of a snapshot's row. `origin` is the connector, by its prefix, and its database.
    """

    op: str
    before: Row | None
    after: Row | None
    relation: tuple[str, str]
    lsn: int | None
    committed_at: datetime
    version: str
    snapshot: str
    xid: int | None
    transaction: Transaction | None
    types: Types | None
    origin: Origin = ("", "")

    @property
    def writes_defaults(self) -> bool:
        """Whether the converter writes a default where a value is null: of a change, the connector leaves it out that
        it is of no snapshot."""
        return self.snapshot == "false"

    @property
    def row(self) -> Row:
        """What lands: the row after, of a delete the one before."""
        return (self.before if self.op == "d" else self.after) or {}


@dataclass(frozen=True, slots=True)
class End:
    """The end of a transaction: its position, and how many events each relation has of it."""

    xid: int
    lsn: int
    at: datetime
    counts: Mapping[str, int]


def envelope_of(opened: Opened) -> Envelope:
    """The envelope that a message is; raises Unread, and Unwrapped for a row that has none."""
    fields = opened.fields
    op, source = fields.get("op"), fields.get("source")
    if fields.keys().isdisjoint(("before", "after")) or (op is None and not isinstance(source, dict)):
        raise _no_envelope(fields)
    if not isinstance(op, str) or op not in OPERATIONS or not isinstance(source, dict):
        raise Unread("its operation is none of a row's (r, c, u, d, t)")
    try:
        lsn = None if source.get("lsn") is None else _number(source["lsn"])
        transaction = _transaction(fields.get("transaction"))
        return Envelope(
            op=op, before=_row(fields.get("before")), after=_row(fields.get("after")),
            relation=(_name(source["schema"]), _name(source["table"])), lsn=lsn, committed_at=_moment(source),
            version=str(source.get("version")), snapshot=str(source.get("snapshot")),
            transaction=transaction, types=opened.types, xid=_xid(op, transaction, source),
            origin=(str(source.get("name")), str(source.get("db"))),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise Unread("its source block is not that of a table in Postgres") from None


def end_of(opened: Opened) -> End | None:
    """The end of a transaction that a message of the transaction topic tells; None for its begin. Raises Unread."""
    fields = opened.fields
    if fields.get("status") == "BEGIN":
        return None
    try:
        if fields["status"] != "END":
            raise ValueError
        xid, lsn = (_number(int(part)) for part in fields["id"].split(":"))
        parts = fields["data_collections"] or ()
        counts = {_name(part["data_collection"]): _number(part["event_count"]) for part in parts}
        return End(xid, lsn, EPOCH + timedelta(milliseconds=fields["ts_ms"]), counts)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise Unread("it tells neither begin nor end of a transaction in Postgres") from None


def _no_envelope(fields: Mapping[str, Any]) -> Unread:
    if "ddl" in fields or "tableChanges" in fields:
        return Unread("it tells of a change of the schema, and is no row")
    return Unwrapped(fields)


def _row(given: Any) -> Row | None:
    if given is not None and not isinstance(given, dict):
        raise TypeError
    return given


def _transaction(given: Any) -> Transaction | None:
    if given is None:
        return None
    xid, _, _ = given["id"].partition(":")
    return Transaction(_number(int(xid)), _number(given["total_order"]), _number(given["data_collection_order"]))


def _xid(op: str, transaction: Transaction | None, source: Row) -> int | None:
    if transaction is not None:
        return transaction.xid
    told = source.get("txId")
    return None if op == "r" or told is None else _number(told)


def _number(given: Any) -> int:
    if type(given) is not int or not 0 <= given < 1 << 63:
        raise ValueError
    return given


def _name(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    return given


def _moment(source: Mapping[str, Any]) -> datetime:
    microseconds = source.get("ts_us")
    return EPOCH + timedelta(microseconds=source["ts_ms"] * 1000 if microseconds is None else microseconds)
