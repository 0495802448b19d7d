"""Trino with the catalog `lake`: coordinator and worker in one process, with TLS and password authentication."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lakehouse.catalog.open import LOST_CONNECTION
from lakehouse.declarations.access.rules import ensure_rules
from lakehouse.files.private_files import write_shared
from lakehouse.servers.logins import OWN, WRITER, ensure_own_logins
from lakehouse.servers.trino import connect_to, reason_of
from lakehouse.settings import TrinoSettings
from lakehouse_stack.downloads.artifacts import artifact
from lakehouse_stack.downloads.java import server_java
from lakehouse_stack.home.certificate import ensure_certificate
from lakehouse_stack.home.ports import LOOPBACK
from lakehouse_stack.processes.accounts import ServerPlacement
from lakehouse_stack.processes.ownership import own_dir, share
from lakehouse_stack.processes.process import Launch
from lakehouse_stack.servers.s3 import BUCKET
from lakehouse_stack.servers.server import Server
from lakehouse_stack.templates.render import render

CATALOG = "lake"
INTERNAL = "LAKEHOUSE_TRINO_INTERNAL"


def access_dir(config: Path) -> Path:
    """The folder of logins and access rules, which Trino reloads by itself."""
    return config / "access"


def authority_file(home: Path) -> Path:
    """The authority's certificate, with which clients verify Trino's; readable by all."""
    return home / "trino-ca.pem"


def certificate_file(config: Path) -> Path:
    """Trino's private key and certificate."""
    return config / "trino.pem"


def ensure_access(home: Path, placement: ServerPlacement, credentials: Mapping[str, str]) -> None:
    """Writes the files that Trino needs for logins: its certificate, the home's own logins, and access rules."""
    folder = access_dir(placement.config)
    folder.mkdir(parents=True, exist_ok=True)
    share(placement.config, placement.account)
    ensure_certificate(certificate_file(placement.config), authority_file(home), (LOOPBACK, "localhost"))
    ensure_own_logins(folder, {name: credentials[f"trino_{role}"] for name, role in OWN.items()})
    ensure_rules(folder)


def trino_server(
    home: Path,
    placement: ServerPlacement,
    artifacts: Path,
    port: int,
    internal_port: int | None,
    heap_mb: int,
    catalog_jdbc: str,
    s3_endpoint: str,
    warehouse: str,
    credentials: Mapping[str, str],
) -> Server:
    """Trino; its configuration refers to secrets in its environment."""
    data, etc, access = placement.data / "trino", placement.config / "trino", access_dir(placement.config)
    programs = placement.program(artifacts / artifact("trino-server-core").target)
    files = trino_files(
        etc=etc,
        certificate=certificate_file(placement.config),
        access=access,
        port=port,
        heap_mb=heap_mb,
        host=LOOPBACK,
        catalog_jdbc=catalog_jdbc,
        s3_endpoint=s3_endpoint,
        warehouse=warehouse,
        plugin_dir=etc / "plugin",
        bind=LOOPBACK,
        internal_port=internal_port,
    )
    plugins = (
        programs / "plugin" / "password-authenticators",
        placement.program(artifacts / artifact("trino-iceberg").target),
    )
    command = _command(server_java(placement), etc, programs, files)
    return Server(
        name="trino",
        port=port,
        launch=_launch(home, data, placement, command, files, credentials),
        check_health=lambda: _check_health(home, access, port, credentials),
        prepare=lambda: _prepare(data, etc, placement, files, plugins),
        after_start=lambda: None,
        working_dir=data,
        program="java",
    )


def _command(java_program: Path, etc: Path, programs: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    node = (f"-D{line}" for line in files["node.properties"].splitlines() if not line.startswith("#"))
    java = (str(java_program), *files["jvm.config"].splitlines(), *node, f"-Dconfig={etc / 'config.properties'}")
    return (*java, "-cp", str(programs / "lib" / "*"), "io.trino.server.TrinoServer")


def _environment(credentials: Mapping[str, str]) -> dict[str, str]:
    return {
        "LAKEHOUSE_TRINO_CATALOG_USER": "trino",
        "LAKEHOUSE_TRINO_CATALOG_PASSWORD": credentials["trino"],
        "LAKEHOUSE_S3_ACCESS_KEY": credentials["s3_access_key"],
        "LAKEHOUSE_S3_SECRET_KEY": credentials["s3_secret_key"],
        INTERNAL: credentials["trino_internal"],
    }


def _launch(
    home: Path,
    data: Path,
    placement: ServerPlacement,
    command: tuple[str, ...],
    files: Mapping[str, str],
    credentials: Mapping[str, str],
) -> Launch:
    authority = authority_file(home)
    return Launch(
        argv=command,
        cwd=data,
        log=home / "logs" / "trino.log",
        env=_environment(credentials),
        account=placement.account,
        config="".join((*files.values(), authority.read_text() if authority.exists() else "")),
    )


def _prepare(
    data: Path, etc: Path, placement: ServerPlacement, files: Mapping[str, str], plugins: Iterable[Path]
) -> None:
    own_dir(data, placement.account)
    for folder in (etc / "catalog", etc / "plugin"):
        folder.mkdir(parents=True, exist_ok=True)
    share(etc, placement.account)
    for name, text in files.items():
        write_shared(etc / name, text)
    _link(data / "etc", etc)  # Trino reads the group provider's file below its working directory
    for plugin in plugins:
        _link(etc / "plugin" / plugin.name, plugin)


def trino_files(
    *,
    etc: Path,
    certificate: Path,
    access: Path,
    port: int,
    heap_mb: int,
    host: str,
    catalog_jdbc: str,
    s3_endpoint: str,
    warehouse: str = f"s3://{BUCKET}/",
    plugin_dir: Path | None = None,
    bind: str | None = None,
    data_dir: Path | None = None,
    internal_port: int | None = None,
) -> dict[str, str]:
    """Trino's configuration files by name below `etc`: queries get half of the heap, a quarter is headroom.

    With an `internal_port`, which is for loopback alone, the node sends to itself without TLS.
    """
    config = render(
        "trino.config.properties.j2",
        port=port,
        internal_port=internal_port,
        host=host,
        etc=etc,
        certificate=certificate,
        plugin_dir=plugin_dir,
        heap=f"{heap_mb} MB",
        query_memory=f"{heap_mb // 2}MB",
        headroom=f"{heap_mb // 4}MB",
        cores=os.cpu_count() or 1,
    )
    return {
        "config.properties": config,
        "password-authenticator.properties": render("trino.password-authenticator.properties.j2", access=access),
        "group-provider.properties": render("trino.group-provider.properties.j2", access=access),
        "access-control.properties": render("trino.access-control.properties.j2", access=access),
        "node.properties": render("trino.node.properties.j2", node_id=CATALOG, listen=bind, data_dir=data_dir),
        "jvm.config": render("trino.jvm.config.j2", heap_mb=heap_mb),
        f"catalog/{CATALOG}.properties": _lake_properties(catalog_jdbc, s3_endpoint, warehouse),
    }


def _lake_properties(catalog_jdbc: str, s3_endpoint: str, warehouse: str) -> str:
    return render(
        "lake.properties.j2",
        catalog_name=CATALOG,
        catalog_jdbc=catalog_jdbc,
        warehouse=warehouse,
        s3_endpoint=s3_endpoint,
        s3_region="us-east-1",
        lost_connection=",".join(LOST_CONNECTION),
    )


def trino_client(home: Path, access: Path, port: int, credentials: Mapping[str, str]) -> dict[str, Any]:
    """The connection of pipeline and readers, with the structure of `lakehouse.settings.TrinoSettings`."""
    return {
        "host": LOOPBACK,
        "port": port,
        "catalog": CATALOG,
        "http_scheme": "https",
        "ca": str(authority_file(home)),
        "access": str(access),
        "user": WRITER,
        "password": credentials["trino_writer"],
        "reader_user": "reader",
        "reader_password": credentials["trino_reader"],
        "privacy_user": "privacy",
        "privacy_password": credentials["trino_privacy"],
    }


def _check_health(home: Path, access: Path, port: int, credentials: Mapping[str, str]) -> str | None:
    """Lists the lake's schemas, which tests catalog database, roles, credentials and worker."""
    from trino.exceptions import Error, HttpError, TrinoQueryError

    try:
        trino = TrinoSettings.model_validate(trino_client(home, access, port, credentials))
        connect_to(trino, attempts=1).cursor().execute(f"SHOW SCHEMAS FROM {CATALOG}").fetchall()
    except TrinoQueryError as error:
        return " ".join(str(error.message).split())
    except (Error, OSError, HttpError) as error:
        return f"no answer ({reason_of(str(error))})"
    return None


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)
