"""Who has read what readers may not: Trino's own account of each query, while it still has it.

No event listener of Trino 476 can be had outside its image. The coordinator keeps each query for at least a quarter of
an hour (`query.min-expire-age`), with its user and the columns that it has read, also below views. Whoever asks more
often misses none, unless Trino ends in between; such a gap is told by the queries' numbers, which end in the name
that the coordinator gave itself at its start.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from lakehouse.servers.retry import Unreachable
from lakehouse.servers.trino import http_session
from lakehouse.settings import Settings
from lakehouse.text.shown import shortened

Record = dict[str, Any]
ENDED = ("FINISHED", "FAILED")
EVERYTHING = ["*"]


def ended_queries(settings: Settings) -> dict[str, Record]:
    """What Trino tells of the queries that have ended, by number; raises Unreachable."""
    return {query["queryId"]: query for query in _get(settings, "/v1/query") if query["state"] in ENDED}


def details(settings: Settings, query_id: str) -> Record:
    """All that Trino tells of a query; nothing where it has let it go meanwhile. Raises Unreachable."""
    found: Record = _get(settings, f"/v1/query/{query_id}", missing={})
    return found


def record_of(query: Mapping[str, Any], rules: Mapping[str, Any], catalog: str) -> Record:
    """The line of one query; `tables` are those with data that readers may not see, and `hidden` which columns."""
    session, stats = query.get("session", {}), query.get("queryStats", {})
    tables = []
    for name, columns in sorted(_read(query, catalog).items()):
        hidden = not_for_readers(rules, catalog, *name, columns)
        if hidden:
            tables.append({"table": ".".join(name), "columns": sorted(columns), "hidden": hidden})
    return {
        "query": query["queryId"], "user": session.get("user"), "client": session.get("source"),
        "address": session.get("remoteUserAddress"), "at": stats.get("createTime"), "ended": stats.get("endTime"),
        "state": query["state"], "tables": tables,
    }  # fmt: skip


def not_for_readers(
    rules: Mapping[str, Any], catalog: str, schema: str, table: str, columns: Iterable[str]
) -> list[str]:
    """Which of the columns the role `reader` may not read; `*` where it may not read the table."""
    place = {"catalog": catalog, "schema": schema, "table": table}
    for rule in rules["tables"]:
        if not re.fullmatch(rule.get("group", ".*"), "reader"):
            continue
        if any(re.fullmatch(rule.get(part, ".*"), name) is None for part, name in place.items()):
            continue
        closed = {column["name"] for column in rule.get("columns", ()) if not column["allow"]}
        return sorted(closed.intersection(columns)) if "SELECT" in rule["privileges"] else EVERYTHING
    return EVERYTHING


def instance_of(query_id: str) -> str:
    """What the coordinator called itself when it started."""
    return query_id.rpartition("_")[2]


def _read(query: Mapping[str, Any], catalog: str) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for entry in query.get("inputs", ()):
        if entry["catalogName"] == catalog:
            read = found.setdefault((entry["schema"], entry["table"]), set())
            read.update(column["name"] for column in entry["columns"])
    return found


def _get(settings: Settings, path: str, missing: Any = None) -> Any:
    import requests

    trino, login = settings.trino, settings.trino.login("writer")
    where = f"{trino.http_scheme}://{trino.host}:{trino.port}"
    auth = (login.user, login.password.get_secret_value()) if login.password else None
    headers = {} if auth else {"X-Trino-User": login.user}
    try:
        with http_session(trino) as session:
            answer = session.get(f"{where}{path}", auth=auth, headers=headers, timeout=30)
        if answer.status_code in (404, 410) and missing is not None:  # it went between the list and this
            return missing
        answer.raise_for_status()
        return answer.json()
    except (requests.RequestException, OSError) as error:
        raise Unreachable(
            f"Trino at {where} does not tell of its queries: {shortened(str(error).splitlines()[0], 200)}"
        ) from None
