"""The states of a table, and who may move it from one to another: whatever is not declared here is refused.

`store.put_position` locks the row of the table first, so that a move starts from the state that is stored then.
"""

from collections.abc import Mapping
from typing import Literal, get_args

TableState = Literal["new", "loading", "streaming", "stale", "parked", "paused", "resuming"]
"""`new`: not begun, `reason` says what is in the way. `loading`: being snapshotted, its records land from its point on.
`streaming`: in the cuts. `stale`: its records land, but a repair has to come first. `parked`, `paused`: its records go
to the spool, for `reason` or by the user's wish. `resuming`: the next cycle lands what was spooled."""

Mover = Literal["load", "read", "resume", "user", "recovery"]
"""`load`: a snapshot or repair at a point. `read`: what a read of the stream, or a replay on demand, has noticed.
`resume`: landing the spool of a table that is resuming. `user`: pause, resume, resnapshot. `recovery`: a new epoch."""

STATES: tuple[TableState, ...] = get_args(TableState)
ACTORS: Mapping[Mover, str] = {  # for messages
    "load": "a load", "read": "a read of the stream", "resume": "a resume", "user": "a user", "recovery": "a recovery",
}  # fmt: skip
_LANDS: frozenset[TableState] = frozenset(("loading", "streaming", "stale"))

# By who moves and where to: where from. A table that the state does not know yet counts as new.
TRANSITIONS: Mapping[Mover, Mapping[TableState, frozenset[TableState]]] = {
    "load": {
        "loading": frozenset(("new", "loading", "stale")),
        "streaming": frozenset(("loading", "stale")),
        "stale": frozenset(("loading", "stale")),
        # its problem is found while a read parks the table and the user resumes it: it is parked for this reason too
        "parked": frozenset(("new", "loading", "stale", "parked", "resuming")),
        # a topic's table that was not declared for a while, or recovered as it resumed, and has records in the spool
        "resuming": frozenset(("new",)),
    },
    "read": {
        "new": frozenset(("loading",)),
        "loading": frozenset(("loading",)),
        "streaming": frozenset(("streaming",)),
        "stale": frozenset(("streaming", "stale")),
        "parked": _LANDS | {"parked"},
        "paused": frozenset(("paused",)),
        "resuming": frozenset(("resuming",)),
    },
    "resume": dict.fromkeys(("new", "streaming", "stale", "parked"), frozenset(("resuming",))),
    "user": {
        "new": frozenset(STATES),
        "paused": frozenset(("streaming",)),
        "resuming": frozenset(("parked", "paused", "resuming")),
    },
    "recovery": {
        "new": frozenset(("new", "loading", "resuming")),
        "stale": frozenset(("streaming", "stale")),
        "parked": frozenset(("parked",)),
        "paused": frozenset(("paused",)),
    },
}


def sources_of(by: Mover, to: TableState) -> frozenset[TableState]:
    """The states that `by` may move a table to this one from."""
    return TRANSITIONS[by].get(to, frozenset())


def may_move(by: Mover, state: TableState, to: TableState) -> bool:
    """Whether `by` may move a table from the one state to the other."""
    return state in sources_of(by, to)


def moved_by(by: Mover, state: TableState) -> TableState:
    """Where a mover takes a table that has no choice, as recovery does."""
    (to,) = (to for to in STATES if may_move(by, state, to))
    return to
