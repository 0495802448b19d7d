"""Every module of ingestion can be the first that a process imports: no two wait for each other."""

import importlib
import pkgutil
import sys

import pytest

import ingestion

CHANGES_ITS_PROCESS = "ingestion.tasks.daemon"


@pytest.mark.slow
def test_any_module_can_be_imported_first() -> None:
    """The connection to a source imported its set-up, which imported the connection: only some entrances worked."""
    found = [m.name for m in pkgutil.walk_packages(ingestion.__path__, "ingestion.") if m.name != CHANGES_ITS_PROCESS]
    kept = {name: sys.modules[name] for name in loaded()}
    try:
        for name in found:
            for known in loaded():
                del sys.modules[known]
            importlib.import_module(name)
    finally:
        for known in loaded():
            del sys.modules[known]
        sys.modules.update(kept)


def loaded() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "ingestion"]
