"""Rows for tables of any schema: each foreign key names a row that is there, or is NULL where it may be."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from scaffold.propose import DbTable, read_tables

Row = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Filler:
    """Fills the tables of the schema `public`, parents first."""

    connection: psycopg.Connection[Any]
    tables: Mapping[int, DbTable]
    chance: random.Random
    rows: dict[int, list[Row]]

    def fill(self, count: int) -> None:
        """About so many rows in each table: what meets a unique key is left out."""
        with self.connection.transaction():
            self.connection.execute("SET CONSTRAINTS ALL DEFERRED")
            for oid in self._parents_first():
                for number in range(1, count + 1):
                    self._insert(self.tables[oid], number)

    def _parents_first(self) -> list[int]:
        order: dict[int, None] = {}

        def visit(oid: int, on_the_way: tuple[int, ...]) -> None:
            for _, other in sorted(self.tables[oid].foreign):
                if other not in (*on_the_way, oid) and other not in order:
                    visit(other, (*on_the_way, oid))
            order[oid] = None

        for oid in sorted(self.tables):
            visit(oid, ())
        return list(order)

    def _insert(self, table: DbTable, number: int) -> None:
        row = next((row for row in (self._references(table) for _ in range(100)) if row is not None), None)
        if row is None:
            return
        for column, kind, _ in table.columns:
            is_empty = column in table.nullable and self.chance.random() < 0.2
            row.setdefault(column, None if is_empty else self._value(column, kind, number))
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT DO NOTHING").format(
            sql.Identifier(table.schema, table.name),
            sql.SQL(", ").join(map(sql.Identifier, row)), sql.SQL(", ").join([sql.Placeholder()] * len(row)),
        )  # fmt: skip
        if self.connection.execute(statement, list(row.values())).rowcount:
            self.rows.setdefault(table.oid, []).append(row)

    def _references(self, table: DbTable) -> Row | None:
        """The columns of all foreign keys, the widest first; None if those that share a column do not agree."""
        row: Row = {}
        for columns, named, there in sorted(self._foreign(table), key=lambda f: (-len(f[0]), f[0])):
            fit = [r for r in there if all(row.get(c, r[n]) == r[n] for c, n in zip(columns, named, strict=True))]
            own = {column for column in columns if column not in row}
            empty = own & set(table.nullable)
            if empty and (not fit or self.chance.random() < 0.3):
                row |= dict.fromkeys(empty)
            elif fit:
                chosen = self.chance.choice(fit[:4])
                row |= {column: chosen[name] for column, name in zip(columns, named, strict=True)}
            elif there:
                return None
            else:  # the two refer to each other
                row |= dict.fromkeys(own, 1)
        return row

    def _foreign(self, table: DbTable) -> Iterator[tuple[tuple[str, ...], Sequence[str], list[Row]]]:
        for columns, other in table.foreign:
            yield columns, self.tables[other].key, self.rows.get(other, [])
        for columns, what in table.loose:
            name, _, named = what.partition(" (")
            other = next(oid for oid, one in self.tables.items() if one.relation == name)
            yield columns, named.partition(")")[0].split(", "), self.rows.get(other, [])

    def _value(self, column: str, kind: str, number: int) -> Any:
        if kind in ("smallint", "integer", "bigint"):
            return number
        if kind.startswith("numeric"):
            return number % 9
        if kind.startswith("timestamp"):
            moment = START + timedelta(hours=number * 7, minutes=self.chance.randrange(60))
            return moment if "with time" in kind else moment.replace(tzinfo=None)
        other: dict[str, Any] = {
            "boolean": self.chance.random() < 0.5, "date": date(2026, 1, 1) + timedelta(days=number),
            "jsonb": Jsonb({"number": number}), "inet": f"10.0.0.{number}", "bytea": bytes([number]),
            "text[]": [column, str(number)], "character(2)": f"{number:02}", "character(3)": f"{number:03}",
            "character(4)": f"{number:04}", "character(20)": f"{number:020}", "mpaa_rating": "PG-13",
        }  # fmt: skip
        return other.get(kind, f"{column[:2]}{number}")


def fill(connection: psycopg.Connection[Any], seed: int = 19, count: int = 12) -> None:
    """Rows in all tables of the schema `public`."""
    tables = {table.oid: table for table in read_tables(connection, ["public"])}
    Filler(connection, tables, random.Random(seed), {}).fill(count)
