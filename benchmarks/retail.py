"""The retail sample, loaded into every layer."""

from benchmarks.processes import lakehouse

FIRST_LOADS = ("load_retail", "build_marts")
SALE = (
    "WITH sale AS (INSERT INTO transactions (store_id, total_amount) SELECT min(store_id), 5 FROM stores"
    " RETURNING txn_id) INSERT INTO transaction_items (txn_id, product_id, unit_price, line_total)"
    " SELECT sale.txn_id, (SELECT min(product_id) FROM products), 5, 5 FROM sale"
)


def load_retail() -> None:
    """Creates the sample, ingests it, and loads parsed, vault and marts once; harmless where it is done."""
    for command in (("samples",), ("prepare",), ("ingest", "--once"), ("run", *FIRST_LOADS)):
        lakehouse(*command)
