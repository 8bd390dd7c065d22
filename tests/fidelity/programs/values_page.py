"""What the documentation of the client says of its values: messages, errors, places, constants,
serializers.
"""

from __future__ import annotations

import importlib
from typing import Any

from tests.fidelity.session import READ_S, T0, ProgramRun, attempt


def topic_partition_compares_topic_and_partition(session: ProgramRun) -> Any:
    place = session.kafka.TopicPartition
    return {
        "equal": place("t", 1) == place("t", 1, 5),
        "other_partition": place("t", 1) == place("t", 2),
        "less": (
            place("a", 5) < place("b", 1),
            place("t", 1) < place("t", 2),
            place("t", 1) < place("t", 1, 7),
        ),
        "sorted": [
            (each.topic, each.partition)
            for each in sorted([place("b", 0), place("a", 3), place("a", 1)])
        ],
        "hash": hash(place("t", 1)) == hash(place("t", 1, 5)),
        "other_type": attempt(lambda: place("t", 1) == ("t", 1)),
    }


def topic_partition_has_defaults(session: ProgramRun) -> Any:
    place = session.kafka.TopicPartition("t")
    return [
        place.topic,
        place.partition,
        place.offset,
        place.metadata,
        place.error,
        place.leader_epoch,
    ]


def topic_partition_arguments(session: ProgramRun) -> Any:
    place = session.kafka.TopicPartition
    everything = place("t", 1, 5, metadata="m", leader_epoch=3)
    return {
        "everything": [everything.offset, everything.metadata, everything.leader_epoch],
        "nothing": attempt(place),
        "topic_none": attempt(place, None),
        "partition_text": attempt(place, "t", "1"),
        "offset_text": attempt(place, "t", 1, "5"),
        "logical": place("t", 0, session.kafka.OFFSET_BEGINNING).offset,
        "assigned": _changed(place("t", 1)),
    }


def _changed(place: Any) -> Any:
    place.offset = 7
    return [place.offset, attempt(setattr, place, "topic", "u")]


def constants_have_the_documented_numbers(session: ProgramRun) -> Any:
    names = (
        *("OFFSET_BEGINNING", "OFFSET_END", "OFFSET_STORED", "OFFSET_INVALID"),
        *("TIMESTAMP_NOT_AVAILABLE", "TIMESTAMP_CREATE_TIME", "TIMESTAMP_LOG_APPEND_TIME"),
    )
    return {name: getattr(session.kafka, name) for name in names}


def versions_are_text_and_number(session: ProgramRun) -> Any:
    library = session.kafka
    return [
        [type(part).__name__ for part in _pair(found)]
        for found in (library.version(), library.libversion())
    ]


def _pair(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def errors_are_made_of_codes(session: ProgramRun) -> Any:
    error = session.kafka.KafkaError
    made = error(error._TIMED_OUT, "late", True, True, True)
    plain = error(error.UNKNOWN_TOPIC_OR_PART)
    return {
        "made": [
            made.code(),
            made.name(),
            made.str(),
            made.fatal(),
            made.retriable(),
            made.txn_requires_abort(),
        ],
        "plain": [plain.code(), plain.name(), plain.fatal(), plain.retriable()],
        "unknown": attempt(lambda: [error(123_456).code()]),
        "nothing": attempt(error),
        "text": attempt(error, "late"),
    }


def errors_compare_with_codes(session: ProgramRun) -> Any:
    error = session.kafka.KafkaError
    return {
        "equal": error(3) == error(3, "another reason"),
        "number": error(3) == 3,
        "other": error(3) == error(4),
        "less": error(3) < error(4),
        "hash": hash(error(3)) == hash(error(3, "another reason")),
        "in_set": error(3) in {error(3)},
    }


def errors_have_the_codes_of_the_protocol(session: ProgramRun) -> Any:
    error = session.kafka.KafkaError
    names = (
        *(
            "_ALL_BROKERS_DOWN",
            "_TRANSPORT",
            "_TIMED_OUT",
            "_QUEUE_FULL",
            "_MSG_TIMED_OUT",
            "_PARTITION_EOF",
        ),
        *(
            "_UNKNOWN_PARTITION",
            "_UNKNOWN_TOPIC",
            "_STATE",
            "_INVALID_ARG",
            "_NO_OFFSET",
            "_FENCED",
            "_FATAL",
        ),
        *(
            "_MAX_POLL_EXCEEDED",
            "_ASSIGNMENT_LOST",
            "_PURGE_QUEUE",
            "_PURGE_INFLIGHT",
            "_VALUE_DESERIALIZATION",
        ),
        *(
            "NO_ERROR",
            "OFFSET_OUT_OF_RANGE",
            "UNKNOWN_TOPIC_OR_PART",
            "MSG_SIZE_TOO_LARGE",
            "REBALANCE_IN_PROGRESS",
        ),
        *(
            "ILLEGAL_GENERATION",
            "UNKNOWN_MEMBER_ID",
            "TOPIC_EXCEPTION",
            "TOPIC_ALREADY_EXISTS",
            "INVALID_CONFIG",
        ),
        *(
            "INVALID_PARTITIONS",
            "FENCED_INSTANCE_ID",
            "GROUP_ID_NOT_FOUND",
            "NON_EMPTY_GROUP",
            "INVALID_RECORD",
        ),
    )
    return {name: getattr(error, name) for name in names}


def exceptions_carry_their_error(session: ProgramRun) -> Any:
    exception = session.kafka.KafkaException(session.kafka.KafkaError(3, "why"))
    return {
        "error": exception.args[0],
        "is_exception": isinstance(exception, Exception),
        "kind": [kind.__name__ for kind in type(exception).__mro__][-3:],
        "nothing": list(session.kafka.KafkaException().args),
    }


def messages_can_be_made(session: ProgramRun) -> Any:
    message = attempt(session.kafka.Message, topic="t", partition=1, offset=5, key=b"k", value=b"v")
    if isinstance(message, Exception):
        return message
    return [
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.error(),
    ]


def messages_can_be_changed(session: ProgramRun) -> Any:
    message = _message(session, b"v", b"k", [("h", b"1")])
    before = [message.key(), message.value(), message.headers(), len(message)]
    message.set_key(5)
    message.set_value({"a": 1})
    message.set_headers([("other", b"2")])
    return {"before": before, "after": [message.key(), message.value(), message.headers()]}


def _message(session: ProgramRun, value: Any, key: Any = None, headers: Any = None) -> Any:
    topic, producer, consumer = session.topic(), session.producer(), session.consumer()
    producer.produce(topic, value, key, headers=headers, timestamp=T0)
    producer.flush(READ_S)
    consumer.assign([session.place(topic, 0, 0)])
    (message,) = session.read(consumer, 1)
    return message


def messages_say_when_and_where(session: ProgramRun) -> Any:
    message = _message(session, b"v")
    return {
        "place": [message.topic(), message.partition(), message.offset()],
        "time": [
            message.timestamp()[0] == session.kafka.TIMESTAMP_CREATE_TIME,
            message.timestamp()[1] == T0,
        ],
        "headers": message.headers(),
        "latency": message.latency(),
        "error": message.error(),
        "epoch": type(message.leader_epoch()).__name__,
    }


def messages_without_a_value(session: ProgramRun) -> Any:
    message = _message(session, None, b"k")
    return [message.value(), message.key(), len(message)]


def strings_are_serialized(session: ProgramRun) -> Any:
    serialization = _serialization(session)
    field = serialization.SerializationContext("t", serialization.MessageField.VALUE)
    write, read = serialization.StringSerializer("utf_8"), serialization.StringDeserializer("utf_8")
    return {
        "text": write("ü", field),
        "none": [write(None, field), read(None, field)],
        "back": read(b"\xc3\xbc", field),
        "not_text": _kind(read, b"\xff", field),
        "int": _kind(write, 5, field),
        "latin": serialization.StringSerializer("latin_1")("ü", field),
        "cannot": _kind(serialization.StringSerializer("ascii"), "ü", field),
    }


def _kind(call: Any, *arguments: Any) -> str:
    """The type of what a call returns or raises: errors of serializers are no KafkaException in
    Kafka's client.
    """
    return type(attempt(call, *arguments)).__name__


def _serialization(session: ProgramRun) -> Any:
    return importlib.import_module(f"{session.kafka.__name__}.serialization")


def numbers_are_serialized(session: ProgramRun) -> Any:
    names = _serialization(session)
    whole, broken = names.IntegerSerializer(), names.DoubleSerializer()
    return {
        "whole": [whole(5), whole(-1), whole(None)],
        "too_large": _kind(whole, 2**31),
        "text": _kind(whole, "5"),
        "broken": [broken(1.5), broken(None)],
        "broken_text": _kind(broken, "x"),
        "back": [
            names.IntegerDeserializer()(b"\0\0\0\5"),
            names.DoubleDeserializer()(b"\x3f\xf8" + b"\0" * 6),
        ],
        "short": _kind(names.IntegerDeserializer(), b"\0"),
        "none": [names.IntegerDeserializer()(None), names.DoubleDeserializer()(None)],
    }


def serializing_clients_name_the_part_that_fails(session: ProgramRun) -> Any:
    names, topic = _serialization(session), session.topic()
    address = {"bootstrap.servers": session.target.address}
    whole = names.IntegerSerializer()
    producer = session.kafka.SerializingProducer(
        address | {"key.serializer": whole, "value.serializer": whole}
    )
    found = {
        "value": type(attempt(producer.produce, topic, key=1, value="x")).__name__,
        "key": type(attempt(producer.produce, topic, key="x", value=1)).__name__,
        "good": attempt(producer.produce, topic, key=1, value=2),
        "flush": producer.flush(READ_S),
    }
    group = {"group.id": session.name("g"), "auto.offset.reset": "earliest"}
    reading = session.kafka.DeserializingConsumer(
        address | group | {"value.deserializer": names.DoubleDeserializer()}
    )
    reading.assign([session.place(topic, 0, 0)])
    found["read"] = type(attempt(reading.poll, READ_S)).__name__
    reading.close()
    return found


def serializing_consumers_do_not_consume(session: ProgramRun) -> Any:
    address = {"bootstrap.servers": session.target.address, "group.id": session.name("g")}
    reading = session.kafka.DeserializingConsumer(address)
    found = attempt(reading.consume, 1, 0.1)
    reading.close()
    return type(found).__name__


def new_topics_are_values(session: ProgramRun) -> Any:
    new_topic = session.admin_names.NewTopic
    topic = new_topic("t", 3, 1, config={"retention.ms": "1"})
    return {
        "fields": [
            topic.topic,
            topic.num_partitions,
            topic.replication_factor,
            topic.config,
            topic.replica_assignment,
        ],
        "defaults": [new_topic("t").num_partitions, new_topic("t").replication_factor],
        "equal": [
            new_topic("t", 3, 1) == new_topic("t", 3, 1),
            new_topic("t", 3, 1) == new_topic("t", 2, 1),
        ],
        "nothing": attempt(new_topic),
        "partitions_text": attempt(new_topic, "t", "3"),
    }


def new_partitions_are_values(session: ProgramRun) -> Any:
    new_partitions = session.admin_names.NewPartitions
    more = new_partitions("t", 5)
    return {
        "fields": [more.topic, more.new_total_count, more.replica_assignment],
        "equal": new_partitions("t", 5) == new_partitions("t", 5),
        "nothing": attempt(new_partitions, "t"),
        "text": attempt(new_partitions, "t", "5"),
    }


def config_resources_are_values(session: ProgramRun) -> Any:
    names = session.admin_names
    resource = names.ConfigResource
    topic = resource(names.ResourceType.TOPIC, "t")
    return {
        "fields": [topic.restype, topic.name, topic.set_config_dict],
        "by_name": resource("topic", "t") == topic,
        "equal": resource(resource.Type.TOPIC, "t") == topic,
        "hash": hash(resource(resource.Type.TOPIC, "t")) == hash(topic),
        "no_name": type(attempt(resource, names.ResourceType.TOPIC, "")).__name__,
        "name_none": type(attempt(resource, names.ResourceType.TOPIC, None)).__name__,
        "unknown": attempt(resource, "planet", "t"),
        "number": attempt(lambda: resource(2, "t").restype),
    }


def offset_specs_are_values(session: ProgramRun) -> Any:
    spec = session.admin_names.OffsetSpec
    return {
        "same": spec.latest() == spec.latest(),
        "other": spec.latest() == spec.earliest(),
        "time": spec.for_timestamp(5) == spec.for_timestamp(5),
        "text": type(attempt(spec.for_timestamp, "now")).__name__,
    }


def requests_for_groups_are_values(session: ProgramRun) -> Any:
    request, place = session.kafka.ConsumerGroupTopicPartitions, session.kafka.TopicPartition
    return {
        "equal": request("g", [place("t", 0)]) == request("g", [place("t", 0)]),
        "fields": [request("g").group_id, request("g").topic_partitions],
        "group_none": attempt(lambda: request(None).group_id),
    }


PROGRAMS = (
    topic_partition_compares_topic_and_partition,
    topic_partition_has_defaults,
    topic_partition_arguments,
    constants_have_the_documented_numbers,
    versions_are_text_and_number,
    errors_are_made_of_codes,
    errors_compare_with_codes,
    errors_have_the_codes_of_the_protocol,
    exceptions_carry_their_error,
    messages_can_be_made,
    messages_can_be_changed,
    messages_say_when_and_where,
    messages_without_a_value,
    strings_are_serialized,
    numbers_are_serialized,
    serializing_clients_name_the_part_that_fails,
    serializing_consumers_do_not_consume,
    new_topics_are_values,
    new_partitions_are_values,
    config_resources_are_values,
    offset_specs_are_values,
    requests_for_groups_are_values,
)
