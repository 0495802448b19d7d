"""A database in which everything a user can name, comment or store tries to be more than text."""

import random
from dataclasses import dataclass
from typing import Any

import psycopg

from lakehouse.declarations import Column, RawTable
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.text.sql import ident, literal, relation
from tests.hostile import names

KEY, ENUM, DOMAIN = "text", "enum", "domain"


@dataclass(frozen=True)
class Hostile:
    """One table: its columns in order with their kinds, the first of them its key; labels of its enum; its rows."""

    lake: str
    schema: str
    name: str
    columns: tuple[tuple[str, str], ...]
    labels: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]

    @property
    def key(self) -> tuple[str, ...]:
        """The first two columns."""
        return tuple(name for name, _ in self.columns[:2])

    @property
    def texts(self) -> int:
        """How many names, comments, labels and values it holds."""
        return 2 + 3 * len(self.columns) + len(self.labels) + sum(len(row) for row in self.rows)

    def ddl(self) -> list[str]:
        """Statements that make and fill it."""
        place, schema = relation(self.schema, self.name), ident(self.schema)
        enum, domain = f"{schema}.{ident(self.labels[0])}", f"{schema}.{ident(self.labels[1])}"
        types = {KEY: "text", ENUM: enum, DOMAIN: domain}
        columns = ", ".join(f"{ident(name)} {types[kind]}" for name, kind in self.columns)
        key = ", ".join(map(ident, self.key))
        return [
            f"CREATE SCHEMA IF NOT EXISTS {schema}",
            f"CREATE TYPE {enum} AS ENUM ({', '.join(map(literal, self.labels))})",
            f"CREATE DOMAIN {domain} AS text",
            f"CREATE TABLE {place} ({columns}, PRIMARY KEY ({key}))",
            f"COMMENT ON TABLE {place} IS {literal(self.labels[2])}",
            *(f"COMMENT ON COLUMN {place}.{ident(name)} IS {literal(name[::-1] or 'x')}" for name, _ in self.columns),
            *(self.insert(row) for row in self.rows),
        ]

    def insert(self, row: tuple[str | None, ...]) -> str:
        """One row."""
        values = ", ".join("NULL" if value is None else literal(value) for value in row)
        return f"INSERT INTO {relation(self.schema, self.name)} VALUES ({values})"

    def raw(self, **policy: Any) -> RawPolicy:
        """What a declaration says of it."""
        return RawPolicy(relation=relation(self.schema, self.name), key=self.key, **policy)

    def declared(self, source: str = "shop", **policy: Any) -> RawTable:
        """Its declaration, with every column under its own name."""
        columns = tuple(Column(name=name, data_type=None, description="") for name, _ in self.columns)
        return RawTable(
            source=source, name=self.lake, description="", columns=columns, raw=self.raw(**policy),
            load=LoadPolicy(), maintenance=None, owners=(),
        )  # fmt: skip


def tables(seed: int, count: int, columns: int = 10, rows: int = 5) -> list[Hostile]:
    """So many tables. Names of one table differ when lower-cased too, as they must where they land without an alias."""
    chance, pool = random.Random(seed), names(seed, 400)
    return [_table(chance, pool, number, columns, rows) for number in range(count)]


def _table(chance: random.Random, pool: list[str], number: int, columns: int, rows: int) -> Hostile:
    picked = chance.sample(pool, len(pool))
    plain = {name.casefold().strip(): name for name in picked if name.strip()}
    schema, name, *rest = list(plain.values())
    kinds = [KEY, KEY, *chance.choices([KEY, ENUM, DOMAIN], k=columns - 2)]
    labels = tuple(rest[columns : columns + 8])
    made = []
    for _ in range(rows):
        values = chance.sample(pool, columns)
        made.append(tuple(chance.choice(labels) if k == ENUM else v for k, v in zip(kinds, values, strict=True)))
    return Hostile(f"t{number}", schema, name, tuple(zip(rest, kinds, strict=False)), labels, tuple(made))


def create(connection: psycopg.Connection[Any], made: list[Hostile]) -> None:
    """Makes the tables; the connection is in autocommit mode."""
    for table in made:
        for statement in table.ddl():
            connection.execute(statement.encode())
