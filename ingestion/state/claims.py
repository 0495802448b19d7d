"""Which of the followers that share a source reads which part of it, and in which order they publish.

A source can be shared whose position has parts that are read independently: partitions of topics. A follower has a
seat (`lease.take_seat`) and claims parts, which nobody else reads while its seat is in force. Before it reads, it takes
a turn: from where to where. The turn begins where the one before it ends, whoever has that, so what is read makes one
sequence, and it is published in it. That is what `_commit_lsn` goes by, which is written into files before anybody
knows when they are published.

A turn is published only while the lake stands where the turn begins, with a seat and with claims that are still the
follower's own: what one writer reads after the other, and nothing else, would have led there. When a follower is gone,
or gives its turn up, that turn and all later ones are void, and read again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Event
from typing import Any, LiteralString

from ingestion.schema.positions import Position
from ingestion.state import lease as leases
from ingestion.state import store, stored
from ingestion.state.lease import HAS_ENDED, Lease
from lakehouse.servers.database import CatalogConnection

LOOK_SECONDS, EXPEL_SECONDS = 0.02, 1.0  # while others publish before: whether they have, and whether they are there

_IN_FORCE: LiteralString = f"""EXISTS (SELECT FROM lakehouse.leases AS held
 WHERE held.source = seat AND held.token = of.token AND NOT {HAS_ENDED})"""
_NEXT_MOMENT: LiteralString = f"""greatest({store.INGESTION_CLOCK},
 (SELECT max(at) FROM lakehouse.turns WHERE source = %(source)s) + interval '1 microsecond')"""


class TurnVoid(Exception):
    """What was read in a turn cannot be published: it does not follow what the lake has. It is read again."""


@dataclass(frozen=True)
class Turn:
    """A read of the parts in `claims`, each with its generation, from `base` to `reach`. It is known by the moment `at`
    which its rows are ingested: later than those of all earlier turns."""

    seat: Lease
    claims: Mapping[str, int]
    base: Any
    reach: Any
    at: datetime


def take(connection: CatalogConnection, seat: Lease, seconds: float, parts: Collection[str]) -> bool:
    """Claims all of these parts, or none where another follower has one of them.

    Raises LeaseLost where the seat is another's by now.
    """
    with connection.transaction():
        leases.check(connection, seat, seconds)
        if set(parts) & {part for part, holder in _claimed(connection, seat.of).items() if holder != seat.source}:
            return False
        connection.execute(
            "INSERT INTO lakehouse.claims AS of (source, part, generation, seat, token)"
            " SELECT %s, part, 1, %s, %s FROM unnest(%s::text[]) AS part"
            " ON CONFLICT (source, part) DO UPDATE SET generation = of.generation + 1, seat = excluded.seat,"
            " token = excluded.token, claimed_at = excluded.claimed_at"
            " WHERE (of.seat, of.token) <> (excluded.seat, excluded.token)",
            (seat.of, seat.source, seat.token, sorted(parts)),
        )
    return True


def give_back(connection: CatalogConnection, seat: Lease, parts: Collection[str]) -> None:
    """Leaves parts to others; none of them is in a turn of this follower."""
    connection.execute(
        "UPDATE lakehouse.claims SET seat = '', token = 0 WHERE source = %s AND part = ANY(%s) AND (seat, token) ="
        " (%s, %s)",
        (seat.of, list(parts), seat.source, seat.token),
    )


def share(connection: CatalogConnection, seat: Lease, seconds: float, parts: Sequence[str]) -> dict[str, int]:
    """Claims this follower's share of all parts, as many as others have or one more or less, neighbours if it can; what
    it then has.

    It leaves what is beyond its share to the next ones, and takes of what nobody has. Raises LeaseLost.
    """
    with connection.transaction():
        leases.check(connection, seat, seconds)
        there = list(leases.seats(connection, seat.of))
        if seat.source not in there:  # it has lost its session: others take its parts, until it has another one
            return {}
        most = len(parts) // len(there) + (there.index(seat.source) < len(parts) % len(there))
        claimed = _claimed(connection, seat.of)
        mine = {part for part, holder in claimed.items() if holder == seat.source}
        kept = [part for part in parts if part in mine][:most]
        give_back(connection, seat, mine - set(kept))
        free = [part for part in parts if part not in claimed]
        take(connection, seat, seconds, [*kept, *free[: most - len(kept)]])
        rows = connection.execute(
            "SELECT part, generation FROM lakehouse.claims WHERE source = %s AND (seat, token) = (%s, %s)",
            (seat.of, seat.source, seat.token),
        )
        return dict(rows.fetchall())


def _claimed(connection: CatalogConnection, source: str) -> dict[str, str]:
    """The parts that somebody reads, with the name of the seat."""
    rows = connection.execute(
        f"SELECT part, seat FROM lakehouse.claims AS of WHERE source = %s AND {_IN_FORCE}", (source,)
    )
    return dict(rows.fetchall())


def unclaimed(connection: CatalogConnection, source: str, parts: Collection[str]) -> tuple[str, ...]:
    """The parts that nobody reads."""
    return tuple(sorted(set(parts) - _claimed(connection, source).keys()))


def note_read(connection: CatalogConnection, seat: Lease, parts: Collection[str]) -> None:
    """The parts have moved, or nothing is left to read of them."""
    connection.execute(
        "UPDATE lakehouse.claims SET read_at = clock_timestamp() WHERE source = %s AND part = ANY(%s)"
        " AND (seat, token) = (%s, %s)",
        (seat.of, list(parts), seat.source, seat.token),
    )


def read_until(connection: CatalogConnection, source: str, parts: Collection[str]) -> datetime | None:
    """When the one of these parts that has not moved for longest did so, or had nothing left to read."""
    row = connection.execute(
        "SELECT min(coalesce(read_at, claimed_at)) FROM lakehouse.claims WHERE source = %s AND part = ANY(%s)",
        (source, list(parts)),
    ).fetchone()
    return row[0] if row else None


def take_turn(
    connection: CatalogConnection, seat: Lease, seconds: float, patience: float, claims: Mapping[str, int],
    stop: Position,
) -> Turn | None:  # fmt: skip
    """The next turn: it reads the claimed parts up to `stop`, which names no other. None where nothing is to be read.

    Raises LeaseLost, and TurnVoid for a part that is not claimed, or not any more.
    """
    source = seat.of
    with connection.transaction():
        leases.check(connection, seat, seconds)
        _expel(connection, source, patience)
        _check_claims(connection, seat, claims)
        kind = store.kind_of(connection, source)
        last = connection.execute(
            "SELECT reach FROM lakehouse.turns WHERE source = %s ORDER BY at DESC LIMIT 1", (source,)
        ).fetchone()
        base = _stands(connection, source) if last is None else stored.POSITIONS[kind].parse(last[0])
        reach = base.join(stop)
        if not (moved := reach.beyond(base)):
            return None
        if not moved <= claims.keys():
            raise TurnVoid
        row = connection.execute(
            "INSERT INTO lakehouse.turns (source, at, seat, token, base, reach)"
            f" VALUES (%(source)s, {_NEXT_MOMENT}, %(seat)s, %(token)s, %(base)s, %(reach)s) RETURNING at",
            {
                "source": source,
                "seat": seat.source,
                "token": seat.token,
                "base": base.text,
                "reach": reach.text,
                "not_before": None,
            },
        ).fetchone()
        assert row is not None
    return Turn(seat, dict(claims), base, reach, row[0])


def wait_for(connection: CatalogConnection, turn: Turn, patience: float, stop: Event) -> None:
    """Returns when all turns before it are published; raises TurnVoid when it cannot be published, or `stop` is set."""
    looked = time.monotonic()
    while (first := _first(connection, turn)) != turn.at:
        if first is None or stop.wait(LOOK_SECONDS):
            raise TurnVoid
        if time.monotonic() - looked > EXPEL_SECONDS:
            with connection.transaction():
                leases.lock(connection, turn.seat.of)
                _expel(connection, turn.seat.of, patience)
            looked = time.monotonic()


def _first(connection: CatalogConnection, turn: Turn) -> datetime | None:
    """The moment of the next turn to be published; None where this one is void."""
    row = connection.execute(
        "SELECT min(at), bool_or(at = %s AND (seat, token) = (%s, %s)) FROM lakehouse.turns WHERE source = %s",
        (turn.at, turn.seat.source, turn.seat.token, turn.seat.of),
    ).fetchone()
    assert row is not None
    return row[0] if row[1] else None


def end_turn(connection: CatalogConnection, turn: Turn) -> None:
    """Ends a turn in the transaction that publishes it, after `lease.check`; raises TurnVoid where it does not follow
    what the lake has, and where a claim has changed hands."""
    if _first(connection, turn) != turn.at or _stands(connection, turn.seat.of) != turn.base:
        raise TurnVoid
    _check_claims(connection, turn.seat, turn.claims)
    connection.execute("DELETE FROM lakehouse.turns WHERE source = %s AND at = %s", (turn.seat.of, turn.at))
    note_read(connection, turn.seat, turn.claims)


def give_up(connection: CatalogConnection, turn: Turn) -> None:
    """A turn that cannot be published; those after it are void with it."""
    with connection.transaction():
        leases.lock(connection, turn.seat.of)
        if _first(connection, turn) is not None:
            _void(connection, turn.seat.of, turn.at)


def _stands(connection: CatalogConnection, source: str) -> Any:
    stream = store.read_stream(connection, source)
    assert stream is not None
    return stream.position


def _check_claims(connection: CatalogConnection, seat: Lease, claims: Mapping[str, int]) -> None:
    row = connection.execute(
        "SELECT count(*) FROM lakehouse.claims JOIN unnest(%s::text[], %s::bigint[]) AS of (part, generation)"
        " USING (part, generation) WHERE source = %s AND (seat, token) = (%s, %s)",
        (list(claims), list(claims.values()), seat.of, seat.source, seat.token),
    ).fetchone()
    assert row is not None
    if row[0] != len(claims):
        raise TurnVoid


def _expel(connection: CatalogConnection, source: str, patience: float) -> None:
    """Ends the turns of followers that are gone, or have had theirs for longer than `patience` seconds."""
    row = connection.execute(
        f"SELECT min(at) FROM lakehouse.turns AS of WHERE source = %s AND (NOT {_IN_FORCE}"
        " OR at < clock_timestamp() - make_interval(secs => %s))",
        (source, patience),
    ).fetchone()
    if row is not None and row[0] is not None:
        _void(connection, source, row[0])


def _void(connection: CatalogConnection, source: str, first: datetime) -> None:
    connection.execute("DELETE FROM lakehouse.turns WHERE source = %s AND at >= %s", (source, first))
