"""The same configuration for containers: `python -m stack render` runs as the first service of docker/.

Host names are the names of the services, ports the usual ones, and every secret stays in the environment of the
container that needs it.
"""

from pathlib import Path

from lakehouse.settings import Settings
from stack.config import SAMPLE_DATABASES
from stack.instance import dagster_yaml
from stack.render import render
from stack.s3 import CONTAINER_PORT
from stack.trino import trino_files

ETC = Path("/config/trino")
HBA = "/config/sources/pg_hba.conf"
IMAGES_HBA = "/var/lib/postgresql/18/docker/pg_hba.conf"  # in the data folder of the image of Postgres 18


def container_files(trino_heap_mb: int, databases: tuple[str, ...] = SAMPLE_DATABASES) -> dict[str, str]:
    """Every configuration file of the containers by its path below the shared configuration volume."""
    trino = trino_files(
        etc=ETC,
        port=8080,
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
        "catalog/roles.sql": render("catalog.sql.j2"),
        **{f"trino/{name}": text for name, text in trino.items()},
    }


def write_container_files(folder: Path, settings: Settings, trino_heap_mb: int) -> None:
    """Writes them, and Dagster's instance file to the home that its containers share.

    Other containers read them as other users; no secret is in them.
    """
    files = {folder / name: text for name, text in container_files(trino_heap_mb).items()}
    instance = dagster_yaml("{env: DAGSTER_POSTGRES_URL}", settings.home / "logs" / "dagster")
    for path, text in {**files, settings.dagster_home / "dagster.yaml": instance}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
