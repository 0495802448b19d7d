"""The code servers that `lakehouse dev` keeps running for the UI and the daemon."""

from pathlib import Path

import yaml

from lakehouse.declarations.dbt.changes import Changes
from lakehouse_cli.machine.code_servers import code_servers, reload_of


def test_each_code_location_gets_a_server_that_ui_and_daemon_share(tmp_path: Path) -> None:
    """A UI with a server of its own went on saying "loaded" when that was killed, and every launch failed."""
    workspace, folder = tmp_path / "workspace.yaml", tmp_path / "sockets"
    folder.mkdir()
    elsewhere = {"grpc_server": {"host": "other", "port": 4000}}
    workspace.write_text(
        yaml.safe_dump(
            {
                "load_from": [
                    {"python_module": {"module_name": "orchestration.definitions", "location_name": "lakehouse"}},
                    {"python_file": "mine.py"},
                    elsewhere,
                ]
            }
        )
    )
    commands, file = code_servers(workspace, folder, tmp_path / "code.log")
    assert [command.argv[command.argv.index("--location-name") + 1] for command in commands] == ["lakehouse", "mine.py"]
    assert commands[0].argv[-2:] == ["--module-name", "orchestration.definitions"]
    assert commands[1].argv[-2:] == ["--python-file", str(tmp_path / "mine.py")]
    *served, kept = yaml.safe_load(file.read_text())["load_from"]
    sockets = [entry["grpc_server"]["socket"] for entry in served]
    assert sockets == [command.argv[command.argv.index("--socket") + 1] for command in commands]
    assert all(Path(socket).parent == folder for socket in sockets) and kept == elsewhere
    reloads = [reload_of(command, Changes(lambda: 0), []) for command in commands]
    for command, reload in zip(commands, reloads, strict=True):
        assert reload.argv[1:5] == ["-m", "orchestration.reload", "--socket", command.argv[4]]
        assert reload.argv[-2:] == command.argv[-2:] and reload.due is not None and not reload.due()
