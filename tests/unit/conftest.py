"""What several unit tests share because it takes long to make."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from throwaway_postgres import throwaway_postgres

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.declarations import declarations_from
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.settings import Settings, load_settings
from orchestration.worker.plan import Task, tasks


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the manifest of the project, once somebody has asked for it."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def defs(home: Path) -> Iterator[dg.Definitions]:
    """The code location of the project as it is, without a server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEHOUSE_HOME", str(home))
        from orchestration.definitions import definitions

        yield definitions(load_settings())


@pytest.fixture(scope="session")
def demo_tasks(home: Path) -> tuple[dict[str, Any], tuple[Task, ...]]:
    """The project's manifest, and the worker's tasks of it."""
    settings = load_settings(home=home)
    manifest = load_manifest(settings)
    return manifest, tasks(declarations_from(manifest, settings.dbt_project_dir), manifest)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The superuser's URL of a Postgres cluster of the module's own."""
    with throwaway_postgres() as url:
        yield url


@pytest.fixture(scope="module")
def catalog_settings(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of a catalog in the module's cluster."""
    return load_settings(home=tmp_path_factory.mktemp("home"), catalog_url=cluster)


@pytest.fixture
def postgres_catalog(catalog_settings: Settings, tmp_path: Path) -> Iterator[LakeCatalog]:
    """A catalog without tables in the module's cluster, with files in a folder."""
    uri = catalog_settings.catalog_dsn().replace("postgresql://", "postgresql+psycopg://")
    catalog = LakeCatalog(catalog_settings.catalog_name, uri=uri, warehouse=f"file://{tmp_path}")
    yield catalog
    for (namespace,) in catalog.list_namespaces():
        for table in catalog.list_tables(namespace):
            catalog.drop_table(table)
    catalog.close()
