"""The simulator's SQL: bulk statements, one function per kind of change."""

from collections.abc import Sequence
from decimal import Decimal
from typing import LiteralString

import psycopg

from lakehouse.errors import LakehouseError
from lakehouse_samples.retail.sales import Catalogue, Sale

COPY_HEADERS: LiteralString = """
    COPY transactions (txn_id, store_id, customer_id, txn_timestamp, total_amount, payment_method) FROM STDIN"""
COPY_ITEMS: LiteralString = """
    COPY transaction_items (item_id, txn_id, product_id, quantity, unit_price, line_total) FROM STDIN"""
# SKIP LOCKED: two simulators on one database must not block each other or deadlock.
SYNC_HEADERS: LiteralString = """
    UPDATE transactions SET synced_at = now() WHERE txn_id IN (
        SELECT txn_id FROM transactions WHERE synced_at IS NULL FOR UPDATE SKIP LOCKED)"""
SYNC_ITEMS: LiteralString = """
    UPDATE transaction_items SET synced_at = now() WHERE item_id IN (
        SELECT item_id FROM transaction_items WHERE synced_at IS NULL FOR UPDATE SKIP LOCKED)"""
# One statement, so that the header's total and its lines change together.
RETURN_ITEMS: LiteralString = """
    WITH returned AS (
        DELETE FROM transaction_items WHERE item_id = ANY(%s) RETURNING txn_id, line_total
    ), refund AS (
        SELECT txn_id, sum(line_total) AS amount, count(*) AS items FROM returned GROUP BY txn_id
    ), corrected AS (
        UPDATE transactions AS header SET total_amount = total_amount - refund.amount
        FROM refund WHERE header.txn_id = refund.txn_id
    )
    SELECT coalesce(sum(items), 0) FROM refund"""


def read_catalogue(connection: psycopg.Connection) -> Catalogue:
    """The current stores, prices and customers; raises LakehouseError if there are no stores or products."""
    stores = connection.execute("SELECT store_id FROM stores ORDER BY 1").fetchall()
    products = connection.execute("SELECT product_id, unit_price FROM products ORDER BY 1").fetchall()
    customers = connection.execute("SELECT customer_id, loyalty_tier FROM customers ORDER BY 1").fetchall()
    if not stores or not products:
        raise LakehouseError(
            "source 'retail': there are no stores or no products to sell: run `lakehouse samples` on an empty database"
        )
    return Catalogue(tuple(row[0] for row in stores), dict(products), dict(customers))


def insert_sales(connection: psycopg.Connection, sales: Sequence[Sale]) -> list[int]:
    """Inserts sales and their lines; returns the ids of the lines.

    The ids are taken from the sequences first, so that both tables can be filled with COPY.
    """
    txn_ids = _next_ids(connection, "transactions", "txn_id", len(sales))
    lines = [(txn_id, line) for txn_id, sale in zip(txn_ids, sales, strict=True) for line in sale.lines]
    item_ids = _next_ids(connection, "transaction_items", "item_id", len(lines))
    sold_at = connection.execute("SELECT localtimestamp").fetchone()
    with connection.cursor() as cursor:
        with cursor.copy(COPY_HEADERS) as copy:
            for txn_id, sale in zip(txn_ids, sales, strict=True):
                copy.write_row(
                    (txn_id, sale.store_id, sale.customer_id, *(sold_at or ()), sale.total, sale.payment_method)
                )
        with cursor.copy(COPY_ITEMS) as copy:
            for item_id, (txn_id, line) in zip(item_ids, lines, strict=True):
                copy.write_row((item_id, txn_id, line.product_id, line.quantity, line.unit_price, line.total))
    return item_ids


def mark_synced(connection: psycopg.Connection) -> int:
    """Marks all sales and lines that are not exported yet; returns the number of rows."""
    return connection.execute(SYNC_HEADERS).rowcount + connection.execute(SYNC_ITEMS).rowcount


def change_prices(connection: psycopg.Connection, prices: dict[int, Decimal]) -> None:
    """Sets new unit prices; existing sales keep their prices."""
    with connection.cursor() as cursor:
        cursor.executemany(
            "UPDATE products SET unit_price = %s WHERE product_id = %s",
            [(price, product) for product, price in prices.items()],
        )


def change_tiers(connection: psycopg.Connection, tiers: dict[int, str]) -> None:
    """Sets new loyalty tiers."""
    with connection.cursor() as cursor:
        cursor.executemany(
            "UPDATE customers SET loyalty_tier = %s WHERE customer_id = %s",
            [(tier, customer) for customer, tier in tiers.items()],
        )


def return_items(connection: psycopg.Connection, item_ids: Sequence[int]) -> int:
    """Deletes lines and corrects the totals of their sales; returns the number of deleted lines."""
    row = connection.execute(RETURN_ITEMS, [list(item_ids)]).fetchone()
    return int(row[0]) if row else 0


def _next_ids(connection: psycopg.Connection, table: str, column: str, count: int) -> list[int]:
    rows = connection.execute(
        "SELECT nextval(pg_get_serial_sequence(%s, %s)) FROM generate_series(1, %s)", [table, column, count]
    )
    return [row[0] for row in rows]
