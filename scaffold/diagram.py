"""Generates Mermaid entity-relationship diagrams of the vault from the declarations."""

from collections.abc import Iterator, Mapping, Sequence

from lakehouse.declarations import Declarations
from lakehouse.declarations.vault.policy import SatellitePolicy
from scaffold.entities import Entity, entities


def diagram(declared: Declarations, source: str) -> str:
    """The `erDiagram` of one source: hubs, links and satellites with cardinalities."""
    mine = [e for e in entities(declared.tables).values() if e.table.source == source]
    codes = {e.vault.reference_table: e for e in entities(declared.tables).values() if e.vault.reference_table}
    lines = [line for entity in mine for line in (*_lines(entity), *_code_lines(entity, codes))]
    return "\n".join(["erDiagram", *(f"    {line}" for line in lines)]) + "\n"


def _code_lines(entity: Entity, codes: Mapping[str, Entity]) -> Iterator[str]:
    vault = entity.vault
    for code, policy in vault.codes.items():
        table, named = codes[vault.reference_table_of(code)], set(policy.columns)
        satellites = [f"sat_{name}" for name, satellite in vault.satellites.items() if named & set(satellite.columns)]
        for holder in satellites or ([f"nh_link_{vault.event.name}"] if vault.event else []):
            yield f'ref_{next(iter(table.vault.satellites))} |o--o{{ {holder} : "{code}"'


def _lines(entity: Entity) -> Iterator[str]:
    if entity.vault.hub is None:
        yield from _lines_without_hub(entity)
        return
    hub = f"hub_{entity.hub.name}"
    for name, link in entity.vault.links.items():
        yield f'{hub} ||--o{{ link_{name} : ""'
        yield from _role_lines(entity, link.to, f"link_{name}")
        if link.effectivity:
            yield f'link_{name} ||--o{{ eff_sat_{name} : "from, to"'
    for name, satellite in entity.vault.satellites.items():
        yield _satellite_line(f"link_{satellite.link}" if satellite.link else hub, name, satellite)
    if entity.vault.track_deletes:
        yield f'{hub} ||--o{{ sts_{entity.status} : "exists"'
    if entity.vault.track_mentions:
        yield f'{hub} ||--o{{ rts_{entity.hub.name} : "mentioned"'


def _role_lines(entity: Entity, roles: Sequence[str], link: str) -> Iterator[str]:
    for role in roles:
        hub = entity.vault.hub_of(role)
        yield f'hub_{hub} |o--o{{ {link} : "{"" if hub == role else role}"'


def _satellite_line(parent: str, name: str, satellite: SatellitePolicy) -> str:
    many, kind = ("o{", "sat") if satellite.historized else ("o|", "nh_sat")
    return f'{parent} ||--{many} {kind}_{name} : ""'


def _lines_without_hub(entity: Entity) -> Iterator[str]:
    vault = entity.vault
    if vault.event:
        yield from _role_lines(entity, vault.event.to, f"nh_link_{vault.event.name}")
    if vault.link:
        yield from _role_lines(entity, vault.link.to, f"link_{vault.link.name}")
        if vault.track_deletes:
            yield f'link_{vault.link.name} ||--o{{ eff_sat_{vault.link.name} : "from, to"'
        for name, satellite in vault.satellites.items():
            yield _satellite_line(f"link_{vault.link.name}", name, satellite)
        return
    for name in vault.satellites:
        yield (
            f'hub_{vault.hub_of(vault.children_of)} ||--o{{ ma_sat_{name} : ""' if vault.children_of else f"ref_{name}"
        )
