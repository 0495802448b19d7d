"""Random declarations of a stranger: few names, so that they often meet, and every way to refer to something.

Most are refused, with a code. What is accepted has models that are right, or the declaration should have been refused.
"""

import random
from typing import Any

from tests.unit.test_vault_names import of

WORDS = ("order", "group", "status", "user", "a", "a_b", "b", "select", "order_group", "order_v1", "id", "row")
COLUMNS = (
    "id", "code", "order", "select", "status", "group", "größe", "Nr", "a", "b", "hk_order", "hd_status", "order_id",
    "a b", "user", "end", "values", "is_active", "driving", "hk_row", "link",
)  # fmt: skip
NAMED = {"a b": "a_b", "hd_status": "status", "hk_order": "order"}  # columns that mostly have an alias
KINDS = ("int", "text", "int", "text", "bigint", "numeric(8,2)", "date")
ALIKE = {"int": ("bigint", "numeric(8,2)"), "text": ("int", "date"), "numeric(8,2)": ("int",)}  # may name such a key
Hub = tuple[str, list[str], list[str]]  # name, collision codes, types of the key


class Chance:
    """What is drawn for one declaration."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.hubs: list[Hub] = []
        self.codes: list[tuple[str, list[str]]] = []
        self.made: set[str] = set()

    def name(self) -> str:
        """A name that was mostly not given before."""
        fresh = [word for word in WORDS if word not in self.made]
        found = self.rng.choice(fresh if fresh and self.rng.random() < 0.9 else WORDS)
        self.made.add(found)
        return found

    def is_so(self, how_often: float) -> bool:
        """Whether it happens."""
        return self.rng.random() < how_often


class Table:
    """Columns with their types, as they are drawn for its parts."""

    def __init__(self, chance: Chance) -> None:
        self.chance = chance
        self.left = chance.rng.sample(COLUMNS, len(COLUMNS))
        self.types: dict[str, str] = {}
        self.key: list[str] = []
        self.free: list[str] = []  # columns of references, which others may share

    def draw(self, kind: str) -> str:
        """A new column."""
        column = self.left.pop()
        self.types[column] = kind
        return column

    def reference(self, hub: Hub, *, in_key: bool = False) -> dict[str, Any]:
        """Columns that name a key of the hub: new ones, those of another reference, or of the key."""
        chosen: list[str] = []
        for kind in hub[2]:
            there = [c for c in (*self.free, *self.key) if self.types[c] == kind and c not in chosen]
            is_there = there and self.chance.is_so(0.3)
            chosen.append(self.chance.rng.choice(there) if is_there else self.draw(self.naming(kind)))
        self.free += [column for column in chosen if column not in self.free]
        if in_key:
            self.key += [column for column in chosen if column not in self.key]
        found: dict[str, Any] = {"columns": chosen, "hub": hub[0]}
        if len(hub[1]) > 1 or self.chance.is_so(0.1):
            found["collision_code"] = self.chance.rng.choice(hub[1])
        return found

    def payload(self, most: int = 3) -> list[str]:
        """Some columns of its own."""
        return [self.draw(self.kind()) for _ in range(self.chance.rng.randint(0, most))]

    def kind(self) -> str:
        """A type."""
        return self.chance.rng.choice(KINDS)

    def naming(self, kind: str) -> str:
        """The type of a column that names a key of this one: mostly the same, one that may name it, or any."""
        return self.chance.rng.choice([kind] * 6 + list(ALIKE.get(kind, ())) + [self.kind()] * self.chance.is_so(0.1))

    def declared(self, name: str, vault: dict[str, Any]) -> dict[str, Any]:
        """The entry of the declaration."""
        columns = [{"name": column, "data_type": kind} for column, kind in self.types.items()]
        self.chance.rng.shuffle(columns)
        raw: dict[str, Any] = {"relation": f"public.{name}", "key": self.key}
        raw["alias"] = {
            c: f"{NAMED.get(c, c)}_2"
            for c in self.types
            if (c in NAMED and self.chance.is_so(0.8)) or self.chance.is_so(0.1)
        }
        return {"name": name, "config": {"meta": {"raw": raw, "vault": vault}}, "columns": columns}


def any_declaration(rng: random.Random) -> str:
    """Sources with hubs that they may share, and tables of every other form."""
    chance = Chance(rng)
    sources: dict[str, list[dict[str, Any]]] = {name: [] for name in rng.sample(["crm", "erp", "desk"], 2)}
    tables = [_hub(chance) for _ in range(rng.randint(1, 2))]
    tables += [_extending(chance) for _ in range(rng.choice([0, 0, 1]))]
    forms = [_junction, _children, _event, _codes, _thing]
    tables += [form(chance) for form in rng.sample(forms, rng.randint(2, 4))]
    for number, (table, vault) in enumerate(tables):
        rng.choice(list(sources.values())).append(table.declared(f"t{number}", vault))
    return of(*((name, found) for name, found in sources.items() if found))


def _satellites(chance: Chance, table: Table, links: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(chance.rng.randint(0, 2)):
        satellite: dict[str, Any] = {"columns": table.payload()}
        if links and chance.is_so(0.4):
            satellite["link"] = chance.rng.choice(links)
        found[chance.name()] = satellite
    return found


def _hub(chance: Chance) -> tuple[Table, dict[str, Any]]:
    table, name = Table(chance), chance.name()
    table.key = [table.draw(table.kind()) for _ in range(chance.rng.randint(1, 2))]
    codes = [chance.rng.choice(["", "one"])]
    chance.hubs.append((name, codes, [table.types[column] for column in table.key]))
    hub: dict[str, Any] = {"name": name, "collision_code": codes[0]}
    hub |= chance.rng.choice([{}, {}, {"blank": "unknown"}, {"blank": "error"}, {"normalize": "upper_trim"}])
    return table, {"hub": hub, **_of_hub(chance, table), "track_mentions": chance.is_so(0.3)}


def _thing(chance: Chance) -> tuple[Table, dict[str, Any]]:
    """A hub that refers to others."""
    return _hub(chance)


def _extending(chance: Chance) -> tuple[Table, dict[str, Any]]:
    table, (name, codes, kinds) = Table(chance), chance.rng.choice(chance.hubs)
    table.key = [table.draw(table.naming(kind)) for kind in kinds]
    code = chance.rng.choice([codes[0], "two"])
    codes += [code] if code not in codes else []
    return table, {"hub": {"name": name, "extends": True, "collision_code": code}, **_of_hub(chance, table)}


def _of_hub(chance: Chance, table: Table) -> dict[str, Any]:
    """References of the hub's table, its links and satellites; the hub itself may be referred to."""
    references = {chance.name(): table.reference(chance.rng.choice(chance.hubs))
                  for _ in range(chance.rng.randint(0, 2))}  # fmt: skip
    links: dict[str, Any] = {}
    for _ in range(chance.rng.randint(0, 2) if references else 0):
        to = chance.rng.sample(list(references), chance.rng.randint(1, len(references)))
        links[chance.name()] = {"to": to, "effectivity": chance.is_so(0.9)}
    codes = {chance.name(): _code(chance, table) for _ in range(chance.rng.randint(0, 1) if chance.codes else 0)}
    return {
        "references": references, "links": links, "satellites": _satellites(chance, table, list(links)),
        "ignored": [*table.payload(1), *(c for code in codes.values() for c in code["columns"])], "codes": codes,
        "track_deletes": chance.is_so(0.8),
    }  # fmt: skip


def _code(chance: Chance, table: Table) -> dict[str, Any]:
    name, kinds = chance.rng.choice(chance.codes)
    return {"columns": [table.draw(kind) for kind in kinds], "reference_table": name}


def _junction(chance: Chance) -> tuple[Table, dict[str, Any]]:
    table, in_key = Table(chance), chance.is_so(0.6)
    roles = {chance.name(): table.reference(chance.rng.choice(chance.hubs), in_key=in_key) for _ in range(2)}
    if not in_key or chance.is_so(0.4):
        table.key.append(table.draw(table.kind()))
    vault = {"link": {"name": chance.name(), "to": list(roles)}, "references": roles}
    return table, vault | {"satellites": _satellites(chance, table, []), "track_deletes": chance.is_so(0.8)}


def _children(chance: Chance) -> tuple[Table, dict[str, Any]]:
    table, role = Table(chance), chance.name()
    references = {role: table.reference(chance.rng.choice(chance.hubs), in_key=True)}
    table.key.insert(chance.rng.randint(0, len(table.key)), table.draw(table.kind()))
    return table, {
        "children_of": role, "references": references,
        "satellites": _satellites(chance, table, []) or {chance.name(): []},
    }  # fmt: skip


def _event(chance: Chance) -> tuple[Table, dict[str, Any]]:
    table = Table(chance)
    table.key = [table.draw("int")]
    roles = {chance.name(): table.reference(chance.rng.choice(chance.hubs)) for _ in range(chance.rng.randint(1, 2))}
    return table, {"event": {"name": chance.name(), "to": list(roles), "columns": table.payload()}, "references": roles}


def _codes(chance: Chance) -> tuple[Table, dict[str, Any]]:
    table, name = Table(chance), chance.name()
    table.key = [table.draw(table.kind()) for _ in range(chance.rng.randint(1, 2))]
    chance.codes.append((name, [table.types[column] for column in table.key]))
    satellites = _satellites(chance, table, []) or {chance.name(): []}
    return table, {"reference_table": name, "satellites": satellites}
