"""The views of the shop: each tick equals the same sums in plain Python, by rules and in full. That
they equal what Spark writes is in `test_shop_jobs.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from deltaq import Producer
from deltaq.store import forget_memory_store
from deltaq.views import Views
from deltaq.views.modes import Mode
from examples.shop.layout import PRODUCTS, PURCHASES, Product, create_topics
from examples.shop.sales import Habits, products, sales
from tests.doubles.views import runner
from tests.examples.shop_oracle import (
    OracleMessage,
    Sums,
    purchases,
    reason,
    totals,
    windows,
)

ROOT = "memory://shop-views"
FOLDER = Path(__file__).parents[2] / "examples/shop/views"
OPENED = datetime(2026, 1, 5, 9, tzinfo=UTC)
HABITS = Habits(transactions=120, sleep_s=(10.0, 20.0), late=0.2, bad=0.1)
MESSAGES = [
    OracleMessage(int(m.at.timestamp() * 1000), m.key, m.value)
    for m in sales(Random(7), OPENED, HABITS)
]


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    yield
    forget_memory_store("shop-views")


def produce(messages: list[OracleMessage]) -> None:
    sent, keys, values = zip(*messages, strict=True)
    columns = {
        "value": pa.array(values, pa.binary()),
        "key": pa.array([key.encode() for key in keys], pa.binary()),
        "timestamp": pa.array(sent, pa.int64()),
    }
    with Producer({"bootstrap.servers": ROOT}) as producer:
        producer.produce_arrow(PURCHASES, pa.table(columns))


def produce_product(product: Product) -> None:
    with Producer({"bootstrap.servers": ROOT}) as producer:
        producer.produce(create_topics(ROOT)[PRODUCTS], product, key=product.product_id)


def rows(views: Views, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = views.read()[name].to_arrow().to_pylist()
    return found


def sums(row: dict[str, Any]) -> Sums:
    return Sums(row["transactions"], row["quantities"], row["sales"])


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_each_tick_of_the_views_equals_plain_python(mode: Mode):
    create_topics(ROOT)
    catalog = {product.product_id: product for product in products(OPENED)}
    known: dict[str, Product] = {}
    views = Views.from_folder(FOLDER, ROOT, group="shop")
    with runner(views, modes=dict.fromkeys(views._modes, mode)) as running:
        running.tick()
        for number, end in enumerate((40, 80, len(MESSAGES))):
            produce(MESSAGES[40 * number : end])
            # Products come late, and one has another name later.
            for product in [*catalog.values()][number * 10 : number * 10 + 12]:
                known[product.product_id] = product.model_copy(update={"item": f"name {number}"})
                produce_product(known[product.product_id])
            running.tick()
            sold = purchases(MESSAGES[:end])
            assert {row["product_id"]: sums(row) for row in rows(views, "running_totals")} == (
                totals(sold)
            )
            found = {
                (row["window_start"], row["product_id"]): sums(row)
                for row in rows(views, "windows")
            }
            assert found == windows(sold)
            enriched = rows(views, "enriched")
            assert len(enriched) == len(sold)
            for row in enriched:
                of = known.get(row["product_id"])
                assert row["product_name"] == (None if of is None else of.item)
            garbled = [message for message in MESSAGES[:end] if reason(message.value) is not None]
            assert sorted(row["value"] for row in rows(views, "dead_letters")) == sorted(
                message.value for message in garbled
            )
    assert any(purchase.is_late for purchase in sold)
    assert views.check() == []


def test_all_views_of_the_shop_have_rules_and_a_row_key():
    create_topics(ROOT)
    views = Views.from_folder(FOLDER, ROOT, group="shop")
    assert [found.refused for found in views.explain()] == [""] * 5
    assert all(view.key for view in views.program.views)
