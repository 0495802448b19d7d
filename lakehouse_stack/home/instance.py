"""Dagster's instance file. Its URL has no password, because Dagster passes it to processes on the command line."""

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import yaml
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_private
from lakehouse.settings import Settings
from lakehouse.text.urls import secret_options
from lakehouse_stack.templates.render import render

SETTING = "LAKEHOUSE_DAGSTER__STORAGE_URL"
DRIVER = "postgresql+psycopg2"
WITH_DRIVER = r"^postgres(ql)?(\+psycopg2)?(?=://)"


def write_instance(settings: Settings) -> None:
    """Writes the instance file for the configured database and a password file; raises LakehouseError."""
    if settings.dagster.storage_url is None:
        raise LakehouseError(
            f"Dagster's database is not set: set {SETTING}, or run `lakehouse up` for the embedded stack"
        )
    url = _hide_password(settings, settings.dagster.storage_url.get_secret_value())
    instance = dagster_yaml(json.dumps(with_driver(url)), _logs(settings.home))
    write_private(_file(settings), instance)


def ensure_instance(settings: Settings) -> None:
    """Writes the instance file if it is missing, and the configured URL and password into one that has others, and
    where the logs of runs are in a home that was moved, also by a release that left them behind.

    Of the rest of a file it changes nothing, nor of one whose URL is in the environment. It removes the password from
    one of release 0.1.0. Raises LakehouseError if PGPASSWORD is set, because libpq would prefer it.
    """
    if not _file(settings).exists():
        write_instance(settings)
    else:
        _renew(settings)
    if "PGPASSWORD" in os.environ and str(password_file(settings)) in _file(settings).read_text():
        raise LakehouseError(
            f"PGPASSWORD is set and wins over {password_file(settings)}, which has that of Dagster's database: unset it"
        )


def _renew(settings: Settings) -> None:
    """Replaces the URL in the instance file by that of the settings, without the password, and a folder of logs in a
    former home by that of this one; keeps the rest."""
    text = _file(settings).read_text()
    instance = yaml.safe_load(text) or {}
    stored = instance.get("storage", {}).get("postgres", {}).get("postgres_url")
    if not isinstance(stored, str) or not re.match(WITH_DRIVER, stored):
        return
    updated = _with_logs_here(_with_url(text, stored, settings), instance, settings.home)
    if updated != text:
        write_private(_file(settings), updated)


def _with_url(text: str, stored: str, settings: Settings) -> str:
    configured = settings.dagster.storage_url
    url = re.sub(WITH_DRIVER, "postgresql", stored) if configured is None else configured.get_secret_value()
    hidden = with_driver(_hide_password(settings, url))
    if hidden == stored:
        return text
    quoted = json.dumps(stored)
    updated = text.replace(quoted, json.dumps(hidden)) if quoted in text else text.replace(stored, hidden)
    if updated == text:
        raise LakehouseError(
            f"{_file(settings)}: its postgres_url is not that of {SETTING}: correct it, or delete the file"
        )
    if passfile := dict(parse_qsl(urlsplit(stored).query)).get("passfile"):
        former = Path(passfile).parent.parent  # the home that it was written in
        updated = updated.replace(_logs(former), _logs(settings.home))
    return updated


def _with_logs_here(text: str, instance: dict[str, Any], home: Path) -> str:
    """Where a release moved the URL alone, the folder is that of a home which is gone, or in which Dagster has made
    nothing but this folder again. A folder of another name is somebody's choice."""
    stored = instance.get("compute_logs", {}).get("config", {}).get("base_dir")
    former = Path(stored).parent.parent if isinstance(stored, str) else home
    if former == home or stored != _logs(former):
        return text
    if former.exists() and {each.name for each in former.iterdir()} - {"logs"}:
        return text
    return text.replace(stored, _logs(home))


def password_file(settings: Settings) -> Path:
    """The password file, which libpq reads for this connection only."""
    return settings.dagster_home / "pgpass"


def with_driver(url: str) -> str:
    """The URL with its driver: dagster-postgres needs psycopg2, but SQLAlchemy 2.1 defaults to psycopg 3."""
    return re.sub("^postgres(ql)?(?=://)", DRIVER, url)


def dagster_yaml(storage_url: str, compute_logs: str | Path) -> str:
    """Dagster's instance file; `storage_url` is YAML: a quoted literal, or {env: NAME}."""
    logs = json.dumps(str(compute_logs), ensure_ascii=False)
    return render("dagster.yaml.j2", storage_url=storage_url, compute_logs=logs, max_concurrent_runs=4)


def _logs(home: Path) -> str:
    return str(home / "logs" / "dagster")


def _file(settings: Settings) -> Path:
    return settings.dagster_home / "dagster.yaml"


def _hide_password(settings: Settings, url: str) -> str:
    """The URL with a password file instead of the password; the LakehouseError of a bad URL does not quote it."""
    try:
        parts = conninfo_to_dict(url)
    except ProgrammingError:
        parts = {"port": "none"}
    # a slash in the password splits it: the part before it parses as the port, the rest as the database
    if not re.match("postgres(ql)?://", url) or not re.fullmatch("[0-9,]*", str(parts.get("port") or "")):
        raise LakehouseError(f"{SETTING} is not of the form postgresql://user:password@host/database")
    if shown := sorted(parts.keys() & secret_options() - {"password"}):
        raise LakehouseError(
            f"{SETTING} has {', '.join(shown)}, which Dagster would show on command lines: take it out of the URL, "
            "such as by a key without a passphrase"
        )
    password = parts.get("password")
    if password is None:
        return url
    escaped = re.sub(r"([\\:])", r"\\\1", str(password))
    write_private(password_file(settings), f"*:*:*:*:{escaped}\n")
    address = urlsplit(url)
    login, at, hosts = address.netloc.rpartition("@")
    options = {**dict(parse_qsl(address.query)), "passfile": str(password_file(settings))}
    options.pop("password", None)  # and to libpq, `+` is no space
    return address._replace(
        netloc=f"{login.partition(':')[0]}{at}{hosts}", query=urlencode(options, safe="/", quote_via=quote)
    ).geturl()
