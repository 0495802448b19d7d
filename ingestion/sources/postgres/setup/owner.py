"""A transaction as the owner of a source, by its `owner_url`, and the statements that are run in it one by one."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import errors

from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.servers.unreachable import unreachable_source
from lakehouse.settings import Settings
from lakehouse.text.shown import shortened

LOCK_TIMEOUT = "10s"
LONGEST = 200  # of a statement in a message: one that creates a publication names every table
_NOT_DONE = ("01006", "01007")  # warnings of a REVOKE or GRANT that did nothing, or not all of it
_OF_OTHERS = """
SELECT w.name, w.relation, quote_ident(pg_get_userbyid(c.relowner))
FROM unnest(%s::text[], %s::text[]) AS w(name, relation)
JOIN pg_class AS c ON c.oid = to_regclass(w.relation) WHERE NOT pg_has_role(c.relowner, 'USAGE')
"""


@dataclass(frozen=True)
class Statement:
    """What the owner runs: `about` are the declared tables and the relations of theirs that it names, in SQL. A GRANT
    on a schema has that instead."""

    sql: str
    about: tuple[tuple[str, str], ...] = ()
    schema: str | None = None


@contextmanager
def as_owner(settings: Settings, source: str, failed: str) -> Iterator[SourceConnection]:
    """Commits what the block does, or nothing: raises LakehouseError that says what `failed` and why.

    The source has an `owner_url`.
    """
    url = settings.source(source).owner_url
    assert url is not None
    try:
        with _connect(settings, source, url.get_secret_value()) as owner:
            owner.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")  # what waits behind our locks waits no longer
            yield owner
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[0]
        raise LakehouseError(f"source {source!r}: as the owner, {failed}: {reason}") from None


def _connect(settings: Settings, source: str, url: str) -> SourceConnection:
    try:  # a database may be in SQL_ASCII
        return SourceConnection(psycopg.connect(url, connect_timeout=10, client_encoding="UTF8"))
    except psycopg.OperationalError as error:
        raise unreachable_source(settings, source, error, "owner_url") from None


def run(owner: SourceConnection, source: str, role: str, statements: Iterable[Statement]) -> None:
    """Runs them in order, within the transaction of `as_owner`; raises LakehouseError that names the first one that
    fails, its table, and what to do.

    A GRANT that the owner may not make is passed over if the role has the right already, as from another owner.
    """
    warnings = list[str]()
    owner.add_notice_handler(
        lambda told: warnings.append(told.message_primary or "") if told.sqlstate in _NOT_DONE else None
    )
    for statement in statements:
        warnings.clear()
        try:
            with owner.transaction():  # after an error, the owner's connection can still be asked
                owner.execute(statement.sql)
        except psycopg.Error as error:
            if error.sqlstate is None:  # the connection is lost
                raise
            if not (isinstance(error, errors.InsufficientPrivilege) and _is_granted(owner, role, statement)):
                raise _failed(owner, source, statement, error) from None
        if warnings and not _is_granted(owner, role, statement):
            raise _failed(owner, source, statement, errors.InsufficientPrivilege(warnings[0]))


def _is_granted(owner: SourceConnection, role: str, statement: Statement) -> bool:
    if not statement.sql.startswith("GRANT "):
        return False
    if statement.schema is not None:
        asked = owner.execute("SELECT has_schema_privilege(%s, %s, 'USAGE')", (role, statement.schema))
    else:
        [(_, relation)] = statement.about
        asked = owner.execute("SELECT has_table_privilege(%s, to_regclass(%s)::oid, 'SELECT')", (role, relation))
    return asked.fetchone() == (True,)


def _failed(owner: SourceConnection, source: str, statement: Statement, error: psycopg.Error) -> LakehouseError:
    names, relations = [name for name, _ in statement.about], [relation for _, relation in statement.about]
    others = owner.execute(_OF_OTHERS, (names, relations)).fetchall()
    [user] = owner.execute("SELECT quote_ident(current_user)").fetchone() or ("",)
    table = others[0][0] if others else names[0] if len(names) == 1 else None
    where = f"source {source!r}" + (f", table {table!r}" if table else "")
    reason = (error.diag.message_primary or str(error)).strip().splitlines()[0]
    what = f"as the owner, role {user}, `{shortened(statement.sql, LONGEST)}` failed and everything was rolled back"
    return LakehouseError(
        f"{where}: {what}: {reason}: {_remedy(error, user, others)} `lakehouse prepare {source}` again"
    )


def _remedy(error: psycopg.Error, user: str, others: list[tuple[str, str, str]]) -> str:
    if isinstance(error, errors.LockNotAvailable):
        return f"something has held a lock on the table for {LOCK_TIMEOUT}; once it has ended, run"
    if not isinstance(error, errors.InsufficientPrivilege):
        return "correct that, and run"
    if not others:
        return f"run that statement as a superuser, or give {user} the right, and run"
    _, relation, role = others[0]
    more = f" (and {len(others) - 1} more are not {user}'s)" if others[1:] else ""
    run_it = f"as a superuser run that statement, or GRANT {role} TO {user}, and then"
    return f"{relation} belongs to role {role}{more}: {run_it}"
