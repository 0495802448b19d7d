"""The object store: S3Proxy on a folder of the home."""

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NoReturn

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import private_dir, write_shared
from lakehouse.servers.outage import BROKEN_OFF
from lakehouse.settings import Settings
from lakehouse_stack.downloads.artifacts import artifact
from lakehouse_stack.downloads.java import server_java
from lakehouse_stack.home.ports import LOOPBACK
from lakehouse_stack.processes.accounts import Account, ServerPlacement, run_as
from lakehouse_stack.processes.ownership import adopt, own_dir
from lakehouse_stack.processes.process import Launch
from lakehouse_stack.servers.server import Server
from lakehouse_stack.templates.render import render

BUCKET = "warehouse"
CONTAINER_PORT = 9000


def objects_dir(data: Path) -> Path:
    """The folder of the objects."""
    return data / "s3"


def s3_server(
    home: Path, placement: ServerPlacement, jar: Path, port: int, heap_mb: int, credentials: Mapping[str, str]
) -> Server:
    """S3Proxy with one bucket, `warehouse`."""
    folder, config = objects_dir(placement.data), placement.config
    files = _files(folder, LOOPBACK, port, credentials["s3_access_key"], credentials["s3_secret_key"])
    launch = Launch(
        argv=_command(server_java(placement), placement.program(jar), heap_mb, config, files),
        cwd=folder,
        log=home / "logs" / "s3.log",
        env={"LOG_LEVEL": "warn"},
        account=placement.account,
        config="".join(files.values()),
    )
    return Server(
        name="s3",
        port=port,
        launch=launch,
        check_health=lambda: check_health(port),
        prepare=lambda: _prepare(home / "data" / "s3", folder, placement.account, config, files),
        after_start=lambda: None,
        working_dir=folder,
        program="java",
    )


def _files(folder: Path, host: str, port: int, access_key: str, secret_key: str) -> dict[str, str]:
    """A configuration per key, in S3Proxy's order: the last one that fits a bucket's name says whose the bucket is.

    All buckets but ours are those of a key that nobody has: alone, a key reaches every bucket, and may make more.
    """
    nobodys = hashlib.sha256(f"nobody {secret_key}".encode()).hexdigest()
    render_for = partial(render, "s3proxy.properties.j2", host=host, port=port)
    return {
        "s3proxy-others.properties": render_for(access_key="nobody", secret_key=nobodys, buckets="*", basedir=None),
        "s3proxy.properties": render_for(access_key=access_key, secret_key=secret_key, buckets=BUCKET, basedir=folder),
    }


def _prepare(former: Path, folder: Path, account: Account | None, config: Path, files: Mapping[str, str]) -> None:
    adopt(former, folder)
    own_dir(folder, account)
    if account is None:
        private_dir(folder / BUCKET)
    else:
        run_as(account, 'mkdir -p -- "$1"', folder / BUCKET)
    for name, text in files.items():
        write_shared(config / name, text)


def _command(java_program: Path, jar: Path, heap_mb: int, run: Path, names: Iterable[str]) -> tuple[str, ...]:
    java = (str(java_program), f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError")
    return (*java, "-jar", str(jar), *(part for name in names for part in ("--properties", str(run / name))))


def serve_in_container(folder: Path, settings: Settings, heap_mb: int) -> NoReturn:
    """Replaces this process by the S3 server of docker/ on the volume `folder`.

    Raises LakehouseError if the keys are not set.
    """
    if settings.s3.access_key is None or settings.s3.secret_key is None:
        raise LakehouseError("the S3 server has no keys: set LAKEHOUSE_S3__ACCESS_KEY and LAKEHOUSE_S3__SECRET_KEY")
    keys = settings.s3.access_key.get_secret_value(), settings.s3.secret_key.get_secret_value()
    run = Path(tempfile.mkdtemp())
    files = _files(folder, "0.0.0.0", CONTAINER_PORT, *keys)
    _prepare(folder, folder, None, run, files)
    command = _command(server_java(), settings.artifacts / artifact("s3proxy").target, heap_mb, run, files)
    os.execve(command[0], command, {**os.environ, "LOG_LEVEL": "warn"})


def check_health(port: int) -> str | None:
    """Why the server is not healthy; None if it is."""
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/", timeout=2):
            return None
    except urllib.error.HTTPError as error:
        return None if error.code == 403 else f"answers {error.code}"  # 403: healthy, as the request is not signed
    except BROKEN_OFF as error:
        return f"no answer ({error})"
