"""A vault of all shapes, from its declaration: random histories of several sources, against an oracle without SQL."""

import random
import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from lakehouse.errors import LakehouseError
from tests.unit.any_declaration import any_declaration
from tests.unit.declared_oracle import claims
from tests.unit.declared_vault import DeclaredVault, Name, a_declaration, table_history
from tests.unit.embedded_vault import START, WAYS, Event, restore


def test_a_vault_of_all_shapes_is_as_its_sources_say(tmp_path: Path) -> None:
    """Two declarations with a history each."""
    for seed in range(2):
        check(seed, tmp_path)


@pytest.mark.slow
def test_a_vault_of_all_shapes_in_the_long_form(tmp_path: Path) -> None:
    for seed in range(1000, 1050):
        check(seed, tmp_path)


def test_whatever_a_stranger_declares_is_right_or_refused(tmp_path: Path) -> None:
    """Names that meet, types that name others, every form: with a code and a line where it is refused."""
    assert strangers(range(10, 22), tmp_path) > 2


@pytest.mark.slow
def test_whatever_a_stranger_declares_in_the_long_form(tmp_path: Path) -> None:
    assert strangers(range(3000, 3120), tmp_path) > 25


def strangers(seeds: Iterable[int], place: Path) -> int:
    """How many declarations were accepted."""
    accepted = 0
    for seed in seeds:
        try:
            check(seed, place, declare=any_declaration)
        except LakehouseError as error:
            assert re.search(r"models/shop\.yml:\d+: (V\d+|meta\.raw\.alias\.\w+): ", str(error)), (seed, error)
        else:
            accepted += 1
    return accepted


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


@pytest.mark.slow
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
