"""The jobs of the shop, as a batch and as a stream that is interrupted, against the same sums in
plain Python.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltaq import InvalidValue, Producer
from deltaq.views import Views
from examples.shop import jobs
from examples.shop.check import COMPARISONS, BatchCheck
from examples.shop.generator import write_products
from examples.shop.layout import (
    DEAD_LETTERS,
    ENRICHED,
    PRODUCTS,
    PURCHASES,
    RUNNING_TOTALS,
    WINDOWS,
    ShopClock,
    create_topics,
    topics,
)
from examples.shop.pipeline import writers
from examples.shop.queries import QUERIES, DuckDb, Engine, SparkSql, newest
from examples.shop.sales import Habits, products, sales
from tests.examples.shop_oracle import (
    EPOCH,
    OracleMessage,
    Purchase,
    Sums,
    purchases,
    reason,
    totals,
    windows,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

OPENED = datetime(2026, 1, 5, 9, tzinfo=UTC)
HABITS = Habits(transactions=400, late=0.1, bad=0.05)
MESSAGES = [
    OracleMessage(int(m.at.timestamp() * 1000), m.key, m.value)
    for m in sales(Random(7), OPENED, HABITS)
]
HALF = len(MESSAGES) // 2
VIEWS = Path(__file__).parents[2] / "examples/shop/views"
SOLD = purchases(MESSAGES)


@dataclass(frozen=True)
class Shop:
    """A shop that has sold `MESSAGES`, and whose pipeline has seen them all."""

    root: str
    checkpoints: Path

    def table(self, topic: str) -> list[dict[str, Any]]:
        """The rows of a topic, by partition and offset."""
        rows: list[dict[str, Any]] = topics(self.root)[topic].to_arrow().to_pylist()
        return rows

    def newest(self, topic: str) -> list[dict[str, Any]]:
        """The newest row of each key."""
        return list({row["_key"]: row for row in self.table(topic)}.values())


def produce(root: str, messages: list[OracleMessage]) -> None:
    """Write messages in one commit."""
    sent, keys, values = zip(*messages, strict=True)
    columns = {
        "value": pa.array(values, pa.binary()),
        "key": pa.array([key.encode() for key in keys], pa.binary()),
    }
    with Producer({"bootstrap.servers": root}) as producer:
        producer.produce_arrow(
            PURCHASES, pa.table({**columns, "timestamp": pa.array(sent, pa.int64())})
        )


def run_pipeline(spark: SparkSession, root: str, checkpoints: Path) -> None:
    """Run each query until it has read what is in the topics."""
    for writer in writers(spark, root, checkpoints).values():
        writer.trigger(availableNow=True).start().awaitTermination()


def forget_last_commit(checkpoint: Path) -> None:
    """Leave a checkpoint as a query does that is killed after its micro-batch was written, before
    it is recorded.
    """
    newest = max(
        (file for file in (checkpoint / "commits").iterdir() if file.name.isdigit()),
        key=lambda f: int(f.name),
    )
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """The pipeline is interrupted in the middle, and the generator of the products is started
    twice.
    """
    folder = tmp_path_factory.mktemp("shop")
    root = str(folder / "root")
    created = create_topics(root)
    with Producer({"bootstrap.servers": root}) as producer:
        for product in products(OPENED):
            old = product.model_copy(update={"item": "an old name"})
            producer.produce(created[PRODUCTS], old, key=product.product_id)
        write_products(producer, created[PRODUCTS], ShopClock(OPENED))
    produce(root, MESSAGES[:HALF])
    run_pipeline(spark, root, folder / "checkpoints")
    for topic in (ENRICHED, RUNNING_TOTALS, WINDOWS):
        forget_last_commit(folder / "checkpoints" / topic)
    produce(root, MESSAGES[HALF:])
    run_pipeline(spark, root, folder / "checkpoints")
    return Shop(root, folder / "checkpoints")


def sums(row: dict[str, Any]) -> Sums:
    return Sums(row["transactions"], row["quantities"], row["sales"])


def test_the_messages_have_late_and_garbled_ones_in_both_halves() -> None:
    for half in (MESSAGES[:HALF], MESSAGES[HALF:]):
        assert {reason(message.value) for message in half} == {
            None,
            "not a purchase",
            "wrong total",
        }
        late = [purchase.is_late for purchase in purchases(half)]
        assert 5 < sum(late) < len(late) / 4


def test_running_totals_are_those_of_all_purchases(shop: Shop) -> None:
    assert {row["product_id"]: sums(row) for row in shop.newest(RUNNING_TOTALS)} == totals(SOLD)
    at: dict[str, datetime] = {}
    for purchase in SOLD:
        product_id = purchase.fields["product_id"]
        at[product_id] = max(purchase.at, at.get(product_id, purchase.at))
    assert {row["product_id"]: row["event_time"] for row in shop.newest(RUNNING_TOTALS)} == at


def test_a_repeated_micro_batch_writes_no_total_twice(shop: Shop) -> None:
    rows = [(row["product_id"], row["transactions"]) for row in shop.table(RUNNING_TOTALS)]
    assert len(rows) == len(set(rows))
    assert len(rows) > len(totals(SOLD))


def test_the_topic_of_running_totals_is_compacted_by_product(shop: Shop) -> None:
    assert {row["_key"].decode() for row in shop.table(RUNNING_TOTALS)} == set(totals(SOLD))
    with (
        Producer({"bootstrap.servers": shop.root}) as producer,
        pytest.raises(InvalidValue, match="key"),
    ):
        producer.produce(RUNNING_TOTALS, None)


def test_windows_hold_every_purchase_in_time_twice_and_no_late_one(shop: Shop) -> None:
    found = {(row["window_start"], row["product_id"]): sums(row) for row in shop.newest(WINDOWS)}
    assert found == windows(SOLD)
    assert {row["window_end"] - row["window_start"] for row in shop.newest(WINDOWS)} == {
        timedelta(minutes=10)
    }
    in_time = sum(purchase.fields["quantity"] for purchase in SOLD if not purchase.is_late)
    late = sum(purchase.fields["quantity"] for purchase in SOLD if purchase.is_late)
    assert sum(window.quantities for window in found.values()) == 2 * in_time
    assert in_time + late == sum(purchase.fields["quantity"] for purchase in SOLD)


def verdicts(root: str, checkpoints: Path) -> dict[str, tuple[int, int]]:
    """For each topic, the number of purchases that a batch has covered, and of the rows that differ
    from it.
    """
    with contextlib.closing(BatchCheck(root, checkpoints)) as check:
        return {verdict.topic: (verdict.purchases, verdict.differences) for verdict in check.run()}


def test_the_check_finds_the_stream_equal_to_a_batch(shop: Shop) -> None:
    covered = (len(MESSAGES), 0)
    assert verdicts(shop.root, shop.checkpoints) == dict.fromkeys(COMPARISONS, covered)


def test_the_check_covers_only_the_purchases_that_the_stream_has_read(
    shop: Shop, tmp_path: Path
) -> None:
    root = shutil.copytree(shop.root, tmp_path / "root")
    produce(str(root), MESSAGES[:5])
    assert set(verdicts(str(root), shop.checkpoints).values()) == {(len(MESSAGES), 0)}


@pytest.mark.parametrize("topic", [ENRICHED, DEAD_LETTERS, RUNNING_TOTALS, WINDOWS])
def test_the_check_notices_a_row_that_is_doubled(shop: Shop, tmp_path: Path, topic: str) -> None:
    root = str(shutil.copytree(shop.root, tmp_path / "root"))
    row = shop.table(topic)[-1]
    with Producer({"bootstrap.servers": root}) as producer:
        if topic == DEAD_LETTERS:
            timestamp = int(row["_timestamp"].timestamp() * 1000)
            producer.produce(topic, row["value"], timestamp=timestamp)
        else:
            value = {name: field for name, field in row.items() if not name.startswith("_")}
            if "sales" in value:
                value["sales"] *= 2
            producer.produce(topic, value, key=row["_key"])
    found = verdicts(root, shop.checkpoints)
    # A total that is wrong differs from the right one: a row more, and a row less.
    assert found.pop(topic) == (len(MESSAGES), 2 if "sales" in row else 1)
    assert set(found.values()) == {(len(MESSAGES), 0)}


def line(fields: dict[str, Any]) -> tuple[str, str]:
    return fields["transaction_id"], fields["product_id"]


def test_every_purchase_is_enriched_once_with_the_newest_record_of_its_product(shop: Shop) -> None:
    rows = shop.table(ENRICHED)
    assert len([name for name in rows[0] if not name.startswith("_")]) == 20
    catalog = {product.product_id: product for product in products(OPENED)}
    assert sorted(map(line, rows)) == sorted(line(purchase.fields) for purchase in SOLD)
    by_line: dict[tuple[str, str], Purchase] = {
        line(purchase.fields): purchase for purchase in SOLD
    }
    for row in rows:
        purchase, product = by_line[line(row)], catalog[row["product_id"]]
        assert (row["transaction_timestamp"], row["_timestamp"]) == (purchase.at, purchase.sent)
        assert (row["product_name"], row["product_category"]) == (product.item, product.category)
        assert (row["product_cogs"], row["product_price"]) == (product.cogs, product.price)
        assert row["contains_nuts"] == product.contains_nuts
        assert row["purchase_quantity"] == purchase.fields["quantity"]
        assert row["total_purchase"] == Decimal(purchase.fields["total_purchase"]).quantize(
            Decimal("0.01")
        )


def test_every_garbled_message_is_in_the_dead_letters_unchanged_with_its_reason(shop: Shop) -> None:
    found = [
        (
            row["_timestamp"],
            row["_key"],
            row["value"],
            {name: value.decode() for name, value in headers(row)}["reason"],
        )
        for row in shop.table(DEAD_LETTERS)
    ]
    sent = [
        (
            datetime.fromtimestamp(message.sent_ms / 1000, UTC),
            message.key.encode(),
            message.value,
            why,
        )
        for message in MESSAGES
        if (why := reason(message.value)) is not None
    ]
    assert sorted(found) == sorted(sent)


def headers(row: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    return ((header["key"], header["value"]) for header in row["_headers"])


def test_the_dead_letters_say_where_the_message_is(shop: Shop) -> None:
    places = {(row["_partition"], row["_offset"]): row["value"] for row in shop.table(PURCHASES)}
    for row in shop.table(DEAD_LETTERS):
        of = dict(headers(row))
        assert places[int(of["partition"]), int(of["offset"])] == row["value"]


@pytest.mark.parametrize("topic", [ENRICHED, DEAD_LETTERS, RUNNING_TOTALS, WINDOWS])
def test_the_views_of_the_shop_have_the_rows_that_spark_has_written(
    shop: Shop, tmp_path: Path, topic: str
) -> None:
    root = str(shutil.copytree(shop.root, tmp_path / "root"))
    views = Views.from_folder(VIEWS, root, group="shop")
    views.run(until="now")
    found = views.read()[topic].to_arrow()
    if topic == DEAD_LETTERS:
        columns, written = (
            ["value", "sent"],
            [(row["value"], row["_timestamp"]) for row in shop.table(topic)],
        )
    else:
        by_spark = shop.table(topic) if topic == ENRICHED else shop.newest(topic)
        columns = [name for name in by_spark[0] if not name.startswith("_")]
        written = [tuple(row[name] for name in columns) for row in by_spark]
    rows = [tuple(row.values()) for row in found.select(columns).to_pylist()]
    assert sorted(rows, key=repr) == sorted(written, key=repr)


def test_the_batch_has_the_25_products_with_the_highest_sales(
    spark: SparkSession, shop: Shop
) -> None:
    sold = jobs.purchases(jobs.messages(spark.read, shop.root))
    expected = sorted(totals(SOLD).items(), key=lambda item: (-item[1].sales, item[0]))[:25]
    rows = [tuple(row) for row in jobs.top_products(sold).collect()]
    assert rows == [
        (n, product, of.sales, of.quantities) for n, (product, of) in enumerate(expected, 1)
    ]


def test_the_batch_has_the_same_windows_as_the_stream(spark: SparkSession, shop: Shop) -> None:
    batch = jobs.sales_windows(jobs.purchases(jobs.messages(spark.read, shop.root))).collect()
    found = {
        (row.window_start.astimezone(UTC), row.product_id): sums(row.asDict()) for row in batch
    }
    assert found == windows(SOLD)


def expected_answers() -> dict[str, list[tuple[Any, ...]]]:
    """The answers to the four queries. The last sent message is valid."""
    catalog = {product.product_id: product for product in products(OPENED)}
    newest = EPOCH + timedelta(milliseconds=MESSAGES[-1].sent_ms)
    by_sales = sorted(totals(SOLD).items(), key=lambda item: (-item[1].sales, item[0]))
    # In the order of sending.
    last_sent = {purchase.fields["product_id"]: purchase.sent for purchase in SOLD}
    return {
        "purchases": [(len(MESSAGES), newest)],
        "products": [(27, Decimal("5.51"), Decimal("1.98"), Decimal("3.53"))],
        "purchases per product": [
            (p, of.quantities, of.sales, rounded(of.sales / of[0])) for p, of in by_sales
        ],
        "enriched per product": [
            (p, catalog[p].item, catalog[p].category, of.quantities, of.sales, last_sent[p])
            for p, of in by_sales
        ],
    }


def rounded(money: Decimal) -> Decimal:
    return money.quantize(Decimal("0.01"), ROUND_HALF_UP)


def in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


@contextlib.contextmanager
def opened(engine: str, spark: SparkSession, root: str) -> Iterator[Engine]:
    if engine == "Spark SQL":
        yield SparkSql(spark, root)
    else:
        with contextlib.closing(DuckDb(root)) as duckdb:
            yield duckdb


ENGINES = pytest.mark.parametrize("engine", ["DuckDB", "Spark SQL"])


@ENGINES
def test_both_engines_answer_the_four_queries_alike(
    spark: SparkSession, shop: Shop, engine: str
) -> None:
    with opened(engine, spark, shop.root) as asked:
        answers = {name: asked.ask(query) for name, query in QUERIES.items()}
    found = {
        name: [tuple(map(in_utc, row.values())) for row in answer]
        for name, answer in answers.items()
    }
    assert found == expected_answers()
    assert newest(answers["purchases"]) == newest(answers["enriched per product"]) == SOLD[-1].sent
    assert newest(answers["products"]) is None


@ENGINES
def test_an_engine_sees_what_is_written_between_two_questions(
    spark: SparkSession, shop: Shop, tmp_path: Path, engine: str
) -> None:
    root = str(shutil.copytree(shop.root, tmp_path / "root"))
    with opened(engine, spark, root) as asked:
        (before,) = asked.ask(QUERIES["purchases"])
        produce(root, MESSAGES[:5])
        (after,) = asked.ask(QUERIES["purchases"])
    assert (before["purchases"], after["purchases"]) == (len(MESSAGES), len(MESSAGES) + 5)


def test_purchases_with_strange_fields_are_no_purchases(spark: SparkSession) -> None:
    good = MESSAGES[0].value
    strange = [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        None,
        good.replace(b'"quantity": ', b'"quantity": "x'),
        good.replace(b"2026-01-05T", b"2026-13-05T"),
    ]
    without_id = good.replace(b'"transaction_id"', b'"number"')
    rows = spark.createDataFrame(
        [(value,) for value in [good, without_id, *strange]], "value binary"
    )
    found = [row.reason for row in jobs.checked(rows).select("reason").collect()]
    assert found == [None, None] + ["not a purchase"] * len(strange)
