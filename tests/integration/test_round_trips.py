"""What is produced is consumed, byte for byte."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaq import Consumer, KafkaError, Message, MessageTooLarge, Producer, Topic, TopicPartition

YEAR_2262_MS = int(datetime(2262, 4, 11, tzinfo=timezone.utc).timestamp() * 1000)
CONTENT = st.none() | st.binary(max_size=40) | st.sampled_from([b"", b"\0", b"\0" * 9, b"\xff\xfe", "é☃".encode()])
HEADERS = st.lists(
    st.tuples(st.text(st.characters(codec="utf-8"), max_size=8), st.none() | st.binary(max_size=12)), max_size=5
)
MESSAGES = st.lists(st.tuples(CONTENT, CONTENT, HEADERS, st.integers(1, YEAR_2262_MS)), min_size=1, max_size=20)


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path) -> str:
    return str(tmp_path / "root") if request.param == "local" else f"memory://{uuid.uuid4().hex}"


def consumed(root: str, topic: str, count: int, partitions: int = 1) -> list[Message]:
    with Consumer({"bootstrap.servers": root, "group.id": uuid.uuid4().hex}) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        messages = consumer.consume(count, 20)
    assert [message.error() for message in messages] == [None] * count
    return messages


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MESSAGES)
def test_every_message_comes_back_as_it_was(root, messages):
    topic = f"t-{uuid.uuid4().hex}"
    with Producer({"bootstrap.servers": root, "linger.ms": 0}) as producer:
        for value, key, headers, timestamp in messages:
            producer.produce(topic, value, key=key, headers=headers, timestamp=timestamp)
    found = consumed(root, topic, len(messages))
    assert [(m.value(), m.key(), m.headers() or [], m.timestamp()[1], m.offset()) for m in found] == [
        (value, key, headers, timestamp, offset) for offset, (value, key, headers, timestamp) in enumerate(messages)
    ]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_values_of_a_megabyte_come_back_whatever_the_compression(root, compression):
    values = [bytes([number]) * 1_000_000 for number in range(5)] + [uuid.uuid4().bytes * 62_500]
    with Producer({"bootstrap.servers": root, "compression.type": compression}) as producer:
        for value in values:
            producer.produce("large", value)
    assert [message.value() for message in consumed(root, "large", len(values))] == values


def test_the_first_and_the_last_timestamps_come_back(root):
    times = [1, 999, 1000, 1_700_000_000_123, YEAR_2262_MS]
    with Producer({"bootstrap.servers": root}) as producer:
        for time in times:
            producer.produce("times", b"x", timestamp=time)
    assert [message.timestamp() for message in consumed(root, "times", len(times))] == [(1, time) for time in times]


def test_a_message_without_a_timestamp_gets_the_time_it_was_produced(root):
    before = int(datetime.now(timezone.utc).timestamp() * 1000)
    with Producer({"bootstrap.servers": root, "linger.ms": 50}) as producer:
        producer.produce("now", b"x")
    after = int(datetime.now(timezone.utc).timestamp() * 1000)
    (message,) = consumed(root, "now", 1)
    assert before <= message.timestamp()[1] <= after


@pytest.mark.parametrize(
    ("value", "key", "headers"),
    [(b"x" * 1_000_001, None, None), (b"x" * 600_000, b"k" * 400_001, None), (None, None, {"h": b"x" * 1_000_000})],
    ids=["value", "value and key", "headers"],
)
def test_too_large_a_message_is_refused_at_produce(value, key, headers, root):
    with Producer({"bootstrap.servers": root}) as producer:
        with pytest.raises(MessageTooLarge) as caught:
            producer.produce("t", value, key=key, headers=headers)
        assert caught.value.args[0] == KafkaError.MSG_SIZE_TOO_LARGE
        assert len(producer) == 0
        producer.produce("t", b"x" * 1_000_000)
    assert len(consumed(root, "t", 1)[0].value()) == 1_000_000


def test_text_is_sent_as_utf_8_and_comes_back_as_bytes(root):
    with Producer({"bootstrap.servers": root}) as producer:
        producer.produce("t", "Zürich ☃", key="é", headers={"ü": "ß", "none": None})
    (message,) = consumed(root, "t", 1)
    assert (message.value(), message.key()) == ("Zürich ☃".encode(), "é".encode())
    assert message.headers() == [("ü", "ß".encode()), ("none", None)]


def test_repeated_header_names_keep_their_number_and_order(root):
    headers = [("a", b"1"), ("b", None), ("a", b""), ("a", b"1")]
    with Producer({"bootstrap.servers": root}) as producer:
        producer.produce("t", b"x", headers=headers)
        producer.produce("t", b"x", headers=[])
    first, second = consumed(root, "t", 2)
    assert first.headers() == headers
    assert second.headers() is None


def test_the_same_key_always_meets_the_same_partition_and_null_keys_any(root):
    Topic("keyed", partitions=4, conf={"bootstrap.servers": root}).create()
    for _ in range(3):
        with Producer({"bootstrap.servers": root}) as producer:
            for number in range(40):
                producer.produce("keyed", b"x", key=b"k%d" % (number % 10))
    homes: dict[bytes, set[int | None]] = {}
    for message in consumed(root, "keyed", 120, partitions=4):
        homes.setdefault(message.key(), set()).add(message.partition())
    assert {len(partitions) for partitions in homes.values()} == {1}
    assert len(set().union(*homes.values())) == 4
