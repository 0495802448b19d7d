"""`lakehouse user`: what it stores, and what it tells."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lakehouse.declarations.access.rules import RELATIONS
from lakehouse.errors import LakehouseError
from lakehouse.servers.logins import Rights, ensure_own_logins, matches, read_logins
from lakehouse_cli.machine.user import app

KNOWN = (("marts", "sales", "reader"), ("mirror_shop", "orders", "reader"), ("pii", "sat", "privacy"))


@pytest.fixture
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of logins, with relations of three namespaces."""
    monkeypatch.setenv("LAKEHOUSE_TRINO__ACCESS", str(tmp_path))
    ensure_own_logins(tmp_path, {"lakehouse": "w", "reader": "r", "privacy": "p"})
    written = [{"schema": schema, "name": name, "least": least, "personal": []} for schema, name, least in KNOWN]
    (tmp_path / RELATIONS).write_text(json.dumps({"relations": written}))
    return tmp_path


def said(*words: str) -> tuple[str, str]:
    """Result and remarks of a command that succeeds."""
    done = CliRunner().invoke(app, words)
    if done.exception is not None:
        raise done.exception
    return done.stdout.strip(), done.stderr.strip()


def rights(access: Path, name: str) -> Rights:
    return read_logins(access)[name].rights


def test_a_login_is_made_for_some_namespaces_and_listed_with_them(access: Path) -> None:
    password, remarks = said("add", "ada", "--namespace", "mirror_shop", "--namespace", "marts")
    assert matches(read_logins(access)["ada"].hashed, password) and not remarks
    assert rights(access, "ada") == Rights("reader", frozenset({"marts", "mirror_shop"}))
    lines = [line.split() for line in said("list")[0].splitlines()]
    assert ["ada", "reader", "marts,", "mirror_shop"] in lines and ["reader", "reader", "all", "namespaces"] in lines


def test_a_login_without_namespaces_reads_all_as_before(access: Path) -> None:
    _, remarks = said("add", "ada", "--role", "privacy")
    assert rights(access, "ada") == Rights("privacy") and not remarks


def test_a_new_password_says_that_the_namespaces_stay(access: Path) -> None:
    said("add", "ada", "--namespace", "marts")
    password, remarks = said("add", "ada")
    assert matches(read_logins(access)["ada"].hashed, password)
    assert rights(access, "ada") == Rights("reader", frozenset({"marts"}))
    assert remarks == "ada still reads marts alone: `lakehouse user change ada --all-namespaces` opens the others"


@pytest.mark.parametrize(
    ("role", "namespace", "remark"),
    [("reader", "mart", "did you mean marts?"), ("reader", "raw_web", "it reads marts, mirror_shop"),
     ("reader", "pii", "it reads marts, mirror_shop"), ("privacy", "piii", "did you mean pii?")],
)  # fmt: skip
def test_a_namespace_in_which_the_role_reads_nothing_yet_is_taken_and_told(
    access: Path, role: Any, namespace: str, remark: str
) -> None:
    """It may come later, and a typo would look like a lake without tables."""
    wanted = f"warning: the role {role} reads nothing in {namespace} now: {remark}"
    assert said("add", "ada", "--role", role, "--namespace", namespace, "--namespace", "marts")[1] == wanted
    assert rights(access, "ada") == Rights(role, frozenset({namespace, "marts"}))
    said("change", "ada", "--namespace", "marts")
    assert said("change", "ada", "--namespace", namespace)[1] == wanted
    (access / RELATIONS).unlink()
    assert said("change", "ada", "--namespace", namespace)[1].endswith("now: it reads nothing yet")


def test_a_login_is_changed_without_a_new_password(access: Path) -> None:
    password, _ = said("add", "ada", "--namespace", "marts")
    assert said("change", "ada", "--role", "privacy") == ("ada: privacy, marts", "")
    assert said("change", "ada", "--namespace", "pii", "--namespace", "marts")[0] == "ada: privacy, marts, pii"
    assert said("change", "ada", "--role", "reader")[1] == (
        "warning: the role reader reads nothing in pii now: it reads marts, mirror_shop"
    )
    assert said("change", "ada", "--all-namespaces") == ("ada: reader, all namespaces", "")
    assert rights(access, "ada") == Rights("reader") and matches(read_logins(access)["ada"].hashed, password)
    assert said("remove", "ada")[0] == "removed ada"


@pytest.mark.parametrize(
    ("words", "why"),
    [(("add", "ada", "--namespace", "marts,mirror_shop"), "'marts,mirror_shop' is no name of a namespace"),
     (("add", "ada", "--namespace", "live_mirror_shop"), "give mirror_shop"),
     (("change", "nobody", "--namespace", "marts"), "there is no login 'nobody'"),
     (("change", "reader", "--namespace", "marts"), "the installation's own"),
     (("change", "nobody"), "give --role, --namespace or --all-namespaces"),
     (("change", "nobody", "--namespace", "marts", "--all-namespaces"), "not both")],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_changes(access: Path, words: tuple[str, ...], why: str) -> None:
    before = read_logins(access)
    with pytest.raises(LakehouseError, match=why):
        said(*words)
    assert read_logins(access) == before
