"""The topics of the shop, the settings of its programs, and its clock."""

from __future__ import annotations

import argparse
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, Field

from deltaq import Topic
from examples._programs import child_parser

Money = Annotated[Decimal, Field(max_digits=10, decimal_places=2)]
"""Dollars. Decimals have an exact sum, in whatever order they are added."""


class Product(BaseModel):
    """A product. The key is `product_id`, so that the newest record of a product replaces the
    others.
    """

    event_time: AwareDatetime
    product_id: str
    category: str
    item: str
    size: str
    cogs: Money
    price: Money
    inventory_level: int
    contains_fruit: bool
    contains_veggies: bool
    contains_nuts: bool
    contains_caffeine: bool
    propensity_to_buy: int


class Inventory(BaseModel):
    """A restock. The key is `product_id`."""

    event_time: AwareDatetime
    product_id: str
    existing_level: int
    stock_quantity: int
    new_level: int


class EnrichedPurchase(BaseModel):
    """A purchase with its product. The fields of the product are empty if it is not known."""

    transaction_time: str
    transaction_timestamp: AwareDatetime
    transaction_id: str | None
    product_id: str
    product_category: str | None
    product_name: str | None
    product_size: str | None
    product_cogs: Money | None
    product_price: Money | None
    contains_fruit: bool | None
    contains_veggies: bool | None
    contains_nuts: bool | None
    contains_caffeine: bool | None
    purchase_price: Money
    purchase_quantity: int
    is_member: bool
    member_discount: Money
    add_supplements: bool
    supplement_price: Money
    total_purchase: Money


class RunningTotal(BaseModel):
    """The sales of a product so far. The key is `product_id`. `transactions` counts purchases."""

    event_time: AwareDatetime
    product_id: str
    transactions: int
    quantities: int
    sales: Money


class SalesWindow(BaseModel):
    """The sales of a product within ten minutes. The key is the product and the start."""

    window_start: AwareDatetime
    window_end: AwareDatetime
    product_id: str
    transactions: int
    quantities: int
    sales: Money


PURCHASES = "purchases"
"""JSON, keyed by the product: see `sales.py`. The timestamp of a message is the time at which the
till sent it.
"""

DEAD_LETTERS = "dead_letters"
"""Purchases that are not valid, unchanged, with the headers `reason`, `partition` and `offset`."""

PRODUCTS, INVENTORIES, ENRICHED = "products", "inventories", "enriched"
RUNNING_TOTALS, WINDOWS = "running_totals", "windows"

_COMPACT = {"cleanup.policy": "compact"}


def topics(root: str) -> dict[str, Topic]:
    """The topics by name."""
    place = {"bootstrap.servers": root}
    found = (
        Topic(PURCHASES, partitions=8, conf=place),
        Topic(PRODUCTS, Product, config=_COMPACT, conf=place),
        Topic(INVENTORIES, Inventory, conf=place),
        Topic(ENRICHED, EnrichedPurchase, conf=place),
        Topic(RUNNING_TOTALS, RunningTotal, config=_COMPACT, conf=place),
        Topic(WINDOWS, SalesWindow, config=_COMPACT, conf=place),
        Topic(DEAD_LETTERS, conf=place),
    )
    return {topic.name: topic for topic in found}


def create_topics(root: str) -> dict[str, Topic]:
    """The topics by name, after creating those that do not exist."""
    return {name: topic.create(exist_ok=True) for name, topic in topics(root).items()}


@dataclass(frozen=True)
class ShopClock:
    """The time in the shop, which passes `speed` times as fast as ours: a demo of two minutes shows
    two hours.
    """

    opened: datetime
    speed: float = 1.0

    def now(self) -> datetime:
        """The time in the shop."""
        return self.opened + (datetime.now(UTC) - self.opened) * self.speed

    def wait_until(self, moment: datetime, stopping: threading.Event) -> bool:
        """Wait for a time in the shop. False if `stopping` was set before."""
        return not stopping.wait(
            max(0.0, (moment - self.now()) / timedelta(seconds=1) / self.speed)
        )

    def age_s(self, sent: datetime) -> float:
        """How long ago a time in the shop was, in our seconds."""
        return (self.now() - sent) / timedelta(seconds=1) / self.speed


def shop_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments that all programs of the shop have."""
    parser = child_parser(description)
    parser.add_argument(
        "--speed", type=float, default=1.0, help="how fast the time in the shop passes"
    )
    parser.add_argument(
        "--opened", type=float, default=None, help="when it began to, in seconds since 1970; now"
    )
    return parser


def clock_of(args: argparse.Namespace) -> ShopClock:
    """The clock that the arguments set."""
    opened = time.time() if args.opened is None else args.opened
    return ShopClock(datetime.fromtimestamp(opened, UTC), args.speed)
