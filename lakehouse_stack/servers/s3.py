"""The object store: S3Proxy on a folder of the home."""

import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import private_dir, write_private
from lakehouse.settings import Settings
from lakehouse_stack.downloads.artifacts import artifact
from lakehouse_stack.downloads.java import server_java
from lakehouse_stack.home.ports import LOOPBACK
from lakehouse_stack.processes.process import Launch
from lakehouse_stack.servers.server import Server
from lakehouse_stack.templates.render import render

BUCKET = "warehouse"
CONTAINER_PORT = 9000


def s3_server(home: Path, jar: Path, port: int, heap_mb: int, credentials: Mapping[str, str]) -> Server:
    """S3Proxy with one bucket, `warehouse`."""
    folder, config_file = home / "data" / "s3", home / "run" / "s3proxy.properties"
    config = _config(folder, LOOPBACK, port, credentials["s3_access_key"], credentials["s3_secret_key"])
    launch = Launch(
        argv=_command(jar, heap_mb, config_file),
        cwd=folder,
        log=home / "logs" / "s3.log",
        env={"LOG_LEVEL": "warn"},
        config=config,
    )
    return Server(
        name="s3",
        port=port,
        launch=launch,
        check_health=lambda: check_health(port),
        prepare=lambda: _prepare(folder, config_file, config),
        after_start=lambda: None,
        working_dir=folder,
        program="java",
    )


def _config(folder: Path, host: str, port: int, access_key: str, secret_key: str) -> str:
    return render(
        "s3proxy.properties.j2", host=host, port=port, access_key=access_key, secret_key=secret_key, basedir=folder
    )


def _prepare(folder: Path, config_file: Path, config: str) -> None:
    private_dir(folder)
    private_dir(folder / BUCKET)
    write_private(config_file, config)


def _command(jar: Path, heap_mb: int, config_file: Path) -> tuple[str, ...]:
    java = (str(server_java()), f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError")
    return (*java, "-jar", str(jar), "--properties", str(config_file))


def serve_in_container(folder: Path, settings: Settings, heap_mb: int) -> NoReturn:
    """Replaces this process by the S3 server of docker/ on the volume `folder`.

    Raises LakehouseError if the keys are not set.
    """
    if settings.s3.access_key is None or settings.s3.secret_key is None:
        raise LakehouseError("the S3 server has no keys: set LAKEHOUSE_S3__ACCESS_KEY and LAKEHOUSE_S3__SECRET_KEY")
    keys = settings.s3.access_key.get_secret_value(), settings.s3.secret_key.get_secret_value()
    config_file = Path(tempfile.mkdtemp()) / "s3proxy.properties"
    _prepare(folder, config_file, _config(folder, "0.0.0.0", CONTAINER_PORT, *keys))
    command = _command(settings.artifacts / artifact("s3proxy").target, heap_mb, config_file)
    os.execve(command[0], command, {**os.environ, "LOG_LEVEL": "warn"})


def check_health(port: int) -> str | None:
    """Why the server is not healthy; None if it is."""
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/", timeout=2):
            return None
    except urllib.error.HTTPError as error:
        return None if error.code == 403 else f"answers {error.code}"  # 403: healthy, as the request is not signed
    except OSError as error:
        return f"no answer ({error})"
