"""The object store: S3Proxy over a folder of the home."""

import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from lakehouse.private_files import private_dir, write_private
from stack.java import server_java
from stack.ports import LOOPBACK
from stack.process import Launch
from stack.render import render
from stack.servers import Server

BUCKET = "warehouse"


def s3_server(home: Path, jar: Path, port: int, heap_mb: int, credentials: Mapping[str, str]) -> Server:
    """S3Proxy with one bucket, `warehouse`."""
    folder, config_file = home / "data" / "s3", home / "run" / "s3proxy.properties"
    config = render(
        "s3proxy.properties.j2",
        port=port,
        access_key=credentials["s3_access_key"],
        secret_key=credentials["s3_secret_key"],
        basedir=folder,
    )

    def prepare() -> None:
        private_dir(folder)
        private_dir(folder / BUCKET)
        write_private(config_file, config)

    java = (str(server_java()), f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError")
    launch = Launch(
        argv=(*java, "-jar", str(jar), "--properties", str(config_file)),
        cwd=folder,
        log=home / "logs" / "s3.log",
        env={"LOG_LEVEL": "warn"},
        config=config,
    )
    return Server(
        name="s3",
        port=port,
        launch=launch,
        trouble=lambda: _trouble(port),
        prepare=prepare,
        follow_up=lambda: None,
        works_in=folder,
        program="java",
    )


def _trouble(port: int) -> str | None:
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/", timeout=2):
            return None
    except urllib.error.HTTPError as error:
        return None if error.code == 403 else f"answers {error.code}"  # 403: it wants a signature, so it works
    except OSError as error:
        return f"no answer ({error})"
