"""Writes a history while it is played: each move is chosen from what the session sees, and may be taken back later."""

import random
from dataclasses import dataclass, field, replace

import psycopg

from tests.hunt import moves, relations
from tests.hunt.eye import see
from tests.hunt.history import USER, Shape, Step
from tests.hunt.look import PLACES
from tests.hunt.moves import Hand, Make, Move
from tests.hunt.play import Stage

ROWS: tuple[tuple[float, Make], ...] = (
    (6, moves.rows), (1, moves.move_key), (1, relations.move_rows), (1, relations.second), (1, relations.children),
)  # fmt: skip
MAKES: tuple[tuple[float, Make], ...] = (
    (2, moves.truncate), (1.5, moves.truncate_and_more),
    (2, moves.rewrite), (1, moves.vacuum), (2, moves.add_column), (2, moves.drop_column),
    (2, moves.rename_column), (3, moves.rename_key), (2, moves.swap_columns), (2, moves.change_type),
    (2, moves.change_enum), (2, moves.change_composite), (0.5, moves.change_domain), (2, relations.identity),
    (1, relations.other_index), (1, relations.publication), (0.7, relations.persistence), (0.7, relations.rename_table),
    (1, relations.remake), (1, relations.primary_key), (4, relations.detach), (2, relations.new_partition),
    (1.5, moves.lend_name), (1, moves.add_twice), (1.5, relations.attach_elsewhere), (1.5, relations.leaf_identity),
    (0.7, relations.publish_schema), (1, relations.passing_partition),
)  # fmt: skip
SESSIONS = 2


@dataclass
class _Session:
    """Whether a transaction is open, what was to be taken back as it began, and whether a savepoint stands."""

    open: bool = False
    before: list[Move] = field(default_factory=list)
    savepoint: list[Move] | None = None


@dataclass
class Author:
    """One case's: a few kinds of moves that come again and again, so that they meet each other."""

    rng: random.Random
    shape: Shape
    schema: str
    without: frozenset[str] = frozenset()
    number: int = 0
    pending: list[Move] = field(default_factory=list)
    sessions: list[_Session] = field(default_factory=lambda: [_Session() for _ in range(SESSIONS)])

    def __post_init__(self) -> None:
        if self.shape.withheld:  # nobody can tell which column of another relation was withheld
            self.without |= {"remake", "replace"}
        kinds = self.rng.randint(2, 5)
        weights = [weight for weight, _ in MAKES]
        chosen = {self.rng.choices(range(len(MAKES)), weights)[0] for _ in range(kinds)}
        self._makes = [MAKES[i] for i in sorted(chosen)]
        self._place = ""
        self._busy = self.rng.choice([0.5, 1.0, 2.0])

    def round(self, stage: Stage) -> list[Step]:
        """What is done up to the next look; statements that fail are part of it, as in life."""
        done: list[Step] = []
        self._place = self.rng.choice(PLACES) if self.rng.random() < 0.1 else ""
        for _ in range(self.rng.choice([0, 1, 1, 1, 2, 3])):
            session = 0 if self.rng.random() < 0.8 else 1
            try:
                self._act(stage, session, done)
            except psycopg.errors.LockNotAvailable:  # the other session's
                self._end(stage, session, "ROLLBACK", done)
        if self.rng.random() < 0.5:
            self._declare(stage, done)
        return done

    def inside(self, stage: Stage, place: str) -> list[Step]:
        """What is done within a look, at the place that was chosen for it."""
        if place != self._place:
            return []
        self._place = ""
        done: list[Step] = []
        try:
            self._act(stage, 0, done)
        except psycopg.errors.LockNotAvailable:  # the look's own
            self._end(stage, 0, "ROLLBACK", done)
        return [replace(step, inside=place) for step in (*done, *self.finish(stage))]

    def finish(self, stage: Stage) -> list[Step]:
        """Ends what is open, for a look that needs it."""
        done: list[Step] = []
        for number, session in enumerate(self.sessions):
            if session.open:
                self._end(stage, number, "COMMIT" if self.rng.random() < 0.8 else "ROLLBACK", done)
        return done

    def mend(self, stage: Stage) -> list[Step]:
        """What a user does about a table that is parked: takes back what can be, and tells ingestion to go on."""
        done: list[Step] = []
        while self.pending:
            move = self.pending.pop()
            self._play(stage, 0, move.back, move.kind, done)
        table = self.shape.tables[0][0]
        cures = [relations.PUBLICATION.format("ADD", table)]
        try:
            eye = see(stage.connection(self.schema, 0), self.schema, table)
            cures = [] if eye.published else cures
            cures += [f"ALTER TABLE {table} REPLICA IDENTITY FULL"] if eye.identity == "n" or not eye.unique else []
            leaves = [o.name for o in eye.others if o.attached and o.kind == "r" and not eye.unique]
            cures += [f"ALTER TABLE {leaf} REPLICA IDENTITY FULL" for leaf in leaves]
        except psycopg.Error:
            pass
        for cure in cures:
            self._play(stage, 0, (cure,), "mended", done)
        self._declare(stage, done)
        self._play(stage, USER, (self.rng.choice(["resume", "resume", "resnapshot"]),), "", done)
        return done

    def _declare(self, stage: Stage, done: list[Step]) -> None:
        """The declaration follows the key's names of now."""
        try:
            eye = see(stage.connection(self.schema, 0), self.schema, self.shape.tables[0][0])
        except psycopg.Error:
            return
        key = tuple(name.strip('"') for name in eye.key[: len(self.shape.tables[0][1])])
        if eye.exists and key != stage.key(f"{self.schema}_0"):
            self._play(stage, USER, (f"declare {', '.join(key)}",), "declare", done)

    def _act(self, stage: Stage, number: int, done: list[Step]) -> None:
        session = self.sessions[number]
        if not session.open and self.rng.random() < 0.5:
            session.before = list(self.pending)
            session.open, session.savepoint = True, None
            self._do(stage, number, "BEGIN", done)
        for _ in range(self.rng.randint(1, 5) if session.open else 1):
            self._savepoint(stage, number, done)
            move = self._move(stage, number)
            if move is None or (move.alone and session.open):
                continue
            kept = list(self.pending)
            if not session.open and len(move.statements) > 1 and self.rng.random() < 0.6:
                self._do(stage, number, "BEGIN", done)
                good = self._play(stage, number, move.statements, move.kind, done)
                self._do(stage, number, "COMMIT" if good else "ROLLBACK", done)
            else:
                good = self._play(stage, number, move.statements, move.kind, done)
            if not good:
                self.pending = kept
                if session.open:
                    self._end(stage, number, "ROLLBACK", done)
                    return
            elif move.back:
                self.pending.append(move)
        if session.open and self.rng.random() < 0.85:
            self._end(stage, number, "COMMIT" if self.rng.random() < 0.88 else "ROLLBACK", done)

    def _savepoint(self, stage: Stage, number: int, done: list[Step]) -> None:
        session = self.sessions[number]
        if session.open and session.savepoint is not None and self.rng.random() < 0.3:
            self._do(stage, number, "ROLLBACK TO SAVEPOINT s", done)
            self.pending = list(session.savepoint)
        elif session.open and session.savepoint is None and self.rng.random() < 0.12:
            session.savepoint = list(self.pending)
            self._do(stage, number, "SAVEPOINT s", done)

    def _move(self, stage: Stage, number: int) -> Move | None:
        if self.pending and self.rng.random() < 0.3:
            back = self.pending.pop(self.rng.randrange(len(self.pending)))
            return Move(f"{back.kind} back", back.back)
        table = self.shape.tables[0][0]
        hand = Hand(self.rng, see(stage.connection(self.schema, number), self.schema, table), self.number)
        if not hand.eye.exists:
            return None
        pool = [*((w * self._busy, m) for w, m in ROWS), *self._makes]
        makes = self.rng.choices([make for _, make in pool], [weight for weight, _ in pool], k=6)
        made = next((move for make in makes if (move := make(hand)) and move.kind not in self.without), None)
        if made and made.back and not made.alone and self._may_write(hand, made) and self.rng.random() < 0.25:
            hand.eye = made.then or hand.eye
            meanwhile = (moves.update(hand), moves.insert(hand))
            made = Move(f"{made.kind} taken back", (*made.statements, *meanwhile, *made.back))
        self.number = hand.number
        return made

    def _may_write(self, hand: Hand, made: Move) -> bool:
        """Whether rows can be written behind the move; secrets only where it is known which columns keep them."""
        known = made.then is not None or not self.shape.withheld
        return known and bool(hand.eye.free) and hand.eye.id is not None

    def _play(self, stage: Stage, number: int, statements: tuple[str, ...], kind: str, done: list[Step]) -> bool:
        return all(self._do(stage, number, statement, done, kind) for statement in statements)

    def _do(self, stage: Stage, number: int, sql: str, done: list[Step], kind: str = "") -> bool:
        step = Step(number, sql, kind)
        done.append(step)
        return stage.do(self.schema, step)

    def _end(self, stage: Stage, number: int, how: str, done: list[Step]) -> None:
        session = self.sessions[number]
        if not session.open:
            return
        good = self._do(stage, number, how, done)
        if how == "ROLLBACK" or not good:
            self.pending = session.before
        session.open, session.savepoint = False, None
