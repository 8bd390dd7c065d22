"""Errors of `produce` in compatibility mode: which ones are raised, and which ones the delivery
callback gets.
"""

import inspect
import logging
from typing import Any

import pytest

import deltaq.aio
import deltaq.compat.cimpl
import deltaq.compat.confluent.aio
from deltaq import KafkaError, KafkaException, Topic
from deltaq.compat.confluent import (
    Consumer,
    DeserializingConsumer,
    Producer,
    SerializingProducer,
    TopicCollection,
    Uuid,
)
from deltaq.compat.confluent.admin import AdminClient, NewTopic
from deltaq.compat.confluent.serialization import StringDeserializer, StringSerializer


@pytest.fixture
def reports():
    return []


def produce(root, reports, *arguments, conf=None, **keywords):
    """Produce a message; what `produce` raises is raised after the flush."""
    with Producer({"bootstrap.servers": root, "linger.ms": 0, **(conf or {})}) as producer:
        try:
            keywords["on_delivery"] = lambda error, message: reports.append((error, message))
            producer.produce(*arguments, **keywords)
        finally:
            assert producer.flush(10) == 0


def codes(reports):
    return [None if error is None else error.code() for error, _ in reports]


def test_a_message_above_the_topics_limit_is_reported(memory_root, reports):
    Topic("t", conf={"bootstrap.servers": memory_root}, config={"max.message.bytes": 100}).create()
    produce(memory_root, reports, "t", b"x" * 101, key="k", headers={"a": "1"})
    assert codes(reports) == [KafkaError.MSG_SIZE_TOO_LARGE]
    message = reports[0][1]
    assert (message.topic(), message.key(), message.value(), message.offset()) == (
        "t",
        b"k",
        b"x" * 101,
        None,
    )
    assert message.error() == KafkaError.MSG_SIZE_TOO_LARGE
    assert message.headers() == [("a", b"1")]


def test_a_message_above_the_clients_limit_is_raised(memory_root, reports):
    with pytest.raises(KafkaException) as caught:
        produce(memory_root, reports, "t", b"x" * 2000, conf={"message.max.bytes": 1000})
    assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert reports == []


def test_a_message_without_a_key_in_a_compacted_topic_is_reported_and_the_others_are_written(
    memory_root, reports
):
    Topic(
        "t", conf={"bootstrap.servers": memory_root}, config={"cleanup.policy": "compact"}
    ).create()
    with Producer({"bootstrap.servers": memory_root}) as producer:
        for key in ("a", None, "b"):
            producer.produce(
                "t", b"v", key=key, callback=lambda error, message: reports.append((error, message))
            )
        producer.flush(10)
    assert sorted(codes(reports), key=str) == [KafkaError.INVALID_RECORD, None, None]
    with Consumer(
        {"bootstrap.servers": memory_root, "group.id": "g", "auto.offset.reset": "earliest"}
    ) as consumer:
        consumer.subscribe(["t"])
        assert [message.key() for message in consumer.consume(2, 10)] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("topic", "code"),
    [("bad/name", KafkaError.TOPIC_EXCEPTION), ("missing", KafkaError.UNKNOWN_TOPIC_OR_PART)],
)
def test_a_topic_that_cannot_exist_or_must_not_be_created_is_reported(
    memory_root, reports, topic, code
):
    produce(memory_root, reports, topic, b"v", conf={"allow.auto.create.topics": False})
    assert codes(reports) == [code]


@pytest.mark.parametrize("exists", [True, False])
def test_a_partition_that_the_topic_does_not_have_is_raised_once_the_topic_is_known(
    memory_root, reports, exists
):
    if exists:
        Topic("t", conf={"bootstrap.servers": memory_root}).create()
    with Producer({"bootstrap.servers": memory_root, "linger.ms": 0}) as producer:
        for _ in range(2):
            if reports:
                with pytest.raises(KafkaException) as caught:
                    producer.produce(
                        "t", b"v", partition=7, on_delivery=lambda *report: reports.append(report)
                    )
                assert caught.value.args[0].code() == KafkaError._UNKNOWN_PARTITION
            else:
                producer.produce(
                    "t", b"v", partition=7, on_delivery=lambda *report: reports.append(report)
                )
            assert producer.flush(10) == 0
    assert codes(reports) == [KafkaError._UNKNOWN_PARTITION]


def test_a_full_queue_is_a_buffer_error_and_no_kafka_exception(memory_root):
    Topic("t", conf={"bootstrap.servers": memory_root}).create()
    conf = {
        "bootstrap.servers": memory_root,
        "queue.buffering.max.messages": 1,
        "linger.ms": 60_000,
    }
    with Producer(conf) as producer:
        producer.produce("t", b"v", on_delivery=lambda *_: None)
        with pytest.raises(BufferError) as caught:
            producer.produce("t", b"v")
        assert not isinstance(caught.value, KafkaException)
        assert str(caught.value) == "Local: Queue full"


def test_the_callback_of_the_configuration_gets_the_refusal(memory_root, reports):
    conf = {
        "bootstrap.servers": memory_root,
        "on_delivery": lambda error, message: reports.append((error, message)),
    }
    with Producer(conf) as producer:
        producer.produce("bad/name", "v")
        assert len(producer) == 1
        assert producer.poll(0) == 1
    assert codes(reports) == [KafkaError.TOPIC_EXCEPTION]


def test_a_refused_message_without_a_callback_is_logged(memory_root, caplog):
    with (
        caplog.at_level(logging.WARNING, "deltaq.producer"),
        Producer({"bootstrap.servers": memory_root}) as producer,
    ):
        producer.produce("bad/name", "v")
    assert "1 messages without a delivery callback" in caplog.text


class Reports(list[Any]):
    """A callback that is false while it has not been called."""

    def __call__(self, error, message):
        self.append((error, message))


@pytest.mark.parametrize("argument", ["callback", "on_delivery"])
@pytest.mark.parametrize("topic", ["t", "bad/name"])
def test_a_callback_that_is_false_is_called(memory_root, argument, topic):
    reports = Reports()
    with Producer({"bootstrap.servers": memory_root}) as producer:
        arguments: dict[str, Any] = {argument: reports}
        producer.produce(topic, "v", **arguments)
    assert len(reports) == 1


def test_topics_are_described_with_a_uuid(memory_root):
    admin = AdminClient({"bootstrap.servers": memory_root})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(10)
    native = Topic("t", conf={"bootstrap.servers": memory_root}).describe().topic_id
    topic_id = admin.describe_topics(TopicCollection(["t"]))["t"].result(10).topic_id
    assert isinstance(topic_id, Uuid)
    assert topic_id == Uuid.from_hex(native)


def test_errors_of_a_broker_are_reported_also_after_a_serializer(memory_root, reports):
    Topic("t", conf={"bootstrap.servers": memory_root}, config={"max.message.bytes": 100}).create()
    conf = {"bootstrap.servers": memory_root, "value.serializer": StringSerializer()}
    with SerializingProducer(conf) as producer:
        for value in ("x" * 101, "small"):
            producer.produce(
                "t",
                "key",
                value,
                on_delivery=lambda error, message: reports.append((error, message)),
            )
    assert sorted(codes(reports), key=str) == [KafkaError.MSG_SIZE_TOO_LARGE, None]
    reading = {"bootstrap.servers": memory_root, "group.id": "g", "auto.offset.reset": "earliest"}
    with DeserializingConsumer(reading, value_deserializer=StringDeserializer()) as consumer:
        consumer.subscribe(["t"])
        message = consumer.poll(10)
    assert message is not None
    assert (message.key(), message.value()) == (b"key", "small")


@pytest.mark.parametrize(
    ("topic", "value", "code"),
    [
        ("small", b"x" * 3000, KafkaError.MSG_SIZE_TOO_LARGE),
        ("not a topic", b"x", KafkaError.TOPIC_EXCEPTION),
    ],
)
def test_a_transaction_with_a_refused_message_is_not_committed(
    memory_root, reports, topic, value, code
):
    conf = {"bootstrap.servers": memory_root, "transactional.id": "t"}
    Topic("small", conf=conf, config={"max.message.bytes": "2000"}).create()
    with Producer(conf) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("small", b"written")
        producer.produce(topic, value, on_delivery=lambda *report: reports.append(report))
        for _ in range(2):
            with pytest.raises(KafkaException) as refused:
                producer.commit_transaction()
            assert refused.value.args[0].code() == code
            assert refused.value.args[0].txn_requires_abort()
        producer.abort_transaction()
        assert codes(reports) == [code]
        producer.begin_transaction()
        producer.produce("small", b"next")
        producer.commit_transaction()
    assert Topic("small", conf={"bootstrap.servers": memory_root}).to_arrow().num_rows == 1


_CALLS = {
    "init_transactions": ("timeout",),
    "begin_transaction": (),
    "send_offsets_to_transaction": ("positions", "group_metadata", "timeout"),
    "commit_transaction": ("timeout",),
    "abort_transaction": ("timeout",),
}


@pytest.mark.parametrize(
    "client",
    [
        deltaq.Producer,
        deltaq.SerializingProducer,
        Producer,
        SerializingProducer,
        deltaq.aio.AIOProducer,
        deltaq.aio.AsyncSerializingProducer,
        deltaq.compat.confluent.aio.AIOProducer,
        deltaq.compat.confluent.aio.AsyncSerializingProducer,
    ],
    ids=lambda client: f"{client.__module__}.{client.__name__}",
)
def test_all_producers_have_the_calls_of_transactions_whose_arguments_have_no_names(client):
    assert deltaq.compat.cimpl.Producer is Producer
    for name, expected in _CALLS.items():
        call = getattr(client, name)
        parameters = [*inspect.signature(call).parameters.values()][1:]
        assert tuple(parameter.name for parameter in parameters) == expected
        for parameter in parameters:
            assert parameter.kind is inspect.Parameter.POSITIONAL_ONLY
            assert (parameter.default == -1) == (parameter.name == "timeout")
        assert inspect.iscoroutinefunction(call) == inspect.iscoroutinefunction(client.produce)
