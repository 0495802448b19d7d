"""The declared tables as entities of the vault: names of stages and hubs, keys and columns."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lakehouse.declarations import RawTable
from lakehouse.declarations.vault.hubs import codes_meant, hub_owners
from lakehouse.declarations.vault.names import business_key, in_lake, links_change, status_name
from lakehouse.declarations.vault.policy import HubPolicy, VaultPolicy
from scaffold.key_types import is_converted
from scaffold.types import has_several_spellings, lake_type


@dataclass(frozen=True)
class Entity:
    """A table that is modelled in the vault. Column names are those in the lake."""

    table: RawTable
    vault: VaultPolicy
    has_one_spelling: bool = True  # of each hash key: no hub of the key normalizes it

    @property
    def stage(self) -> str:
        """The name of the stage."""
        return f"stg_{self.table.source}__{self.table.name}"

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns."""
        return self.in_lake(self.table.key)

    @property
    def natural_key(self) -> dict[str, list[str]]:
        """The parameter by which satellites find a key's rows unhashed; empty where an equal sign would miss some."""
        may_be_null = self.table.raw.on_unrepresentable == "null"
        unlike = ("real", "double", *(("date", "timestamp", "decimal") if may_be_null else ()))
        if not self.has_one_spelling or any(kind.startswith(unlike) for kind in self.kinds(self.key)):
            return {}
        if any(has_several_spellings(self.declared_type(column)) for column in self.key):
            return {}
        return {"src_nk": list(self.key)}

    @property
    def links_change(self) -> bool:
        """Whether the table is a link whose rows may link others later."""
        return links_change(self.table.raw, self.vault)

    @property
    def hub(self) -> HubPolicy:
        """The hub, for a table that declares one."""
        assert self.vault.hub is not None
        return self.vault.hub

    @property
    def status(self) -> str:
        """Whose existence its status satellite is about."""
        return status_name(self.table.source, self.table.name, self.hub)

    @property
    def business_key(self) -> tuple[str, ...]:
        """The key columns under their names in the hub."""
        return business_key(self.table.raw, self.vault)

    def declared_type(self, column: str) -> str:
        """The type in Postgres of a column, which is named as in the lake."""
        return next(c.data_type or "text" for c in self.table.columns if self.in_lake([c.name]) == (column,))

    def kinds(self, columns: Iterable[str]) -> list[str]:
        """The types in the lake of columns, which are named as there."""
        found = {name: kind for name, kind, _ in self.columns()}
        return [found[column] for column in columns]

    def in_lake(self, columns: Iterable[str]) -> tuple[str, ...]:
        """The columns under their names in the lake."""
        return in_lake(self.table.raw, columns)

    def columns(self) -> Iterator[tuple[str, str, str]]:
        """Name, type and description of each landed column."""
        for column in self.table.columns:
            if column.name not in self.table.raw.exclude:
                masked = self.table.raw.mask.get(column.name) == "sha256"
                kind = "varchar" if masked else lake_type(column.data_type or "text")
                yield self.in_lake([column.name])[0], kind, column.description or f"Column {column.name}."


def entities(tables: Iterable[RawTable]) -> dict[str, Entity]:
    """Entities by `<source>.<table>`."""
    found = {f"{t.source}.{t.name}": Entity(t, t.vault) for t in tables if t.vault is not None and t.vault.is_modelled}
    everything = list(found.values())
    return {
        name: replace(
            entity, has_one_spelling=not any(_several_texts(*part, everything) for part in _key_parts(entity))
        )
        for name, entity in found.items()
    }


def _key_parts(entity: Entity) -> Iterator[tuple[Entity, tuple[str, ...], str]]:
    """The hubs whose keys the table's own key consists of, each after its columns."""
    vault = entity.vault
    if vault.hub:
        yield entity, entity.key, vault.hub.name
    for role in vault.link.to if vault.link else (vault.children_of,) if vault.children_of else ():
        yield entity, entity.in_lake(vault.references[role].columns), vault.hub_of(role)


def _several_texts(entity: Entity, columns: Sequence[str], hub: str, everything: Sequence[Entity]) -> bool:
    """Whether the hub may take several values of the columns for one key."""
    converted = any(not isinstance(column, str) for column in as_keys(entity, columns, hub, everything))
    return converted or declared_hub(hub, everything).normalize is not None


def as_keys(entity: Entity, columns: Sequence[str], hub: str, everything: Iterable[Entity]) -> list[Any]:
    """The columns as a stage hashes them to keys of a hub: with the key's type where a value has another text in it."""
    return [
        {"column": column, "type": key} if is_converted(own, key) else column
        for column, own, key in key_types(entity, columns, hub, everything)
    ]


def key_types(
    entity: Entity, columns: Sequence[str], hub: str, everything: Iterable[Entity]
) -> Iterator[tuple[str, str, str]]:
    """Each column that names a key of a hub, its type in Postgres, and that of the key."""
    target = owners_of(hub, everything)[0]
    for column, key in zip(columns, target.key, strict=True):
        yield column, entity.declared_type(column), target.declared_type(key)


def names_in_vault(tables: Iterable[RawTable]) -> set[str]:
    """What hubs, links, events, reference tables and satellites of these tables are called."""
    found: set[str] = set()
    for vault in (table.vault for table in tables if table.vault is not None):
        made = [made.name for made in (vault.hub, vault.event, vault.link) if made is not None]
        found.update(made, vault.links, vault.satellites)
    return found


def owners_of(hub: str, among: Iterable[Entity]) -> list[Entity]:
    """The entity that declares the hub, first, and those that extend it."""
    found = [entity for entity in among if entity.vault.hub is not None and entity.hub.name == hub]
    return sorted(found, key=lambda entity: entity.hub.extends)


def declared_hub(hub: str, among: Iterable[Entity]) -> HubPolicy:
    """The hub as the table declares it that does not extend it."""
    return owners_of(hub, among)[0].hub


def code_of(entity: Entity, role: str, among: Iterable[Entity]) -> str:
    """The collision code of the keys that a reference names."""
    owners = hub_owners(other.table for other in among)[entity.vault.hub_of(role)]
    return codes_meant(entity.vault.references[role], entity.table.source, owners)[0]


def spoken(name: str) -> str:
    """`transaction_item` → `transaction item`."""
    return name.replace("_", " ")


def article(name: str) -> str:
    """`a store`, `an account`."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {spoken(name)}"
