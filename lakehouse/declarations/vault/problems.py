"""Mistakes in a table's `meta.vault`, each with a code.

V1 hub without key, V2 link with one hub, V3 column twice, V4 column nowhere, V5 unknown reference, V6 unknown column,
V7 name taken, V8 personal data that could not be erased, V9 children without a key of their own, or a link that is not
in its table's key, V10 a table that is two things, V11 a table of which nothing is made, V12 a hub of several
tables whose rules or collision codes are not clear, V13 a satellite that its table cannot have.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from lakehouse.declarations.vault.hubs import Owner, codes_meant, hub_owners
from lakehouse.declarations.vault.names import (
    ALIAS,
    CODE,
    Named,
    Vaulted,
    business_key,
    clashes,
    in_lake,
    linked_columns,
    links_change,
    relations,
    stage_columns,
    timeline_columns,
)
from lakehouse.declarations.vault.policy import VaultPolicy

Problem = tuple[tuple[str, ...], str]


def problems_of(table: Vaulted) -> Iterator[Problem]:
    """Mistakes within one table's declaration, each with the path of the key below `meta` that is wrong."""
    vault = table.vault
    yield from _personal_problems(table, vault)
    yield from _nothing_made(table, vault)
    if vault is None or not vault.is_modelled:
        return
    if not table.raw.key:
        yield ("vault", vault.forms[0]), "V1: a hub needs a key: declare meta.raw.key"
    yield from _form_problems(table, vault)
    for name, link in vault.links.items():
        at = ("vault", "links", name)
        if unknown := [role for role in link.to if role not in vault.references]:
            yield (
                (*at, "to", unknown[0]),
                f"V5: link {name!r} leads to {', '.join(unknown)}, which meta.vault.references does not have",
            )
        if vault.hub is None or not link.to:
            yield at, f"V2: link {name!r} has one hub; it needs the table's own and at least one reference in `to`"
    for path, names in _lists(vault):
        if twice := sorted(name for name, count in Counter(names).items() if count > 1):
            yield path, f"V3: {', '.join(twice)} is named twice here: name it once"
    yield from _satellite_problems(vault)
    yield from _key_problems(table, vault)
    yield from _column_problems(table, vault)
    yield from _name_problems(table, vault)


def _nothing_made(table: Vaulted, vault: VaultPolicy | None) -> Iterator[Problem]:
    """A table that no part of the vault uses, without a declared reason."""
    if vault is None:
        if not table.raw.key:
            yield (
                ("raw",),
                (
                    "V11: without a key the table stays in raw, and nothing of it is parsed: declare meta.raw.key,"
                    " or say why with `vault: {none: …}`"
                ),
            )
    elif vault.none is not None and (vault.is_modelled or vault.satellites or vault.links or vault.references):
        yield ("vault", "none"), "V11: `none` says that the table has no place in the vault, and the rest gives it one"
    elif (vault.children_of or vault.reference_table) and not vault.satellites:
        yield (
            ("vault",),
            (
                "V11: nothing is made of this without a satellite: declare one, with the columns [] if there are none"
                " beside the key"
            ),
        )
    elif vault.none is None and not vault.is_modelled:
        yield (
            ("vault",),
            (
                "V11: nothing is made of this: say what the table is (hub, link, event, children_of or"
                " reference_table), or why it has no place in the vault with `none`"
            ),
        )


def _form_problems(table: Vaulted, vault: VaultPolicy) -> Iterator[Problem]:
    if len(vault.forms) > 1:
        yield ("vault", vault.forms[1]), f"V10: a table is one thing, not {' and '.join(vault.forms)}"
    if vault.track_mentions and vault.hub is None:
        yield ("vault", "track_mentions"), "V1: mentions are tracked for a hub, and the table declares none"
    yield from _event_problems(vault)
    yield from _link_problems(table, vault)
    yield from _children_problems(table, vault)


def _event_problems(vault: VaultPolicy) -> Iterator[Problem]:
    if vault.event is None:
        return
    at = ("vault", "event")
    if unknown := [role for role in vault.event.to if role not in vault.references]:
        yield (
            (*at, "to", unknown[0]),
            f"V5: the event names {', '.join(unknown)}, which meta.vault.references does not have",
        )
    if not vault.event.to:
        yield at, "V2: an event is a link, it needs at least one reference in `to`"
    if vault.satellites:
        yield ("vault", "satellites"), "V10: an event never changes: what it says stands in `event.columns`"


def _link_problems(table: Vaulted, vault: VaultPolicy) -> Iterator[Problem]:
    if vault.link is None:
        return
    at = ("vault", "link")
    if unknown := [role for role in vault.link.to if role not in vault.references]:
        yield (
            (*at, "to", unknown[0]),
            f"V5: the link names {', '.join(unknown)}, which meta.vault.references does not have",
        )
    elif len(vault.link.to) < 2:
        yield at, "V2: a link has two references at least in `to`"
    elif links_change(table.raw, vault) and set(table.raw.key) <= linked_columns(vault):
        missing = sorted(linked_columns(vault) - set(table.raw.key))
        yield (
            at,
            (
                f"V9: {', '.join(missing)} is not in the table's key, and the key has no column of its own, so a row"
                " says what belongs to a thing: give the table that thing's hub, and declare the link under `links`"
            ),
        )
    yield from _unerasable(vault, "of a link could not be erased: give the table a hub of its own")


def _children_problems(table: Vaulted, vault: VaultPolicy) -> Iterator[Problem]:
    if vault.children_of is None:
        return
    at, parent = ("vault", "children_of"), vault.references.get(vault.children_of)
    if parent is None:
        yield at, f"V5: children_of names {vault.children_of!r}, which meta.vault.references does not have"
    elif not set(parent.columns) < set(table.raw.key):
        yield (
            at,
            f"V9: the key has to be {', '.join(parent.columns)} and at least one column that tells the rows"
            f" of one {vault.children_of} apart; it is {', '.join(table.raw.key) or 'empty'}",
        )
    yield from _unerasable(vault, "of children could not be erased: give them a hub of their own")


def _unerasable(vault: VaultPolicy, why: str) -> Iterator[Problem]:
    for name, satellite in vault.satellites.items():
        if satellite.personal:
            yield ("vault", "satellites", name, "personal"), f"V8: personal data {why}"


def _satellite_problems(vault: VaultPolicy) -> Iterator[Problem]:
    """Satellites without history, and those of a link that a table has beside its hub."""
    for name, satellite in vault.satellites.items():
        at = ("vault", "satellites", name)
        if not satellite.historized and (vault.children_of or vault.reference_table):
            yield (*at, "historized"), "V13: children and codes are kept with their history: leave out `historized`"
        if not satellite.historized and satellite.personal:
            yield (
                (*at, "historized"),
                "V8: an erasure changes personal data, so it needs a history: leave out `historized`",
            )
        if satellite.link is None:
            continue
        if (link := vault.links.get(satellite.link)) is None:
            yield (*at, "link"), f"V13: meta.vault.links has no {satellite.link!r} that the satellite could describe"
        elif not link.effectivity:
            yield (
                ("vault", "links", satellite.link, "effectivity"),
                f"V13: nothing says when link {satellite.link!r} ends: leave out its `effectivity: false`",
            )
        if satellite.personal:
            yield (
                (*at, "personal"),
                "V8: personal data of a link could not be erased: describe the row's own thing with it",
            )


def _key_problems(table: Vaulted, vault: VaultPolicy) -> Iterator[Problem]:
    """Columns of the key in satellites that have the key itself: their tables would have them twice."""
    for name, satellite in vault.satellites.items() if vault.children_of or vault.reference_table else ():
        if twice := sorted(set(satellite.columns) & set(table.raw.key)):
            yield (
                ("vault", "satellites", name, "columns", twice[0]),
                f"V3: {', '.join(twice)} is in the table's key, which each row of this satellite has: leave it out",
            )


def _personal_problems(table: Vaulted, vault: VaultPolicy | None) -> Iterator[Problem]:
    """Personal data where an erasure would leave it: in keys, references, and hashdiffs of other columns."""
    satellites = vault.satellites if vault else {}
    references = vault.references if vault else {}
    named = set(table.raw.personal).union(*(s.columns for s in satellites.values() if s.personal))
    if keys := sorted(named & set(table.raw.key)):
        yield ("raw", "key", keys[0]), f"V8: key column {', '.join(keys)} is personal data, and a key cannot be erased"
    roles = {column: role for role, reference in references.items() for column in reference.columns}
    if linked := sorted(named & roles.keys()):
        yield (
            ("vault", "references", roles[linked[0]], "columns", linked[0]),
            f"V8: {', '.join(linked)} is personal data, and a reference cannot be erased",
        )
    for name, satellite in satellites.items():
        if not satellite.personal and (mixed := sorted(named & set(satellite.columns))):
            yield (
                ("vault", "satellites", name, "columns", mixed[0]),
                f"V8: {', '.join(mixed)} is personal data: put it into a satellite with `personal: true`",
            )


def _column_problems(table: Vaulted, vault: VaultPolicy) -> Iterator[Problem]:
    places = dict(_places(vault))
    landed = set(table.landed)
    for path, columns in places.items():
        if unknown := sorted(set(columns) - landed):
            yield (*path, "columns", unknown[0]), f"V6: {', '.join(unknown)} is not among the columns that land"
        if path[1] in ("references", "codes") and (masked := sorted(set(columns) & set(table.raw.mask))):
            how = " or ".join(sorted({f"'{table.raw.mask[column]}'" for column in masked}))
            yield (
                (*path, "columns", masked[0]),
                f"V6: {', '.join(masked)} lands masked, so it names nothing: take its {how} from meta.raw.mask, or"
                " keep it as an attribute alone",
            )
    referring = {column for reference in vault.references.values() for column in reference.columns}
    others = (columns for path, columns in places.items() if path[1] not in ("references", "codes"))
    counts = Counter([*referring, *(column for columns in others for column in columns)])
    if twice := sorted(column for column, count in counts.items() if count > 1):
        last = [path for path, columns in places.items() if twice[0] in columns][-1]
        yield (
            (*last, "columns", twice[0]),
            f"V3: {', '.join(twice)} is in two places: a column is in references, in one satellite or ignored",
        )
    if nowhere := sorted(landed - set(counts) - set(table.raw.key)):
        yield ("vault",), f"V4: {', '.join(nowhere)} is nowhere: put it into a satellite, a reference or `ignored`"


def _name_problems(table: Vaulted, vault: VaultPolicy) -> Iterator[Problem]:
    if vault.hub is not None and vault.hub.column and len(table.raw.key) > 1:
        yield ("vault", "hub", "column"), "V7: `column` names a key of one column; this key has several"
        return
    for columns, where in ((stage_columns, "the stage"), (timeline_columns, "a timeline")):
        for other, one in clashes(columns(table, vault)):
            yield (
                one.path,
                f"V7: {where} would have {one.name!r} twice, as {other.what} and as {one.what}: {one.remedy}",
            )
    if "__" in table.source:
        yield ("vault",), f"V7: `__` parts source and table in stg_{table.source}__{table.name}: rename the source"
    for name in in_lake(table.raw, table.landed):
        if name.startswith("!"):
            yield ("vault",), f"V7: a stage takes what begins with `!` for a text, like column {name!r}: {ALIAS}"


def _lists(vault: VaultPolicy) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Lists whose items become columns of one table, or parts of one key."""
    for name, reference in vault.references.items():
        yield ("vault", "references", name), reference.columns
    for name, link in vault.links.items():
        yield ("vault", "links", name), link.to
    for form in ("event", "link"):
        if (made := getattr(vault, form)) is not None:
            yield ("vault", form), made.to


def _places(vault: VaultPolicy) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    for name, reference in vault.references.items():
        yield ("vault", "references", name), reference.columns
    for name, code in vault.codes.items():
        yield ("vault", "codes", name), code.columns
    for name, satellite in vault.satellites.items():
        yield ("vault", "satellites", name), satellite.columns
    if vault.event is not None:
        yield ("vault", "event"), vault.event.columns
    yield ("vault", "ignored"), vault.ignored


def problems_among(tables: Iterable[Vaulted]) -> Iterator[tuple[Vaulted, Problem]]:
    """Mistakes that involve several tables."""
    modelled = [(table, table.vault) for table in tables if table.vault and table.vault.is_modelled]
    made_by: dict[str, tuple[Vaulted, Named]] = {}
    for table, vault in modelled:
        for made in relations(table, vault):
            owner, other = made_by.setdefault(made.name, (table, made))
            if other is not made:
                yield table, (made.path, _made_twice(made, other, owner))
    hubs = hub_owners(table for table, _ in modelled)
    code_tables = [(vault.reference_table, table) for table, vault in modelled if vault.reference_table]
    for table, vault in modelled:
        if vault.hub is not None:
            for problem in _hub_problems(table, vault, hubs[vault.hub.name]):
                yield table, problem
        for role in vault.references:
            for problem in _reference_problems(table, vault, role, hubs.get(vault.hub_of(role), [])):
                yield table, problem
        for code in vault.codes:
            named = [other for name, other in code_tables if name == vault.reference_table_of(code)]
            for problem in _code_problems(table, vault, code, named):
                yield table, problem


def _code_problems(table: Vaulted, vault: VaultPolicy, code: str, named: Sequence[Vaulted]) -> Iterator[Problem]:
    name, columns, at = vault.reference_table_of(code), vault.codes[code].columns, ("vault", "codes", code)
    if not named:
        yield at, f"V5: no table declares `reference_table: {name}`, which {_full(table)} refers to"
    elif len(named) > 1:
        yield at, f"V7: reference table {name!r} is that of tables {' and '.join(other.name for other in named)}"
    elif len(key := named[0].raw.key) != len(columns):
        yield at, f"V5: code {code!r} names {', '.join(columns) or 'none'}; the key of {name!r} is {', '.join(key)}"


def _made_twice(made: Named, other: Named, owner: Vaulted) -> str:
    text = f"V7: {made.name} would be {made.what} and {other.what} of table {owner.name}"
    hint = "; if both are about the same kind of thing, one of them says `hub: {name: …, extends: true}`"
    return text + hint if made.what.startswith("hub ") and made.what == other.what else text


def _hub_problems(table: Vaulted, vault: VaultPolicy, owners: Sequence[Owner]) -> Iterator[Problem]:
    """Mistakes of a table in a hub of several tables."""
    assert vault.hub is not None
    declaring, hub = owners[0]
    if hub.extends:
        yield ("vault", "hub"), f"V5: no table declares the hub {hub.name!r} that {_full(table)} extends"
        return
    if len({owner.collision_code for _, owner in owners}) > 1 and CODE in business_key(table.raw, vault):
        yield ("vault", "hub"), f"V7: hub {hub.name!r} would have {CODE!r} twice: {ALIAS}"
    if not vault.hub.extends:
        return
    if set_here := sorted({"column", "description", "normalize", "blank"} & vault.hub.model_fields_set):
        yield (
            ("vault", "hub", set_here[0]),
            f"V12: {', '.join(set_here)} of a hub is said once, by table {declaring.name}",
        )
    if vault.track_mentions:
        yield ("vault", "track_mentions"), f"V12: table {declaring.name}, which declares the hub, tracks mentions"
    if len(table.raw.key) != len(declaring.raw.key):
        needed, given = ", ".join(declaring.raw.key), ", ".join(table.raw.key)
        yield ("vault", "hub"), f"V5: the key of hub {hub.name!r} is {needed}; the key of this table is {given}"
    elif _in_another_order(in_lake(table.raw, table.raw.key), in_lake(declaring.raw, declaring.raw.key)):
        needed, given = ", ".join(declaring.raw.key), ", ".join(table.raw.key)
        yield ("raw", "key"), f"V5: this key is {given}; the key of hub {hub.name!r} is {needed}, in this order"


def _full(table: Vaulted) -> str:
    """Whoever removes what it refers to, from another file, knows it by this."""
    return f"{table.source}.{table.name}"


def _in_another_order(columns: Sequence[str], key: Sequence[str]) -> bool:
    """Whether these columns have the key's names: each would be taken for another one."""
    return tuple(columns) != tuple(key) and sorted(columns) == sorted(key)


def _reference_problems(table: Vaulted, vault: VaultPolicy, role: str, owners: Sequence[Owner]) -> Iterator[Problem]:
    reference, hub, at = vault.references[role], vault.hub_of(role), ("vault", "references", role)
    if not owners or owners[0][1].extends:
        said = f"V5: no table declares a hub {hub!r}, which {_full(table)} refers to"
        yield at, f"{said}; a code of a reference table is named in `codes`"
        return
    key = owners[0][0].raw.key
    if len(key) != len(reference.columns):
        needed, given = ", ".join(key), ", ".join(reference.columns) or "none"
        yield at, f"V5: reference {role!r} names {given}; the key of hub {hub!r} is {needed}"
    is_owner = any(owner is table for owner, _ in owners)  # its rows may refer to their own mirror images
    if not is_owner and _in_another_order(in_lake(table.raw, reference.columns), in_lake(owners[0][0].raw, key)):
        needed, given = ", ".join(key), ", ".join(reference.columns)
        yield at, f"V5: reference {role!r} names {given}; the key of hub {hub!r} is {needed}, in this order"
    if len(codes_meant(reference, table.source, owners)) != 1:
        codes = ", ".join(sorted({repr(owner.collision_code) for _, owner in owners}))
        yield at, f"V12: the keys of hub {hub!r} have the collision codes {codes}: name one with `collision_code`"
