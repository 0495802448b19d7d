"""The exact facts and counts of the samples that can be checked without a database."""

from collections import Counter
from decimal import Decimal
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import yaml

from lakehouse.errors import LakehouseError
from lakehouse.servers.connectors import connector_config, source_of_connector
from lakehouse.settings import DebeziumSettings, Settings
from lakehouse_cli.source import samples as command
from lakehouse_samples.bank import debezium
from lakehouse_samples.bank.workload import plan
from lakehouse_samples.database import session
from lakehouse_samples.loading import SAMPLES, load, schema_sql
from lakehouse_samples.retail.options import Options
from lakehouse_samples.retail.sales import Catalogue, draw_prices, draw_sale, draw_tiers

CATALOGUE = Catalogue(
    stores=(1, 2, 3),
    prices={number: Decimal(number) + Decimal("0.99") for number in range(1, 16)},
    customers=dict.fromkeys(range(1, 11), "BRONZE"),
)


@pytest.mark.parametrize("source", SAMPLES)
def test_every_table_of_a_sample_is_in_its_schema(source: str) -> None:
    text = schema_sql(source)
    for table in SAMPLES[source]:
        assert f"CREATE TABLE IF NOT EXISTS {table} (" in text


def test_the_bank_through_debezium_declares_the_columns_of_the_bank_by_its_slot() -> None:
    by_slot = yaml.safe_load((Settings().dbt_project_dir / "models" / "sources" / "bank.yml").read_text())
    by_topics = yaml.safe_load(debezium.declaration("bank_topics", "bank_topics"))
    [slot], [topics] = by_slot["sources"], by_topics["sources"]
    assert topics["config"]["meta"]["kind"] == "debezium" and topics["config"]["meta"]["optional"]
    for one, other in zip(slot["tables"], topics["tables"], strict=True):
        assert (one["name"], one["columns"]) == (other["name"], other["columns"])
        assert other["config"]["meta"]["raw"] == {"topic": f"bank_topics.public.{one['name']}", "key": ["id"]}


def test_the_source_reads_what_the_connector_is_told_to_write() -> None:
    url = "postgresql://lake:secret@db:5433/bank"
    of = DebeziumSettings.model_validate(source_of_connector("broker:9092", "shop", url))
    config = connector_config(url, "shop", ["public.users", "public.accounts"], "shop")
    assert (of.decimals, of.times, of.binary) == tuple(
        config[f"{of_what}.mode"] for of_what in ("decimal.handling", "time.precision", "binary.handling")
    )
    assert of.transactions == f"{config['topic.prefix']}.transaction" and config["exactly.once.support"] == "required"
    assert (config["database.hostname"], config["database.port"], config["database.user"]) == ("db", "5433", "lake")


def test_without_kafka_no_sample_is_made_through_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "load_settings", lambda: Settings(home=tmp_path))
    with pytest.raises(LakehouseError, match="lakehouse up --with kafka"):
        command.load_samples(["bank"], command.Through.debezium)


def test_a_file_of_ones_own_is_not_overwritten_by_the_declaration_of_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = {"bank_topics": source_of_connector("broker:9092", "bank_topics", "postgresql://lake:secret@db:5433/bank")}
    settings = Settings.model_validate({"home": tmp_path, "project_dir": tmp_path, "sources": bank})
    own = settings.dbt_project_dir / "models" / "sources" / "bank_topics.yml"
    own.parent.mkdir(parents=True)
    own.write_text("sources: []  # a note of mine")
    monkeypatch.setattr("scaffold.declared_alone", lambda *_: SimpleNamespace(sources=()))
    with pytest.raises(LakehouseError, match="does not declare the source bank_topics, and would be overwritten"):
        command._through_debezium(settings, "http://nowhere", "postgresql://nobody@nowhere/bank")
    assert own.read_text() == "sources: []  # a note of mine"


def test_the_same_seed_draws_the_same_sales() -> None:
    draws = [[draw_sale(rng, CATALOGUE, Options()) for _ in range(50)] for rng in (Random(7), Random(7))]
    assert draws[0] == draws[1]


def test_a_sale_has_one_to_five_different_products_and_an_exact_total() -> None:
    rng = Random(1)
    for _ in range(500):
        sale = draw_sale(rng, CATALOGUE, Options())
        products = [line.product_id for line in sale.lines]
        assert 1 <= len(products) <= 5 and len(set(products)) == len(products)
        assert sale.total == sum(line.unit_price * line.quantity for line in sale.lines)
        assert sale.total.as_tuple().exponent == -2


def test_nine_of_ten_sales_have_a_known_customer() -> None:
    rng = Random(2)
    known = sum(draw_sale(rng, CATALOGUE, Options()).customer_id is not None for _ in range(2_000))
    assert 0.87 < known / 2_000 < 0.93


def test_a_changed_price_or_tier_is_never_the_old_one() -> None:
    """Otherwise an update would be in the change stream that no hashdiff can see."""
    rng = Random(3)
    for _ in range(300):
        prices = draw_prices(rng, CATALOGUE, 4)
        assert len(prices) == 4 and all(price != CATALOGUE.prices[item] for item, price in prices.items())
        assert all(tier != "BRONZE" for tier in draw_tiers(rng, CATALOGUE, 3).values())


@pytest.mark.parametrize("price", ["0.50", "0.51", "9999.99"])
def test_prices_stay_inside_their_column_at_either_end(price: str) -> None:
    rng = Random(4)
    catalogue = Catalogue((1,), {1: Decimal(price)}, {})
    for _ in range(100):
        (moved,) = draw_prices(rng, catalogue, 1).values()
        assert Decimal("0.50") <= moved <= Decimal("9999.99") and moved != Decimal(price)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"known_customers": 1.1},
        {"min_items": 3, "max_items": 2},
        {"rate": 0.0},
        {"returns": -1},
        {"transactions": -5},
    ],
)
def test_options_that_mean_nothing_are_refused(wrong: dict) -> None:
    with pytest.raises(LakehouseError, match="simulate retail: --"):
        Options(**wrong)


def test_a_rate_commits_at_least_every_second() -> None:
    assert Options(rate=20).step == 20
    assert Options(rate=0.5).step == 1
    assert Options(rate=100_000).step == Options().batch_size


def test_bank_rounds_have_the_promised_sizes() -> None:
    sizes = [_sizes(number) for number in range(1, 6)]
    assert sizes == [(3, 1, 1, 2, 1), *[(1, 3, 1, 2, 2)] * 4]


def test_bank_rounds_touch_only_rows_that_exist_and_never_delete_an_owner_of_accounts() -> None:
    users: Counter[int] = Counter()
    accounts: set[int] = set()
    for number in range(1, 8):
        this = plan(number)
        users.update(this.new_users)
        accounts.update(this.new_accounts)
        assert len(set(this.updated_users)) == len(this.updated_users) and set(this.updated_users) <= set(users)
        assert set(this.updated_accounts) <= accounts
        for user in this.deleted_users:
            assert user != 1 and users.pop(user) == 1
        assert len(users) == 2


def test_a_database_that_is_down_is_one_line_with_the_remedy() -> None:
    with pytest.raises(LakehouseError, match=r"source 'retail'.*lakehouse up") as caught:
        load("postgresql://app:secret@127.0.0.1:1/retail", "retail")
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


def test_a_url_that_is_none_is_one_line_with_the_remedy() -> None:
    with pytest.raises(LakehouseError, match="LAKEHOUSE_SOURCES__BANK__OWNER_URL"), session("nonsense", "bank"):
        pass


def test_an_unknown_sample_is_named() -> None:
    with pytest.raises(LakehouseError, match="no sample 'shop': choose from retail, bank, payroll"):
        load("postgresql://127.0.0.1:1/shop", "shop")


def _sizes(number: int) -> tuple[int, ...]:
    this = plan(number)
    parts = (this.new_users, this.updated_users, this.deleted_users, this.new_accounts, this.updated_accounts)
    return tuple(map(len, parts))
