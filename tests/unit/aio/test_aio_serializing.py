"""Serializing clients for asyncio and the registry's: objects as messages, errors with their
messages, cancellation.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

import confluent_kafka.schema_registry
import pytest
from google.protobuf.message_factory import GetMessageClass

import deltaq.aio
from deltaq import InvalidConfig, Producer, Topic
from deltaq.aio import AsyncDeserializingConsumer, AsyncSerializingProducer
from deltaq.aio.schema_registry import (
    AsyncAvroDeserializer,
    AsyncAvroSerializer,
    AsyncJSONDeserializer,
    AsyncJSONSerializer,
    AsyncProtobufDeserializer,
    AsyncSchemaRegistryClient,
)
from deltaq.aio.threads import ThreadExecutor
from deltaq.compat.confluent import aio as compat_aio
from deltaq.errors import MessageTooLarge
from deltaq.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from deltaq.schema_registry.protobuf_format import parse
from deltaq.serde import (
    ConsumeError,
    KeySerializationError,
    MessageField,
    SerializationContext,
    StringDeserializer,
    StringSerializer,
    ValueDeserializationError,
    ValueSerializationError,
)

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]})
JSON = json.dumps({"type": "object", "title": "R", "properties": {"id": {"type": "integer"}}})


def conf(root: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": root, **more}


def reading(root: str, **more: Any) -> dict[str, Any]:
    return conf(root, **{"group.id": "g", "auto.offset.reset": "earliest", **more})


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await main()

    return asyncio.run(bounded())


@pytest.mark.parametrize(
    ("serializer", "deserializer"),
    [
        (lambda r: AsyncAvroSerializer(r, AVRO), lambda r: AsyncAvroDeserializer(r, AVRO)),
        (
            lambda r: AsyncJSONSerializer(JSON, r),
            lambda r: AsyncJSONDeserializer(JSON, schema_registry_client=r),
        ),
    ],
    ids=["avro", "json"],
)
def test_objects_are_written_and_read_with_the_registry(memory_root, serializer, deserializer):
    async def main() -> None:
        async with AsyncSchemaRegistryClient({"url": memory_root}) as registry:
            settings = {
                "key.serializer": StringSerializer(),
                "value.serializer": await serializer(registry),
            }
            async with await AsyncSerializingProducer(conf(memory_root)) as plain:
                assert isinstance(plain, AsyncSerializingProducer)
            async with AsyncSerializingProducer({**conf(memory_root), **settings}) as producer:
                first = await producer.produce("t", "k", {"id": 1}, headers={"h": "1"})
                second = await (await producer.produce_future("t", "k", {"id": 2}))
                assert [first.offset(), second.offset()] == [0, 1]
                with pytest.raises(ValueSerializationError):
                    await producer.produce("t", "k", {"id": "x"})
                with pytest.raises(KeySerializationError):
                    await producer.produce("t", 7, {"id": 1})
            settings = {
                "key.deserializer": StringDeserializer(),
                "value.deserializer": await deserializer(registry),
            }
            async with await AsyncDeserializingConsumer(
                {**reading(memory_root), **settings}
            ) as consumer:
                await consumer.subscribe(["t"])
                message = await consumer.poll(10)
                assert message is not None
                assert (message.key(), message.value(), message.headers()) == (
                    "k",
                    {"id": 1},
                    [("h", b"1")],
                )
                (message,) = await consumer.consume(1, 10)
                assert message.value() == {"id": 2}
            assert await registry.get_subjects() == ["t-value"]

    run(main)


def test_deserializers_that_know_their_schema_need_no_registry():
    proto = GetMessageClass(
        parse('syntax = "proto3"; message M { int32 a = 1; }', ()).message_types_by_name["M"]
    )

    async def main() -> None:
        context = SerializationContext("t", MessageField.VALUE)
        of_json, of_proto = (
            await AsyncJSONDeserializer(JSON),
            await AsyncProtobufDeserializer(proto, {}),
        )
        assert await of_json(b"\x00\x00\x00\x00\x01" + b'{"id":1}', context) == {"id": 1}
        assert await of_proto(b"\x00\x00\x00\x00\x01\x00\x08\x07", context) == proto(a=7)
        with pytest.raises(InvalidConfig, match="schema_registry_client is needed"):
            _ = await AsyncJSONDeserializer(None)
        for arguments in ((AVRO,), (SchemaRegistryClient({"url": "memory://unused"}), AVRO)):
            with pytest.raises(TypeError, match="needs an AsyncSchemaRegistryClient"):
                _ = await AsyncAvroSerializer(*arguments)

    run(main)


@pytest.mark.parametrize("module", [deltaq.aio, compat_aio])
def test_the_functions_of_a_topic_handle_take_precedence(memory_root, module):
    async def as_number(data: bytes | None, context: SerializationContext) -> str:
        return f"{context.topic}: {int(data or b'')}"

    handle: Topic = Topic(
        "t", value_serializer=lambda value, _: b"%d" % value, value_deserializer=as_number
    )
    own = {"key.serializer": StringSerializer(), "value.serializer": StringSerializer()}
    readers = {"key.deserializer": StringDeserializer(), "value.deserializer": StringDeserializer()}

    async def main() -> None:
        async with module.AsyncSerializingProducer({**conf(memory_root), **own}) as producer:
            for topic, value in ((handle, 7), ("t", "8"), ("u", "text")):
                await (await producer.produce_future(topic, "k", value))
            with pytest.raises(ValueSerializationError):
                await producer.produce(handle, "k", "not a number")
        async with module.AsyncDeserializingConsumer(
            {**reading(memory_root), **readers}
        ) as consumer:
            await consumer.subscribe([handle, "u"])
            found: list[Any] = [await consumer.poll(10), *await consumer.consume(2, 10)]
            assert {(message.key(), message.value()) for message in found} == {
                ("k", "t: 7"),
                ("k", "t: 8"),
                ("k", "text"),
            }

    run(main)


def test_clients_without_serializers_refuse_a_handle_that_has_some(memory_root):
    handle: Topic = Topic(
        "t", value_serializer=lambda value, _: value, value_deserializer=lambda data, _: data
    )

    async def main() -> None:
        async with deltaq.aio.AIOProducer(conf(memory_root)) as producer:
            with pytest.raises(InvalidConfig, match="has serializers"):
                await producer.produce(handle, b"x")
        async with deltaq.aio.AIOConsumer(reading(memory_root)) as consumer:
            with pytest.raises(InvalidConfig, match="has deserializers"):
                await consumer.subscribe([handle])

    run(main)


def test_serializers_need_a_thread_for_a_schema_that_was_not_read_yet_and_else_none(
    memory_root, monkeypatch
):
    calls: list[Any] = []
    submit = ThreadExecutor.submit

    def counted(self: ThreadExecutor, call: Callable[[], Any]) -> Any:
        calls.append(call)
        return submit(self, call)

    monkeypatch.setattr(ThreadExecutor, "submit", counted)

    async def main() -> None:
        context = SerializationContext("t", MessageField.VALUE)
        async with AsyncSchemaRegistryClient({"url": memory_root}) as registry:
            serializer = await AsyncAvroSerializer(registry, AVRO)
            calls.clear()
            written = [await serializer({"id": number}, context) for number in range(5)]
            assert len(calls) == 1  # registers the schema
        async with AsyncSchemaRegistryClient({"url": memory_root}) as registry:
            deserializer = await AsyncAvroDeserializer(registry)
            calls.clear()
            assert [await deserializer(data, context) for data in written] == [
                {"id": number} for number in range(5)
            ]
            assert len(calls) == 1  # reads it

    run(main)


def test_a_message_that_cannot_be_read_is_an_error_with_it_and_the_next_call_goes_on(memory_root):
    with Producer(conf(memory_root)) as producer:
        for value in (b"7", b"x", b"8", b"y", b"9"):
            producer.produce("t", value)

    async def main() -> list[Any]:
        settings = {"value.deserializer": lambda data, _: int(data), "enable.partition.eof": True}
        async with AsyncDeserializingConsumer(reading(memory_root, **settings)) as consumer:
            await consumer.subscribe(["t"])
            first: Any = await consumer.poll(10)
            with pytest.raises(ValueDeserializationError) as unreadable:
                await consumer.poll(10)
            rest: list[Any] = await consumer.consume(3, 10)
            with pytest.raises(ConsumeError) as end:
                await consumer.poll(10)
            values = [
                message.error().name() if message.error() else message.value() for message in rest
            ]
            unread: Any = unreadable.value.kafka_message
            return [first.value(), unread.value(), *values, end.value.name]

    assert run(main) == [7, b"x", 8, "_VALUE_DESERIALIZATION", 9, "_PARTITION_EOF"]


def test_a_call_that_is_cancelled_while_it_deserializes_leaves_its_messages_to_the_next_one(
    memory_root,
):
    with Producer(conf(memory_root)) as producer:
        for number in range(4):
            producer.produce("t", b"%d" % number)

    async def main() -> list[Any]:
        started, gate = asyncio.Event(), asyncio.Event()

        async def slowly(data: bytes, _: Any) -> int:
            started.set()
            await gate.wait()
            return int(data)

        async with AsyncDeserializingConsumer(
            reading(memory_root), value_deserializer=slowly
        ) as consumer:
            await consumer.subscribe(["t"])
            for call in (lambda: consumer.poll(10), lambda: consumer.consume(2, 10)):
                task = asyncio.create_task(call())
                await started.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                started.clear()
            gate.set()
            found: list[Any] = [await consumer.poll(10)]
            found += await consumer.consume(1, 10)
            async for message in consumer:
                found.append(message)
                if len(found) == 4:
                    break
            return [message.value() for message in found]

    assert run(main) == [0, 1, 2, 3]


def test_a_message_that_a_cancelled_call_has_deserialized_is_not_deserialized_again(memory_root):
    with Producer(conf(memory_root)) as producer:
        for number in range(3):
            producer.produce("t", b"%d" % number)

    async def main() -> list[Any]:
        started, gate = asyncio.Event(), asyncio.Event()

        async def slow_from_the_second_on(data: bytes, _: Any) -> list[bytes]:
            if data != b"0":
                started.set()
                await gate.wait()
            return [data]

        async with AsyncDeserializingConsumer(
            reading(memory_root), value_deserializer=slow_from_the_second_on
        ) as consumer:
            await consumer.subscribe(["t"])
            task = asyncio.create_task(consumer.consume(3, 10))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.set()
            found: list[Any] = [await consumer.poll(10), *await consumer.consume(2, 10)]
            return [message.value() for message in found]

    assert run(main) == [[b"0"], [b"1"], [b"2"]]


def test_tasks_that_poll_at_once_while_one_deserializes_get_a_message_each(memory_root):
    with Producer(conf(memory_root)) as producer:
        for number in range(6):
            producer.produce("t", b"%d" % number)

    async def main() -> list[Any]:
        async def slowly(data: bytes, _: Any) -> list[bytes]:
            await asyncio.sleep(0)
            return [data]

        async with AsyncDeserializingConsumer(
            reading(memory_root), value_deserializer=slowly
        ) as consumer:
            await consumer.subscribe(["t"])
            polled = await asyncio.gather(*(consumer.poll(10) for _ in range(3)))
            consumed = await asyncio.gather(consumer.consume(2, 10), consumer.poll(10))
            messages: list[Any] = [*polled, *consumed[0], consumed[1]]
            return sorted(message.value() for message in messages)

    assert run(main) == [[b"%d" % number] for number in range(6)]


def test_the_client_of_the_registry_answers_as_the_blocking_one(memory_root):
    async def main() -> None:
        async with AsyncSchemaRegistryClient({"url": memory_root}) as client:
            assert await client.register_schema("s", Schema(AVRO, "AVRO")) == 1
            assert await client.get_versions("s") == [1]
            assert json.loads((await client.get_schema(1)).schema_str or "") == json.loads(AVRO)
            with pytest.raises(SchemaRegistryError) as caught:
                await client.get_latest_version("unknown")
            assert caught.value.error_code == 40401
            both = await asyncio.gather(
                *(client.register_schema(f"s{number % 3}", Schema(AVRO)) for number in range(9))
            )
            assert set(both) == {1}
        with pytest.raises(RuntimeError):
            await client.get_subjects()

    run(main)


def methods(of: type) -> dict[str, inspect.Signature]:
    found = inspect.getmembers(of, inspect.isfunction)
    return {
        name: inspect.signature(function) for name, function in found if not name.startswith("_")
    }


def test_the_client_of_the_registry_has_the_methods_of_the_blocking_one_and_of_confluents():
    ours, blocking = methods(AsyncSchemaRegistryClient), methods(SchemaRegistryClient)
    own = {"references_of", "remembered", "incompatibilities", "close"}
    assert ours.keys() - {"aclose"} == blocking.keys() - own
    for name in ours.keys() & blocking.keys() - {"new_client"}:
        assert list(ours[name].parameters) == list(blocking[name].parameters), name
    theirs = methods(confluent_kafka.schema_registry.AsyncSchemaRegistryClient)
    assert theirs.keys() - ours.keys() == set()


def test_the_compat_producer_returns_a_future(memory_root):
    async def main() -> None:
        settings = {"value.serializer": StringSerializer(), "message.max.bytes": 1000}
        producer = await compat_aio.AsyncSerializingProducer({**conf(memory_root), **settings})
        future = await producer.produce("t", value="v")
        assert (await future).offset() == 0
        with pytest.raises(MessageTooLarge):
            await (await producer.produce("t", value="v" * 2000))
        with pytest.raises(ValueSerializationError):
            await (await producer.produce("t", value=7))
        await producer.close()

    run(main)
