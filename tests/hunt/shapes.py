"""The tables that histories begin with, small and of many types."""

from dataclasses import replace

from tests.hunt.eye import SECRET
from tests.hunt.history import Shape

TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad')",
    "CREATE DOMAIN price AS numeric(8,2)",
    "CREATE TYPE pair AS (x int, y text)",
)
COLUMNS = "a text, b text, n int, m numeric(8,2), e mood, d price, k pair, big text"
TOASTED = "ALTER TABLE {t} ALTER big SET STORAGE EXTERNAL"
ROWS = (
    "INSERT INTO {t} (id{more}, a, b, n, m, e, d, k, big)"
    " SELECT i{value}, 'a' || i, 'b' || i, i, i + 0.25, 'ok', i * 2,"
    " (i, 'y' || i)::pair, repeat(md5(i::text), 90) FROM generate_series(1, 6) i"
)
KEY = ("id",)
WITHHELD = {"s": "exclude", "h": "sha256", "u": "null"}
FULL = "ALTER TABLE t REPLICA IDENTITY FULL"


def _rows(table: str = "t", more: str = "", value: str = "") -> str:
    return ROWS.format(t=table, more=more, value=value)


def _plain(name: str, key: str, *more: str, table: str = "t") -> Shape:
    create = f"CREATE TABLE {table} (id int{key}, {COLUMNS})"
    return Shape(name, (*TYPES, create, TOASTED.format(t=table), *more, _rows(table)), ((table, KEY),))


def _composite(name: str, *more: str, of_key: str = "") -> Shape:
    create = f"CREATE TABLE t (id int, r int, {COLUMNS}, PRIMARY KEY (id, r){of_key})"
    return Shape(
        name, (*TYPES, create, TOASTED.format(t="t"), *more, _rows("t", ", r", ", i * 5")), (("t", ("id", "r")),)
    )


def _parted(name: str, *more: str, of_all: str = ", PRIMARY KEY (id, r)", of_each: str = "") -> Shape:
    parts = (
        f"CREATE TABLE t (id int, r int, {COLUMNS}{of_all}) PARTITION BY RANGE (r)",
        f"CREATE TABLE p0 PARTITION OF t{of_each} FOR VALUES FROM (0) TO (10)",
        f"CREATE TABLE p1 PARTITION OF t{of_each} FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE p2 PARTITION OF t FOR VALUES FROM (20) TO (30) PARTITION BY RANGE (id)",
        f"CREATE TABLE p2a PARTITION OF p2{of_each} FOR VALUES FROM (0) TO (5)",
        f"CREATE TABLE p2b PARTITION OF p2{of_each} DEFAULT",
        f"CREATE TABLE pd PARTITION OF t{of_each} DEFAULT",
    )
    return Shape(name, (*TYPES, *parts, *more, _rows("t", ", r", ", i * 5")), (("t", ("id", "r")),))


def _withheld(name: str, *more: str) -> Shape:
    plain = _plain(
        name, " PRIMARY KEY", *more, *(f"ALTER TABLE t ADD {column} text" for column in WITHHELD),
        *(f"COMMENT ON COLUMN t.{column} IS 'withheld'" for column in WITHHELD),
    )  # fmt: skip
    values = ", ".join(f"{column} = '{SECRET}' || id" for column in WITHHELD)
    return replace(plain, setup=(*plain.setup, f"UPDATE t SET {values}"), withheld=tuple(WITHHELD.items()))


PLAIN = _plain("plain", " PRIMARY KEY")
PARTED = _parted("parted")
OWN_KEYS = _parted("parted own", FULL, *(FULL.replace(" t ", f" {leaf} ") for leaf in ("p0", "p1", "p2a", "p2b", "pd")),
                   of_all="", of_each=" (PRIMARY KEY (id, r))")  # fmt: skip
SHAPES: tuple[tuple[int, Shape], ...] = (
    (8, PLAIN),
    (3, _plain("full", " PRIMARY KEY", FULL)),
    (2, _plain("deferrable", " PRIMARY KEY DEFERRABLE INITIALLY DEFERRED", FULL)),
    (2, _plain("index", " NOT NULL UNIQUE", "ALTER TABLE t REPLICA IDENTITY USING INDEX t_id_key")),
    (1, _plain("odd", " PRIMARY KEY", table='"Odd ""Täble.x"')),
    (2, _withheld("withheld")),
    (1, _withheld("withheld full", FULL)),
    (2, _composite("composite")),
    (2, _composite("composite full", FULL)),
    (1, _composite("composite deferrable", FULL, of_key=" DEFERRABLE INITIALLY DEFERRED")),
    (6, PARTED),
    (3, _parted("parted full", FULL)),
    (3, OWN_KEYS),
    (1, _plain("children", " PRIMARY KEY", "CREATE TABLE c1 (PRIMARY KEY (id)) INHERITS (t)",
               "CREATE TABLE c2 (z int) INHERITS (t)")),
    (2, Shape("pair of tables",
              (*PLAIN.setup, "CREATE TABLE u (id serial PRIMARY KEY, t_id int REFERENCES t ON DELETE CASCADE, n int)",
               "INSERT INTO u (t_id, n) SELECT id, n FROM t"), (("t", KEY), ("u", KEY)))),
)  # fmt: skip
