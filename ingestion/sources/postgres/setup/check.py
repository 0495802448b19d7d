"""`lakehouse prepare --check`: everything that has to be right in a source, all at once; changes nothing."""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

import psycopg

from ingestion.sources.findings import ORDER, Finding, known_positions, of_stream
from ingestion.sources.postgres.configured import Configured
from ingestion.sources.postgres.connection import connect_source, publication_oid
from ingestion.sources.postgres.points import Patience
from ingestion.sources.postgres.setup.columns import column_findings
from ingestion.sources.postgres.setup.physical import ABOUT, advice, may_copy_cluster
from ingestion.sources.postgres.setup.prepare import application_findings
from ingestion.sources.postgres.setup.relations import (
    Member,
    Published,
    Stored,
    read_members,
    read_publication,
    read_stored,
)
from ingestion.sources.postgres.setup.rights import needed, relations_of
from ingestion.sources.postgres.setup.server import server_findings
from ingestion.sources.postgres.standby import primary_of
from ingestion.sources.postgres.stream import check_stream
from ingestion.sources.postgres.unprepared import fill_sample
from lakehouse.declarations import RawTable, Source
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection, SourceConnection
from lakehouse.settings import Settings
from lakehouse.text.shown import shortened
from lakehouse.text.sql import ident, relation, typed_relation
from lakehouse.text.urls import parse_url

ALL = "insert, update, delete, truncate"
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}
ALSO_REFUSED = ("rights", "stream", "standby", "version")  # what the check of the stream runs into as well
_UNLOGGED = {"u": "unlogged", "t": "temporary"}


def check_source(settings: Settings, source: Source) -> list[Finding]:
    """What is in the way of ingestion, what prepare is going to do, and what is worth knowing, in this order."""
    try:
        with (
            connect_source(settings, source.name) as connection,
            primary_of(settings, source.name, connection) as primary,
        ):
            of_server = list(server_findings(connection, primary, settings, source))
            is_open = not any(f.about in ALSO_REFUSED and f.weight == "in the way" for f in of_server)
            found = [
                *of_server,
                *(_of_stream(connection, primary, settings, source.name) if is_open else ()),
                *_of_publication(connection, settings, source),
                *application_findings(connection, source, settings.source(source.name).publication),
                *_of_owner(settings, source),
            ]
        if may_copy_cluster(settings, source.name):
            found.append(Finding(source.name, None, ABOUT, "warning", *advice(settings, source.name)))
    except LakehouseError as error:
        says = str(error).removeprefix(f"source {source.name!r}: ")
        found = [Finding(source.name, None, "connection", "in the way", "it cannot be looked at", says)]
    return sorted(found, key=lambda finding: (ORDER[finding.weight], finding.table or ""))


def _of_stream(
    connection: SourceConnection, primary: SourceConnection, settings: Settings, source: str
) -> Iterator[Finding]:
    """Whether it goes on from what the lake was read from."""
    of = Configured(settings, source, Patience(settings, source, None))

    def check(states: CatalogConnection) -> None:
        try:
            publication = publication_oid(settings, connection, source, of.publication)
        except LakehouseError:  # one that is not there, or will not do, is a finding of its own
            publication = None
        check_stream(of, connection, primary, states, publication)

    return of_stream(settings, source, check)


def unpublishable(connection: SourceConnection, schema: str, name: str) -> str | None:
    """Why a relation must not be published as it is, with the remedy; None where it may."""
    policy = RawPolicy(relation=relation(schema, name))
    table = RawTable(
        source="", name=name, description="", columns=(), raw=policy, load=LoadPolicy(), maintenance=None, owners=()
    )
    source = Source(name="", description="", load=LoadPolicy(), tables=(table,))
    found = [*_unfit(source, table, read_stored(connection, [table])), *application_findings(connection, source, "")]
    return next((f"{f.says}; {f.remedy}" for f in found if f.weight == "in the way"), None)


def _of_publication(connection: SourceConnection, settings: Settings, source: Source) -> Iterator[Finding]:
    name = settings.source(source.name).publication
    published, members = read_publication(connection, name), read_members(connection, name)
    stored = read_stored(connection, source.tables)
    prepare = f"`lakehouse prepare {source.name}` does that"
    if published is None:
        yield Finding(source.name, None, "publication", "prepare", f"there is no publication {name!r} yet", prepare)
    else:
        partitioned = any(item.root_kind == "p" for item in stored)
        yield from _options(source, name, published, partitioned)
    samples, positions = fill_sample(settings, connection, source.name), known_positions(settings, source.name)
    for table in source.tables:
        mine = [item for item in stored if item.table == table.name]
        if mine[0].root_kind in ("r", "p"):
            yield from column_findings(connection, table, mine, name, positions)
        known = positions.get(table.name)
        if unfit := list(_unfit(source, table, mine, samples, has_begun=known is not None and bool(known.versions))):
            yield from unfit
            continue
        yield from _readable(source, table, mine, settings)
        if published is not None and table.relation in members:
            yield from _member(source, table, name, members[table.relation])
        elif published is not None:
            says = f"{table.raw.relation} is not in publication {name!r} yet"
            yield Finding(source.name, table.name, "publication", "prepare", says, prepare)


def _options(source: Source, name: str, published: Published, partitioned: bool) -> Iterator[Finding]:
    alter = f"ALTER PUBLICATION {ident(name)} SET"
    needs_all = any(table.raw.changes == "all" for table in source.tables)
    carries = published.inserts and published.truncates and published.updates == published.deletes
    if not carries or (needs_all and not published.updates):
        says = f"publication {name!r} leaves out some of {ALL}"
        remedy = f"run {alter} (publish = '{ALL}') as its owner, or declare meta.raw.changes: inserts for every table"
        yield Finding(source.name, None, "publication", "in the way", says, remedy)
    if partitioned and not published.via_root:
        says = f"publication {name!r} publishes partitions by themselves"
        remedy = f"run {alter} (publish_via_partition_root = true) as its owner"
        yield Finding(source.name, None, "publication", "in the way", says, remedy)


def _member(source: Source, table: RawTable, publication: str, member: Member) -> Iterator[Finding]:
    if member.filtered:
        says = f"publication {publication!r} filters the rows of {table.raw.relation}"
        remedy = f"ALTER PUBLICATION {ident(publication)} DROP TABLE …, then `lakehouse prepare {source.name}`"
        yield Finding(source.name, table.name, "publication", "in the way", says, remedy)


def _unfit(
    source: Source, table: RawTable, stored: list[Stored], samples: str | None = None, *, has_begun: bool = False
) -> Iterator[Finding]:
    """A relation that Postgres publishes not at all, or not whole."""
    finding = partial(Finding, source.name, table.name)
    if not stored[0].exists:
        says = f"relation {table.raw.relation} does not exist"
        remedy = f"run {samples}" if samples else "correct meta.raw.relation of its declaration"
        yield finding("relation", "in the way", says, remedy)
        return
    for item in (item for item in stored if item.name is not None):
        if item.kind != "r":
            says = f"{item.quoted} is {_KINDS.get(item.kind or '', 'no table')}, which no publication carries"
            yield finding("relation", "in the way", says, "declare the tables that its rows come from")
        elif item.persistence in _UNLOGGED:
            says = f"{item.quoted} is {_UNLOGGED[item.persistence]}: its changes are not in the WAL"
            logged = f"run ALTER TABLE {item.quoted} SET LOGGED as its owner"
            remedy = logged if item.persistence == "u" else "remove its declaration"
            yield finding("unlogged", "in the way", says, remedy)
    named = {*(column.name for column in table.columns), *table.key, *table.raw.exclude}
    if not has_begun and (unknown := sorted(named - set(stored[0].columns))):
        says = f"{table.raw.relation} has no column {', '.join(unknown)}"
        yield finding("columns", "in the way", says, f"correct its declaration: it has {', '.join(stored[0].columns)}")
    if stored[0].has_children:
        says = f"{table.raw.relation} has tables that inherit from it, whose rows are not its own"
        yield finding("relation", "in the way", says, "declare each of them, or make it a partitioned table")


def _readable(source: Source, table: RawTable, stored: list[Stored], settings: Settings) -> Iterator[Finding]:
    finding = partial(Finding, source.name, table.name)
    role = ident(parse_url(settings.source(source.name).url.get_secret_value()).user)
    named = [item for item in stored if item.name is not None]
    prepare = f"`lakehouse prepare {source.name}"
    for says in _too_little(table, stored):
        yield finding("rights", "prepare", f"role {role} may not read {says}", f"{prepare}` grants that")
    for says in _too_much(table, stored):
        remedy = (
            f"{prepare} --revoke` takes back what it was granted itself, not the rights of PUBLIC or of other roles"
        )
        yield finding("rights", "warning", f"role {role} may read {says}, declared to be excluded", remedy)
    if secured := [item.quoted for item in named if item.row_security]:
        says = f"row-level security of {', '.join(secured)} holds for role {role}, so it may not see every row"
        remedy = f"run ALTER ROLE {role} BYPASSRLS as a superuser"
        yield finding("row-level security", "in the way", says, remedy)


def _too_little(table: RawTable, stored: list[Stored]) -> Iterator[str]:
    columns, lacking = needed(table, stored), defaultdict[tuple[str, ...], list[str]](list)
    for quoted, reads in relations_of(table, stored):
        if missing := tuple(name for name in columns if name not in reads):
            lacking[missing].append(quoted)
    for missing, relations in lacking.items():
        yield _told(table, relations) + (f" ({', '.join(missing)})" if len(missing) < len(columns) else "")


def _too_much(table: RawTable, stored: list[Stored]) -> Iterator[str]:
    readable = defaultdict[tuple[str, ...], list[str]](list)
    for quoted, reads in relations_of(table, stored):
        if excess := tuple(name for name in table.raw.exclude if name in reads):
            readable[excess].append(quoted)
    for excess, relations in readable.items():
        yield f"{', '.join(excess)} of {_told(table, relations)}"


def _told(table: RawTable, relations: list[str]) -> str:
    """The first of them, and how many more: a table may have thousands of partitions."""
    first, *others = relations
    if not others:
        return first
    more = "other partitions" if first != typed_relation(*table.relation) else "of its partitions"
    return f"{first} and {len(others)} {more}"


def _of_owner(settings: Settings, source: Source) -> Iterator[Finding]:
    """Whether the role that is to run the statements may."""
    configured = settings.source(source.name)
    if configured.owner_url is None:
        return
    finding = partial(Finding, source.name, None, "owner", "in the way")
    try:
        connected = psycopg.connect(configured.owner_url.get_secret_value(), client_encoding="UTF8")
        with SourceConnection(connected) as owner:
            stored = read_stored(owner, source.tables)
            foreign = sorted({f"{item.table} ({item.owner})" for item in stored if item.exists and not item.is_owner})
            made = read_publication(owner, configured.publication) is not None
            row = owner.execute("SELECT has_database_privilege(current_database(), 'CREATE')").fetchone()
    except psycopg.Error as error:
        reason = shortened(" ".join(str(error).split()), 200)
        variable = f"LAKEHOUSE_SOURCES__{source.name.upper()}__OWNER_URL"
        yield finding(f"its owner's connection fails: {reason}", f"correct {variable}, or leave it out")
        return
    if foreign:
        says = f"the role of owner_url does not own {', '.join(foreign)}"
        yield finding(says, "set the owner's URL, or leave it out and run the printed statements as the owner")
    if not made and row != (True,):
        says = "the role of owner_url may not make a publication"
        yield finding(says, "run GRANT CREATE ON DATABASE … TO it as a superuser")
