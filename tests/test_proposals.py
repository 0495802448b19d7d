"""A proposal is loaded as it is: hubs, links, satellites, events and codes say what SQL says of the source."""

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from lakehouse.declarations import Declarations
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from lakehouse.text.sql import ident
from scaffold import declared_alone
from scaffold.entities import Entity, entities, owners_of
from scaffold.links import dependent_key
from scaffold.propose import DbTable, read_tables
from tests.proposals import NAMES, statements
from tests.readers import Project
from tests.schema_rows import fill
from tests.test_hostile import Commands, commands_of
from tests.world import World, make_world

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(3000)]
PLAIN = re.compile(r"smallint|integer|bigint|numeric|text$|character|boolean|date|timestamp|bytea")


@dataclass(frozen=True)
class Loaded:
    """A source whose proposal is loaded, in a schema of the vault of its own."""

    world: World
    project: Project
    declared: Declarations
    run: Commands

    @property
    def vault(self) -> str:
        """The schema of the vault."""
        return f"vault_{self.world.source.name}"

    @property
    def entities(self) -> list[Entity]:
        """What is modelled."""
        return list(entities(self.declared.tables).values())

    def load(self, command: str) -> None:
        """Ingests and runs dbt."""
        self.run("ingest", "--once", self.world.source.name)
        self.project.load(command)

    def asked(self, query: str) -> Counter[tuple[Any, ...]]:
        """Rows of the lake."""
        return Counter(map(tuple, self.project.rows(query)))

    def source(self, entity: Entity) -> list[dict[str, Any]]:
        """Rows of the source, by the names in the lake; of types that the lake has as text, as Postgres prints them."""
        kinds = {column.name: column.data_type or "" for column in entity.table.columns}
        shown = [
            sql.Identifier(name) if PLAIN.match(kind)
            else sql.SQL("CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END").format(sql.Identifier(name))
            for name, kind in kinds.items()
        ]  # fmt: skip
        query = sql.SQL("SELECT {} FROM {}").format(
            sql.SQL(", ").join(shown), sql.Identifier(*entity.table.relation)
        )  # fmt: skip
        with psycopg.connect(self.world.owner_url) as connection:
            rows = connection.execute(query).fetchall()
        return [dict(zip(entity.in_lake(kinds), row, strict=True)) for row in rows]


@pytest.mark.parametrize("name", NAMES)
def test_a_proposal_is_loaded_as_it_is(settings: Settings, tmp_path: Path, name: str) -> None:
    """Then rows go, references and facts are emptied, and the vault follows."""
    world = make_world(settings, "CREATE TABLE kept (id int PRIMARY KEY)", {"kept": RawPolicy(relation="public.kept")})
    with psycopg.connect(world.owner_url, autocommit=True) as owner:
        owner.execute("DROP PUBLICATION lakehouse; DROP TABLE kept")
        owner.execute(statements(name).encode())
        fill(owner)
    run = commands_of(world, tmp_path)
    file = tmp_path / "dbt_project" / "dbt_project.yml"
    file.write_text(file.read_text().replace("+schema: vault", f"+schema: vault_{world.source.name}"))
    run("scaffold", world.source.name)
    run("scaffold", world.source.name, "--check")
    run("prepare", world.source.name)
    project = Project(world, world.settings.model_copy(update={"project_dir": tmp_path}))
    loaded = Loaded(world, project, declared_alone(project.settings), run)
    try:
        loaded.load("build")
        mentioned = assert_the_vault_is_the_source(loaded, {})
        with psycopg.connect(world.owner_url, autocommit=True) as owner:
            change(owner, loaded)
        loaded.load("run")
        assert_the_vault_is_the_source(loaded, mentioned)
    finally:
        project.rows(f"drop schema if exists {loaded.vault} cascade")
        project.drop()


def change(owner: psycopg.Connection[Any], loaded: Loaded) -> None:
    """Half of the rows that only relate others go; columns that may be empty are, references among them."""
    tables = {(table.schema, table.name): table for table in read_tables(owner, ["public"])}
    chance = random.Random(7)
    for entity in loaded.entities:
        table, vault = tables[entity.table.relation], entity.vault
        some = sql.SQL("ctid IN (SELECT ctid FROM {0} LIMIT 5)").format(sql.Identifier(*entity.table.relation))
        if vault.link or vault.children_of:
            owner.execute(sql.SQL("DELETE FROM {} WHERE {}").format(sql.Identifier(*entity.table.relation), some))
        if entity.links_change or not (vault.link or vault.children_of or vault.event):
            for column in emptied(table, chance):
                owner.execute(
                    sql.SQL("UPDATE {} SET {} = NULL WHERE {}").format(
                        sql.Identifier(*entity.table.relation), sql.Identifier(column), some
                    )
                )


def emptied(table: DbTable, chance: random.Random) -> list[str]:
    """Two columns that may be empty, and those of references that may."""
    referring = {column for columns, _ in table.foreign for column in columns}
    free = [column for column in table.nullable if column not in referring]
    return [*chance.sample(free, min(2, len(free))), *(column for column in table.nullable if column in referring)]


def assert_the_vault_is_the_source(
    loaded: Loaded, mentioned: dict[str, set[tuple[Any, ...]]]
) -> dict[str, set[tuple[Any, ...]]]:
    """Every hub, link, satellite, event and table of codes; returns the keys that hubs hold for ever."""
    rows = {entity.stage: loaded.source(entity) for entity in loaded.entities}
    assert all(rows.values()), "the source has rows in every table"
    keys = {hub: set(known) for hub, known in mentioned.items()}
    for entity in loaded.entities:
        if entity.vault.hub:
            keys.setdefault(entity.hub.name, set()).update(of(entity.key, row) for row in rows[entity.stage])
        for role, columns in references(entity).items():
            named = {of(columns, row) for row in rows[entity.stage]}
            keys.setdefault(entity.vault.hub_of(role), set()).update(key for key in named if None not in key)
    for entity in loaded.entities:
        if entity.vault.hub:
            found = loaded.asked(f"select {listed(entity.business_key)} from {loaded.vault}.hub_{entity.hub.name}")
            assert found == Counter(keys[entity.hub.name]), entity.hub.name
        for what, query, columns in expected(loaded, entity):
            wanted = Counter(tuple(value for part in columns for value in part(row)) for row in rows[entity.stage])
            assert loaded.asked(query) == wanted, (entity.stage, what)
    return keys


def references(entity: Entity) -> dict[str, tuple[str, ...]]:
    """The columns of each reference, in the lake."""
    return {role: entity.in_lake(reference.columns) for role, reference in entity.vault.references.items()}


def of(columns: Sequence[str], row: dict[str, Any]) -> tuple[Any, ...]:
    """The row's values."""
    return tuple(row[column] for column in columns)


def plain(columns: Sequence[str]) -> Any:
    """The values of columns, as a part of what is expected."""
    return lambda row: of(columns, row)


def reference(columns: Sequence[str]) -> Any:
    """Those of a reference: nothing if one of them is NULL."""
    return lambda row: of(columns, row) if None not in of(columns, row) else (None,) * len(columns)


def listed(columns: Sequence[str], of_table: str = "") -> str:
    """A list for SELECT."""
    return ", ".join(f"{of_table}{ident(column)}" for column in columns)


def expected(loaded: Loaded, entity: Entity) -> Iterator[tuple[str, str, list[Any]]]:
    """Of each link, satellite, event and table of codes: a query of the lake, and what it should find of each row."""
    vault, schema = entity.vault, loaded.vault
    now = "t.is_current and not t.is_deleted"
    satellites = {name: entity.in_lake(satellite.columns) for name, satellite in vault.satellites.items()}
    if vault.reference_table:
        for name, columns in satellites.items():
            said = [*entity.key, *columns]
            yield name, f"select {listed(said)} from {schema}.ref_{name}_v1 t where {now}", [plain(said)]
    elif vault.event:
        said = list(dict.fromkeys([*entity.key, *entity.in_lake(vault.event.columns)]))
        joins, keys = named(loaded, entity, vault.event.to)
        yield vault.event.name, (
            f"select {listed(said, 't.')}, {keys} from {schema}.nh_link_{vault.event.name} t {joins}"
        ), [plain(said), *(reference(references(entity)[role]) for role in vault.event.to)]  # fmt: skip
    elif vault.children_of:
        role = vault.children_of
        parent, child = references(entity)[role], [c for c in entity.key if c not in references(entity)[role]]
        joins, keys = named(loaded, entity, [role])
        for name, columns in satellites.items():
            said = [*child, *columns]
            query = f"select {keys}, {listed(said, 't.')} from {schema}.ma_sat_{name}_v1 t {joins} where {now}"
            yield name, query, [plain(parent), plain(said)]
    else:
        yield from of_links(loaded, entity)
        link = vault.link.name if vault.link else ""
        parent, said = (
            (f"link_{link}", f"hk_{link}") if vault.link else (f"hub_{entity.hub.name}", f"hk_{entity.hub.name}")
        )
        joins, keys = named(loaded, entity, vault.link.to if vault.link else [], "p")
        if entity.links_change:  # nothing deletes what is said of a link, it ends
            joins += f" join {schema}.eff_sat_{link}_v1 e on e.hk_{link} = t.hk_{link} and e.is_current and e.is_active"
        for name, columns in satellites.items():
            key = [*(keys.split(", ") if keys else ()), *(f"p.{ident(c)}" for c in own_key(entity))]
            yield name, (
                f"select {', '.join([*key, listed(columns, 't.')])} from {schema}.sat_{name}_v1 t"
                f" join {schema}.{parent} p on p.{said} = t.{said} {joins} where {now}"
            ), [*(plain(references(entity)[role]) for role in (vault.link.to if vault.link else ())),
                plain(entity.key if vault.hub else own_key(entity)), plain(columns)]  # fmt: skip


def own_key(entity: Entity) -> Sequence[str]:
    """The key's columns in the hub, or those of the link that are no reference."""
    return dependent_key(entity, entity.vault.link) if entity.vault.link else entity.business_key


def of_links(loaded: Loaded, entity: Entity) -> Iterator[tuple[str, str, list[Any]]]:
    """The links that are active now."""
    vault, schema = entity.vault, loaded.vault
    links = {vault.link.name: vault.link.to} if vault.link else {name: link.to for name, link in vault.links.items()}
    for name, roles in links.items():
        joins, keys = named(loaded, entity, roles)
        own = listed(own_key(entity), "t." if vault.link else "own.")
        if vault.hub:
            joins += f" join {schema}.hub_{entity.hub.name} own on own.hk_{entity.hub.name} = t.hk_{entity.hub.name}"
        yield name, (
            f"select {', '.join(part for part in (own, keys) if part)} from {schema}.link_{name} t"
            f" join {schema}.eff_sat_{name}_v1 e on e.hk_{name} = t.hk_{name} {joins}"
            " where e.is_current and e.is_active"
        ), [plain(own_key(entity) if vault.link else entity.key),
            *(reference(references(entity)[role]) for role in roles)]  # fmt: skip


def named(loaded: Loaded, entity: Entity, roles: Sequence[str], table: str = "t") -> tuple[str, str]:
    """The joins that lead to the hubs of references, and their keys."""
    joins, keys = [], []
    for number, role in enumerate(roles):
        target = owners_of(entity.vault.hub_of(role), loaded.entities)[0]
        hub = target.hub.name
        joins.append(f"left join {loaded.vault}.hub_{hub} h{number} on h{number}.hk_{hub} = {table}.hk_{role}")
        keys.append(listed(target.business_key, f"h{number}."))
    return " ".join(joins), ", ".join(keys)
