"""What a vault should have by its declaration and the events that arrived, and what it has; without SQL.

Hash keys are read as the business keys that the hubs have for them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from lakehouse.declarations import RawTable
from lakehouse.declarations.vault.hubs import codes_meant, hub_owners
from lakehouse.declarations.vault.names import in_lake, status_name
from lakehouse.declarations.vault.policy import VaultPolicy
from tests.unit.declared_vault import DeclaredVault, Name
from tests.unit.embedded_vault import Event, Key, Timeline, effectivity, position

ZERO, ERROR = "0" * 32, "f" * 32
Hashes = defaultdict[str, dict[str, Key]]  # of each hub and link: hash → what it means
Claim = tuple[str, Any, Any]  # a relation, what the oracle says is in it, and what is


@dataclass(frozen=True)
class Meaning:
    """What keys mean, by the declaration."""

    vault: DeclaredVault

    def policy(self, name: Name) -> VaultPolicy:
        """The vault's part of a table's declaration."""
        found = self.vault.tables[name].vault
        assert found is not None
        return found

    def in_lake(self, name: Name, columns: Iterable[str]) -> str:
        """The columns of a table as the lake calls them, in SQL."""
        return quoted(in_lake(self.vault.tables[name].raw, columns))

    def key(self, hub: str, code: str, values: Iterable[Any]) -> Key:
        """A business key as its hub reads it."""
        texts = [None if value is None else as_text(value) for value in values]
        rules = hub_owners(self.vault.tables.values())[hub][0][1]
        if None in texts:
            return ZERO
        if rules.blank != "keep" and not any(text and text.strip(" ") for text in texts):
            return ZERO if rules.blank == "unknown" else ERROR
        if rules.normalize:
            texts = [text and text.strip(" ").upper() for text in texts]
        return (code, *texts)

    def own(self, name: Name, event: Event) -> Key:
        """The key of the row's hub."""
        hub = self.policy(name).hub
        assert hub is not None
        return self.key(hub.name, hub.collision_code, [event[column] for column in self.vault.tables[name].key])

    def referred(self, name: Name, role: str, event: Event) -> Key:
        """The key that a reference names."""
        policy = self.policy(name)
        hub, reference = policy.hub_of(role), policy.references[role]
        owners = hub_owners(self.vault.tables.values())[hub]
        code = codes_meant(reference, name[0], owners)[0]
        return self.key(hub, code, [event[column] for column in reference.columns])

    def together(self, name: Name, roles: Iterable[str], event: Event) -> tuple[Key, ...]:
        """The keys that these references name."""
        return tuple(self.referred(name, role, event) for role in roles)


def claims(
    vault: DeclaredVault, arrived: dict[Name, list[Event]], moments: list[tuple[Name, Event, datetime]]
) -> Iterator[Claim]:
    """Every table of the vault."""
    meaning = Meaning(vault)
    hashes: Hashes = defaultdict(lambda: {ZERO: ZERO, ERROR: ERROR})
    for hub in hub_owners(vault.tables.values()):
        yield hub_claim(meaning, hub, arrived, hashes)
    for name, table in vault.tables.items():
        events = sorted(arrived[name], key=position)
        policy = meaning.policy(name)
        if policy.hub is not None:
            yield from hub_table_claims(meaning, name, events, hashes)
        elif policy.link is not None:
            yield from junction_claims(meaning, name, events, hashes)
        elif policy.event is not None:
            yield event_claim(meaning, name, events, hashes)
        else:
            yield from keyed_claims(meaning, name, table, events, hashes)
    for policy in map(meaning.policy, vault.tables):
        if policy.hub and policy.track_mentions:
            yield mentions_claim(meaning, policy.hub.name, moments, hashes)


def mentions_claim(
    meaning: Meaning, hub: str, moments: list[tuple[Name, Event, datetime]], hashes: Hashes
) -> Claim:  # fmt: skip
    """In which loads each table named a key."""
    mentions = {
        (key, moment, f"{name[0]}.public.{name[1]}") for name, event, moment in moments
        for key in keys_of(meaning, name, hub, event) if key not in (ZERO, ERROR)
    }  # fmt: skip
    rows = meaning.vault.rows(f"select hk_{hub}, load_date, record_source from rts_{hub}")
    return f"rts_{hub}", in_order(mentions), in_order((hashes[f"hub_{hub}"][row[0]], *row[1:]) for row in rows)


def keys_of(meaning: Meaning, name: Name, hub: str, event: Event) -> Iterator[Key]:
    """The keys of a hub that an event names."""
    policy = meaning.policy(name)
    if policy.hub is not None and policy.hub.name == hub:
        yield meaning.own(name, event)
    for role in policy.references:
        if policy.hub_of(role) == hub:
            yield meaning.referred(name, role, event)


def hub_claim(meaning: Meaning, hub: str, arrived: dict[Name, list[Event]], hashes: Hashes) -> Claim:
    """Each key once; also learns what its hashes mean."""
    wanted = {
        key for name, events in arrived.items() for event in events for key in keys_of(meaning, name, hub, event)
    } - {ZERO, ERROR}  # fmt: skip
    owners = hub_owners(meaning.vault.tables.values())[hub]
    has_codes = len({policy.collision_code for _, policy in owners}) > 1
    columns = [row[0] for row in meaning.vault.rows(f"describe hub_{hub}")]
    key = [column for column in columns[1 : columns.index("load_date")] if column != "collision_code"]
    code = "collision_code" if has_codes else "''"
    found = meaning.vault.rows(f"select hk_{hub}, {code}, {quoted(key)} from hub_{hub}")
    for hashed, one, *values in found:
        hashes[f"hub_{hub}"][hashed] = meaning.key(hub, one if has_codes else owners[0][1].collision_code, values)
    return f"hub_{hub}", in_order(wanted), in_order(hashes[f"hub_{hub}"][row[0]] for row in found)


def hub_table_claims(meaning: Meaning, name: Name, events: list[Event], hashes: Hashes) -> Iterator[Claim]:
    """Links, satellites and the status of a table that has a hub."""
    policy = meaning.policy(name)
    assert policy.hub is not None
    hub = policy.hub.name
    known = [(meaning.own(name, event), event) for event in events]
    links: dict[str, Callable[[Event], Key]] = {}
    for link, declared in policy.links.items():
        links[link] = lambda e, to=declared.to: (meaning.own(name, e), *meaning.together(name, to, e))
        roles = {hub: hub, **{role: policy.hub_of(role) for role in declared.to}}
        yield link_claim(meaning, link, roles, {links[link](e) for e in events if not e["gone"]}, hashes)
        wanted = effectivity([(key, e) for key, e in known if key not in (ZERO, ERROR)], links[link])
        if not declared.effectivity:
            continue
        yield timeline_claim(meaning, f"eff_sat_{link}", f"hk_{link}", "is_active", wanted, hashes[f"link_{link}"])
    for satellite, described in policy.satellites.items():
        said = known
        if described.link:
            said = [(links[described.link](event), event) for event in events if not event["gone"]]
        of = f"link_{described.link}" if described.link else f"hub_{hub}"
        yield satellite_claim(meaning, name, satellite, of, said, hashes)
    if policy.track_deletes:
        status = f"sts_{status_name(*name, policy.hub)}"
        yield timeline_claim(meaning, status, f"hk_{hub}", "is_deleted", collapsed(known, ()), hashes[f"hub_{hub}"])


def junction_claims(meaning: Meaning, name: Name, events: list[Event], hashes: Hashes) -> Iterator[Claim]:
    """A table that is a link: the combination is its key, or a delete and an update end what its row linked before."""
    policy, key = meaning.policy(name), meaning.vault.tables[name].key
    assert policy.link is not None
    linked = {column for role in policy.link.to for column in policy.references[role].columns}
    rest, to, link = [column for column in key if column not in linked], policy.link.to, policy.link.name
    known = [((*meaning.together(name, to, e), *(e[column] for column in rest)), e) for e in events]
    roles = {role: policy.hub_of(role) for role in to}
    if linked <= {*key}:
        wanted = {key: [(seq, not gone) for seq, gone in rows] for key, rows in collapsed(known, ()).items()}
        wanted = {key: rows if rows[0][1] else rows[1:] for key, rows in wanted.items()}
        wanted = {key: rows for key, rows in wanted.items() if rows}
    else:
        links = {position(e): combination for combination, e in known}
        rows = [(tuple(e[column] for column in key), e) for _, e in known]
        wanted = effectivity(rows, lambda e: links[position(e)])
        known = [(combination, e) for combination, e in known if not e["gone"]]
    dependent = in_lake(meaning.vault.tables[name].raw, rest)
    yield link_claim(meaning, link, roles, {key for key, _ in known}, hashes, dependent)
    if policy.track_deletes:
        yield timeline_claim(meaning, f"eff_sat_{link}", f"hk_{link}", "is_active", wanted, hashes[f"link_{link}"])
    for satellite in policy.satellites:
        yield satellite_claim(meaning, name, satellite, f"link_{link}", known, hashes)


def event_claim(meaning: Meaning, name: Name, events: list[Event], hashes: Hashes) -> Claim:
    """Each event once, with what it names and says."""
    event = meaning.policy(name).event
    assert event is not None
    payload = [*meaning.vault.tables[name].key, *event.columns]
    wanted = [(*meaning.together(name, event.to, e), *(e[column] for column in payload)) for e in events]
    columns = ", ".join([*(f"hk_{role}" for role in event.to), meaning.in_lake(name, payload)])
    rows = meaning.vault.rows(f"select {columns} from nh_link_{event.name}")
    width = len(event.to)
    hubs = [f"hub_{meaning.policy(name).hub_of(role)}" for role in event.to]
    found = [(*(hashes[hub][one] for hub, one in zip(hubs, row, strict=False)), *row[width:]) for row in rows]
    return f"nh_link_{event.name}", in_order(wanted), in_order(found)


def keyed_claims(meaning: Meaning, name: Name, table: RawTable, events: list[Event], hashes: Hashes) -> Iterator[Claim]:
    """Children of a thing, and codes."""
    policy, parent = meaning.policy(name), []
    if policy.children_of:
        parent = list(policy.references[policy.children_of].columns)
    rest = [column for column in table.key if column not in parent]
    known = []
    for event in events:
        of = [meaning.referred(name, policy.children_of, event)] if policy.children_of else []
        if not of or of[0] not in (ZERO, ERROR):
            known.append(((*of, *(event[column] for column in rest)), event))
    for satellite, declared in policy.satellites.items():
        relation = f"{'ma_sat' if parent else 'ref'}_{satellite}"
        columns = [*([f"hk_{policy.children_of}"] if parent else []), *in_lake(table.raw, rest)]
        shown = [*columns, "source_seq", "is_deleted", *in_lake(table.raw, declared.columns)]
        rows = meaning.vault.rows(f"select {quoted(shown)} from {relation}_v1")
        width, found = len(columns), defaultdict(list)
        for row in sorted(rows, key=lambda row: row[width]):
            of = [hashes[f"hub_{policy.hub_of(policy.children_of)}"][row[0]]] if policy.children_of else []
            found[(*of, *row[len(of) : width])].append(row[width:])
        yield relation, collapsed(known, declared.columns), dict(found)


def link_claim(
    meaning: Meaning,
    link: str,
    roles: dict[str, str],
    wanted: set[Key],
    hashes: Hashes,
    rest: Iterable[str] = (),
) -> Claim:
    """Each combination once; also learns what its hashes mean."""
    columns = [f"hk_{link}", *(f"hk_{role}" for role in roles), *rest]
    rows = meaning.vault.rows(f"select {quoted(columns)} from link_{link}")
    found = []
    for hashed, *row in rows:
        keys = (hashes[f"hub_{hub}"][one] for hub, one in zip(roles.values(), row, strict=False))
        found.append((*keys, *row[len(roles) :]))
        hashes[f"link_{link}"][hashed] = found[-1]
    return f"link_{link}", in_order(wanted), in_order(found)


def satellite_claim(
    meaning: Meaning, name: Name, satellite: str, of: str, said: list[tuple[Key, Event]], hashes: Hashes
) -> Claim:
    """A satellite of a hub or link (`of`)."""
    declared = meaning.policy(name).satellites[satellite]
    pk, columns = f"hk_{of.partition('_')[2]}", declared.columns
    state = ", ".join(filter(None, ["is_deleted", meaning.in_lake(name, columns)]))
    if declared.historized:
        known = [(key, event) for key, event in said if key not in (ZERO, ERROR)]
        return timeline_claim(meaning, f"sat_{satellite}", pk, state, collapsed(known, columns), hashes[of])
    wanted = {(key, *(e[c] for c in columns)) for key, e in said if not e["gone"] and key not in (ZERO, ERROR)}
    shown = ", ".join(filter(None, [pk, meaning.in_lake(name, columns)]))
    rows = meaning.vault.rows(f"select {shown} from nh_sat_{satellite} where record_source <> 'ghost'")
    return f"nh_sat_{satellite}", in_order(wanted), in_order((hashes[of][row[0]], *row[1:]) for row in rows)


def timeline_claim(meaning: Meaning, name: str, pk: str, state: str, wanted: Timeline, means: dict[str, Key]) -> Claim:
    """The `_v1` view of a satellite."""
    found: Timeline = defaultdict(list)
    for row in meaning.vault.rows(f"select {pk}, source_seq, {state} from {name}_v1 order by source_seq"):
        found[means[row[0]]].append(row[1:])
    return name, {key: rows for key, rows in wanted.items() if key not in (ZERO, ERROR)}, dict(found)


def collapsed(said: Iterable[tuple[Key, Event]], columns: Iterable[str]) -> Timeline:
    """Per key, position and state of each event that says something else than the one before."""
    found: Timeline = defaultdict(list)
    for key, event in said:
        state = (event["gone"], *(event[column] for column in columns))
        if not found[key] or found[key][-1][1:] != state:
            found[key].append((position(event), *state))
    return dict(found)


def as_text(value: Any) -> str:
    """A value of a key as text; numbers have no zeros at their end."""
    return f"{value.normalize():f}" if isinstance(value, Decimal) else str(value)


def quoted(columns: Iterable[str]) -> str:
    """Column names in SQL."""
    return ", ".join(f'"{column}"' for column in columns)


def in_order(rows: Iterable[Any]) -> list[Any]:
    """All of them, doubles included, in an order that compares."""
    return sorted(rows, key=repr)
