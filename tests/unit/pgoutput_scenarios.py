"""What the recorded streams are recorded of: SQL that makes Postgres send every shape of message.

A statement that begins with `2:` runs in a second session; one that begins with COPY carries its rows after a newline.
`keys` are the declared keys; `published` stands in CREATE PUBLICATION ... after FOR.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scenario:
    """SQL to run before the slot exists, and SQL whose changes are recorded."""

    setup: tuple[str, ...]
    steps: tuple[str, ...]
    keys: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    published: str = "TABLES IN SCHEMA s"
    options: str = ""


BIG = "repeat('a b c d e f ', 180)"  # 2160 bytes: out of line, and still a possible index entry
PLAIN = "CREATE TABLE s.t (id bigint PRIMARY KEY, t text, n numeric(12,2))"
TOAST = (
    "CREATE TABLE s.t (id bigint PRIMARY KEY, small text, big text, other text)",
    "ALTER TABLE s.t ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL",
)
TOAST_STEPS = (
    f"INSERT INTO s.t VALUES (1, 'a', {BIG}, {BIG} || 'x'), (2, 'b', {BIG}, NULL), (3, 'c', '', 'short')",
    "UPDATE s.t SET small = small || '!'",
    f"UPDATE s.t SET big = {BIG} || 'new' WHERE id = 1",
    "UPDATE s.t SET big = NULL WHERE id = 2",
    "UPDATE s.t SET id = id + 10",
    "BEGIN; UPDATE s.t SET small = 'd' WHERE id = 11; UPDATE s.t SET id = 5 WHERE id = 11; COMMIT",
    "DELETE FROM s.t WHERE id = 12",
)

SCENARIOS: dict[str, Scenario] = {
    "changes": Scenario(
        (PLAIN,),
        (
            "INSERT INTO s.t VALUES (1, '', 0), (2, NULL, NULL), (3, '\\N', -1.5), (4, E'q\"''\\\\ \\n\\t\\r', 'NaN')",
            "INSERT INTO s.t VALUES (5, 'žluťoučký 🐎', 9999999999.99)",
            "UPDATE s.t SET t = NULL WHERE id = 1",
            "UPDATE s.t SET t = 'two', n = 2 WHERE id IN (2, 3)",
            "DELETE FROM s.t WHERE id = 3",
            "BEGIN; INSERT INTO s.t VALUES (6, 'six', 6); UPDATE s.t SET n = 7 WHERE id = 6; "
            "DELETE FROM s.t WHERE id = 6; INSERT INTO s.t VALUES (6, 'again', 8); COMMIT",
        ),
    ),
    "key_change": Scenario(
        (
            "CREATE TABLE s.t (id bigint PRIMARY KEY, v text)",
            "CREATE TABLE s.c (a int, b text, v text, PRIMARY KEY (b, a), UNIQUE (v))",
        ),
        (
            "INSERT INTO s.t VALUES (1, 'one'), (2, 'two'), (3, 'three')",
            "UPDATE s.t SET id = 10 WHERE id = 1",
            "BEGIN; UPDATE s.t SET id = -1 WHERE id = 2; UPDATE s.t SET id = 2 WHERE id = 3;"
            " UPDATE s.t SET id = 3 WHERE id = -1; COMMIT",
            "UPDATE s.t SET id = id + 100, v = v || '+'",
            "INSERT INTO s.c VALUES (1, E'x\"y\\\\z\\n\\u0001', 'v'), (2, '', 'w')",
            "UPDATE s.c SET b = b || 'é' WHERE a = 1",
            "UPDATE s.c SET a = 7, v = NULL WHERE b = ''",
            "UPDATE s.c SET v = 'only'  WHERE a = 7",
            "DELETE FROM s.c WHERE a = 7",
        ),
        keys={("s", "t"): ("id",)},
    ),
    "full": Scenario(
        (
            PLAIN,
            "ALTER TABLE s.t REPLICA IDENTITY FULL",
            "CREATE TABLE s.k (a int, b text)",
            "ALTER TABLE s.k REPLICA IDENTITY FULL",
        ),
        (
            "INSERT INTO s.t VALUES (1, 'one', 1), (2, NULL, 2), (3, 'three', NULL)",
            "UPDATE s.t SET t = 'x'",
            "UPDATE s.t SET id = id + 1, n = n + 1 WHERE id = 3",
            "DELETE FROM s.t WHERE id = 2",
            "INSERT INTO s.k VALUES (1, 'a'), (1, 'a'), (NULL, NULL)",
            "UPDATE s.k SET b = 'z' WHERE a IS NULL",
            "DELETE FROM s.k WHERE a = 1",
        ),
        keys={("s", "t"): ("id",)},
    ),
    "index_identity": Scenario(
        (
            "CREATE TABLE s.t (id bigint PRIMARY KEY, mail text NOT NULL, v text)",
            "CREATE UNIQUE INDEX t_mail ON s.t (mail, id)",
            "ALTER TABLE s.t REPLICA IDENTITY USING INDEX t_mail",
            "CREATE TABLE s.u (id bigint PRIMARY KEY, mail text NOT NULL, v text)",
            "CREATE UNIQUE INDEX u_mail ON s.u (mail)",
            "ALTER TABLE s.u REPLICA IDENTITY USING INDEX u_mail",
        ),
        (
            "INSERT INTO s.t VALUES (1, 'a@x', 'v'), (2, 'b@x', 'w')",
            "UPDATE s.t SET mail = 'c@x' WHERE id = 1",  # not a change of the declared key
            "UPDATE s.t SET id = 9 WHERE id = 2",
            "UPDATE s.t SET v = 'n'",
            "DELETE FROM s.t WHERE id = 9",
            "INSERT INTO s.u VALUES (1, 'a@x', 'v')",
            "UPDATE s.u SET mail = 'm@x'",
            "DELETE FROM s.u",
        ),
        keys={("s", "t"): ("id",)},
    ),
    "toast": Scenario(TOAST, TOAST_STEPS, keys={("s", "t"): ("id",)}),
    "toast_full": Scenario((*TOAST, "ALTER TABLE s.t REPLICA IDENTITY FULL"), TOAST_STEPS, keys={("s", "t"): ("id",)}),
    "toast_key": Scenario(
        (
            "CREATE TABLE s.t (a text, b int, v text, PRIMARY KEY (a, b))",
            "ALTER TABLE s.t ALTER a SET STORAGE EXTERNAL",
        ),
        (
            f"INSERT INTO s.t VALUES ({BIG}, 1, 'v'), ('short', 2, 'v')",
            "UPDATE s.t SET v = 'not a key change'",
            "UPDATE s.t SET b = b + 10",
            "DELETE FROM s.t WHERE b = 11",
        ),
        keys={("s", "t"): ("a", "b")},
    ),
    "truncate": Scenario(
        (
            PLAIN,
            "CREATE TABLE s.child (id int PRIMARY KEY, t_id bigint REFERENCES s.t)",
            "CREATE TABLE s.alone (id int PRIMARY KEY)",
        ),
        (
            "INSERT INTO s.t VALUES (1, 'a', 1), (2, 'b', 2); ",
            "INSERT INTO s.child VALUES (1, 1)",
            "INSERT INTO s.alone VALUES (1)",
            "TRUNCATE s.t CASCADE",
            "BEGIN; INSERT INTO s.alone VALUES (2); TRUNCATE s.alone RESTART IDENTITY; INSERT INTO s.alone VALUES (3);"
            " INSERT INTO s.t VALUES (3, 'c', 3); TRUNCATE s.t, s.child, s.alone; INSERT INTO s.t VALUES (4, 'd', 4);"
            " COMMIT",
        ),
    ),
    "copy": Scenario(
        (PLAIN,),
        (
            "COPY s.t FROM STDIN\n" + "".join(f"{i}\trow {i}\t{i}.25\n" for i in range(1, 41)),
            "BEGIN",
            "COPY s.t FROM STDIN\n41\t\\N\t\\N\n42\t\\\\N\t1\n",
            "UPDATE s.t SET t = 'after copy' WHERE id > 38",
            "COMMIT",
        ),
    ),
    "savepoints": Scenario(
        (PLAIN,),
        (
            "BEGIN; INSERT INTO s.t VALUES (1, 'kept', 1); SAVEPOINT a; INSERT INTO s.t VALUES (2, 'gone', 2);"
            " ROLLBACK TO a; INSERT INTO s.t VALUES (2, 'kept', 2); SAVEPOINT b; UPDATE s.t SET t = 'sub' WHERE id = 1;"
            " RELEASE b; SAVEPOINT c; DELETE FROM s.t; ROLLBACK TO c; COMMIT",
            "BEGIN; INSERT INTO s.t VALUES (9, 'never', 9); ROLLBACK",
            "DO $$ BEGIN FOR i IN 10..14 LOOP BEGIN INSERT INTO s.t VALUES (i, 'x', i);"
            " IF i % 2 = 0 THEN RAISE EXCEPTION 'no'; END IF; EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END $$",
        ),
    ),
    "interleaved": Scenario(
        (PLAIN, "CREATE TABLE s.b (id int PRIMARY KEY, t_id bigint)"),
        (
            "BEGIN; INSERT INTO s.t VALUES (1, 'first to begin', 1)",
            "2: BEGIN; INSERT INTO s.t VALUES (2, 'second', 2); INSERT INTO s.b VALUES (1, 2)",
            "INSERT INTO s.b VALUES (2, 1); UPDATE s.t SET n = 10 WHERE id = 1",
            "2: INSERT INTO s.b VALUES (3, 2); COMMIT",
            "INSERT INTO s.b VALUES (4, 1); COMMIT",
            "2: BEGIN; UPDATE s.t SET t = 'b' WHERE id = 1; DELETE FROM s.b; COMMIT",
        ),
    ),
    "ddl": Scenario(
        (PLAIN,),
        (
            "INSERT INTO s.t VALUES (1, 'a', 1)",
            "ALTER TABLE s.t ADD x int DEFAULT 5, ADD y text",
            "INSERT INTO s.t VALUES (2, 'b', 2, 2, 'y')",
            "BEGIN; INSERT INTO s.t VALUES (3, 'c', 3); ALTER TABLE s.t DROP n; INSERT INTO s.t VALUES (4, 'd', 4);"
            " ALTER TABLE s.t RENAME t TO label; UPDATE s.t SET label = 'e' WHERE id = 4; COMMIT",
            "ALTER TABLE s.t ALTER x TYPE bigint",
            "UPDATE s.t SET x = 5000000000 WHERE id = 1",
            "ALTER TABLE s.t RENAME TO renamed",
            "INSERT INTO s.renamed VALUES (5, 'f', 5)",
            "CREATE TABLE s.t (id int PRIMARY KEY, fresh text)",
            "INSERT INTO s.t VALUES (1, 'new table, old name')",
            "ALTER TABLE s.t REPLICA IDENTITY FULL",
            "UPDATE s.t SET fresh = 'full now'",
            "DROP TABLE s.t; CREATE TABLE s.t (id int PRIMARY KEY)",
            "INSERT INTO s.t VALUES (7)",
        ),
    ),
    "messages": Scenario(
        (PLAIN,),
        (
            "SELECT pg_logical_emit_message(false, 'heartbeat', 'outside')",
            "BEGIN; SELECT pg_logical_emit_message(true, 'p', 'inside'); INSERT INTO s.t VALUES (1, 'a', 1);"
            " SELECT pg_logical_emit_message(false, 'p', 'outside, sent at once'); INSERT INTO s.t VALUES (2, 'b', 2);"
            " SELECT pg_logical_emit_message(true, 'p', ''); DELETE FROM s.t WHERE id = 1; COMMIT",
            "SELECT pg_logical_emit_message(true, 'alone', 'a transaction of a message')",
        ),
        options=", 'messages', 'true'",
    ),
    "names": Scenario(
        (
            'CREATE SCHEMA "Řády"',
            'CREATE TABLE "Řády"."Order" ("Id" int PRIMARY KEY, "_op" text, "select" text, "a b" text, "ž""q" text)',
            "CREATE TABLE s.nothing ()",
            "CREATE TABLE s._x (_id int, _seq int, PRIMARY KEY (_id))",
        ),
        (
            """INSERT INTO "Řády"."Order" VALUES (1, 'mine', 'from', 'c d', 'q')""",
            """UPDATE "Řády"."Order" SET "Id" = 2""",
            "INSERT INTO s.nothing DEFAULT VALUES; INSERT INTO s.nothing DEFAULT VALUES; TRUNCATE s.nothing",
            "INSERT INTO s._x VALUES (1, 1); DELETE FROM s._x",
        ),
        published='TABLES IN SCHEMA s, "Řády"',
    ),
    "partitioned": Scenario(
        (
            "CREATE TABLE s.p (id int, d date, v text, PRIMARY KEY (id, d)) PARTITION BY RANGE (d)",
            "CREATE TABLE s.p1 PARTITION OF s.p FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')",
            "CREATE TABLE s.p2 PARTITION OF s.p FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')",
        ),
        (
            "INSERT INTO s.p VALUES (1, '2024-01-05', 'a'), (2, '2024-02-05', 'b')",
            "UPDATE s.p SET d = '2024-02-06' WHERE id = 1",
            "UPDATE s.p SET v = 'c'",
            "DELETE FROM s.p WHERE id = 2",
            "TRUNCATE s.p",
        ),
        published="TABLE s.p WITH (publish_via_partition_root = true)",
        keys={("s", "p"): ("id", "d")},
    ),
    "own_types": Scenario(
        (
            "CREATE TYPE s.mood AS ENUM ('sad', 'happy')",
            "CREATE DOMAIN s.price AS numeric(10,2)",
            "CREATE TYPE s.pair AS (x int, y text)",
            "CREATE TABLE s.t (id int PRIMARY KEY, m s.mood, p s.price, q s.pair, a int[],"
            " g int GENERATED ALWAYS AS (id * 2) STORED)",
        ),
        (
            "INSERT INTO s.t VALUES (1, 'sad', 1.5, '(1,\"a,b\")', '{{1,NULL},{3,4}}')",
            "UPDATE s.t SET m = 'happy', a = NULL",
        ),
        published="TABLE s.t WITH (publish_generated_columns = stored)",
    ),
    "filtered": Scenario(
        (PLAIN,),
        (
            "INSERT INTO s.t VALUES (1, 'hidden', 1), (20, 'seen', 2), (30, 'moves out', 3)",
            "UPDATE s.t SET id = 40 WHERE id = 1",
            "UPDATE s.t SET id = 3 WHERE id = 30",
        ),
        published="TABLE s.t (id, t) WHERE (id > 10)",
    ),
}
