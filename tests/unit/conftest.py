"""What several unit tests share because it takes long to make."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the manifest of the project, once somebody has asked for it."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def defs(home: Path) -> Iterator[dg.Definitions]:
    """The code location of the project as it is, without a server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEHOUSE_HOME", str(home))
        from lakehouse.settings import load_settings
        from orchestration.definitions import definitions

        yield definitions(load_settings())
