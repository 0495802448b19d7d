"""The catalog service (`lakehouse_serve`), by the names and passwords of Trino."""

import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from lakehouse.files.private_files import private_dir
from lakehouse.settings import config_file
from lakehouse_stack.home.ports import LOOPBACK
from lakehouse_stack.processes.process import Launch
from lakehouse_stack.servers.server import Server

PROGRAM = Path(sys.executable).name


def serve_server(home: Path, port: int, access: Path, endpoints: Mapping[str, str]) -> Server:
    """The service; `endpoints` are the settings of catalog and store, as environment variables."""
    folder, config = home / "data" / "serve", config_file()
    own = {
        "LAKEHOUSE_HOME": str(home),
        "LAKEHOUSE_SERVE__HOST": LOOPBACK,
        "LAKEHOUSE_SERVE__PORT": str(port),
        "LAKEHOUSE_TRINO__ACCESS": str(access),
        **({"LAKEHOUSE_CONFIG": str(config)} if config.exists() else {}),
    }
    return Server(
        name="serve",
        port=port,
        launch=Launch(
            argv=(sys.executable, "-m", "lakehouse_serve"),
            cwd=folder,
            log=home / "logs" / "serve.log",
            env={**own, **endpoints},
            config=config.read_text() if config.is_file() else "",
        ),
        check_health=lambda: _check_health(port),
        prepare=lambda: private_dir(folder),
        after_start=lambda: None,
        working_dir=folder,
        program=PROGRAM,
    )


def _check_health(port: int) -> str | None:
    """Why the service is not healthy; None if it is. It asks the catalog's database."""
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/healthz", timeout=2):
            return None
    except urllib.error.HTTPError as error:
        return f"answers {error.code}"
    except OSError as error:
        return f"no answer ({error})"
