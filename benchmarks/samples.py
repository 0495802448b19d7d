"""The samples, loaded into every layer."""

from functools import cache

from benchmarks.processes import lakehouse

FIRST_LOADS = ("load_retail", "load_bank", "load_payroll_employee", "build_marts", "measure_table_health")
SALE = (
    "WITH sale AS (INSERT INTO transactions (store_id, total_amount) SELECT min(store_id), 5 FROM stores"
    " RETURNING txn_id) INSERT INTO transaction_items (txn_id, product_id, unit_price, line_total)"
    " SELECT sale.txn_id, (SELECT min(product_id) FROM products), 5, 5 FROM sale"
)


@cache
def load_samples() -> None:
    """Creates the samples, ingests them, and loads parsed, vault and marts: once for all scenarios."""
    for command in (("samples",), ("prepare",), ("ingest", "--once"), ("run", *FIRST_LOADS)):
        lakehouse(*command)
