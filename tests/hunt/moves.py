"""What a session may do next, given what it sees: a move is a few statements, and perhaps what takes them back."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce

from tests.hunt.eye import ID, SECRET, Column, Eye, R


@dataclass(frozen=True)
class Move:
    """Statements of one kind; `back` undoes them some time later, `alone` runs outside of a transaction.

    `then` is what is seen behind them, where columns are called otherwise.
    """

    kind: str
    statements: tuple[str, ...]
    back: tuple[str, ...] = ()
    alone: bool = False
    then: Eye | None = None


@dataclass
class Hand:
    """What a move is made with; `number` makes every value and name another one."""

    rng: random.Random
    eye: Eye
    number: int = 0
    last: tuple[str, ...] = field(default=())

    def next(self) -> int:
        """A number that was not used before."""
        self.number += 1
        return self.number

    @property
    def t(self) -> str:
        """The main table as statements call it."""
        return self.eye.table

    def an_id(self) -> int:
        """The id of a row, or of none."""
        return self.rng.choice(self.eye.ids) if self.eye.ids and self.rng.random() < 0.9 else 99

    def value(self, column: Column) -> str:
        """A literal that the column takes."""
        if self.rng.random() < 0.1:
            return "NULL"
        return f"'{SECRET}{self.next()}'" if column.withheld else literal(self, column.type, column.kind)

    def some(self, columns: list[Column], most: int = 3) -> list[Column]:
        """A few of the columns."""
        return self.rng.sample(columns, min(len(columns), self.rng.randint(1, most)))


Make = Callable[[Hand], Move | None]


def literal(hand: Hand, type_: str, kind: str) -> str:
    """A literal of a type that the moves know."""
    n = hand.next()
    if kind == "e":
        return f"'{hand.rng.choice(hand.eye.labels)}'" if hand.eye.labels else "NULL"
    if kind == "c":
        return "(" + ", ".join(literal(hand, t, "b") for _, t in hand.eye.attributes) + ")"
    if kind == "d" or type_.startswith(("numeric", "double")):
        return f"{n}.5"
    for prefix, text in {
        "integer": f"{n}", "bigint": f"{n}", "smallint": f"{n % 30000}", "date": f"date '2026-01-01' + {n % 900}",
        "boolean": "true",
        "timestamp": f"timestamptz '2026-01-01 00:00Z' + interval '{n} min'",
        "jsonb": f"'{{\"v\": {n}}}'",
    }.items():  # fmt: skip
        if type_.startswith(prefix):
            return text
    return f"'{{{n}}}'" if type_.endswith("[]") else f"'v{n}'"


def insert(hand: Hand, table: str | None = None, r: int | None = None) -> str:
    """A new row."""
    columns = hand.some(hand.eye.free, 5) if hand.eye.free else []
    names, values = [c.name for c in columns], [hand.value(c) for c in columns]
    if hand.eye.r:
        names, values = [hand.eye.r, *names], [str(hand.rng.randint(0, 39) if r is None else r), *values]
    if hand.eye.id:
        names, values = [hand.eye.id, *names], [str(100 + hand.next()), *values]
    if "big" in names:
        values[names.index("big")] = f"repeat(md5('{hand.next()}'), 90)"
    return f"INSERT INTO {table or hand.t} ({', '.join(names)}) VALUES ({', '.join(values)})"


def update(hand: Hand, table: str | None = None) -> str:
    """A few columns of a row, or of all."""
    sets = ", ".join(f"{c.name} = {hand.value(c)}" for c in hand.some(hand.eye.free))
    where = "" if hand.rng.random() < 0.15 else f" WHERE {hand.eye.id} = {hand.an_id()}"
    return f"UPDATE {table or hand.t} SET {sets}{where}"


def delete(hand: Hand, table: str | None = None) -> str:
    """A row."""
    return f"DELETE FROM {table or hand.t} WHERE {hand.eye.id} = {hand.an_id()}"


def rows(hand: Hand) -> Move | None:
    """Plain changes of rows."""
    if not hand.eye.exists or not hand.eye.free or not hand.eye.id:
        return None
    kinds = hand.rng.choices([insert, update, delete], [2, 3, 1], k=hand.rng.randint(1, 3))
    return Move("rows", tuple(kind(hand) for kind in kinds))


def move_key(hand: Hand) -> Move | None:
    """A key becomes another one, sometimes one that was in use a moment ago."""
    eye = hand.eye
    if not eye.ids or len(eye.ids) < 2:
        return None
    one, other = hand.rng.sample(eye.ids, 2)
    dice, name = hand.rng.random(), eye.id
    if dice < 0.3:
        return Move("key", (f"UPDATE {hand.t} SET {name} = {200 + hand.next()} WHERE {name} = {one}",))
    if dice < 0.6:
        return Move(
            "key reused",
            (
                f"DELETE FROM {hand.t} WHERE {name} = {other}",
                f"UPDATE {hand.t} SET {name} = {other} WHERE {name} = {one}",
            ),
        )
    if dice < 0.8:
        steps = ((one, 90), (other, one), (90, other))
        return Move("key swap", tuple(f"UPDATE {hand.t} SET {name} = {new} WHERE {name} = {old}" for old, new in steps))
    cases = f"CASE {name} WHEN {one} THEN {other} ELSE {one} END"
    return Move("key swap deferred", (f"UPDATE {hand.t} SET {name} = {cases} WHERE {name} IN ({one}, {other})",))


def truncate(hand: Hand) -> Move | None:
    """The table, with what else a transaction does around it."""
    if not hand.eye.exists:
        return None
    leaves = [o.name for o in hand.eye.others if o.attached and o.kind == "r"]
    if leaves and hand.rng.random() < 0.5:
        return Move("truncate leaf", (f"TRUNCATE {hand.rng.choice(leaves)}",))
    with_children = hand.rng.choice(["", " RESTART IDENTITY", " CASCADE"])
    return Move("truncate", (f"TRUNCATE {hand.t}{with_children}",))


def truncate_and_more(hand: Hand) -> Move | None:
    """A truncate, and what else the stream does not tell, in an order at random."""
    found = [move for make in (truncate, rewrite, truncate) if (move := make(hand)) is not None]
    if len(found) < 2 or not hand.eye.free or not hand.eye.id:
        return None
    some = [move.statements[0] for move in hand.rng.sample(found, hand.rng.randint(1, len(found)))]
    some.insert(hand.rng.randint(0, len(some)), f"TRUNCATE {hand.t}")
    some.insert(hand.rng.randint(0, len(some)), insert(hand))
    return Move("truncate and more", (*some, insert(hand)) if hand.rng.random() < 0.5 else tuple(some))


def rewrite(hand: Hand) -> Move | None:
    """Rows get other values, or other places, without a word in the stream."""
    columns = [c for c in hand.eye.free if c.type in ("integer", "bigint")]
    if not columns:
        return None
    name, type_ = (column := hand.rng.choice(columns)).name, column.type
    if hand.rng.random() < 0.5:
        return Move("rewrite", (f"ALTER TABLE {hand.t} ALTER {name} TYPE {type_} USING {name} * 10 + 1",))
    new = f"x{hand.next()}"
    return Move("volatile default", (f"ALTER TABLE {hand.t} ADD {new} int DEFAULT (random() * 1000000)::int",),
                (f"ALTER TABLE {hand.t} DROP {new}",))  # fmt: skip


def vacuum(hand: Hand) -> Move | None:
    """A rewrite that changes no value."""
    if hand.eye.kind != "r":
        return None
    cluster = f"CLUSTER {hand.t} USING {hand.eye.unique[0]}" if hand.eye.unique else f"VACUUM FULL {hand.t}"
    return Move("vacuum", (hand.rng.choice([f"VACUUM FULL {hand.t}", cluster]),), alone=True)


def add_column(hand: Hand) -> Move | None:
    """With and without a default, of every type."""
    if not hand.eye.exists or len(hand.eye.columns) > 16:
        return None
    name = hand.rng.choice([f"x{hand.next()}", f"x{hand.next()}", f'"X {hand.next()}é"', "a", "n"])
    types = ["int", "text", "numeric(6,2)", "mood", "price", "pair", "date", "boolean", "jsonb", "int[]", "bigint",
             "varchar(9)", "double precision", "timestamptz"]  # fmt: skip
    type_, default = hand.rng.choice(types), ""
    if hand.rng.random() < 0.5:
        kind = {"mood": "e", "price": "d", "pair": "c"}.get(type_, "b")
        default = f" DEFAULT {literal(hand, {'int': 'integer'}.get(type_, type_), kind)}"
        if type_ == "pair":
            default += "::pair"
    if type_ == "int" and hand.rng.random() < 0.2:
        stored = hand.rng.choice([f"{hand.eye.id} + 1", "n * 2"])
        default = f" GENERATED ALWAYS AS ({stored}) STORED"
    kind = "add generated" if "GENERATED" in default else "add default" if default else "add"
    return Move(kind, (f"ALTER TABLE {hand.t} ADD {name} {type_}{default}",), (f"ALTER TABLE {hand.t} DROP {name}",))


def drop_column(hand: Hand) -> Move | None:
    """Perhaps to be made again by the same name."""
    if len(hand.eye.free) < 3:
        return None
    column = hand.rng.choice(hand.eye.free)
    type_ = column.type if hand.rng.random() < 0.8 else "text"
    return Move(
        "drop", (f"ALTER TABLE {hand.t} DROP {column.name}",), (f"ALTER TABLE {hand.t} ADD {column.name} {type_}",)
    )


def rename_column(hand: Hand) -> Move | None:
    """And back, later."""
    if not hand.eye.free:
        return None
    withheld = [column for column in hand.eye.free if column.withheld and hand.rng.random() < 0.5]
    old = hand.rng.choice(withheld or hand.eye.free).name
    new = hand.rng.choice([f"y{hand.next()}", f'"Y {hand.next()}"'])
    back = (f"ALTER TABLE {hand.t} RENAME {new} TO {old}",)
    return Move("rename", (f"ALTER TABLE {hand.t} RENAME {old} TO {new}",), back, then=hand.eye.calling(old, new))


def swap_columns(hand: Hand) -> Move | None:
    """Two columns take each other's names."""
    if len(hand.eye.free) < 2:
        return None
    one, other = hand.rng.sample(hand.eye.free, 2)
    same = [c for c in hand.eye.free if c.type == one.type and c.name != one.name]
    if same and hand.rng.random() < 0.8:
        other = hand.rng.choice(same)
    pairs = ((one.name, "tmp"), (other.name, one.name), ("tmp", other.name))
    swap = tuple(f"ALTER TABLE {hand.t} RENAME {old} TO {new}" for old, new in pairs)
    return Move("swap columns", swap, swap, then=_renamed(hand.eye, pairs))


def rename_key(hand: Hand) -> Move | None:
    """A column of the key gets another name, or two of them each other's; rows change their keys before and after."""
    eye = hand.eye
    if not eye.key:
        return None
    old = hand.rng.choice(eye.key)
    free = [name for name in (ID if old == eye.id else R) if name != old]
    pairs: list[tuple[str, str]] = [(old, hand.rng.choice(free))]
    kind, makes = "rename key", _key_changes(hand)
    if hand.rng.random() < 0.3:
        other = eye.r or ("n" if "n" in eye.names else None)
        if eye.id is None or other is None:
            return None
        if other == "n":
            makes += (f"UPDATE {hand.t} SET n = {1000 * hand.next()} + {eye.id}",)  # each row another key
        pairs = [(eye.id, "tmp"), (other, eye.id), ("tmp", other)]
        kind = "swap key"
    hand.eye = _renamed(eye, pairs)
    alter = f"ALTER TABLE {hand.t} RENAME {{}} TO {{}}"
    forth = tuple(alter.format(was, new) for was, new in pairs)
    makes, then = (*makes, *forth, *_key_changes(hand)), hand.eye
    hand.eye = eye
    return Move(kind, makes, tuple(alter.format(new, was) for was, new in reversed(pairs)), then=then)


def _renamed(eye: Eye, pairs: Iterable[tuple[str, str]]) -> Eye:
    return reduce(lambda seen, pair: seen.calling(*pair), pairs, eye)


def _key_changes(hand: Hand) -> tuple[str, ...]:
    move = move_key(hand) if hand.rng.random() < 0.8 else None
    return move.statements if move and move.kind != "key swap deferred" else ()  # which few tables allow


def lend_name(hand: Hand) -> Move | None:
    """A column goes, another one bears its name for a while, and perhaps a new one comes by it."""
    if len(hand.eye.free) < 3:
        return None
    gone, other = hand.rng.sample(hand.eye.free, 2)
    alter = f"ALTER TABLE {hand.t} "
    r = (f", {hand.rng.randint(0, 39)}", f", {hand.eye.r}") if hand.eye.r else ("", "")
    id_ = hand.eye.id
    rows = [
        f"UPDATE {hand.t} SET {gone.name} = {hand.value(other)} WHERE {id_} = {hand.an_id()}",
        f"INSERT INTO {hand.t} ({id_}{r[1]}, {gone.name}) VALUES ({100 + hand.next()}{r[0]}, {hand.value(other)})",
    ]
    lent = (
        f"{alter}DROP {gone.name}",
        f"{alter}RENAME {other.name} TO {gone.name}",
        *hand.rng.sample(rows, 2)[: hand.rng.randint(1, 2)],
    )
    back = (f"{alter}RENAME {gone.name} TO {other.name}", f"{alter}ADD {gone.name} {gone.type}")
    return Move("lend name", (*lent, *back)) if hand.rng.random() < 0.6 else Move("lend name", lent, back)


def add_twice(hand: Hand) -> Move | None:
    """A name that two columns bear, one after the other, both with values."""
    if not hand.eye.free or len(hand.eye.columns) > 16:
        return None
    name, alter = f"x{hand.next()}", f"ALTER TABLE {hand.t} "
    makes: list[str] = []
    for type_ in hand.rng.choices(["integer", "text", "bigint", "date"], k=2):
        default = f" DEFAULT {literal(hand, type_, 'b')}" if hand.rng.random() < 0.3 else ""
        makes += [f"{alter}ADD {name} {type_}{default}"]
        makes += [f"UPDATE {hand.t} SET {name} = {literal(hand, type_, 'b')} WHERE {hand.eye.id} <> {hand.an_id()}"]
        makes += [f"{alter}DROP {name}"]
    return Move("add twice", tuple(makes[:-1]), (makes[-1],))


def change_type(hand: Hand) -> Move | None:
    """Wider, narrower, another one; with and without a rewrite."""
    ways = {
        "integer": ["bigint"], "bigint": ["integer", "numeric(12,2)"],
        "numeric(8,2)": ["numeric(10,2)", "numeric(9,3)"],
        "text": ["varchar(4000)", "varchar(9)"], "numeric(10,2)": ["numeric(8,2)"], "character varying(4000)": ["text"],
        "mood": ["text"], "price": ["numeric(8,2)"], "pair": ["text"], "date": ["timestamp"],
    }  # fmt: skip
    columns = [c for c in hand.eye.free if c.type in ways]
    if not columns:
        return None
    column = hand.rng.choice(columns)
    to = hand.rng.choice(ways[column.type])
    alter = f"ALTER TABLE {hand.t} ALTER {column.name} TYPE "
    return Move("type", (f"{alter}{to}",), (f"{alter}{column.type} USING {column.name}::{column.type}",))


def change_enum(hand: Hand) -> Move | None:
    """A label more, or another name of one, or of two."""
    labels = list(hand.eye.labels)
    if len(labels) < 2:
        return None
    dice, new = hand.rng.random(), f"l{hand.next()}"
    if dice < 0.3:
        return Move("enum add", (f"ALTER TYPE mood ADD VALUE '{new}' BEFORE '{hand.rng.choice(labels)}'",))
    one, other = hand.rng.sample(labels, 2)
    rename = "ALTER TYPE mood RENAME VALUE '{}' TO '{}'"
    if dice < 0.7:
        return Move("enum rename", (rename.format(one, new),), (rename.format(new, one),))
    swap = tuple(rename.format(*pair) for pair in ((one, "tmp"), (other, one), ("tmp", other)))
    return Move("enum swap", swap, swap)


def change_composite(hand: Hand) -> Move | None:
    """An attribute more, fewer, or by another name."""
    names = [name for name, _ in hand.eye.attributes]
    if not names:
        return None
    dice, new = hand.rng.random(), f"z{hand.next()}"
    if dice < 0.4 and len(names) < 5:
        return Move(
            "attribute add", (f"ALTER TYPE pair ADD ATTRIBUTE {new} int",), (f"ALTER TYPE pair DROP ATTRIBUTE {new}",)
        )
    name = hand.rng.choice(names)
    if dice < 0.6 and len(names) > 1:
        return Move(
            "attribute drop",
            (f"ALTER TYPE pair DROP ATTRIBUTE {name}",),
            (f"ALTER TYPE pair ADD ATTRIBUTE {name} text",),
        )
    rename = "ALTER TYPE pair RENAME ATTRIBUTE {} TO {}"
    return Move("attribute rename", (rename.format(name, new),), (rename.format(new, name),))


def change_domain(hand: Hand) -> Move | None:
    """The type is renamed or checked."""
    new = f"ck{hand.next()}"
    check = f"ALTER DOMAIN price ADD CONSTRAINT {new} CHECK (VALUE IS NULL OR VALUE < 99999) NOT VALID"
    return Move("domain", (check,), (f"ALTER DOMAIN price DROP CONSTRAINT {new}",))
