"""One code server per code location of a workspace, for the UI and the daemon together, so that it can be supervised.

Otherwise each of them starts one of its own and restarts it, or not: a UI whose code server was killed shows the
location as loaded while every launch fails.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lakehouse.declarations.dbt.changes import Changes
from lakehouse_cli.machine.foreground import Command

PATIENCE = 180  # seconds that loading the code may take
MODULE, FILE = "python_module", "python_file"
START = ("code-server", "start")


def code_servers(workspace: Path, folder: Path, log: Path) -> tuple[list[Command], Path]:
    """The servers to keep running, and the workspace file that names their sockets; both are in `folder`.

    Entries of other kinds, such as servers that somebody else runs, stay as they are.
    """
    entries = (yaml.safe_load(workspace.read_text()) or {}).get("load_from", [])
    commands, served = [], []
    for number, entry in enumerate(entries):
        kind, origin = _origin(entry)
        if kind is None:
            served.append(entry)
            continue
        name, socket = _location_name(kind, origin), folder / f"code{number}.sock"
        argv = [str(Path(sys.executable).with_name("dagster")), *START, "--socket", str(socket)]
        argv += ["--location-name", name, "--startup-timeout", str(PATIENCE), "--log-level", "warning"]
        commands.append(Command("code", [*argv, *_options(kind, origin, workspace.parent)], log, ends_noisily=True))
        served.append({"grpc_server": {"socket": str(socket), "location_name": name}})
    file = folder / "workspace.yaml"
    file.write_text(yaml.safe_dump({"load_from": served}))
    return commands, file


def reload_of(server: Command, changes: Changes, after: Sequence[Path]) -> Command:
    """What has a server load its code again whenever the project has changed, once the sockets of `after` are there."""
    argv = [sys.executable, "-m", "orchestration.reload", *server.argv[len(START) + 1 :]]
    return Command("reload", argv, server.log, after, changes.settled)


def _origin(entry: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    for kind, short in ((MODULE, "module_name"), (FILE, "relative_path")):
        if kind in entry:
            value = entry[kind]
            return kind, value if isinstance(value, Mapping) else {short: value}
    return None, {}


def _location_name(kind: str, origin: Mapping[str, Any]) -> str:
    default = origin["module_name"] if kind == MODULE else Path(origin["relative_path"]).name
    return str(origin.get("location_name", default))


def _options(kind: str, origin: Mapping[str, Any], root: Path) -> Iterable[str]:
    of = (
        ("--module-name", origin["module_name"])
        if kind == MODULE
        else ("--python-file", root / origin["relative_path"])
    )
    yield from map(str, of)
    if "working_directory" in origin:
        yield from ("--working-directory", str(root / origin["working_directory"]))
    if "attribute" in origin:
        yield from ("--attribute", str(origin["attribute"]))
