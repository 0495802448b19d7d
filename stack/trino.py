"""Trino with the `lake` catalog: coordinator and worker in one process."""

import json
import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from lakehouse.catalog import LOST_CONNECTION
from lakehouse.private_files import private_dir, write_private
from stack.artifacts import artifact
from stack.java import server_java
from stack.ports import LOOPBACK
from stack.process import Launch
from stack.render import render
from stack.servers import Server

CATALOG = "lake"


def trino_server(
    home: Path,
    etc: Path,
    artifacts: Path,
    port: int,
    heap_mb: int,
    catalog_jdbc: str,
    s3_endpoint: str,
    credentials: Mapping[str, str],
) -> Server:
    """Trino; secrets reach it by its environment, which its catalog file refers to."""
    data = home / "data" / "trino"
    programs = artifacts / artifact("trino-server-core").target
    files = trino_files(
        etc=etc,
        port=port,
        heap_mb=heap_mb,
        host=LOOPBACK,
        catalog_jdbc=catalog_jdbc,
        s3_endpoint=s3_endpoint,
        plugin_dir=(artifacts / artifact("trino-iceberg").target).parent,
        bind=LOOPBACK,
    )

    def prepare() -> None:
        private_dir(data)
        for name, text in files.items():
            write_private(etc / name, text)

    node = [f"-D{line}" for line in files["node.properties"].splitlines()]
    java = [str(server_java()), *files["jvm.config"].splitlines(), *node, f"-Dconfig={etc / 'config.properties'}"]
    launch = Launch(
        argv=(*java, "-cp", str(programs / "lib" / "*"), "io.trino.server.TrinoServer"),
        cwd=data,
        log=home / "logs" / "trino.log",
        env={
            "LAKEHOUSE_TRINO_CATALOG_USER": "trino",
            "LAKEHOUSE_TRINO_CATALOG_PASSWORD": credentials["trino"],
            "LAKEHOUSE_S3_ACCESS_KEY": credentials["s3_access_key"],
            "LAKEHOUSE_S3_SECRET_KEY": credentials["s3_secret_key"],
        },
        config="".join(files.values()),
    )
    return Server(
        name="trino",
        port=port,
        launch=launch,
        trouble=lambda: _trouble(port),
        prepare=prepare,
        follow_up=lambda: None,
        works_in=data,
        program="java",
    )


def trino_files(
    *,
    etc: Path,
    port: int,
    heap_mb: int,
    host: str,
    catalog_jdbc: str,
    s3_endpoint: str,
    plugin_dir: Path | None = None,
    bind: str | None = None,
    data_dir: Path | None = None,
) -> dict[str, str]:
    """Trino's configuration by file name below `etc`: half the heap for queries, a quarter as head-room."""
    config = render(
        "trino.config.properties.j2",
        port=port,
        host=host,
        catalog_dir=etc / "catalog",
        plugin_dir=plugin_dir,
        heap=f"{heap_mb} MB",
        query_memory=f"{heap_mb // 2}MB",
        headroom=f"{heap_mb // 4}MB",
        cores=os.cpu_count() or 1,
    )
    lake = render(
        "lake.properties.j2",
        catalog_name=CATALOG,
        catalog_jdbc=catalog_jdbc,
        warehouse="s3://warehouse/",
        s3_endpoint=s3_endpoint,
        s3_region="us-east-1",
        lost_connection=",".join(LOST_CONNECTION),
    )
    return {
        "config.properties": config,
        "node.properties": render("trino.node.properties.j2", node_id=CATALOG, listen=bind, data_dir=data_dir),
        "jvm.config": render("trino.jvm.config.j2", heap_mb=heap_mb),
        f"catalog/{CATALOG}.properties": lake,
    }


def _trouble(port: int) -> str | None:
    """Asks for the lake's schemas: catalog database, role and credentials are right, and a worker is there."""
    from trino.dbapi import connect
    from trino.exceptions import Error

    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/v1/info", timeout=2) as answer:
            if json.load(answer)["starting"]:
                return "still starting"
        connection = connect(host=LOOPBACK, port=port, user="lakehouse", max_attempts=1)
        connection.cursor().execute(f"SHOW SCHEMAS FROM {CATALOG}").fetchall()
    except Error as error:
        return " ".join(str(getattr(error, "message", error)).split())
    except (OSError, ValueError, KeyError) as error:
        return f"no answer ({error})"
    return None
