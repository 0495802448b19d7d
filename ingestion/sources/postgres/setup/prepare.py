"""`lakehouse prepare`: the missing set-up statements, run as the owner or printed for one, or refused as a whole."""

from ingestion.sources.findings import Finding
from ingestion.sources.postgres.connection import connect_source
from ingestion.sources.postgres.setup.identities import identity_findings, publishes
from ingestion.sources.postgres.setup.owner import as_owner, run
from ingestion.sources.postgres.setup.relations import read_members, read_publication, read_stored
from ingestion.sources.postgres.setup.statements import existing, setup_steps
from ingestion.sources.postgres.standby import until_replayed
from ingestion.sources.postgres.unprepared import fill_sample
from lakehouse.declarations import RawTable, Source
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.settings import Settings
from lakehouse.text.sql import relation
from lakehouse.text.urls import parse_url


class Unfit(LakehouseError):
    """Publishing the tables would make statements of the source's application fail."""


def prepare(settings: Settings, source: Source, *, revoke: bool = False) -> tuple[list[str], bool]:
    """The missing set-up statements of a source, run as the owner when its URL is set.

    `revoke` takes excluded columns from the run-time role. Returns the statements and whether they were run. Raises
    Unfit, with nothing run, when the application's UPDATE or DELETE of a table would fail afterwards; LakehouseError
    naming the statement that failed.
    """
    configured = settings.source(source.name)
    role = parse_url(configured.url.get_secret_value()).user
    with connect_source(settings, source.name) as connection:
        steps = setup_steps(source, configured.publication, role, existing(settings, source), revoke=revoke)
        _refuse(connection, source, configured.publication)
    statements = [step.sql for step in steps]
    if configured.owner_url is None:
        return statements, False
    with as_owner(settings, source.name, "the set-up failed and was rolled back") as owner:
        for table in source.tables:
            _check_exists(settings, owner, table)
        run(owner, source.name, role, steps)
        _refuse(owner, source, configured.publication)  # a table that is being published is not altered meanwhile
    until_replayed(settings, source.name)
    return statements, True


def application_findings(connection: SourceConnection, source: Source, publication: str) -> list[Finding]:
    """What would fail in the application, or does already, with the publication as it is or as it would be made."""
    published = read_publication(connection, publication) or publishes(source.tables)
    members = read_members(connection, publication)
    stored = read_stored(connection, source.tables)
    return list(identity_findings(source, stored, published, members, connection.info.server_version))


def _refuse(connection: SourceConnection, source: Source, publication: str) -> None:
    found = application_findings(connection, source, publication)
    if lines := [finding.line for finding in found if finding.weight == "in the way"]:
        raise Unfit(f"source {source.name!r}: nothing was done, as the application would suffer: " + "; ".join(lines))


def _check_exists(settings: Settings, owner: SourceConnection, table: RawTable) -> None:
    if owner.execute("SELECT to_regclass(%s)", (relation(*table.relation),)).fetchone() == (None,):
        samples = fill_sample(settings, owner, table.source)
        raise LakehouseError(
            f"source {table.source!r}, table {table.name!r}: relation {table.raw.relation} does not exist: "
            + (f"run {samples}" if samples else "correct meta.raw.relation of the declaration")
        )
