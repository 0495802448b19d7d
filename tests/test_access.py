"""Who reads what in Trino. Once any name, without a password, read addresses in raw and dropped the table."""

import json
import time
from collections.abc import Iterator
from typing import Any, Literal

import certifi
import pytest
import requests
from pydantic import SecretStr
from trino.auth import BasicAuthentication
from trino.dbapi import connect
from trino.exceptions import Error, HttpError, TrinoQueryError

from lakehouse.declarations.access.rules import RULES, Relation, rules
from lakehouse.declarations.dbt.manifest import dbt_environment
from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_shared
from lakehouse.servers.logins import Role
from lakehouse.servers.retry import Unreachable
from lakehouse.servers.trino import answering, connect_to, http_session, query
from lakehouse.settings import Settings, TrinoSettings
from lakehouse_cli.lake.sql import sql
from lakehouse_cli.machine.user import add, change, remove
from lakehouse_stack.home.pathnames import ports_file
from lakehouse_stack.home.ports import read_ports
from tests.marks import slow
from tests.test_stack import until

pytestmark = pytest.mark.stack

ADDRESS = "ada@example.com"
SCHEMAS = ("raw_lab", "lab")
MADE = f"""
CREATE TABLE raw_lab.people AS SELECT 1 AS id, '{ADDRESS}' AS email, 'Brno' AS city
CREATE TABLE lab.people AS SELECT * FROM raw_lab.people
CREATE TABLE lab.sat_pii AS SELECT id, email FROM raw_lab.people
CREATE VIEW lab.current SECURITY DEFINER AS SELECT * FROM raw_lab.people
CREATE TABLE lab.unruled AS SELECT 1 AS id
"""
RELATIONS = (
    Relation("lab", "people", "reader", frozenset({"email"})),
    Relation("lab", "current", "reader", frozenset({"email"})),
    Relation("lab", "sat_pii", "privacy"),
)
SECRETS = (
    "SELECT * FROM raw_lab.people",
    "SELECT email FROM lab.people",
    "SELECT email FROM lab.current",
    "SELECT 1 FROM lab.current WHERE email LIKE 'a%'",
    "SELECT * FROM lab.sat_pii",
    'SELECT * FROM lab."people$files"',
    'SELECT * FROM raw_lab."people$partitions"',
    "SHOW STATS FOR raw_lab.people",
    "SHOW CREATE VIEW lab.current",
    "SELECT * FROM lab.unruled",
    "SELECT * FROM TABLE(lake.system.table_changes('lab', 'people', 1, 2))",
)
HARM = (
    "DROP TABLE raw_lab.people",
    "DROP TABLE lab.people",
    "DELETE FROM lab.people",
    "INSERT INTO lab.people VALUES (2, '', '')",
    "UPDATE lab.people SET city = 'x'",
    "CREATE TABLE lab.more AS SELECT 1 AS x",
    "CREATE VIEW lab.view AS SELECT 1 AS x",
    "CREATE SCHEMA more",
    "ALTER TABLE lab.people RENAME TO lab.others",
    "ALTER TABLE lab.people EXECUTE optimize",
    "ALTER TABLE raw_lab.people EXECUTE remove_orphan_files(retention_threshold => '7d')",
    "ALTER TABLE lab.unruled EXECUTE rollback_to_snapshot(1)",
    "CALL lake.system.rollback_to_snapshot('lab', 'people', 1)",
    "CALL lake.system.unregister_table('lab', 'people')",
    "CALL system.runtime.kill_query('20260101_000000_00000_aaaaa', 'why')",
    "SET SESSION AUTHORIZATION lakehouse",
)
REFUSED = "Access Denied|not found or not allowed|not supported for table with row filter|cannot impersonate"


def eventually(attempt: Any, seconds: float = 30) -> Any:
    """Trino reads its logins and rules again every few seconds."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except (Error, HttpError, AssertionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


@pytest.fixture(scope="module")
def lab(settings: Settings) -> Iterator[Settings]:
    """A raw table, a table, a view and a personal satellite, with rules; and a table that has none."""
    assert settings.trino.access is not None
    file = settings.trino.access / RULES
    before = file.read_text()
    for schema in SCHEMAS:
        query(settings, f"CREATE SCHEMA {schema}")
    for statement in MADE.strip().splitlines():
        query(settings, statement)
    write_shared(file, json.dumps(rules(RELATIONS)))
    try:
        eventually(lambda: query(settings, "SELECT id FROM lab.people", role="reader"))
        yield settings
    finally:
        write_shared(file, before)
        for schema in SCHEMAS:
            query(settings, f"DROP SCHEMA {schema} CASCADE")


def tried(trino: TrinoSettings, statement: str, role: Role = "writer") -> list[list[Any]]:
    return connect_to(trino, role=role, attempts=1).cursor().execute(statement).fetchall()


@pytest.mark.parametrize("name", ["mallory", "lakehouse", "reader"])
def test_a_name_without_its_password_reads_nothing(lab: Settings, name: str) -> None:
    reader = lab.trino.login("reader").password
    for password in (None, "guessed", reader.get_secret_value() if name != "reader" and reader else ""):
        given = SecretStr(password) if password else None
        trino = lab.trino.model_copy(update={"user": name, "password": given})
        with pytest.raises((Error, HttpError), match=r"401|[Aa]uth"):
            tried(trino, "SELECT email FROM raw_lab.people")


def test_nobody_gets_in_without_tls_or_past_its_certificate(lab: Settings) -> None:
    address = f"127.0.0.1:{lab.trino.port}/v1/statement"
    with requests.Session() as session:
        session.trust_env = False
        with pytest.raises(requests.exceptions.ConnectionError):
            session.post(f"http://{address}", data="SELECT 1", headers={"X-Trino-User": "mallory"})
        with pytest.raises(requests.exceptions.SSLError):
            session.post(f"https://{address}", data="SELECT 1")


def test_the_port_that_trino_has_for_itself_lets_nobody_else_in(lab: Settings) -> None:
    """A password that is right is not taken there either, and what is not signed neither starts nor ends a task."""
    login, port = lab.trino.login("writer"), read_ports(ports_file(lab))["trino_internal"]
    assert login.password is not None
    given, here = (login.user, login.password.get_secret_value()), f"http://127.0.0.1:{port}"
    with requests.Session() as session:
        session.trust_env = False
        session.headers["Connection"] = "close"  # a refusal may end one that is kept
        asked = session.post(f"{here}/v1/statement", data="SELECT 1", auth=given)
        named = session.post(f"{here}/v1/statement", data="SELECT 1", headers={"X-Trino-User": login.user})
        tasks = [session.get(f"{here}{path}", auth=given) for path in ("/v1/task", "/v1/query", "/v1/memory")]
        ended = session.delete(f"{here}/v1/task/20261124_000000_00000_aaaaa.0.0.0", auth=given)
    assert {asked.status_code, named.status_code} == {403}
    assert {answer.status_code for answer in (*tasks, ended)} <= {401, 403}


def test_trino_has_no_pages_that_another_page_could_frame(lab: Settings) -> None:
    """Its own web UI sets no X-Frame-Options and logs in by a cookie: a frame could have its user end queries."""
    login, trino = lab.trino.login("reader"), f"https://127.0.0.1:{lab.trino.port}"
    assert login.password is not None
    with http_session(lab.trino) as session:
        answers = [session.get(trino + page) for page in ("/", "/ui/", "/ui/login.html", "/ui/preview/")]
        form = {"username": login.user, "password": login.password.get_secret_value()}
        answers.append(session.post(f"{trino}/ui/login", data=form))
        assert {answer.url for answer in answers} == {f"{trino}/ui/disabled.html"}
        assert not session.cookies
        assert session.get(f"{trino}/ui/api/query").status_code == 401


def test_a_wrong_password_is_one_line_that_says_what_to_check(lab: Settings) -> None:
    wrong = lab.model_copy(update={"trino": lab.trino.model_copy(update={"password": SecretStr("guessed")})})
    with (
        pytest.raises(Unreachable, match="does not let this login in: check LAKEHOUSE_TRINO__USER") as said,
        answering(wrong),
    ):
        query(wrong, "SELECT 1")
    assert "guessed" not in str(said.value) and "\n" not in str(said.value)


def test_neither_a_companys_proxy_nor_its_certificates_are_in_the_way(
    lab: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert query(lab, "SELECT 1") == [[1]]
    environment = dbt_environment(lab)
    assert environment["REQUESTS_CA_BUNDLE"] == str(lab.trino.ca) and "127.0.0.1" in environment["NO_PROXY"]


def test_nobody_passes_for_somebody_else(lab: Settings) -> None:
    """The header that names the user is the client's own word."""
    login = lab.trino.login("reader")
    assert login.password is not None
    connection = connect(
        host=lab.trino.host, port=lab.trino.port, user="lakehouse", http_scheme="https",
        http_session=http_session(lab.trino), auth=BasicAuthentication(login.user, login.password.get_secret_value()),
    )  # fmt: skip
    with pytest.raises(TrinoQueryError, match="cannot impersonate"):
        connection.cursor().execute("SELECT email FROM lake.raw_lab.people").fetchall()


@pytest.mark.parametrize("statement", [*SECRETS, *HARM])
def test_a_reader_is_refused_what_is_not_for_readers(lab: Settings, statement: str) -> None:
    with pytest.raises(TrinoQueryError, match=REFUSED):
        query(lab, statement, role="reader")


@pytest.mark.parametrize("statement", [SECRETS[0], *SECRETS[5:], *HARM])
def test_privacy_reads_people_and_changes_nothing(lab: Settings, statement: str) -> None:
    if statement != "SHOW CREATE VIEW lab.current":
        with pytest.raises(TrinoQueryError, match=REFUSED):
            query(lab, statement, role="privacy")
    assert query(lab, "SELECT email FROM lab.sat_pii", role="privacy") == [[ADDRESS]]


def test_a_reader_sees_the_other_columns_and_does_not_learn_that_there_are_more(lab: Settings) -> None:
    for relation in ("lab.people", "lab.current"):
        assert query(lab, f"SELECT * FROM {relation}", role="reader") == [[1, "Brno"]]
        assert query(lab, f"SELECT * FROM {relation}", role="privacy") == [[1, ADDRESS, "Brno"]]
        assert [row[0] for row in query(lab, f"DESCRIBE {relation}", role="reader")] == ["id", "city"]
    assert query(lab, "SHOW SCHEMAS LIKE '%lab'", role="reader") == [["lab"]]
    assert query(lab, "SHOW TABLES FROM lab", role="reader") == [["current"], ["people"]]
    assert "email" not in str(query(lab, "SHOW STATS FOR lab.people", role="reader"))


def test_a_view_runs_as_its_owner_so_its_reader_needs_no_raw(lab: Settings) -> None:
    assert query(lab, "SELECT city FROM lab.current", role="reader") == [["Brno"]]
    assert "SECURITY DEFINER" in query(lab, "SHOW CREATE VIEW lab.current")[0][0]


def test_a_reader_sees_no_query_of_others(lab: Settings) -> None:
    query(lab, f"SELECT id FROM lab.people WHERE email = '{ADDRESS}'")
    queries = 'SELECT DISTINCT "user" FROM system.runtime.queries'
    assert query(lab, queries, role="reader") == [["reader"]]
    assert ["lakehouse"] in query(lab, queries)


def test_a_query_on_the_command_line_is_asked_by_a_reader(lab: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LakehouseError, match="asked as reader: `--role privacy` sees personal data"):
        sql("SELECT email FROM lab.people")
    sql("SELECT city FROM lab.people")
    sql("SELECT email FROM lab.people", role="privacy")
    said = capsys.readouterr().out
    assert "Brno" in said and ADDRESS in said


def test_a_login_is_added_and_removed_while_trino_runs(lab: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    add("ada", "reader")
    ada = as_login(lab, "ada", capsys.readouterr().out.strip())
    assert eventually(lambda: tried(ada, "SELECT * FROM lab.people")) == [[1, "Brno"]]
    remove("ada")
    until(lambda: is_refused(ada, "SELECT 1"))


def as_login(settings: Settings, name: str, password: str) -> TrinoSettings:
    there = settings.trino.model_dump(include={"host", "port", "http_scheme", "ca"})
    return TrinoSettings.model_validate({**there, "user": name, "password": password})


def is_refused(trino: TrinoSettings, statement: str) -> bool:
    try:
        return not tried(trino, statement)
    except (Error, HttpError):
        return True


NAMES = (
    "SHOW SCHEMAS FROM lake",
    "SELECT DISTINCT schema_name FROM lake.information_schema.schemata",
    "SELECT DISTINCT table_schema FROM lake.information_schema.tables",
    "SELECT DISTINCT table_schema FROM lake.information_schema.columns",
    "SELECT DISTINCT table_schem FROM system.jdbc.tables WHERE table_cat = 'lake'",
    "SELECT DISTINCT table_schem FROM system.jdbc.columns WHERE table_cat = 'lake'",
    "SELECT DISTINCT table_schem FROM system.jdbc.schemas WHERE table_catalog = 'lake'",
    "SELECT DISTINCT schema_name FROM system.metadata.table_comments WHERE catalog_name = 'lake'",
)


ELSEWHERE = (
    "SELECT id FROM lab.people",
    "SELECT id FROM lab.current",
    "DESCRIBE lab.people",
    "SHOW TABLES FROM lab",
    "SHOW STATS FOR lab.people",
)


@pytest.mark.parametrize("role", ["reader", slow("privacy")])
def test_a_login_with_namespaces_reads_and_lists_nothing_of_the_others(
    lab: Settings, capsys: pytest.CaptureFixture[str], role: Literal["reader", "privacy"]
) -> None:
    """`lab.current` is over raw: a view runs as its owner, whatever its reader may read."""
    here, other = f"here_{role}", f"other_{role}"
    add(here, role, ["lab"])
    mine = as_login(lab, here, capsys.readouterr().out.strip())
    add(other, role, ["marts"])
    theirs = as_login(lab, other, capsys.readouterr().out.strip())
    try:
        city = [[1, "Brno"]] if role == "reader" else [[1, ADDRESS, "Brno"]]
        for relation in ("lab.people", "lab.current"):
            assert eventually(lambda name=relation: tried(mine, f"SELECT * FROM {name}")) == city
        for statement in NAMES:
            assert ["lab"] in tried(mine, statement), statement
            listed = {name for (name,) in tried(mine, statement)}
            assert listed <= {"lab", "information_schema"}, statement
            assert "lab" not in str(eventually(lambda ask=statement: tried(theirs, ask))), statement
        assert tried(mine, "SELECT count(*) FROM lake.information_schema.views WHERE table_schema <> 'lab'") == [[0]]
        assert tried(theirs, "SELECT count(*) FROM lake.information_schema.views") == [[0]]
        secrets = SECRETS if role == "reader" else [s for s in (SECRETS[0], *SECRETS[5:]) if "CREATE VIEW" not in s]
        closed = [(mine, statement) for statement in ("SELECT * FROM meta.cuts", *secrets, *HARM)]
        closed += [(theirs, statement) for statement in (*ELSEWHERE, *SECRETS, *HARM)]
        for trino, statement in closed:
            with pytest.raises(TrinoQueryError, match=f"{REFUSED}|does not exist"):
                tried(trino, statement)
        assert tried(theirs, 'SELECT DISTINCT "user" FROM system.runtime.queries') == [[other]]
        change(other, namespace=["lab", "marts"])
        assert eventually(lambda: tried(theirs, "SELECT * FROM lab.people")) == city, "with the password of before"
        change(here, namespace=["marts"])
        until(lambda: is_refused(mine, "SELECT id FROM lab.people"))
    finally:
        remove(here)
        remove(other)
