"""Types as a program sees them. The functions run; what they assert of types, and the lines that
must be errors, are checked by mypy with the rest of the code.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, assert_type

from deltaq import (
    Consumer,
    DeserializingConsumer,
    KafkaError,
    Message,
    Producer,
    SerializingProducer,
    TopicPartition,
)
from deltaq.aio import AIOConsumer, AIOProducer
from deltaq.producer.topic_handle import HeadersInput


class Order:
    def __init__(self, number: int) -> None:
        self.number = number


def to_bytes(order: Order, _: object) -> bytes:
    return json.dumps(order.number).encode()


def from_bytes(data: bytes, _: object) -> Order:
    return Order(json.loads(data))


def key_of(message: Message[bytes, bytes | None]) -> bytes:
    assert_type(message.value(), bytes | None)
    return message.key()


def test_serializing_clients_have_the_types_of_their_objects(memory_root):
    root: dict[str, Any] = {
        "bootstrap.servers": memory_root,
        "key.serializer": lambda text, _: text.encode(),
    }
    producer: SerializingProducer[str, Order] = SerializingProducer(
        root | {"value.serializer": to_bytes}
    )
    producer.produce("orders", "a", Order(1))
    producer.produce("orders", key="b", value=Order(2))
    future = producer.produce_future("orders", key="c", value=Order(3))
    assert_type(future.result(20), Message[Any, Any])
    producer.close()

    settings = {"bootstrap.servers": memory_root, "group.id": "g", "auto.offset.reset": "earliest"}
    decoding = {"key.deserializer": lambda data, _: data.decode(), "value.deserializer": from_bytes}
    consumer: DeserializingConsumer[str, Order] = DeserializingConsumer({**settings, **decoding})

    def assigned(given: Consumer[str, Order], partitions: list[TopicPartition]) -> None:
        assert_type(given.position(partitions), list[TopicPartition])

    consumer.subscribe(["orders"], on_assign=assigned)
    message = consumer.poll(20)
    assert_type(message, Message[str, Order] | None)
    assert message is not None
    assert_type(message.key(), str)
    assert message.value().number == 1
    assert message.key().upper() == "A"
    (second,) = consumer.consume(1, 20)
    assert second.value().number == 2
    for third in consumer:
        assert_type(third.value(), Order)
        assert third.value().number == 3
        break
    consumer.close()


def test_a_client_without_parameters_accepts_any_use(memory_root):
    delivered: list[Message] = []

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None
        delivered.append(message)

    with Producer(bootstrap_servers=memory_root) as producer:
        producer.produce("t", "value", on_delivery=report)
    assert delivered[0].value() == b"value"
    with Consumer(
        bootstrap_servers=memory_root, group_id="g", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(["t"])
        message = consumer.poll(20)
        assert message is not None
        assert message.value().decode() == "value"


def test_clients_for_asyncio_have_the_same_types(memory_root):
    async def main() -> bytes:
        async with AIOProducer(bootstrap_servers=memory_root) as producer:
            assert_type((await producer.produce("t", "v", "k")).offset(), int | None)
        consumer: AIOConsumer[bytes, bytes | None] = AIOConsumer(
            bootstrap_servers=memory_root, group_id="g", auto_offset_reset="earliest"
        )
        async with consumer:
            await consumer.subscribe(["t"])
            async for message in consumer:
                assert_type(message.value(), bytes | None)
                return key_of(message)
        raise AssertionError("no message")

    assert asyncio.run(main()) == b"k"


def test_wrong_uses_are_errors_of_the_type_checker():
    """Each ignored line is an error: mypy warns of an ignore that is not needed."""

    def wrong(
        producer: SerializingProducer[str, Order],
        message: Message[bytes, Order],
        consumer: Consumer,
    ) -> None:
        producer.produce("orders", 1, Order(1))  # type: ignore[arg-type]
        producer.produce("orders", "a", "no order")  # type: ignore[arg-type]
        message.value().upper()  # type: ignore[attr-defined]
        message.key().number  # type: ignore[attr-defined]  # noqa: B018 - the access is the test
        consumer.subscribe(("t",))  # type: ignore[arg-type]
        consumer.poll().value()  # type: ignore[union-attr]
        consumer.commit("t")  # type: ignore[call-overload]

    assert callable(wrong)


def test_a_generic_message_is_an_ordinary_message():
    message = Message[bytes, str]("t", 0, 1, b"k", "v")
    assert type(message) is Message
    assert message == Message("t", 0, 1, b"k", "v")


def test_the_type_of_headers_is_no_text_in_several_parts():
    """Pyright takes such a text for no type, and `produce` was partially unknown to it."""
    assert not isinstance(HeadersInput, str)
