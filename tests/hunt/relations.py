"""Moves of whole relations: partitions, identities, names, persistence, publications."""

import re

from tests.hunt.moves import Hand, Move, delete, insert, update

PUBLICATION = "ALTER PUBLICATION lakehouse {} TABLE {}"


def identity(hand: Hand) -> Move | None:
    """Another replica identity, and the former one again."""
    if not hand.eye.exists:
        return None
    unique = [f"USING INDEX {name}" for name in hand.eye.unique[:1]] if hand.eye.kind == "r" else []
    was = {"d": "DEFAULT", "f": "FULL", "n": "NOTHING"}.get(hand.eye.identity, *unique[:1] or ["DEFAULT"])
    new = hand.rng.choice([way for way in ("DEFAULT", "FULL", "FULL", "NOTHING", *unique) if way != was])
    alter = f"ALTER TABLE {hand.t} REPLICA IDENTITY "
    return Move(f"identity {new.split()[0].lower()}", (alter + new,), (alter + was,))


def other_index(hand: Hand) -> Move | None:
    """Another unique index becomes the replica identity."""
    if hand.eye.kind != "r" or "n" not in hand.eye.names:
        return None
    name = f"ix{hand.next()}"
    makes = (
        f"UPDATE {hand.t} SET n = {1000 + hand.next()} + {hand.eye.id}",
        f"ALTER TABLE {hand.t} ALTER n SET NOT NULL",
        f"CREATE UNIQUE INDEX {name} ON {hand.t} (n)",
        f"ALTER TABLE {hand.t} REPLICA IDENTITY USING INDEX {name}",
    )
    return Move("identity index", makes,
                (f"ALTER TABLE {hand.t} REPLICA IDENTITY DEFAULT", f"DROP INDEX {name}",
                 f"ALTER TABLE {hand.t} ALTER n DROP NOT NULL"))  # fmt: skip


def publication(hand: Hand) -> Move | None:
    """Out of the publication, and in again."""
    out, back = PUBLICATION.format("DROP", hand.t), PUBLICATION.format("ADD", hand.t)
    return Move("publication", (out,), (back,)) if hand.eye.published else None


def persistence(hand: Hand) -> Move | None:
    """UNLOGGED needs the publication left first; a partition may be unlogged by itself."""
    if hand.eye.kind == "r":
        return Move("unlogged", (PUBLICATION.format("DROP", hand.t), f"ALTER TABLE {hand.t} SET UNLOGGED"),
                    (f"ALTER TABLE {hand.t} SET LOGGED", PUBLICATION.format("ADD", hand.t)))  # fmt: skip
    leaves = [o.name for o in hand.eye.others if o.attached and o.kind == "r"]
    if not leaves:
        return None
    leaf = hand.rng.choice(leaves)
    alter = f"ALTER TABLE {leaf} SET "
    return Move("unlogged leaf", (alter + "UNLOGGED",), (alter + "LOGGED",))


def rename_table(hand: Hand) -> Move | None:
    """Another name, and back; or the schema's."""
    if not hand.eye.exists or not hand.eye.at_home:
        return None
    if hand.rng.random() < 0.3:
        return Move("rename schema", ("ALTER SCHEMA {s} RENAME TO {s}_x",), ("ALTER SCHEMA {s}_x RENAME TO {s}",))
    if hand.rng.random() < 0.3:
        return Move("move to schema", ("CREATE SCHEMA IF NOT EXISTS {s}_x", f"ALTER TABLE {hand.t} SET SCHEMA {{s}}_x"),
                    (f"ALTER TABLE {hand.t} SET SCHEMA {{s}}",))  # fmt: skip
    return Move(
        "rename table", (f"ALTER TABLE {hand.t} RENAME TO elsewhere",), (f"ALTER TABLE elsewhere RENAME TO {hand.t}",)
    )


def remake(hand: Hand) -> Move | None:
    """The table goes, and another one comes by its name."""
    if hand.eye.kind != "r" or not hand.eye.at_home or any(o.parent or o.name == "u" for o in hand.eye.others):
        return None
    copy = f"CREATE TABLE twin (LIKE {hand.t} INCLUDING ALL)"
    take = (f"ALTER TABLE twin RENAME TO {hand.t}", PUBLICATION.format("ADD", hand.t))
    full = (f"ALTER TABLE {hand.t} REPLICA IDENTITY FULL",) if hand.eye.identity in "fi" else ()
    if hand.rng.random() < 0.5:
        fill = (f"INSERT INTO twin SELECT * FROM {hand.t}",) if not any(c.generated for c in hand.eye.columns) else ()
        return Move("remake", (copy, *fill, f"DROP TABLE {hand.t}", *take, *full))
    aside = f"gone{hand.next()}"
    back = (f"DROP TABLE {hand.t}", f"ALTER TABLE {aside} RENAME TO {hand.t}")
    return Move("replace", (copy, f"ALTER TABLE {hand.t} RENAME TO {aside}", *take, *full), back)


def primary_key(hand: Hand) -> Move | None:
    """The key's index is another one, perhaps with a column more or checked at the end."""
    eye = hand.eye
    if eye.kind != "r" or eye.primary is None or not eye.key or any(o.name == "u" or o.parent for o in eye.others):
        return None
    later = hand.rng.choice(["", " DEFERRABLE INITIALLY DEFERRED"])
    key = ", ".join(eye.key)
    columns = hand.rng.choice([key, key, f"{key}, n"])
    drop = f"ALTER TABLE {hand.t} DROP CONSTRAINT {eye.primary}"
    fill = () if columns == key else (f"UPDATE {hand.t} SET n = {eye.id} WHERE n IS NULL",)
    add = f"ALTER TABLE {hand.t} ADD PRIMARY KEY ({columns})"
    again = f"ALTER TABLE {hand.t} DROP CONSTRAINT IF EXISTS {eye.primary}"
    back = (again, f"ALTER TABLE {hand.t} ADD CONSTRAINT {eye.primary} PRIMARY KEY ({key})")
    if columns == key and not later:
        back = ()
    return Move("primary key", (*fill, drop, add.replace("ADD ", f"ADD CONSTRAINT {eye.primary} ") + later), back)


def detach(hand: Hand) -> Move | None:
    """A partition goes, is changed, and comes back."""
    parts = [o for o in hand.eye.others if o.attached]
    if not parts:
        return None
    part = hand.rng.choice(parts)
    alter = f"ALTER TABLE {part.parent} "
    out, back = f"{alter}DETACH PARTITION {part.name}", f"{alter}ATTACH PARTITION {part.name} {part.bound}"
    if hand.rng.random() < 0.3:
        return Move("detach", (out,), (back,))
    first = re.search(r"FROM \((\d+)\)", part.bound or "")
    low = 25 if part.parent != hand.t else int(first[1]) if first else 99
    changes = [hand.rng.choice([lambda h, p: insert(h, p, low), update, delete])(hand, part.name) for _ in range(2)]
    changes += [f"TRUNCATE {part.name}"] if hand.rng.random() < 0.15 else []
    if hand.rng.random() < 0.7:
        return Move("detach and attach", (out, *changes, back))
    return Move("detach", (out, *changes), (back,))


def new_partition(hand: Hand) -> Move | None:
    """With rows or without, made in place or attached; or one is dropped."""
    if hand.eye.kind != "p":
        return None
    taken = {o.name for o in hand.eye.others}
    low = hand.rng.choice([40, 50, 60])
    name, bound = f"q{low}", f"FOR VALUES FROM ({low}) TO ({low + 10})"
    if name in taken:
        return Move("drop partition", (f"DROP TABLE {name}",))
    if hand.rng.random() < 0.4:
        return Move("new partition", (f"CREATE TABLE {name} PARTITION OF {hand.t} {bound}", insert(hand, None, low)))
    rows = tuple(insert(hand, name, low) for _ in range(hand.rng.randint(0, 2)))
    alter = f"ALTER TABLE {hand.t} "
    makes = (f"CREATE TABLE {name} (LIKE {hand.t} INCLUDING ALL)", *rows, f"{alter}ATTACH PARTITION {name} {bound}")
    return Move("attach", makes, (f"{alter}DETACH PARTITION {name}",))


def passing_partition(hand: Hand) -> Move | None:
    """A partition that comes and goes, or is emptied, between two looks, or nearly so."""
    if hand.eye.kind != "p":
        return None
    low = hand.rng.choice([40, 50, 60])
    name, bound = f"q{low}", f"FOR VALUES FROM ({low}) TO ({low + 10})"
    if name in {o.name for o in hand.eye.others}:
        return None
    comes = (f"CREATE TABLE {name} PARTITION OF {hand.t} {bound}", insert(hand, None, low), update(hand, name))
    detach, attach = (
        f"ALTER TABLE {hand.t} DETACH PARTITION {name}",
        f"ALTER TABLE {hand.t} ATTACH PARTITION {name} {bound}",
    )
    goes = [
        (f"DROP TABLE {name}",), (detach, f"DROP TABLE {name}"), (f"TRUNCATE {name}",),
        (detach, f"DELETE FROM {name}", attach),
    ]  # fmt: skip
    return Move("passing partition", (*comes, *hand.rng.choice(goes)))


def attach_elsewhere(hand: Hand) -> Move | None:
    """The declared table becomes a partition of another one for a while, which is perhaps published too."""
    if not hand.eye.exists or not hand.eye.at_home or any(o.name == "top" for o in hand.eye.others):
        return None
    makes = [f"CREATE TABLE top (LIKE {hand.t}) PARTITION BY RANGE ({hand.eye.id})"]
    makes += [PUBLICATION.format("ADD", "top")] if hand.rng.random() < 0.4 else []
    makes += [f"ALTER TABLE top ATTACH PARTITION {hand.t} FOR VALUES FROM (MINVALUE) TO (MAXVALUE)"]
    if hand.eye.free:
        through = [hand.rng.choice(["top", hand.t]) for _ in range(2)]
        makes += [hand.rng.choice([insert, update, delete])(hand, table) for table in through]
    return Move("attach elsewhere", tuple(makes), (f"ALTER TABLE top DETACH PARTITION {hand.t}", "DROP TABLE top"))


def leaf_identity(hand: Hand) -> Move | None:
    """A leaf tells less, or more, of its old rows than the root does."""
    leaves = [o.name for o in hand.eye.others if o.attached and o.kind == "r"]
    if not leaves or not hand.eye.free:
        return None
    leaf = hand.rng.choice(leaves)
    alter = f"ALTER TABLE {leaf} REPLICA IDENTITY "
    was = "DEFAULT" if hand.rng.random() < 0.7 else "FULL"
    new = hand.rng.choice([way for way in ("DEFAULT", "FULL", "NOTHING") if way != was])
    change = hand.rng.choice([insert, update, delete])
    rows = (insert(hand, leaf, low_of(leaf)),) if change is insert else (change(hand, leaf),)
    return Move(f"leaf identity {new.lower()}", (alter + new, *rows), (alter + was,))


def low_of(leaf: str) -> int:
    """A value of `r` that the leaf of a partitioned shape takes."""
    return {"p0": 1, "p1": 11, "p2a": 21, "p2b": 22}.get(leaf, int(leaf[1:]) if leaf[1:].isdigit() else 99)


def publish_schema(hand: Hand) -> Move | None:
    """The schema is published instead of the table."""
    if not hand.eye.published or not hand.eye.at_home:
        return None
    whole = "ALTER PUBLICATION lakehouse {} TABLES IN SCHEMA {{s}}"
    return Move("publish schema", (PUBLICATION.format("DROP", hand.t), whole.format("ADD")),
                (whole.format("DROP"), PUBLICATION.format("ADD", hand.t)))  # fmt: skip


def move_rows(hand: Hand) -> Move | None:
    """From a partition to another one."""
    if not hand.eye.r:
        return None
    to, which = f"{hand.eye.r} = {hand.rng.randint(0, 69)}", f"{hand.eye.id} = {hand.an_id()}"
    return Move("move rows", (f"UPDATE {hand.t} SET {to} WHERE {which}",))


def children(hand: Hand) -> Move | None:
    """Rows of tables that inherit; one of them leaves and comes back."""
    heirs = [o.name for o in hand.eye.others if o.parent and not o.attached and o.kind == "r"]
    if not heirs or hand.eye.kind != "r":
        return None
    child = hand.rng.choice(heirs)
    if hand.rng.random() < 0.3:
        alter = f"ALTER TABLE {child} {{}} {hand.t}"
        return Move("no inherit", (alter.format("NO INHERIT"),), (alter.format("INHERIT"),))
    return Move("rows of a child", (hand.rng.choice([insert, update, delete])(hand, child),))


def second(hand: Hand) -> Move | None:
    """Rows of the table that refers to the first."""
    if not any(o.name == "u" for o in hand.eye.others):
        return None
    return Move("rows", (hand.rng.choice([
        f"INSERT INTO u (t_id, n) VALUES ({hand.an_id()}, {hand.next()})",
        f"UPDATE u SET n = {hand.next()} WHERE id < 4", "DELETE FROM u WHERE id % 3 = 0",
        "TRUNCATE u RESTART IDENTITY",
        f"INSERT INTO u (t_id, n) VALUES ({hand.an_id()}, {hand.next()})"]),))  # fmt: skip
