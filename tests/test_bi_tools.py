"""The how-to page for BI tools, by the connections that it prints: SQLAlchemy's, and Python's."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trino
from pydantic import SecretStr
from sqlalchemy import create_engine, text

from lakehouse.servers.trino import query
from lakehouse.settings import PROJECT_DIR, Settings
from lakehouse_cli.machine import user
from tests.slots import until

pytestmark = [pytest.mark.stack, pytest.mark.slow]
PAGE = (PROJECT_DIR / "docs" / "how-to" / "bi-tools.md").read_text()


@pytest.fixture
def login(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[dict[str, str]]:
    """What the page's words in capitals stand for, with a login that `lakehouse user add` made."""
    monkeypatch.setattr(user, "load_settings", lambda: settings)
    for bundle in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # they win over `verify`, as troubleshooting.md says
        monkeypatch.delenv(bundle, raising=False)
    user.add("superset", "reader")
    password = capsys.readouterr().out.strip()
    until(lambda: _is_let_in(settings, password))
    yield {
        "HOST": settings.trino.host, "PORT": str(settings.trino.port), "TRINO_CA": str(settings.trino.ca),
        "PASSWORD": password,
    }  # fmt: skip
    user.remove("superset")


def _is_let_in(settings: Settings, password: str) -> bool:
    """Trino reads logins every few seconds."""
    ours = settings.trino.model_copy(update={"reader_user": "superset", "reader_password": SecretStr(password)})
    try:
        return query(settings.model_copy(update={"trino": ours}), "SELECT 1", role="reader") == [[1]]
    except (trino.exceptions.Error, trino.exceptions.HttpError):
        return False


def test_superset_connects_as_the_page_says(login: dict[str, str]) -> None:
    url, options = re.findall(r"\| SQLAlchemy.*`(trino://[^`]+)`, with `([^`]+)`", PAGE)[0]
    for word, value in login.items():
        url, options = url.replace(word, value), options.replace(word, value)
    engine = create_engine(url, **eval(options))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT current_user")).scalar() == "superset"
        with pytest.raises(Exception, match="Access Denied"):
            connection.execute(text("CREATE SCHEMA lake.mine")).fetchall()
    engine.dispose()


def test_python_connects_as_the_page_says(login: dict[str, str]) -> None:
    (call,) = re.findall(r"\| Python \| `([^`]+)`", PAGE)
    values: dict[str, Any] = {"host": login["HOST"], "port": int(login["PORT"]), "user": "superset"}
    for name in ("host", "port", "user"):
        call = call.replace(f"{name}=…", f"{name}={values[name]!r}")
    call = call.replace("TRINO_CA", login["TRINO_CA"])
    scope = {"trino": trino, "user": "superset", "password": login["PASSWORD"], "Path": Path}
    connection = eval(call, scope)
    assert connection.cursor().execute("SELECT current_user").fetchall() == [["superset"]]
