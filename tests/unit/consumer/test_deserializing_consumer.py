"""The serializing clients: what is produced as an object is consumed as one; no record is lost
beside a bad one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from deltaq import (
    Consumer,
    DeserializingConsumer,
    InvalidConfig,
    KafkaError,
    Producer,
    SerializingProducer,
    Topic,
)
from deltaq.serde import (
    ConsumeError,
    DoubleSerializer,
    IntegerDeserializer,
    IntegerSerializer,
    KeyDeserializationError,
    KeySerializationError,
    PlainJSONDeserializer,
    PlainJSONSerializer,
    SerializationContext,
    StringDeserializer,
    StringSerializer,
    ValueDeserializationError,
    ValueSerializationError,
)


def reading(root: str, **keywords: Any) -> DeserializingConsumer:
    return DeserializingConsumer(
        {
            "bootstrap.servers": root,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "maintenance.enable": False,
        },
        **keywords,
    )


def written(root: str, *values: bytes | None) -> None:
    with Producer(bootstrap_servers=root, maintenance_enable=False) as producer:
        for value in values:
            producer.produce("t", value, key=b"k")


def test_objects_are_written_and_read_back(memory_root):
    contexts: list[tuple[str, str, object]] = []

    def upper(value: str, ctx: SerializationContext) -> bytes:
        contexts.append((ctx.topic, str(ctx.field), ctx.headers))
        return value.upper().encode()

    conf = {
        "bootstrap.servers": memory_root,
        "key.serializer": IntegerSerializer(),
        "value.serializer": upper,
    }
    delivered = []
    with SerializingProducer(conf, maintenance_enable=False) as producer:
        producer.produce(
            "t",
            7,
            "x",
            on_delivery=lambda error, message: delivered.append((error, message.value())),
        )
        producer.produce("t", key=8, value="y", headers={"h": b"1"})
        assert (
            producer.produce_batch("t", [{"key": 9, "value": "z"}, {"key": "no", "value": "z"}])
            == 1
        )
    assert delivered == [(None, b"X")]
    assert contexts[:2] == [("t", "value", []), ("t", "value", [("h", b"1")])]
    with reading(
        memory_root, key_deserializer=IntegerDeserializer(), value_deserializer=StringDeserializer()
    ) as reader:
        reader.subscribe(["t"])
        found = [reader.poll(30) for _ in range(3)]
    assert [(m.key(), m.value(), m.offset()) for m in found if m] == [
        (7, "X", 0),
        (8, "Y", 1),
        (9, "Z", 2),
    ]


def test_a_record_that_does_not_conform_is_refused_before_it_is_written(memory_root):
    conf = {
        "bootstrap.servers": memory_root,
        "value.serializer": PlainJSONSerializer(),
        "maintenance.enable": False,
    }
    with SerializingProducer(conf, key_serializer=StringSerializer()) as producer:
        with pytest.raises(ValueSerializationError, match="not JSON serializable") as refused:
            producer.produce("t", "k", object())
        assert refused.value.code == KafkaError._VALUE_SERIALIZATION
        with pytest.raises(KeySerializationError, match="expected str, not int"):
            producer.produce("t", 5, {})
        assert len(producer) == 0
        producer.produce("t", "k", {"good": True})
        producer.flush(30)
        producer.close()
        with pytest.raises(RuntimeError, match="closed"):
            producer.produce("t", "k", object())
    with reading(memory_root, value_deserializer=PlainJSONDeserializer()) as reader:
        reader.subscribe(["t"])
        only = reader.poll(30)
        assert only is not None
        assert (only.offset(), only.value()) == (0, {"good": True})


def test_the_consumer_goes_on_after_a_record_that_cannot_be_decoded(memory_root):
    written(memory_root, b'"first"', b"{bad", None, b'"last"')
    with reading(memory_root, value_deserializer=PlainJSONDeserializer()) as reader:
        reader.subscribe(["t"])
        first = reader.poll(30)
        assert first is not None
        assert first.value() == "first"
        with pytest.raises(
            ValueDeserializationError, match=r"not JSON.*topic 't', partition 0, offset 1"
        ) as failed:
            reader.poll(30)
        bad = failed.value.kafka_message
        assert bad is not None
        assert (bad.topic(), bad.partition(), bad.offset(), bad.key(), bad.value()) == (
            "t",
            0,
            1,
            b"k",
            b"{bad",
        )
        assert failed.value.code == KafkaError._VALUE_DESERIALIZATION
        rest = [reader.poll(30) for _ in range(2)]
        assert [message.value() for message in rest if message] == [None, "last"]


def test_a_bad_record_costs_none_of_its_neighbours_in_a_list(memory_root):
    written(memory_root, b"1", b"{", b"3")
    with reading(memory_root, value_deserializer=PlainJSONDeserializer()) as reader:
        reader.subscribe(["t"])
        one, bad, three = reader.consume(3, 30)
    assert (one.value(), three.value()) == (1, 3)
    error = bad.error()
    assert error is not None
    assert error.code() == KafkaError._VALUE_DESERIALIZATION
    assert (bad.value(), bad.key(), bad.offset()) == (b"{", b"k", 1)


def test_a_bad_key_leaves_the_value_as_it_was_read(memory_root):
    written(memory_root, b"1")
    functions = {
        "key_deserializer": IntegerDeserializer(),
        "value_deserializer": PlainJSONDeserializer(),
    }
    with reading(memory_root, **functions) as reader:
        reader.subscribe(["t"])
        with pytest.raises(KeyDeserializationError, match="expected 4 bytes, not 1") as failed:
            reader.poll(30)
        assert failed.value.kafka_message is not None
        assert failed.value.kafka_message.value() == b"1"


def test_iteration_ends_at_a_bad_record_and_a_new_loop_goes_on(memory_root):
    written(memory_root, b"{", b"2", b"3")
    with reading(
        memory_root, value_deserializer=PlainJSONDeserializer(), enable_partition_eof=True
    ) as reader:
        reader.subscribe(["t"])
        with pytest.raises(ValueDeserializationError):
            next(iter(reader))
        found = []
        for message in reader:
            found.append(message.value())
            if len(found) == 2:
                reader.close()
        assert found == [2, 3]


def test_the_end_of_a_partition_is_raised_by_poll_as_in_confluent_kafka(memory_root):
    written(memory_root, b"1")
    with reading(memory_root, enable_partition_eof=True) as reader:
        reader.subscribe(["t"])
        assert reader.poll(30) is not None
        with pytest.raises(ConsumeError) as end:
            reader.poll(30)
        assert end.value.code == KafkaError._PARTITION_EOF


def test_a_topic_brings_its_own_serializers(memory_root):
    numbers = Topic(
        "numbers", value_serializer=IntegerSerializer(), value_deserializer=IntegerDeserializer()
    )
    conf = {"bootstrap.servers": memory_root, "maintenance.enable": False}
    with SerializingProducer(conf, value_serializer=StringSerializer()) as producer:
        producer.produce(numbers, value=5)
        producer.produce("texts", value="five")
    wanted: list[str | Topic] = [numbers, "texts"]
    with reading(memory_root, value_deserializer=StringDeserializer()) as reader:
        reader.subscribe(wanted)
        found = {m.topic(): m.value() for m in reader.consume(2, 30)}
    assert found == {"numbers": 5, "texts": "five"}
    assert numbers != Topic("numbers")
    assert numbers == Topic(
        "numbers",
        value_serializer=numbers.serializers.value,
        value_deserializer=numbers.deserializers.value,
    )


def test_a_client_without_serializers_refuses_a_topic_and_a_setting_that_need_them(memory_root):
    topic = Topic("t", value_serializer=StringSerializer(), value_deserializer=StringDeserializer())
    conf = {"bootstrap.servers": memory_root, "maintenance.enable": False}
    with Producer(conf) as producer, pytest.raises(InvalidConfig, match="SerializingProducer"):
        producer.produce(topic, b"x")
    with (
        Consumer(conf, group_id="g") as consumer,
        pytest.raises(InvalidConfig, match="DeserializingConsumer"),
    ):
        consumer.subscribe([topic])
    with pytest.raises(InvalidConfig, match=r'No such configuration property: "value\.serializer"'):
        Producer({**conf, "value.serializer": StringSerializer()})
    with pytest.raises(
        InvalidConfig, match=r"key\.serializer must be a callable such as StringSerializer\(\)"
    ):
        SerializingProducer(conf, key_serializer=StringSerializer)
    with pytest.raises(InvalidConfig, match="for topics of bytes"):
        Topic("t", pa.schema({"x": pa.int64()}), value_serializer=DoubleSerializer())


async def awaited(value: Any, _: SerializationContext) -> Any:
    return value


class AwaitedObject:
    async def __call__(self, value: Any, ctx: SerializationContext) -> Any:
        return value


@pytest.mark.parametrize("function", [awaited, AwaitedObject(), partial(awaited)])
@pytest.mark.parametrize("part", ["key", "value"])
def test_a_coroutine_function_is_refused_by_the_name_of_its_setting(memory_root, function, part):
    conf = {"bootstrap.servers": memory_root, "group.id": "g"}
    for client, setting in [
        (SerializingProducer, f"{part}.serializer"),
        (DeserializingConsumer, f"{part}.deserializer"),
    ]:
        with pytest.raises(InvalidConfig, match="is a coroutine function") as refused:
            client(conf | {setting: function})
        assert refused.value.key == setting
        assert str(refused.value).count(setting) == 1


@pytest.mark.filterwarnings("error")  # a coroutine that was never awaited
def test_a_coroutine_is_never_a_key_or_a_value(memory_root):
    def hidden(value: Any, ctx: SerializationContext) -> Any:
        return awaited(value, ctx)

    conf = {"bootstrap.servers": memory_root, "maintenance.enable": False}
    with SerializingProducer(conf) as producer:
        with pytest.raises(KeySerializationError, match="only the clients of deltaq"):
            producer.produce(Topic("t", key_serializer=hidden), b"k", b"v")
        with pytest.raises(ValueSerializationError, match="only the clients of deltaq"):
            producer.produce(Topic("t", value_serializer=awaited), b"k", b"v")
    written(memory_root, b"1", b"2")
    for handle, error in [
        (Topic("t", key_deserializer=awaited), KeyDeserializationError),
        (Topic("t", value_deserializer=hidden), ValueDeserializationError),
    ]:
        with reading(memory_root) as reader:
            reader.subscribe([handle])
            with pytest.raises(error, match="only the clients of deltaq"):
                reader.poll(30)
