"""`make docs-site`, which installs its tools from the package index."""

import shutil
import subprocess
import venv
from pathlib import Path

import pytest

from lakehouse.settings import PROJECT_DIR

BUILT_FROM = ("docs", "mkdocs.yml", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "NOTICE", "README.md")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mkdocs() -> Path:
    """The program, in an environment of its own."""
    subprocess.run(["make", "docs-site"], cwd=PROJECT_DIR, check=True)
    return PROJECT_DIR / "build" / "docs-venv" / "bin" / "mkdocs"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What the site is made of, to be changed."""
    for name in (*BUILT_FROM, "dbt_project", "lakehouse_project"):
        source = PROJECT_DIR / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("target"))
        else:
            shutil.copy(source, tmp_path / name)
    return tmp_path


def test_the_manifests_are_valid_by_the_schema_of_kubernetes(tmp_path: Path) -> None:
    """By the schemas that a package brings, 100 MB of them: it is installed for this test alone."""
    venv.create(tmp_path / "env", with_pip=True)
    pip = [tmp_path / "env" / "bin" / "python", "-m", "pip", "install", "--quiet", "kubernetes-validate==1.37.0"]
    subprocess.run(pip, check=True)
    manifests = PROJECT_DIR / "docker" / "kubernetes.yaml"
    validate = [tmp_path / "env" / "bin" / "kubernetes-validate", "--strict", manifests]
    checked = subprocess.run(validate, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert checked.stderr.count("passed") + checked.stdout.count("passed") == 9


def test_the_site_has_the_pages_of_docs_and_those_beside_it(mkdocs: Path) -> None:
    site = PROJECT_DIR / "build" / "site"
    assert (site / "how-to" / "add-a-table.html").exists() and (site / "project" / "changelog.html").exists()
    assert 'href="../security.html#secrets-in-files"' in (site / "reference" / "settings.html").read_text()


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("[gone](gone.md)", "a link 'gone.md'"),
        ("[gone](start.md#gone)", "does not contain an anchor '#gone'"),
        ("[gone](../CHANGELOG.md#gone)", "does not contain an anchor '#gone'"),
    ],
)
def test_a_link_that_leads_nowhere_fails(mkdocs: Path, copy: Path, written: str, reason: str) -> None:
    page = copy / "docs" / "index.md"
    page.write_text(f"{page.read_text()}\n{written}\n")
    built = subprocess.run([mkdocs, "build", "--strict"], cwd=copy, capture_output=True, text=True, check=False)
    assert built.returncode == 1 and reason in built.stderr


def test_a_page_that_the_menu_does_not_name_fails(mkdocs: Path, copy: Path) -> None:
    (copy / "docs" / "forgotten.md").write_text("# Forgotten\n")
    built = subprocess.run([mkdocs, "build", "--strict"], cwd=copy, capture_output=True, text=True, check=False)
    assert built.returncode == 1 and "forgotten.md" in built.stderr
