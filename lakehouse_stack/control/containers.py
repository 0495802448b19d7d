"""Renders the stack's configuration for containers; `python -m lakehouse_stack render` is docker/'s first service.

Host names are service names, ports are the defaults, and each secret stays in the environment of its container.
"""

from pathlib import Path

from lakehouse.declarations.access.rules import ensure_rules
from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_private
from lakehouse.servers.logins import ROLES, ensure_own_logins
from lakehouse.settings import Settings
from lakehouse_stack.home.certificate import ensure_certificate
from lakehouse_stack.home.config import SAMPLE_DATABASES
from lakehouse_stack.home.instance import dagster_yaml
from lakehouse_stack.servers.s3 import CONTAINER_PORT
from lakehouse_stack.servers.trino import trino_files
from lakehouse_stack.templates.render import render

ETC = Path("/config/trino")
ACCESS = Path("/access")
TRINO = ("trino", "localhost", "127.0.0.1")  # host names in a generated certificate
CERTIFICATE, AUTHORITY = "trino.pem", "trino-ca.pem"
HBA = "/config/sources/pg_hba.conf"
IMAGES_HBA = "/var/lib/postgresql/18/docker/pg_hba.conf"  # in the data folder of the Postgres 18 image


def container_files(trino_heap_mb: int, databases: tuple[str, ...] = SAMPLE_DATABASES) -> dict[str, str]:
    """The configuration files of all containers, by path below the shared configuration volume."""
    trino = trino_files(
        etc=ETC,
        certificate=ACCESS / CERTIFICATE,
        access=ACCESS,
        port=8443,
        heap_mb=trino_heap_mb,
        host="trino",
        catalog_jdbc="jdbc:postgresql://catalog:5432/lake",
        s3_endpoint=f"http://s3:{CONTAINER_PORT}",
        data_dir=Path("/data/trino"),
    )
    return {
        "sources/postgresql.conf": render(
            "postgresql.conf.j2", cluster="sources", listen="*", port=5432, sockets=True, hba=HBA
        ),
        "sources/pg_hba.conf": render("pg_hba.conf.j2", others=IMAGES_HBA),
        "sources/roles.sql": render("sources.sql.j2", databases=databases),
        "catalog/postgresql.conf": render("postgresql.conf.j2", cluster="catalog", listen="*", port=5432, sockets=True),
        "catalog/roles.sql": render("catalog.sql.j2", generated=False),
        **{f"trino/{name}": text for name, text in trino.items()},
    }


def write_container_files(folder: Path, settings: Settings, trino_heap_mb: int) -> None:
    """Writes the files, and Dagster's instance file to the home that its containers share.

    They contain no secrets and are readable by all, because containers run as different users.
    """
    files = {folder / name: text for name, text in container_files(trino_heap_mb).items()}
    instance = dagster_yaml("{env: DAGSTER_POSTGRES_URL}", settings.home / "logs" / "dagster")
    for path, text in {**files, settings.dagster_home / "dagster.yaml": instance}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)


def write_access_files(folder: Path, given: Path, settings: Settings) -> None:
    """Writes Trino's certificate, logins and rules, readable by the containers' common user only.

    The certificate comes from `given` or is generated. Raises LakehouseError if only one of its two files is given or a
    password is missing.
    """
    wanted = [given / CERTIFICATE, given / AUTHORITY]
    found = [file for file in wanted if file.exists()]
    if found and found != wanted:
        raise LakehouseError(f"{given}: {CERTIFICATE} (key and certificates) and {AUTHORITY} belong together")
    for file in found:
        write_private(folder / file.name, file.read_text())
    if not found:
        ensure_certificate(folder / CERTIFICATE, folder / AUTHORITY, TRINO)
    logins = [settings.trino.login(role) for role in ROLES]
    if any(login.password is None for login in logins):
        raise LakehouseError("set LAKEHOUSE_TRINO__PASSWORD, …__READER_PASSWORD and …__PRIVACY_PASSWORD")
    ensure_own_logins(folder, {login.user: login.password.get_secret_value() for login in logins if login.password})
    ensure_rules(folder)
