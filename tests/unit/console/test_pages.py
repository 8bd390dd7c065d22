"""What the pages of the console show of a root."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from deltaq import Consumer, Producer, Topic, TopicPartition
from deltaq.metrics import ROOT_METRICS
from deltaq.schema_registry import Schema, SchemaRegistryClient
from deltaq.schema_registry.avro import AvroSerializer
from deltaq.serde.serializers import MessageField, SerializationContext
from deltaq.store import open_store
from deltaq.testing import Fault, FaultyStore, Rule
from tests.doubles.consuming import tp
from tests.unit.console.conftest import browser, made

T0 = 1_700_000_000_000
NONE = "\u2013"
"""What stands for a rate that is not known yet."""


def texts(html: str) -> str:
    """The text of a page, without tags, in single spaces."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)).strip()


@pytest.fixture
def orders(memory_root: str, asked: TestClient) -> TestClient:
    """A topic with six messages in two partitions, of which a group has read four."""
    Topic(
        "orders", partitions=2, config={"retention.ms": 86_400_000}, bootstrap_servers=memory_root
    ).create()
    with Producer(bootstrap_servers=memory_root, maintenance_enable=False) as producer:
        for number in range(6):
            value = b'{"item":"tea","cups":%d}' % number
            producer.produce(
                "orders",
                value,
                f"k{number}",
                number % 2,
                timestamp=T0 + number,
                headers={"till": b"7"},
            )
            producer.flush()
    from deltaq import Consumer

    with Consumer(bootstrap_servers=memory_root, group_id="billing") as consumer:
        consumer.assign([])
        consumer.commit(offsets=[tp(0, 2, "orders"), tp(1, 2, "orders")], asynchronous=False)
    return asked


def test_the_overview_shows_topics_and_groups_with_their_size_and_lag(orders: TestClient) -> None:
    page = orders.get("/roots/0")
    assert page.status_code == 200
    text = texts(page.text)
    assert f"orders {NONE} 6" in text  # rates need two looks
    assert re.search(r"2 1 day 6 6 ", text) or re.search(r"2 1 day 6 0 ", text)
    assert f"billing empty 0 2 {NONE}" in text
    assert orders.get("/").headers["location"] == "/roots/0"


def test_rates_follow_from_two_looks_at_the_root(memory_root: str) -> None:
    client = browser(made(memory_root, interval_s=0.0))
    with Producer(bootstrap_servers=memory_root, maintenance_enable=False) as producer:
        producer.produce("orders", b"x")
        producer.flush()
        assert f"orders {NONE} 1" in texts(client.get("/roots/0").text)
        producer.produce("orders", b"x")
    text = texts(client.get("/roots/0").text)
    assert re.search(r"orders [\d.,]+ 2 ", text)


def test_several_roots_are_listed_with_their_totals(memory_root: str, tmp_path: object) -> None:
    Topic("orders", bootstrap_servers=memory_root).create()
    client = browser(made(memory_root, str(tmp_path)))
    text = texts(client.get("/").text)
    assert f"{memory_root} 1 0 0 B 0 0 file://{tmp_path} 0 0 0 B 0 0" in text
    assert client.get("/roots/1").status_code == 200
    assert client.get("/roots/2").status_code == 404


def test_a_topic_is_shown_with_partitions_readers_and_settings(orders: TestClient) -> None:
    text = texts(orders.get("/roots/0/topics/orders").text)
    assert "0 0 3 3 1 0 3 3" in text  # partition, start, end, messages
    assert "billing empty 2" in text
    assert "retention.ms 86400000" in text
    assert "Create a topic" not in text
    assert orders.get("/roots/0/topics/refunds").status_code == 404


def test_the_columns_of_a_typed_topic_are_shown(memory_root: str, asked: TestClient) -> None:
    Topic(
        "trades", pa.schema({"price": pa.decimal128(10, 2)}), bootstrap_servers=memory_root
    ).create()
    assert "price decimal128(10, 2)" in texts(asked.get("/roots/0/topics/trades").text)


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("", "k5 k4 k3 k2 k1 k0"),
        ("?count=10&partition=1", "k5 k3 k1"),
        ("?from=beginning&partition=0", "k0 k2 k4"),
        ("?from=2", "k4 k5"),
        ("?from=-1", "k4 k5"),
        ("?from=@1700000000003", "k3 k4 k5"),
        ("?from=2023-11-14T22:13:20.004", "k4 k5"),
        ("?search=cups.*[13]", "k3 k1"),
        ("?search=k2&from=beginning", "k2"),
    ],
)
def test_messages_are_found_by_offset_time_and_search(
    orders: TestClient, query: str, keys: str
) -> None:
    page = orders.get(f"/roots/0/topics/orders/messages{query}")
    assert re.findall(r"<pre>(k\d)</pre>", page.text) == keys.split()
    assert "till" in page.text


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("?from=noon", "no place in a topic"),
        ("?partition=2", "partition must be a number up to 1"),
        ("?count=1000", "count must be a number up to 100"),
        ("?search=(", "no regular expression"),
        (f"?search={'x' * 201}", "the search has 201 characters"),
    ],
)
def test_a_question_that_cannot_be_answered_is_explained(
    orders: TestClient, query: str, problem: str
) -> None:
    page = orders.get(f"/roots/0/topics/orders/messages{query}")
    assert page.status_code == 200
    assert problem in page.text


def test_values_are_decoded_by_their_schema(memory_root: str, asked: TestClient) -> None:
    registry = SchemaRegistryClient({"url": memory_root})
    record = {"type": "record", "name": "order", "fields": [{"name": "item", "type": "string"}]}
    serializer = AvroSerializer(registry, Schema(json.dumps(record), "AVRO"))
    value = serializer({"item": "tea"}, SerializationContext("orders", MessageField.VALUE))
    assert value is not None
    with Producer(bootstrap_servers=memory_root) as producer:
        producer.produce("orders", value)
        producer.produce("orders", b"\0\0\0\x01\x00unknown id")
        producer.produce("orders", value[:5] + b"\xff\xff\xff")
        producer.produce("orders", None, key="gone")
    page = asked.get("/roots/0/topics/orders/messages?from=beginning").text
    assert '{&#34;item&#34;: &#34;tea&#34;}</pre><small class="tag">Avro schema 1' in page
    assert '00 00 00 00 01 ff ff ff</pre><small class="tag">bytes' in page
    assert "tombstone" in page


def test_a_protobuf_message_is_decoded_without_its_class(
    memory_root: str, asked: TestClient
) -> None:
    fields = "message Item { string name = 1; } repeated Item items = 1; int32 cups = 2;"
    text = f'syntax = "proto3"; message Order {{ {fields} }}'
    number = SchemaRegistryClient({"url": memory_root}).register_schema(
        "orders-value", Schema(text, "PROTOBUF")
    )
    # By hand: the id, the index of the message in one byte, then the fields 1 (an item) and 2.
    message = b"\0" + number.to_bytes(4, "big") + b"\0" + b"\x0a\x05\x0a\x03tea" + b"\x10\x07"
    with Producer(bootstrap_servers=memory_root) as producer:
        producer.produce("orders", message)
    page = asked.get("/roots/0/topics/orders/messages").text
    shown = "{&#34;items&#34;: [{&#34;name&#34;: &#34;tea&#34;}], &#34;cups&#34;: 7}"
    assert f'{shown}</pre><small class="tag">Protobuf schema {number}' in page


def test_a_large_message_is_cut_and_its_size_is_named(memory_root: str, asked: TestClient) -> None:
    with Producer(bootstrap_servers=memory_root) as producer:
        producer.produce(
            "t",
            b"x" * 900_000,
            key=b"y" * 5_000,
            headers=[(f"h{n}", b"z" * 500) for n in range(30)],
        )
    page = asked.get("/roots/0/topics/t/messages").text
    assert len(page) < 20_000
    assert "879 KiB in all" in page
    assert "4.88 KiB in all" in page
    assert "and 10 more" in page


def test_an_unknown_lag_is_no_number_and_no_sample(orders: TestClient, memory_root: str) -> None:
    with Consumer(bootstrap_servers=memory_root, group_id="fresh") as consumer:
        consumer.commit(offsets=[TopicPartition("orders", 1, 3)], asynchronous=False)
        consumer.subscribe(["orders"])
        consumer.poll(0.1)
        assert "fresh stable 1 - " in texts(orders.get("/roots/0/groups").text)
        assert "Lag - 1 topic" in texts(orders.get("/roots/0/groups/fresh").text)
        assert "2 groups, unknown of 1" in texts(orders.get("/roots/0").text)
        lags = [
            line
            for line in orders.get("/metrics").text.splitlines()
            if line.startswith("deltaq_group") and "lag{" in line
        ]
    assert len(lags) == 2
    assert all('group="billing"' in line for line in lags)


def test_groups_are_shown_with_lag_by_partition(orders: TestClient) -> None:
    assert "billing empty 0 2" in texts(orders.get("/roots/0/groups").text)
    text = texts(orders.get("/roots/0/groups/billing").text)
    assert "orders 0 2 3 1 orders 1 2 3 1 Members" in text
    assert orders.get("/roots/0/groups/none").status_code == 404


def test_transactions_are_shown_with_what_they_hold(orders: TestClient, memory_root: str) -> None:
    empty = texts(orders.get("/roots/0/transactions").text)
    assert "No producer has used a transactional id." in empty
    with Producer(
        bootstrap_servers=memory_root, transactional_id="till-7", client_id="till"
    ) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.produce("orders", b"x")
        text = texts(orders.get("/roots/0/transactions").text)
        assert re.search(r"till-7 published \d+ \d seconds? 60 seconds till orders", text)
        producer.begin_transaction()
        producer.produce("orders", b"x")
        producer.flush()
        metadata = b"CGMDv2:\xff\xff\xff\xffbilling\x00\x00\x01"
        producer.send_offsets_to_transaction([TopicPartition("orders", 0, 3)], metadata)
        text = texts(orders.get("/roots/0/transactions").text)
        assert re.search(r"till-7 open \d+ \d seconds? 60 seconds till orders billing", text)
        client = browser(made(memory_root))
        group = texts(client.get("/roots/0/groups/billing").text)
        assert "Pending offsets of transactions" in group
        assert "orders 0 3 till-7 Members" in group


def test_maintenance_that_is_due_is_listed_and_not_done(
    orders: TestClient, memory_root: str
) -> None:
    store = open_store(memory_root)
    before = [entry.key for entry in store.list("")]
    text = texts(orders.get("/roots/0/maintenance").text)
    assert "orders: remove" in text  # the messages are years old
    assert [entry.key for entry in store.list("")] == before


def test_a_topic_that_cannot_be_read_does_not_hide_the_others(
    orders: TestClient, memory_root: str
) -> None:
    open_store(memory_root).put("topics/bad/_delta_log/00000000000000000000.json", b"{}")
    open_store(memory_root).put("groups/worse/_delta_log/00000000000000000000.json", b"{}")
    text = texts(browser(made(memory_root)).get("/roots/0").text)
    assert "bad cannot be read: " in text
    assert "group worse cannot be read: " in text
    assert f"orders {NONE} 6" in text


def test_a_store_that_does_not_answer_is_named_on_the_page(memory_root: str) -> None:
    Topic("orders", bootstrap_servers=memory_root).create()
    console = made(memory_root, interval_s=0.0)
    faults = FaultyStore(open_store(memory_root))
    console.roots[0].poller._watch._store = faults
    client = browser(console)
    assert "orders" in client.get("/roots/0").text
    faults.add(Rule("*", "*", Fault.error_before(), times=None))
    page = client.get("/roots/0")
    assert page.status_code == 200
    assert "The store does not answer as it should" in page.text
    assert "orders" in page.text  # as last seen


def test_prometheus_gets_no_old_value_of_a_root_that_cannot_be_read(memory_root: str) -> None:
    Topic("orders", bootstrap_servers=memory_root).create()
    console = made(memory_root, interval_s=0.0)
    faults = FaultyStore(open_store(memory_root))
    console.roots[0].poller._watch._store = faults
    client = browser(console)

    def of_root() -> set[tuple[str, float]]:
        families = text_string_to_metric_families(client.get("/metrics").text)
        return {
            (sample.name, sample.value)
            for family in families
            for sample in family.samples
            if sample.labels
        }

    assert {("deltaq_topic_messages", 0), ("deltaq_root_unreadable", 0)} <= of_root()
    faults.add(Rule("list_folders", "topics/", Fault.error_before()))
    assert of_root() == {("deltaq_root_unreadable", 1)}
    assert {("deltaq_topic_messages", 0), ("deltaq_root_unreadable", 0)} <= of_root()


def test_prometheus_gets_every_metric_of_topics_and_consumer_groups(
    orders: TestClient, memory_root: str
) -> None:
    answer = orders.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {
        sample.name: (sample.labels, sample.value)
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    expected = {metric.name for metric in ROOT_METRICS}
    assert {name for name in expected if not name.startswith("deltaq_share_")} <= found.keys()
    topic = {"root": memory_root, "topic": "orders"}
    assert found["deltaq_topic_messages"] == found["deltaq_topic_produced_total"] == (topic, 6)
    assert found["deltaq_group_lag"] == ({"root": memory_root, "group": "billing"}, 2)
    assert found["deltaq_group_topic_lag"] == ({**topic, "group": "billing"}, 2)
