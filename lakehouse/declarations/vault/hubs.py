"""Hubs with the keys of several tables: who declares and who extends a hub, and whose keys a reference names."""

from collections.abc import Iterable, Sequence

from lakehouse.declarations.vault.names import Vaulted
from lakehouse.declarations.vault.policy import HubPolicy, ReferencePolicy

Owner = tuple[Vaulted, HubPolicy]


def hub_owners(tables: Iterable[Vaulted]) -> dict[str, list[Owner]]:
    """Per hub, the tables that declare or extend it; the one that declares it comes first."""
    found: dict[str, list[Owner]] = {}
    for table in tables:
        if table.vault is not None and table.vault.hub is not None:
            found.setdefault(table.vault.hub.name, []).append((table, table.vault.hub))
    return {name: sorted(owners, key=lambda owner: owner[1].extends) for name, owners in found.items()}


def codes_meant(reference: ReferencePolicy, source: str, owners: Sequence[Owner]) -> list[str]:
    """The collision codes that a reference from this source may mean; one, or the declaration is wrong."""
    known = {hub.collision_code for _, hub in owners}
    if reference.collision_code is not None:
        return sorted(known & {reference.collision_code})
    near = {hub.collision_code for table, hub in owners if table.source == source}
    return sorted(near if len(near) == 1 else known)
