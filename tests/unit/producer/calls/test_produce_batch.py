"""What `produce_batch` queues of its messages, and what it refuses: what confluent-kafka 2.16 was
observed to do.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from deltaq import KafkaError, Producer, Topic
from deltaq.compat.confluent import Producer as CompatibleProducer


def topic(root: str, schema: pa.Schema | None = None) -> Topic:
    return Topic("t", schema, conf={"bootstrap.servers": root}).create()


@pytest.mark.parametrize("make", [Producer, CompatibleProducer], ids=["native", "compatible"])
def test_a_batch_for_which_the_queue_has_no_room_is_queued_in_part_and_the_rest_is_marked(
    root, make
):
    handle = topic(root)
    left: list[dict[str, Any]] = [{"value": str(number)} for number in range(10)]
    counts = []
    with make(bootstrap_servers=root, queue_buffering_max_messages=4, linger_ms=60_000) as producer:
        counts.append(producer.produce_batch("t", left))
        assert [message.get("_error") for message in left] == [None] * 4 + [
            KafkaError(KafkaError._QUEUE_FULL)
        ] * 6
        left = left[4:]
        counts.append(producer.produce_batch("t", left))
        while left:
            producer.flush()
            counts.append(producer.produce_batch("t", left))
            left = [message for message in left if "_error" in message]
    assert counts == [4, 0, 4, 2]
    assert handle.to_arrow().column("value").to_pylist() == [b"%d" % number for number in range(10)]


def test_a_smaller_message_does_not_overtake_one_that_found_no_room(root):
    topic(root)
    messages: list[dict[str, Any]] = [{"value": b"x" * 900}, {"value": b"y" * 900}, {"value": b"z"}]
    with Producer(
        bootstrap_servers=root, queue_buffering_max_kbytes=1, linger_ms=60_000
    ) as producer:
        queued = producer.produce_batch("t", messages)
        assert ["_error" in message for message in messages] == [False] * queued + [True] * (
            3 - queued
        )
        assert queued < 3


@pytest.mark.parametrize(
    ("messages", "names"),
    [
        ([{"value": b""}, 1], "index 1 must be a dict, not int"),
        ([{"value": b""}, {"value": 5}], "index 1: value must be bytes or str, not int"),
        ([{"value": b""}, {"value": {"a": 1}}], "index 1: value must be bytes or str, not dict"),
        (
            [{"value": b""}, {"key": bytearray(b"k")}],
            "index 1: key must be bytes or str, not bytearray",
        ),
        ([{"value": b""}, {"partition": "x"}], "index 1: partition must be int, not str"),
        ([{"value": b""}, {"timestamp": 1.5}], "index 1: timestamp must be int, not float"),
        ([{"value": b""}, {"headers": 5}], "index 1: headers must be a dict or a list"),
        (
            [{"value": b""}, {"headers": [("h", 5)]}],
            "index 1: header 'h' must be bytes or str, not int",
        ),
        ([{"value": b""}, {"callback": 5}], "index 1: callback must be callable, not int"),
    ],
)
@pytest.mark.parametrize("make", [Producer, CompatibleProducer], ids=["native", "compatible"])
def test_wrong_types_in_a_batch_are_refused_before_anything_is_queued(root, make, messages, names):
    topic(root)
    with make(bootstrap_servers=root) as producer:
        for _ in range(2):  # before the topic is known, and after
            with pytest.raises(TypeError, match=re.escape(names)):
                producer.produce_batch("t", messages)
            assert len(producer) == 0
            producer.produce("t", b"known")
            producer.flush()
        for arguments in (
            (None, messages[:1]),
            ("t", messages[:1], "x"),
            ("t", messages[:1], 0, 5),
            ("t", 5),
        ):
            with pytest.raises(TypeError):
                producer.produce_batch(*arguments)
        assert (
            producer.produce_batch("t", [{"value": b"", "partition": None, "timestamp": None}]) == 1
        )
    assert not any("_error" in message for message in messages if isinstance(message, dict))


def test_a_batch_of_dicts_is_queued_for_a_typed_topic_and_a_wrong_value_is_refused_alone(root):
    topic(root, pa.schema([("a", pa.int64())]))
    messages: list[dict[str, Any]] = [{"value": {"a": 1}}, {"value": 5}, {"value": {"a": 2}}]
    with Producer(bootstrap_servers=root) as producer:
        assert producer.produce_batch("t", messages) == 2
    assert ["_error" in message for message in messages] == [False, True, False]
