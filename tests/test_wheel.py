"""The product as a user installs it: a wheel in an environment of its own, and a project made by `lakehouse init`."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakehouse.declarations.policies import RawPolicy
from lakehouse.extras import PACKAGES
from lakehouse.servers.trino import query
from lakehouse.settings import PROJECT_DIR, Settings
from tests.pages import block, commands
from tests.world import make_world

DECLARATION = """
sources:
  - name: shop
    schema: raw_shop
    tables:
      - name: orders
        config: {meta: {raw: {relation: public.orders, key: [id]}}}
        columns: [{name: id, data_type: integer}, {name: note, data_type: text}]
"""


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, where nothing of the checkout can be imported."""

    bin: Path

    def run(self, *command: str, cwd: Path, **environment: str) -> str:
        """What a program of the environment prints; an AssertionError with its errors where it fails.

        `prepare --check` fails while something is to be done.
        """
        variables = {n: value for n, value in os.environ.items() if not n.startswith(("LAKEHOUSE_", "PYTHONPATH"))}
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=cwd, env=variables | environment, capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        wanted = 1 if command[1:2] == ("prepare",) and command[-1] == "--check" else 0
        assert done.returncode == wanted, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel as the page makes and installs it, beside the dependencies, which are this environment's."""
    folder = tmp_path_factory.mktemp("wheel")
    packages = sysconfig.get_path("purelib")
    values = (("/tmp", str(folder)), ("~/lakehouse-env", f"{folder}/env"), ("python3 -m", f"{sys.executable} -m"))
    for line in block("start.md", "", *values, below="As a wheel").splitlines():
        if "requirements.lock" in line:
            continue
        variables = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_QUIET": "1"}
        variables |= {"PYTHONPATH": packages if " wheel " in line else ""}  # what it is built with
        subprocess.run(["bash", "-c", line], cwd=PROJECT_DIR, env=os.environ | variables, check=True)
    [site] = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(f"{packages}\n")
    environment = Installed(folder / "env" / "bin")
    python = environment.bin / "python"
    for program in ("dbt", "dagster"):
        script = Path(sys.executable).with_name(program).read_text().splitlines(keepends=True)
        (environment.bin / program).write_text("".join([f"#!{python}\n", *script[1:]]))
        (environment.bin / program).chmod(0o755)
    return environment


def test_a_project_needs_no_checkout(installed: Installed, tmp_path: Path) -> None:
    installed.run("lakehouse", "init", "shop", cwd=tmp_path)
    project = tmp_path / "shop"
    (project / "dbt_project" / "models" / "sources" / "shop.yml").write_text(DECLARATION)

    said = installed.run("lakehouse", "scaffold", cwd=project)
    installed.run("lakehouse", "scaffold", "--check", cwd=project)
    described = installed.run("python", "-m", "orchestration.graph", cwd=project)

    assert "models/current/shop/current_shop__orders.sql" in said
    assert "asset raw_shop/orders" in described and "retail" not in described
    package = (project / "dbt_project" / "dbt_packages" / "cdc_vault").resolve()
    assert package.is_relative_to(installed.bin.parent)
    assert (project / ".lakehouse").is_dir(), "the project's home is its own"


@pytest.mark.slow
def test_a_database_is_loaded_from_a_project(installed: Installed, tmp_path: Path, settings: Settings) -> None:
    """From `init` to `reconcile`, and one table more: the commands are those of the how-to pages."""
    policies: Mapping[str, RawPolicy] = {
        name: RawPolicy(relation=f"public.{name}", key=("id",)) for name in ("customers", "orders")
    }
    world = make_world(
        settings,
        """
        CREATE TABLE customers (id int PRIMARY KEY, name text);
        CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers, amount numeric(12,2));
        CREATE TABLE payments (id int PRIMARY KEY, order_id int REFERENCES orders, paid numeric(12,2));
        INSERT INTO customers SELECT n, 'customer ' || n FROM generate_series(1, 40) AS n;
        INSERT INTO orders SELECT n, n % 40 + 1, n * 1.25 FROM generate_series(1, 500) AS n;
        INSERT INTO payments SELECT n, n, n FROM generate_series(1, 30) AS n
        """,
        policies,
    )
    world.sql("DROP PUBLICATION lakehouse")  # `prepare` makes it
    name = world.source.name
    project, home = tmp_path / "shop", {"LAKEHOUSE_HOME": str(settings.home)}
    for arguments in commands("start.md", ("~/shop", str(project)), below="A project of your own"):
        installed.run("lakehouse", *arguments, cwd=tmp_path)
    url = world.settings.source(name).url.get_secret_value()
    with (project / "lakehouse.toml").open("a") as file:
        file.write(f'[sources.{name}]\nurl = "{url}"\nowner_url = "{world.owner_url}"\n')

    installed.run("lakehouse", "scaffold", name, "--tables", "customers", "--tables", "orders", cwd=project, **home)
    for arguments in commands("how-to/add-a-database.md", ("shop", name)):
        installed.run("lakehouse", *arguments, cwd=project, **home)

    orders = query(settings, f"SELECT count(*), sum(amount) FROM parsed.current_{name}__orders")
    assert [tuple(row) for row in orders] == world.rows("SELECT count(*), sum(amount) FROM orders")
    linked = query(settings, "SELECT count(*) FROM vault.hub_customer")
    assert linked == [[40]]

    for arguments in commands("how-to/add-a-table.md", ("shop", name), (".orders", ".payments")):
        installed.run("lakehouse", *arguments, cwd=project, **home)
    assert query(settings, f"SELECT count(*) FROM parsed.current_{name}__payments") == [[30]]
    assert query(settings, "SELECT count(*) FROM vault.hub_payment") == [[30]]
    installed.run("lakehouse", "remove", f"{name}.payments", cwd=project, **home)
    installed.run("lakehouse", "ingest", "--once", name, cwd=project, **home)


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, and the versions of the lock file as constraints."""
    folder = tmp_path_factory.mktemp("pinned")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, PROJECT_DIR], check=True)
    [wheel] = folder.glob("lakehouse-*.whl")
    pins = re.findall(r"^([\w.\[\]-]+==[^\s;]+[^\\\n]*)", (PROJECT_DIR / "requirements.lock").read_text(), re.MULTILINE)
    (folder / "pins.txt").write_text("\n".join(re.sub(r"\[.*?\]", "", pin) for pin in pins) + "\n")
    return wheel, folder / "pins.txt"


@pytest.fixture(scope="module")
def base(pinned: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel with what it requires and no extra, from the package index, in the versions of the lock file."""
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder / "env", with_pip=False)
    environment = Installed(folder / "env" / "bin")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--python", environment.bin / "python", "install", "--constraint", pinned[1], pinned[0]], check=True
    )
    return environment


@pytest.mark.slow
def test_without_extras_sources_are_declared_and_the_rest_says_what_it_needs(base: Installed, tmp_path: Path) -> None:
    base.run("lakehouse", "init", "shop", cwd=tmp_path)
    project = tmp_path / "shop"
    (project / "dbt_project" / "models" / "sources" / "shop.yml").write_text(DECLARATION)
    base.run("lakehouse", "scaffold", cwd=project)
    base.run("lakehouse", "scaffold", "--check", cwd=project)
    for module in ("ingestion.run.api", "lakehouse_serve.run", "maintenance.command.maintain", "lakehouse_watch.watch"):
        base.run("python", "-c", f"import {module}", cwd=project)
    for packages in PACKAGES.values():
        absent = f"from importlib.util import find_spec; assert not any(map(find_spec, {packages}))"
        base.run("python", "-c", absent, cwd=project)
    for command, extra in (("up", "embedded"), ("dev", "orchestration"), ("run load_shop", "orchestration")):
        with pytest.raises(AssertionError, match=rf"error: .*pip install 'lakehouse-\S+\.whl\[{extra}\]'"):
            base.run("lakehouse", *command.split(), cwd=project)


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["pipx", "uv"])
def test_a_tool_that_shows_one_command_installs_all_that_it_needs(
    pinned: tuple[Path, Path], tool: str, tmp_path: Path
) -> None:
    """What the product starts itself (dbt) is found although it is not on the path."""
    wheel, pins = pinned
    venv.create(tmp_path / "tool", with_pip=True)
    subprocess.run([tmp_path / "tool" / "bin" / "python", "-m", "pip", "install", "--quiet", tool], check=True)
    program, shown = tmp_path / "tool" / "bin" / tool, tmp_path / "bin"
    install = {
        "pipx": ["install", "--quiet", "--python", sys.executable, "--pip-args", f"--constraint {pins}", wheel],
        "uv": ["tool", "install", "--quiet", "--python", sys.executable, "--constraints", pins, wheel],
    }[tool]
    folders = {
        "PIPX_HOME": tmp_path / "tools", "PIPX_BIN_DIR": shown, "UV_TOOL_DIR": tmp_path / "tools",
        "UV_TOOL_BIN_DIR": shown,
    }  # fmt: skip
    subprocess.run([program, *install], check=True, env={**os.environ, **{k: str(v) for k, v in folders.items()}})
    assert [each.name for each in shown.iterdir()] == ["lakehouse"]

    tools, path = Installed(shown), f"{shown}:/usr/bin:/bin"
    assert tools.run("lakehouse", "--version", cwd=tmp_path, PATH=path).startswith("lakehouse ")
    tools.run("lakehouse", "init", "shop", cwd=tmp_path, PATH=path)
    (tmp_path / "shop" / "dbt_project" / "models" / "sources" / "shop.yml").write_text(DECLARATION)
    tools.run("lakehouse", "scaffold", cwd=tmp_path / "shop", PATH=path)
    tools.run("lakehouse", "scaffold", "--check", cwd=tmp_path / "shop", PATH=path)
