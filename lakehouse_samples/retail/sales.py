"""Random sales as plain values, without a database: the same seed always gives the same sales."""

from dataclasses import dataclass
from decimal import Decimal
from random import Random

from lakehouse_samples.retail.options import Options

PAYMENT_METHODS = ("CARD", "CASH", "DIGITAL_WALLET", "GIFT_CARD")
LOYALTY_TIERS = ("BRONZE", "SILVER", "GOLD", "PLATINUM")
MAX_QUANTITY = 3
CENT = Decimal("0.01")
LOWEST_PRICE, HIGHEST_PRICE = Decimal("0.50"), Decimal("9999.99")


@dataclass(frozen=True)
class Catalogue:
    """The stores, products and customers that sales refer to."""

    stores: tuple[int, ...]
    prices: dict[int, Decimal]
    customers: dict[int, str]


@dataclass(frozen=True)
class Line:
    """One line of a sale."""

    product_id: int
    quantity: int
    unit_price: Decimal

    @property
    def total(self) -> Decimal:
        """Exact, because prices have two decimals and quantities are integers."""
        return self.unit_price * self.quantity


@dataclass(frozen=True)
class Sale:
    """A sale and its lines."""

    store_id: int
    customer_id: int | None
    payment_method: str
    lines: tuple[Line, ...]

    @property
    def total(self) -> Decimal:
        """The sum of the lines."""
        return sum((line.total for line in self.lines), Decimal("0.00"))


def draw_sale(rng: Random, catalogue: Catalogue, options: Options) -> Sale:
    """One sale: a store, possibly a known customer, and some distinct products."""
    store_id = rng.choice(catalogue.stores)
    known = rng.random() < options.known_customers
    customer_id = rng.choice(tuple(catalogue.customers)) if known and catalogue.customers else None
    wanted = min(rng.randint(options.min_items, options.max_items), len(catalogue.prices))
    products = rng.sample(sorted(catalogue.prices), wanted)
    lines = tuple(Line(item, rng.randint(1, MAX_QUANTITY), catalogue.prices[item]) for item in products)
    return Sale(store_id, customer_id, rng.choice(PAYMENT_METHODS), lines)


def draw_prices(rng: Random, catalogue: Catalogue, count: int) -> dict[int, Decimal]:
    """New prices for some products, within ten per cent of the old prices but different from them."""
    chosen = sorted(rng.sample(sorted(catalogue.prices), min(count, len(catalogue.prices))))
    return {product: _other_price(rng, catalogue.prices[product]) for product in chosen}


def draw_tiers(rng: Random, catalogue: Catalogue, count: int) -> dict[int, str]:
    """New loyalty tiers for some customers, different from their current ones."""
    chosen = sorted(rng.sample(sorted(catalogue.customers), min(count, len(catalogue.customers))))
    return {
        customer: rng.choice([tier for tier in LOYALTY_TIERS if tier != catalogue.customers[customer]])
        for customer in chosen
    }


def _other_price(rng: Random, price: Decimal) -> Decimal:
    percent = rng.choice([*range(90, 100), *range(101, 111)])
    moved = (price * percent / 100).quantize(CENT)
    bounded = min(max(moved, LOWEST_PRICE), HIGHEST_PRICE)
    return bounded if bounded != price else price + CENT * (1 if price <= LOWEST_PRICE else -1)
