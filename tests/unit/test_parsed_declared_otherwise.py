"""Whatever is declared, altered, loaded and landed again, parsed has what one that is made of raw now would have."""

import random
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.marks import seeds
from tests.unit.embedded_parsed import Parsed

KEYS = range(1, 5)
NAMES = ("a", "b", "c", "d", "e")


class World:
    """A source, its raw table and parsed: what happens to them at random."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.parsed = Parsed("a", "b", "c")
        self.columns = ["a", "b", "c"]
        self.rows: dict[int, dict[str, Any]] = {}
        self.at, self.lsn, self.seen = 0, 0, 0
        self.undead: set[int] = set()  # deleted while raw was gone: nothing tells parsed
        self.log: list[str] = []

    def moment(self) -> str:
        return f"{datetime(2026, 11, 20) + timedelta(minutes=self.at):%d %H:%M}"

    def land(self, op: str, key: int | None, **values: Any) -> None:
        self.lsn += 10
        self.log.append(f"land {op} {key} {self.lsn} {self.moment()} {values}")
        self.parsed.land(op, key, self.lsn, self.moment(), self.moment(), **values)

    def value(self) -> Any:
        return self.rng.choice([None, *(str(self.rng.randint(1, 10**6)) for _ in range(3))])

    def change(self) -> None:
        """One event of the source, a change of the key being two."""
        rng, key = self.rng, self.rng.choice(KEYS)
        if rng.random() < 0.08:
            self.rows.clear()
            self.undead.clear()
            return self.land("t", None)
        if key not in self.rows:
            self.rows[key] = {name: self.value() for name in self.columns}
            self.undead.discard(key)
            return self.land("c", key, **self.rows[key])
        if rng.random() < 0.15:
            del self.rows[key]
            return self.land("d", key)
        row = self.rows[key]
        same = [name for name in self.columns if row[name] is not None and rng.random() < 0.4]
        row |= {name: self.value() for name in self.columns if name not in same}
        said = {name: value for name, value in row.items() if name not in same} | ({"_unchanged": same} if same else {})
        free = [other for other in KEYS if other not in self.rows]
        if free and rng.random() < 0.3:
            to = rng.choice(free)
            self.rows[to] = self.rows.pop(key)
            self.undead.discard(to)
            self.land("d", key)
            return self.land("c", to, **said, **({"_old_key": f'{{"id": "{key}"}}'} if same else {}))
        self.land("u", key, **said)

    def declare(self) -> None:
        column = self.rng.choice(self.columns)
        declared = self.parsed.declared
        self.parsed.declared = (
            tuple(name for name in declared if name != column) if column in declared else (*declared, column)
        )
        self.log.append(f"declared {self.parsed.declared}")

    def add(self) -> None:
        free = [name for name in NAMES if name not in self.columns and name not in self.raw_columns()]
        if free:
            column = self.rng.choice(free)
            self.log.append(f"add {column}")
            self.parsed.db.execute(f"alter table raw add column {column} varchar")
            self.parsed.types.pop(column, None)
            self.columns.append(column)
            for row in self.rows.values():
                row[column] = None

    def drop(self) -> None:
        """In the source; raw keeps the column, and the declaration has to omit it."""
        if len(self.columns) > 1:
            column = self.rng.choice(self.columns)
            self.log.append(f"drop {column}")
            self.columns.remove(column)
            self.parsed.declared = tuple(name for name in self.parsed.declared if name != column)
            for row in self.rows.values():
                row.pop(column)

    def add_again(self) -> None:
        """A column that was dropped, under its name: raw goes on with it, and has rows again that differ."""
        gone = sorted(self.raw_columns() & set(NAMES) - set(self.columns))
        if gone:
            column = self.rng.choice(gone)
            self.log.append(f"add again {column}")
            self.columns.append(column)
            self.at += 1
            for key, row in sorted(self.rows.items()):
                row[column] = None
                self.land("r", key, **row)

    def rename(self) -> None:
        free = [name for name in NAMES if name not in self.raw_columns()]
        if free:
            column, to = self.rng.choice(self.columns), self.rng.choice(free)
            self.at += 1
            self.log.append(f"rename {column} {to}")
            self.parsed.rename(column, to, self.moment())
            if column in self.parsed.types:
                self.parsed.types[to] = self.parsed.types.pop(column)
            else:
                self.parsed.types.pop(to, None)
            self.columns[self.columns.index(column)] = to
            for row in self.rows.values():
                row[to] = row.pop(column)

    def retype(self) -> None:
        """Raw begins the column anew, and has all rows again."""
        column = self.rng.choice([name for name in self.columns if name in self.parsed.declared] or [""])
        if not column:
            return
        self.parsed.load(self.lsn)
        self.log.append(f"load; retype {column}")
        self.parsed.retype(column, "text" if column in self.integers() else "integer")
        self.at += 1
        for key, row in sorted(self.rows.items()):
            self.land("r", key, **row)
        self.parsed.load(self.lsn)

    def integers(self) -> set[str]:
        return {name for name, kind in self.parsed.types.items() if kind == "integer"}

    def load(self) -> None:
        self.seen = max(self.seen, self.rng.choice([self.lsn, self.lsn, self.lsn - 30]))
        day = self.rng.choice([None, None, None, 20, 21])
        self.log.append(f"load cut={self.seen} day={day}")
        self.parsed.load(self.seen, day=day, covered=self.rng.random() < 0.9)

    def land_again(self) -> None:
        """Raw is dropped by hand; what the source deletes until it lands again nothing tells."""
        self.at += 1
        self.log.append("land again")
        self.parsed.db.execute("delete from raw")
        self.parsed.db.execute("delete from raw_properties")
        if self.rows and self.rng.random() < 0.5:
            del self.rows[self.rng.choice(sorted(self.rows))]
        known = self.parsed.rows("select distinct id from parsed") if self.parsed.is_made() else []
        self.undead = {key for (key,) in known} - self.rows.keys()
        for key, row in sorted(self.rows.items()):
            self.land("r", key, **row)

    def forget(self) -> None:
        self.log.append("forget")
        self.parsed.forget()

    def raw_columns(self) -> set[str]:
        found = self.parsed.rows("select column_name from duckdb_columns() where table_name = 'raw'")
        return {name for (name,) in found}

    def step(self) -> None:
        self.at += self.rng.random() < 0.7
        self.at += 600 * (self.rng.random() < 0.05)
        moves = {
            self.change: 40, self.load: 30, self.declare: 15, self.add: 1, self.drop: 1, self.add_again: 2,
            self.rename: 1, self.retype: 1, self.land_again: 3, self.forget: 1,
        }  # fmt: skip
        self.rng.choices([*moves], [*moves.values()])[0]()

    def check(self) -> None:
        """Loads all, and compares with the source, and with what a parsed has that is made of raw now."""
        self.at += 1
        self.load()
        self.parsed.load(self.lsn)
        parsed = self.parsed
        if not parsed.rows("select 1 from raw limit 1"):
            return  # a column that is new waits for a row
        current, found = parsed.current(), parsed.rows(self.of_raw())
        state = [(key, *(self.typed(name, row[name]) for name in parsed.declared)) for key, row in self.rows.items()]
        assert [row for row in current if row[0] not in self.undead] == sorted(state), "\n".join(self.log)
        for name in ("parsed", "parsed_properties"):
            parsed.rows(f"create or replace table kept_{name} as from {name}")
        parsed.rows("drop table parsed")
        parsed.forget()
        parsed.load(self.lsn)
        assert found == parsed.rows(self.of_raw()), "\n".join(self.log)
        for name in ("parsed", "parsed_properties"):
            parsed.rows(f"create or replace table {name} as from kept_{name}")

    def of_raw(self) -> str:
        """The rows of parsed that are those of raw."""
        names = ", ".join(["id", *self.parsed.declared, "_op", "_commit_lsn", "_loaded_at", "_valid_from"])
        return (
            f"select {names} from parsed where _loaded_at >= (select min(_ingested_at) from raw) and _op <> 't'"
            " order by _commit_lsn"
        )

    def typed(self, column: str, value: Any) -> Any:
        return int(value) if value is not None and column in self.integers() else value


@pytest.mark.parametrize("seed", seeds(40, 4))
def test_parsed_is_what_one_made_of_raw_now_would_be(seed: int) -> None:
    world = World(seed)
    for _ in range(8):
        for _ in range(world.rng.randint(1, 10)):
            world.step()
        world.check()
