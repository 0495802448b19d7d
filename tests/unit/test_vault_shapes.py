"""A vault of all shapes, from its declaration: random histories of several sources, against an oracle without SQL.

The oracle knows the declaration and the events; hash keys are read as the business keys that the hubs have for them.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse.declarations import RawTable
from lakehouse.declarations.vault import VaultPolicy
from lakehouse.declarations.vault_hubs import codes_meant, hub_owners
from lakehouse.declarations.vault_names import status_name
from tests.unit.declared_vault import DeclaredVault, Name, a_declaration, table_history
from tests.unit.embedded_vault import START, WAYS, Event, Key, Timeline, effectivity, position, restore

ZERO, ERROR = "0" * 32, "f" * 32
Hashes = defaultdict[str, dict[str, Key]]  # of each hub and link: hash → what it means
Claim = tuple[str, Any, Any]  # a relation, what the oracle says is in it, and what is


def test_a_vault_of_all_shapes_is_as_its_sources_say(tmp_path: Path) -> None:
    """Two declarations with a history each."""
    for seed in range(2):
        check(seed, tmp_path)


@pytest.mark.slow
def test_a_vault_of_all_shapes_in_the_long_form(tmp_path: Path) -> None:
    for seed in range(1000, 1050):
        check(seed, tmp_path)


def check(seed: int, place: Path, most: int = 24, declare: Callable[[random.Random], str] = a_declaration) -> None:
    """One declaration and one history, in loads of any split and order; raises AssertionError.

    LakehouseError where the declaration is refused.
    """
    rng = random.Random(seed)
    vault = DeclaredVault(declare(rng), place)
    left = {name: table_history(rng, table, most) for name, table in vault.tables.items()}
    arrived: dict[Name, list[Event]] = {name: [] for name in left}
    moments: list[tuple[Name, Event, datetime]] = []
    moment = START + timedelta(days=50)
    for load in range(loads := rng.randint(2, 3)):
        moment += timedelta(days=rng.choice([0, 1]))
        batches = {name: taken(rng, events, last=load == loads - 1) for name, events in left.items()}
        again = {name: rng.sample(events, min(len(events), rng.choice([0, 2]))) for name, events in arrived.items()}
        vault.load_tables({name: [*batch, *again[name]] for name, batch in batches.items()}, moment)
        for name, batch in batches.items():
            moments += [(name, event, moment) for event in (*batch, *again[name])]
            arrived[name] += batch
    vault.make_timelines()
    for relation, wanted, found in claims(vault, arrived, moments):
        assert found == wanted, (seed, relation)
    before = vault.counts()
    vault.load([], moment)
    assert vault.counts() == before, f"{seed}: a rerun adds rows"


def test_a_vault_that_is_declared_otherwise_is_as_its_sources_say(tmp_path: Path) -> None:
    """When half is loaded: keys are read by other rules and codes, links lead elsewhere, histories go."""
    for seed in range(2):
        check_redeclared(seed, tmp_path)


@pytest.mark.slow
def test_a_vault_that_is_declared_otherwise_in_the_long_form(tmp_path: Path) -> None:
    for seed in range(2000, 2020):
        check_redeclared(seed, tmp_path)


def check_redeclared(seed: int, place: Path) -> None:
    """A history under one declaration, then under another one; raises AssertionError.

    At last some tables are put back as the first one left them.
    """
    rng = random.Random(seed)
    vault = DeclaredVault(a_declaration(rng), place)
    left = {name: table_history(rng, table, 24) for name, table in vault.tables.items()}
    arrived: dict[Name, list[Event]] = {name: [] for name in left}
    moments: list[tuple[Name, Event, datetime]] = []
    for load in range(3):
        if load == 1:
            some, way = rng.sample(list(vault.models), rng.randint(0, 8)), rng.choice(WAYS)
            put_back = restore(vault, some, way)
            vault.declare(a_declaration(rng))
        moment = START + timedelta(days=50 + load)
        batches = {name: taken(rng, events, last=load == 2) for name, events in left.items()}
        vault.load_tables(batches, moment)
        for name, batch in batches.items():
            moments += [(name, event, moment) for event in batch]
            arrived[name] += batch
    put_back()
    vault.load([], moment)
    vault.make_timelines()
    for relation, wanted, found in claims(vault, arrived, moments):
        assert found == wanted, (seed, relation, relation in some and way)
    before = vault.counts()
    vault.load([], moment)
    assert vault.counts() == before, f"{seed}: a rerun adds rows"


def taken(rng: random.Random, events: list[Event], last: bool) -> list[Event]:
    """Takes some of these away: the first ones, or any."""
    count = len(events) if last else rng.randint(0, len(events))
    if rng.random() < 0.5:
        rng.shuffle(events)
    found = events[:count]
    del events[:count]
    return found


@dataclass(frozen=True)
class Meaning:
    """What keys mean, by the declaration."""

    vault: DeclaredVault

    def policy(self, name: Name) -> VaultPolicy:
        """The vault's part of a table's declaration."""
        found = self.vault.tables[name].vault
        assert found is not None
        return found

    def key(self, hub: str, code: str, values: Iterable[Any]) -> Key:
        """A business key as its hub reads it."""
        texts = [None if value is None else str(value) for value in values]
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
    for satellite, declared in policy.satellites.items():
        said = known
        if declared.link:
            said = [(links[declared.link](event), event) for event in events if not event["gone"]]
        of = f"link_{declared.link}" if declared.link else f"hub_{hub}"
        yield satellite_claim(meaning, satellite, of, declared.columns, declared.historized, said, hashes)
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
    yield link_claim(meaning, link, roles, {key for key, _ in known}, hashes, rest)
    if policy.track_deletes:
        yield timeline_claim(meaning, f"eff_sat_{link}", f"hk_{link}", "is_active", wanted, hashes[f"link_{link}"])
    for satellite, declared in policy.satellites.items():
        yield satellite_claim(
            meaning, satellite, f"link_{link}", declared.columns, declared.historized, known, hashes
        )  # fmt: skip


def event_claim(meaning: Meaning, name: Name, events: list[Event], hashes: Hashes) -> Claim:
    """Each event once, with what it names and says."""
    event = meaning.policy(name).event
    assert event is not None
    payload = [*meaning.vault.tables[name].key, *event.columns]
    wanted = [(*meaning.together(name, event.to, e), *(e[column] for column in payload)) for e in events]
    columns = [*(f"hk_{role}" for role in event.to), *payload]
    rows = meaning.vault.rows(f"select {quoted(columns)} from nh_link_{event.name}")
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
        columns = [*([f"hk_{policy.children_of}"] if parent else []), *rest]
        rows = meaning.vault.rows(
            f"select {quoted([*columns, 'source_seq', 'is_deleted', *declared.columns])} from {relation}_v1"
        )
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
    rest: list[str] | None = None,
) -> Claim:
    """Each combination once; also learns what its hashes mean."""
    columns = [f"hk_{link}", *(f"hk_{role}" for role in roles), *(rest or [])]
    rows = meaning.vault.rows(f"select {quoted(columns)} from link_{link}")
    found = []
    for hashed, *row in rows:
        keys = (hashes[f"hub_{hub}"][one] for hub, one in zip(roles.values(), row, strict=False))
        found.append((*keys, *row[len(roles) :]))
        hashes[f"link_{link}"][hashed] = found[-1]
    return f"link_{link}", in_order(wanted), in_order(found)


def satellite_claim(
    meaning: Meaning, satellite: str, of: str, columns: tuple[str, ...], historized: bool,
    said: list[tuple[Key, Event]], hashes: Hashes,
) -> Claim:  # fmt: skip
    """A satellite of a hub or link (`of`)."""
    pk = f"hk_{of.partition('_')[2]}"
    if historized:
        state = ", ".join(["is_deleted", quoted(columns)])
        known = [(key, event) for key, event in said if key not in (ZERO, ERROR)]
        return timeline_claim(meaning, f"sat_{satellite}", pk, state, collapsed(known, columns), hashes[of])
    wanted = {(key, *(e[c] for c in columns)) for key, e in said if not e["gone"] and key not in (ZERO, ERROR)}
    rows = meaning.vault.rows(
        f"select {quoted([pk, *columns])} from nh_sat_{satellite} where record_source <> 'ghost'"
    )  # fmt: skip
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


def quoted(columns: Iterable[str]) -> str:
    """Column names in SQL."""
    return ", ".join(f'"{column}"' for column in columns)


def in_order(rows: Iterable[Any]) -> list[Any]:
    """All of them, doubles included, in an order that compares."""
    return sorted(rows, key=repr)
