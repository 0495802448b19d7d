"""`python -m orchestration.reload`, with the arguments of a code server: has it load its code and the project again.

It does what the button in the UI does, and the UI and the daemon go on with what the server has then. Code that does
not load would leave the server without any, so it is loaded here first: the server keeps what it has where that fails.
"""

import argparse
import sys
from types import ModuleType

import dagster as dg
from dagster._core.code_pointer import load_python_file, load_python_module
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._grpc.client import DagsterGrpcClient

from lakehouse.servers.outage import expected


def main() -> None:
    """Reloads one code server; exits 1 with a line where the code does not load, or the server does not answer."""
    parser = argparse.ArgumentParser(prog="python -m orchestration.reload", description=__doc__)
    for option in ("--socket", "--location-name", "--module-name", "--python-file", "--working-directory"):
        parser.add_argument(option)
    parser.add_argument("--startup-timeout", type=int)
    given, _ = parser.parse_known_args()
    try:
        check(
            load_python_module(given.module_name, given.working_directory)
            if given.module_name
            else load_python_file(given.python_file, given.working_directory)
        )
    except Exception as error:
        said = expected(error) or f"{type(error).__name__}: {error}"
        sys.exit(f"code location {given.location_name!r} stays as it was loaded before: {' '.join(said.split())}")
    try:
        DagsterGrpcClient(socket=given.socket).reload_code(timeout=given.startup_timeout)
    except DagsterUserCodeUnreachableError:
        sys.exit(f"code location {given.location_name!r}: its server does not answer; it reads all when it starts")


def check(module: ModuleType) -> None:
    """Raises what is wrong with the definitions in a module."""
    for value in vars(module).values():
        if isinstance(value, dg.Definitions):
            dg.Definitions.validate_loadable(value)


if __name__ == "__main__":
    main()
