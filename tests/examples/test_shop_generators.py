"""The tills and the store room of the shop: what they sell follows the rules, and a fixed seed
sells the same again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from examples.shop.catalog import LARGEST_DRAW, SMALLEST_DRAW, chosen
from examples.shop.catalog import PRODUCTS as CATALOG
from examples.shop.layout import INVENTORIES, PRODUCTS, PURCHASES, topics
from examples.shop.sales import Habits, TillMessage, products, restocks, sales
from tests.children import environment_of_child
from tests.examples.replica_harness import until
from tests.examples.shop_oracle import reason

OPENED = datetime(2026, 1, 5, 9, tzinfo=UTC)

DRAWS = {
    "CS": (2, 6, 6, 6, 9, 6, 9, 14, 10, 6, 4),
    "SF": (3, 5, 5, 6, 9, 9, 12),
    "SC": (9, 3, 6, 11, 8),
    "IS": (8, 12, 10, 4),
}
"""Of the 198 draws, how many choose each product of a family."""


def sell(seed: int, habits: Habits) -> list[TillMessage]:
    return list(sales(Random(seed), OPENED, habits))


def lines(seed: int, habits: Habits) -> list[dict[str, Any]]:
    return [json.loads(sent.value) for sent in sell(seed, habits)]


def test_there_are_27_products_in_four_families() -> None:
    found = list(products(OPENED))
    assert (
        len({product.product_id for product in found})
        == len({product.item for product in found})
        == 27
    )
    families = Counter(
        (product.product_id[:2], product.cogs, product.price, product.inventory_level)
        for product in found
    )
    assert families == {
        ("CS", Decimal("1.50"), Decimal("4.99"), 75): 11,
        ("SF", Decimal("2.10"), Decimal("5.99"), 50): 7,
        ("SC", Decimal("2.70"), Decimal("5.99"), 35): 5,
        ("IS", Decimal("2.20"), Decimal("5.49"), 60): 4,
    }
    assert {product.size for product in found} == {"24 oz."}


def test_a_draw_chooses_the_nearest_propensity_and_of_two_the_lower() -> None:
    def nearest(draw: int) -> str:
        return min(
            CATALOG, key=lambda p: (abs(p.propensity_to_buy - draw), p.propensity_to_buy)
        ).product_id

    found = [chosen(draw).product_id for draw in range(SMALLEST_DRAW, LARGEST_DRAW + 1)]
    assert found == [nearest(draw) for draw in range(3, 201)]
    expected = {
        f"{family}{n:02d}": count
        for family, counts in DRAWS.items()
        for n, count in enumerate(counts, 1)
    }
    assert Counter(found) == expected


def test_every_purchase_obeys_the_formula_of_its_total() -> None:
    sent = sell(1, Habits(transactions=500))
    assert {reason(message.value) for message in sent} == {None}
    for message in sent:
        fields = json.loads(message.value)
        assert message.key == fields["product_id"]
        assert len(fields["transaction_id"]) == 19
        assert (fields["supplement_price"], fields["member_discount"]) == (
            1.99 if fields["add_supplements"] else 0,
            0.1 if fields["is_member"] else 0,
        )


def test_the_shares_are_those_of_a_smoothie_bar() -> None:
    sold = lines(2, Habits(transactions=8_000))
    transactions = Counter(fields["transaction_id"] for fields in sold)

    def share(of: Counter[Any]) -> dict[Any, float]:
        return {key: round(count / of.total(), 2) for key, count in of.items()}

    assert share(Counter(transactions.values())) == pytest.approx(
        {1: 0.65, 2: 0.25, 3: 0.1}, abs=0.011
    )
    assert share(Counter(fields["quantity"] for fields in sold)) == pytest.approx(
        {1: 0.8, 2: 0.17, 3: 0.03}, abs=0.011
    )
    assert share(Counter(fields["is_member"] for fields in sold))[True] == pytest.approx(
        0.3, abs=0.011
    )
    for families, expected in ((("SF", "SC"), 0.5), (("CS", "IS"), 0.2)):
        with_supplements = Counter(
            f["add_supplements"] for f in sold if f["product_id"].startswith(families)
        )
        assert share(with_supplements)[True] == pytest.approx(expected, abs=0.011)


def test_a_transaction_has_each_product_once() -> None:
    sold = lines(3, Habits(transactions=2_000))
    assert len({(fields["transaction_id"], fields["product_id"]) for fields in sold}) == len(sold)


def test_tills_send_in_order_every_two_to_five_seconds() -> None:
    times = list(dict.fromkeys(sent.at for sent in sell(4, Habits(transactions=300, late=0.5))))
    gaps = [after - before for before, after in zip([OPENED, *times], times, strict=False)]
    assert timedelta(seconds=2) <= min(gaps) < max(gaps) <= timedelta(seconds=5)


def test_a_late_transaction_is_sent_up_to_half_an_hour_after_the_sale() -> None:
    delays = [
        sent.at - datetime.fromisoformat(json.loads(sent.value)["transaction_time"])
        for sent in sell(5, Habits(transactions=500, late=0.2))
    ]
    late = [delay for delay in delays if delay]
    assert 0.1 < len(late) / len(delays) < 0.3
    assert (
        timedelta(minutes=1)
        <= min(late)
        < timedelta(minutes=10)
        < max(late)
        <= timedelta(minutes=30)
    )


def test_a_seed_sells_the_same_again_and_another_one_does_not() -> None:
    habits = Habits(transactions=50, late=0.1, bad=0.1)
    assert sell(6, habits) == sell(6, habits)
    assert sell(6, habits) != sell(7, habits)


def test_stock_is_the_opening_stock_without_what_was_sold_and_with_what_was_restocked() -> None:
    sent = sell(8, Habits(transactions=2_000, bad=0.05))
    room = list(restocks(((int(m.at.timestamp() * 1000), m.value) for m in sent), Counter()))
    sold: Counter[str] = Counter()
    for message in sent:
        if reason(message.value) != "not a purchase":
            sold[message.key] += json.loads(message.value)["quantity"]
    for product in products(OPENED):
        of_product = [restock for restock in room if restock.product_id == product.product_id]
        level = product.inventory_level - sold[product.product_id] + 15 * len(of_product)
        assert 10 < level <= product.inventory_level
        assert {restock.new_level - restock.existing_level for restock in of_product} <= {15}
        assert all(8 <= restock.existing_level <= 10 for restock in of_product)
    assert len(room) > 50


def test_a_store_room_that_starts_again_writes_only_the_restocks_that_are_missing() -> None:
    purchases = [
        (int(m.at.timestamp() * 1000), m.value) for m in sell(9, Habits(transactions=1_000))
    ]
    room = list(restocks(purchases, Counter()))
    for written in (0, 1, len(room) // 2, len(room)):
        known = Counter(restock.product_id for restock in room[:written])
        assert list(restocks(purchases, known)) == room[written:]


def test_garbage_in_the_topic_of_purchases_changes_no_stock() -> None:
    garbage = (
        None,
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"product_id": "XX01", "quantity": 99}',
        b'{"product_id": "CS01"}',
    )
    assert list(restocks(((0, value) for value in garbage), Counter())) == []


def generator(root: str, environment: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "examples.shop.generator", "--root", root, *arguments]
    return subprocess.Popen(command, env=environment)


def without_times(values: Iterable[bytes]) -> list[str]:
    return sorted(str(json.loads(value) | {"transaction_time": ""}) for value in values)


@pytest.mark.slow
def test_the_generators_write_their_topics_as_programs(tmp_path: Path) -> None:
    root, environment = str(tmp_path / "root"), environment_of_child()
    assert generator(root, environment, PRODUCTS).wait(60) == 0
    fast = ("--seed", "1", "--transactions", "300", "--speed", "1e4", "--bad", "0", "--late", "0")
    assert generator(root, environment, PURCHASES, *fast).wait(60) == 0
    described = {name: topic.describe() for name, topic in topics(root).items()}
    assert (
        len(described[PURCHASES].partitions),
        described[PRODUCTS].partitions[0].next_offset,
    ) == (8, 27)
    written = topics(root)[PURCHASES].to_arrow().column("value").to_pylist()
    assert without_times(written) == without_times(
        sent.value for sent in sell(1, Habits(transactions=300))
    )
    store_room = generator(root, environment, INVENTORIES)
    try:
        until(lambda: topics(root)[INVENTORIES].to_arrow().num_rows > 0, "a restock")
    finally:
        store_room.terminate()
        assert store_room.wait(60) == 0
