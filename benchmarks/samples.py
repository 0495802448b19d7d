"""The samples, loaded into every layer."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from benchmarks.processes import lakehouse
from lakehouse.settings import Settings
from lakehouse_stack.home.config import SAMPLE_DATABASES

FIRST_LOADS = ("load_retail", "load_bank", "load_payroll_employee", "build_marts", "measure_table_health")
SALE = (
    "WITH sale AS (INSERT INTO transactions (store_id, total_amount) SELECT min(store_id), 5 FROM stores"
    " RETURNING txn_id) INSERT INTO transaction_items (txn_id, product_id, unit_price, line_total)"
    " SELECT sale.txn_id, (SELECT min(product_id) FROM products), 5, 5 FROM sale"
)
PROJECT = "LAKEHOUSE_PROJECT_DIR"
META = "    config:\n      meta:\n"  # of a source, in its declaration


@cache
def load_samples() -> None:
    """Creates the samples, ingests them, and loads parsed, vault and marts: once for all scenarios."""
    for command in (("samples",), ("prepare",), ("ingest", "--once"), ("run", *FIRST_LOADS)):
        lakehouse(*command)


@contextmanager
def without_mirrors(settings: Settings) -> Iterator[None]:
    """Commands work with a copy of the project whose samples have no mirrors: a follower refreshes none meanwhile."""
    project = settings.home / "without-mirrors"
    shutil.copytree(settings.dbt_project_dir, project / "dbt_project", dirs_exist_ok=True)
    shutil.copy(settings.project_dir / "workspace.yaml", project)
    for name in SAMPLE_DATABASES:
        file = project / "dbt_project" / "models" / "sources" / f"{name}.yml"
        text = file.read_text()
        assert META in text
        file.write_text(text.replace(META, f"{META}        mirror: none\n", 1))
    before = os.environ.get(PROJECT)
    os.environ[PROJECT] = str(project)
    try:
        yield
    finally:
        del os.environ[PROJECT]
        os.environ |= {PROJECT: before} if before is not None else {}
