"""Small transactions on several tables at a steady rate, and work that is repeated beside them until it is stopped."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import psycopg

from tests.fourth_source import TYPES, Table

FIRST_ROWS = 500  # those a table begins with
TRANSACTIONS = 10  # in a statement
CHANGES = {"c": 4, "u": 4, "d": 2}  # in a transaction


class SteadyLoad(threading.Thread):
    """Works on the tables in turn until stopped; `done` counts the events of each table by operation."""

    def __init__(self, url: str, tables: Sequence[Table], changes_per_second: float) -> None:
        super().__init__(daemon=True)
        self.url, self.tables, self.rate = url, tables, changes_per_second
        self.done = {table.name: Counter({"r": FIRST_ROWS}) for table in tables}
        self.seconds = 0.0
        self.failure: Exception | None = None
        self.stop = threading.Event()

    @property
    def changes(self) -> int:
        """All of them, the first rows left out."""
        return sum(sum(counts.values()) - FIRST_ROWS for counts in self.done.values())

    def run(self) -> None:
        """The thread's body."""
        begun = time.monotonic()
        try:
            with psycopg.connect(self.url, autocommit=True) as connection:
                turn = 0
                while not self.stop.is_set():
                    self.stop.wait(max(0.0, self.changes / self.rate - (time.monotonic() - begun)))
                    self._batch(connection, self.tables[turn % len(self.tables)], turn // len(self.tables))
                    turn += 1
        except Exception as error:
            self.failure = error
        self.seconds = time.monotonic() - begun

    def finish(self) -> None:
        """Stops it; raises what went wrong in it."""
        self.stop.set()
        self.join()
        if self.failure is not None:
            raise self.failure

    def _batch(self, connection: psycopg.Connection, table: Table, number: int) -> None:
        connection.execute(batch(table, number * TRANSACTIONS))
        self.done[table.name].update({op: rows * TRANSACTIONS for op, rows in CHANGES.items()})


def batch(table: Table, first: int) -> str:
    """Ten transactions: four rows come, the four newest before them change, the two oldest go."""
    name, kind = table.columns[1]
    changed = TYPES[kind].replace("{salt}", "changed")
    return f"""DO $$ DECLARE k int; BEGIN FOR x IN {first}..{first + TRANSACTIONS - 1} LOOP
      k := {FIRST_ROWS} + 4 * x;
      {table.insert("k + 1", "k + 4")};
      UPDATE {table.name} SET {name} = (SELECT {changed} FROM (SELECT {table.name}.{table.key} + x AS n) AS s)
        WHERE {table.key} BETWEEN k - 3 AND k;
      DELETE FROM {table.name} WHERE {table.key} BETWEEN 2 * x + 1 AND 2 * x + 2;
      COMMIT; END LOOP; END $$"""


class Repeated(threading.Thread):
    """Calls the work again and again until stopped; a failure ends it."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.work = work
        self.seconds: list[float] = []
        self.failure: BaseException | None = None
        self.stop = threading.Event()

    def run(self) -> None:
        """The thread's body."""
        while not self.stop.is_set() and self.failure is None:
            begun = time.monotonic()
            try:
                self.work()
                self.seconds.append(time.monotonic() - begun)
            except BaseException as error:
                self.failure = error

    def finish(self) -> None:
        """Lets the work under way end; raises what went wrong in it."""
        self.stop.set()
        self.join()
        if self.failure is not None:
            raise self.failure
