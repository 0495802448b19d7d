"""The samples against a real Postgres: each test has a schema of its own, so nothing else sees its rows."""

import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_samples.bank import workload as bank
from lakehouse_samples.database import owner_url
from lakehouse_samples.loading import load
from lakehouse_samples.payroll import workload as payroll
from lakehouse_samples.payroll.workload import Step
from lakehouse_samples.retail.options import Options
from lakehouse_samples.retail.simulator import Progress, run

pytestmark = pytest.mark.stack

WRONG_TOTALS = """
    SELECT count(*) FROM transactions t WHERE total_amount <>
    (SELECT coalesce(sum(line_total), 0) FROM transaction_items i WHERE i.txn_id = t.txn_id)"""


@pytest.fixture
def place(settings: Settings) -> Iterator[str]:
    """URL of an empty schema, as the role that owns the sample tables."""
    url = owner_url(settings, "retail")
    schema = f"samples_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        yield f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{schema}"
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


def test_a_second_load_changes_nothing_even_after_the_rows_have_changed(place: str) -> None:
    first = load(place, "payroll")
    assert first.loaded and first.rows == {"employee": 100_000}
    _all(place, "DELETE FROM employee WHERE id > 10 RETURNING 1")
    second = load(place, "payroll")
    assert not second.loaded and second.rows == {"employee": 10}
    assert _all(place, "SELECT name, salary::text FROM employee WHERE id = 7") == [("Mkamze Mwatela7", "1400.00")]


def test_two_loads_at_once_make_one_sample(place: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: load(place, "retail"), range(2)))
    assert sorted(report.loaded for report in reports) == [False, True]
    assert reports[0].rows == reports[1].rows
    assert reports[0].rows == {
        "stores": 5, "products": 15, "customers": 10, "transactions": 0, "transaction_items": 0,
    }  # fmt: skip


def test_a_database_with_half_of_the_tables_is_left_alone(place: str) -> None:
    _all(place, "CREATE TABLE accounts (id int)")
    with pytest.raises(LakehouseError, match="accounts but not the rest of the sample"):
        load(place, "bank")
    assert _all(place, "SELECT to_regclass('users')") == [(None,)]


def test_a_run_sells_returns_and_changes_prices_and_headers_stay_the_sum_of_their_lines(place: str) -> None:
    load(place, "retail")
    done = run(place, Options(transactions=1_000, batch_size=300, returns=40, seed=3))
    assert (done.transactions, done.price_changes, done.tier_changes, done.returns) == (1_000, 4, 4, 160)
    assert _all(place, "SELECT count(*) FROM transactions") == [(1_000,)]
    assert _all(place, "SELECT count(*) FROM transaction_items") == [(done.items - 160,)]
    assert _all(place, WRONG_TOTALS) == [(0,)]
    assert _all(place, "SELECT count(*) FROM transactions WHERE synced_at IS NULL") == [(0,)]
    assert _all(place, "SELECT count(*) FROM transactions WHERE customer_id IS NULL")[0][0] > 0


def test_without_sync_no_row_is_marked(place: str) -> None:
    load(place, "retail")
    run(place, Options(transactions=50, sync=False))
    assert _all(place, "SELECT count(*) FROM transaction_items WHERE synced_at IS NOT NULL") == [(0,)]


def test_the_same_seed_on_the_same_rows_gives_the_same_rows(place: str) -> None:
    contents = []
    for _ in range(2):
        load(place, "retail")
        run(place, Options(transactions=200, batch_size=50, seed=11))
        contents.append(_all(place, "SELECT txn_id, store_id, customer_id, total_amount FROM transactions ORDER BY 1"))
        contents[-1] += _all(place, "SELECT item_id, txn_id, line_total FROM transaction_items ORDER BY 1")
        contents[-1] += _all(place, "SELECT product_id, unit_price FROM products ORDER BY 1")
        _all(place, "DROP TABLE transaction_items, transactions, customers, products, stores")
    assert contents[0] == contents[1]


def test_simulators_side_by_side_neither_deadlock_nor_break_totals(place: str) -> None:
    load(place, "retail")
    busy = Options(transactions=1_500, batch_size=100, price_changes=10, tier_changes=8, returns=30)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: run(place, busy), range(3)))
    assert _all(place, "SELECT count(*) FROM transactions") == [(4_500,)]
    assert _all(place, WRONG_TOTALS) == [(0,)]


def test_a_stopped_run_keeps_its_rate_and_ends_after_a_whole_batch(place: str) -> None:
    load(place, "retail")
    reports: list[int] = []

    def report(progress: Progress) -> None:
        reports.append(progress.transactions)

    done = run(place, Options(transactions=None, rate=40, returns=0), report, lambda: len(reports) >= 2)
    assert done.stopped and done.transactions == 80 and reports == [40, 80]
    assert done.seconds >= 1.0
    assert _all(place, "SELECT count(*) FROM transactions") == [(80,)]


def test_bank_rounds_leave_two_users_and_every_account_with_its_owner(place: str) -> None:
    load(place, "bank")
    first, second = bank.run(place, 1), bank.run(place)
    assert (first.users, first.accounts) == ({"c": 3, "u": 1, "d": 1}, {"c": 2, "u": 1, "d": 0})
    assert (second.users, second.accounts) == ({"c": 1, "u": 3, "d": 1}, {"c": 2, "u": 2, "d": 0})
    assert _all(place, "SELECT count(*) FROM users") == [(2,)]
    assert _all(place, "SELECT count(*), count(DISTINCT user_id) FROM accounts JOIN users ON users.id = user_id") == [
        (4, 1)
    ]
    assert _all(place, "SELECT relreplident FROM pg_class WHERE oid = 'users'::regclass") == [("f",)]


def test_a_bank_round_out_of_turn_is_refused(place: str) -> None:
    load(place, "bank")
    with pytest.raises(LakehouseError, match="round 2 cannot run, the next one is 1"):
        bank.run(place, 2)
    bank.run(place, 1)
    with pytest.raises(LakehouseError, match="round 1 cannot run, the next one is 2"):
        bank.run(place, 1)


def test_payroll_steps_change_five_rows_each_and_refuse_to_run_out_of_turn(place: str) -> None:
    load(place, "payroll")
    with pytest.raises(LakehouseError, match="--step insert"):
        payroll.run(place, Step.update)
    assert payroll.run(place, Step.insert) == {"insert": 5}
    assert _all(place, "SELECT name, salary::int FROM employee WHERE name LIKE 'Manjaz%' ORDER BY id")[-1] == (
        "Manjaz5",
        1000,
    )
    with pytest.raises(LakehouseError, match="--step delete"):
        payroll.run(place, Step.all)
    assert payroll.run(place, Step.update) == {"update": 5}
    assert _all(place, "SELECT count(*) FROM employee WHERE salary = 4000 AND name LIKE 'Manjaz%'") == [(5,)]
    assert payroll.run(place, Step.delete) == {"delete": 5}
    assert payroll.run(place, Step.all) == {"insert": 5, "update": 5, "delete": 5}
    assert _all(place, "SELECT count(*) FROM employee") == [(100_000,)]


def test_a_sample_that_is_not_loaded_is_one_line_with_the_remedy(place: str) -> None:
    for act in (lambda: run(place, Options()), lambda: bank.run(place), lambda: payroll.run(place, Step.insert)):
        with pytest.raises(LakehouseError, match=re.escape("run `lakehouse samples`")):
            act()


def test_a_role_that_does_not_own_the_tables_is_told_so(settings: Settings, place: str) -> None:
    load(place, "retail")
    schema = place.rpartition("%3D")[2]
    runtime = settings.source("retail").url.get_secret_value()
    stranger = f"{runtime}{'&' if '?' in runtime else '?'}options=-csearch_path%3D{schema}"
    with pytest.raises(LakehouseError, match=r"lakehouse samples|OWNER_URL"):
        run(stranger, Options())


def _all(url: str, sql: str) -> list[tuple]:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []
