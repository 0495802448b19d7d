"""`python -m orchestration.reload`, with the arguments of a code server: has it load its code and the project again.

It presses the button of the UI, so that UI and daemon go on with what the server has then. Code that does not load
would leave the server without any, so it is loaded here first: the server keeps what it has where that fails.
"""

import argparse
import importlib
import runpy
import sys
from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError, ReloadRepositoryLocationStatus

from lakehouse.servers.outage import expected
from lakehouse.servers.retry import Unreachable, until_answered
from lakehouse.settings import Settings, load_settings
from orchestration.web.login import ui_host, ui_secret


def main() -> None:
    """Reloads one code server; exits 1 with a line where the code does not load, or the UI does not answer."""
    parser = argparse.ArgumentParser(prog="python -m orchestration.reload", description=__doc__)
    for option in ("--location-name", "--module-name", "--python-file", "--working-directory"):
        parser.add_argument(option)
    given, _ = parser.parse_known_args()
    location = given.location_name
    try:
        sys.path.insert(0, given.working_directory or "")
        found = (
            vars(importlib.import_module(given.module_name)) if given.module_name else runpy.run_path(given.python_file)
        )
        check(found)
    except Exception as error:
        said = expected(error) or f"{type(error).__name__}: {error}"
        sys.exit(f"code location {location!r} stays as it was loaded before: {' '.join(said.split())}")
    settings = load_settings()
    until_answered(lambda: reload(settings, location), f"code location {location!r}")


def check(found: Mapping[str, Any]) -> None:
    """Raises what is wrong with the definitions among these values of a module."""
    for value in found.values():
        if isinstance(value, dg.Definitions):
            dg.Definitions.validate_loadable(value)


def reload(settings: Settings, location: str) -> None:
    """Raises Unreachable where the UI, or through it the code server, does not answer."""
    headers = {"Authorization": f"Bearer {ui_secret(settings)}"}
    try:
        client = DagsterGraphQLClient(ui_host(settings), settings.dagster.port, headers=headers)
        done = client.reload_repository_location(location)
    except DagsterGraphQLClientError as error:
        raise Unreachable(f"the UI: {error}") from None
    if done.status is not ReloadRepositoryLocationStatus.SUCCESS:
        raise Unreachable(f"the code server: {done.message}")


if __name__ == "__main__":
    main()
