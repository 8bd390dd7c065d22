"""What the tills and the store room of the shop do. Everything follows from a random generator and
a start time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from random import Random

from examples.shop.catalog import (
    LARGEST_DRAW,
    PRODUCTS,
    SIZE,
    SMALLEST_DRAW,
    CatalogProduct,
    chosen,
)
from examples.shop.layout import Inventory, Product

CENT = Decimal("0.01")
NO_MONEY = Decimal("0.00")
SUPPLEMENT = Decimal("1.99")
DISCOUNT = Decimal("0.10")
LINES = (1,) * 13 + (2,) * 5 + (3,) * 2
QUANTITIES = (1,) * 24 + (2,) * 5 + (3,)
LOW_STOCK, RESTOCK = 10, 15
LATE_MINUTES = (1, 30)
"""How many minutes after the sale a till that was offline sends it."""


@dataclass(frozen=True)
class Habits:
    """How the shop sells. The times are those of the shop, the shares are of 1."""

    transactions: int = 1_000
    sleep_s: tuple[float, float] = (2.0, 5.0)
    """The least and the greatest time between two transactions."""

    late: float = 0.0
    """The share of transactions that a till sends late."""

    bad: float = 0.0
    """The share of purchases that a till garbles: half of them are cut off, half have a wrong
    total.
    """


@dataclass(frozen=True)
class TillMessage:
    """A message of a till: the time at which it is sent, the product as the key, and the
    purchase.
    """

    at: datetime
    key: str
    value: bytes


def products(now: datetime) -> Iterator[Product]:
    """All products, as they are when the shop opens. Sales and restocks do not change them."""
    for product in PRODUCTS:
        family = product.family
        yield Product(
            event_time=now,
            product_id=product.product_id,
            category=family.category,
            item=product.item,
            size=SIZE,
            cogs=family.cogs,
            price=family.price,
            inventory_level=family.stock,
            contains_fruit="f" in product.contains,
            contains_veggies="v" in product.contains,
            contains_nuts="n" in product.contains,
            contains_caffeine="c" in product.contains,
            propensity_to_buy=product.propensity_to_buy,
        )


def total(quantity: int, price: Decimal, supplement: Decimal, discount: Decimal) -> Decimal:
    """What a purchase costs."""
    return (quantity * (price + supplement) * (1 - discount)).quantize(CENT, ROUND_HALF_UP)


def sales(chance: Random, opened: datetime, habits: Habits) -> Iterator[TillMessage]:
    """The messages of the tills, in the order in which they are sent."""
    at = opened
    for _ in range(habits.transactions):
        at += timedelta(seconds=chance.uniform(*habits.sleep_s))
        is_late = chance.random() < habits.late
        sold = at - timedelta(minutes=chance.uniform(*LATE_MINUTES)) if is_late else at
        for purchase in transaction(chance, sold):
            value = json.dumps(purchase)
            if chance.random() < habits.bad:
                value = garbled(chance, purchase)
            yield TillMessage(at, str(purchase["product_id"]), value.encode())


def transaction(chance: Random, at: datetime) -> Iterator[dict[str, object]]:
    """The purchases of one customer: one to three different products."""
    number = str(chance.randrange(10**18, 10**19))
    is_member = chance.randrange(10) < 3
    for product in _different_products(chance, chance.choice(LINES)):
        has_supplements = chance.randrange(10) < product.family.gets_supplements
        quantity = chance.choice(QUANTITIES)
        supplement = SUPPLEMENT if has_supplements else NO_MONEY
        discount = DISCOUNT if is_member else NO_MONEY
        price = product.family.price
        yield {
            "transaction_time": at.isoformat(timespec="microseconds"),
            "transaction_id": number,
            "product_id": product.product_id,
            "price": float(price),
            "quantity": quantity,
            "is_member": is_member,
            "member_discount": float(discount),
            "add_supplements": has_supplements,
            "supplement_price": float(supplement),
            # The shortest text of a float of two decimals has these two decimals.
            "total_purchase": float(total(quantity, price, supplement, discount)),
        }


def _different_products(chance: Random, count: int) -> Iterator[CatalogProduct]:
    taken: set[str] = set()
    while len(taken) < count:
        product = chosen(chance.randint(SMALLEST_DRAW, LARGEST_DRAW))
        if product.product_id not in taken:
            taken.add(product.product_id)
            yield product


def garbled(chance: Random, purchase: dict[str, object]) -> str:
    """A purchase as a broken till sends it."""
    if chance.random() < 0.5:
        return json.dumps(purchase)[: chance.randrange(1, 40)]
    wrong = Decimal(str(purchase["total_purchase"])) + 1
    return json.dumps({**purchase, "total_purchase": float(wrong)})


def sold(value: bytes | None) -> tuple[str, int] | None:
    """The product and the quantity of a message; None if it is no purchase."""
    try:
        purchase = json.loads(value or b"")
        return str(purchase["product_id"]), int(purchase["quantity"])
    except (ValueError, KeyError, TypeError):
        return None


def restocks(
    purchases: Iterable[tuple[int, bytes | None]], written: Counter[str]
) -> Iterator[Inventory]:
    """The restocks that follow from purchases, given as time (ms since 1970) and message from the
    topic's beginning.

    The stock of a product falls by what was sold. When it falls to `LOW_STOCK` or below, `RESTOCK`
    are added. The purchases of a product are in one partition, so these restocks are the same in
    every run. A run that was killed and started again therefore leaves out those that are
    `written`: their number by product.
    """
    levels = {product.product_id: product.family.stock for product in PRODUCTS}
    known = written.copy()
    for time_ms, value in purchases:
        found = sold(value)
        if found is None or found[0] not in levels:
            continue
        product_id, quantity = found
        levels[product_id] -= quantity
        while (level := levels[product_id]) <= LOW_STOCK:
            levels[product_id] += RESTOCK
            if known[product_id]:
                known[product_id] -= 1
                continue
            yield Inventory(
                event_time=datetime.fromtimestamp(time_ms / 1000, UTC),
                product_id=product_id,
                existing_level=level,
                stock_quantity=RESTOCK,
                new_level=level + RESTOCK,
            )
