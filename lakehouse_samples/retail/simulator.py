"""The retail workload: batches of new sales, exports, price and tier changes, and returns.

After each commit the total of every sale equals the sum of its lines. Tests check revenue by store against that.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random

import psycopg

from lakehouse_samples.database import session
from lakehouse_samples.retail import statements
from lakehouse_samples.retail.options import Options
from lakehouse_samples.retail.sales import draw_prices, draw_sale, draw_tiers

RETURNABLE_ITEMS = 20_000
POLL_SECONDS = 0.1


@dataclass
class Progress:
    """The rows that a run has committed so far."""

    transactions: int = 0
    items: int = 0
    synced: int = 0
    price_changes: int = 0
    tier_changes: int = 0
    returns: int = 0
    seconds: float = 0.0
    stopped: bool = False

    def as_dict(self) -> dict[str, int | float | bool]:
        """Plain values, for `--json`."""
        return asdict(self)


Report = Callable[[Progress], None]
Stop = Callable[[], bool]


def run(url: str, options: Options, report: Report = lambda progress: None, stop: Stop = lambda: False) -> Progress:
    """Runs complete batches until the number of sales is reached or `stop` returns True.

    Calls `report` after each batch. Raises LakehouseError for errors of the database.
    """
    rng, progress, started = Random(options.seed), Progress(), time.monotonic()
    sold: list[int] = []
    with session(url, "retail") as connection:
        while (size := _batch_size(options, progress)) > 0:
            if stop():
                progress.stopped = True
                break
            _run_batch(connection, rng, options, size, sold, progress)
            progress.seconds = time.monotonic() - started
            report(progress)
            _keep_pace(options, progress, started, stop)
    return progress


def _batch_size(options: Options, progress: Progress) -> int:
    if options.transactions is None:
        return options.step
    return min(options.step, options.transactions - progress.transactions)


def _run_batch(
    connection: psycopg.Connection,
    rng: Random,
    options: Options,
    size: int,
    sold: list[int],
    progress: Progress,
) -> None:
    catalogue = statements.read_catalogue(connection)
    sales = [draw_sale(rng, catalogue, options) for _ in range(size)]
    with connection.transaction():
        item_ids = statements.insert_sales(connection, sales)
    progress.transactions += size
    progress.items += len(item_ids)
    sold.extend(item_ids)
    if options.sync:
        with connection.transaction():
            progress.synced += statements.mark_synced(connection)
    with connection.transaction():
        prices = draw_prices(rng, catalogue, options.price_changes)
        tiers = draw_tiers(rng, catalogue, options.tier_changes)
        statements.change_prices(connection, prices)
        statements.change_tiers(connection, tiers)
    progress.price_changes += len(prices)
    progress.tier_changes += len(tiers)
    with connection.transaction():
        progress.returns += statements.return_items(connection, _draw_returns(rng, sold, options.returns))


def _draw_returns(rng: Random, sold: list[int], count: int) -> list[int]:
    """Removes random items from `sold`, which keeps only the newest items of this run."""
    del sold[:-RETURNABLE_ITEMS]
    return [sold.pop(rng.randrange(len(sold))) for _ in range(min(count, len(sold)))]


def _keep_pace(options: Options, progress: Progress, started: float, stop: Stop) -> None:
    if options.rate is None or progress.transactions == options.transactions:
        return
    due = started + progress.transactions / options.rate
    while (left := due - time.monotonic()) > 0 and not stop():
        time.sleep(min(left, POLL_SECONDS))
