"""What the documentation of the client says of `Producer`, statement by statement."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.fidelity.programs.producing import Reports
from tests.fidelity.session import READ_S, T0, ProgramRun, attempt


def producer_is_true_and_counts_its_queue(session: ProgramRun) -> Any:
    topic, producer = session.topic(), session.producer(linger_ms=60_000)
    found = {"empty": (bool(producer), len(producer))}
    for _ in range(3):
        producer.produce(topic, b"x")
    found["three"] = (bool(producer), len(producer))
    return found | {"left": producer.flush(READ_S), "after": len(producer)}


def producer_flush_arguments(session: ProgramRun) -> Any:
    producer = session.producer_cut_off("t")
    found = {
        "nothing": producer.flush(),
        "zero": producer.flush(0),
        "keyword": producer.flush(timeout=0.1),
    }
    producer.produce("t", b"x")
    found |= {"one_left": producer.flush(0.1), "zero_left": producer.flush(0)}
    return found | {"text": attempt(producer.flush, "1"), "two": attempt(producer.flush, 1, 2)}


def producer_poll_arguments(session: ProgramRun) -> Any:
    producer = session.producer()
    return {
        "zero": producer.poll(0),
        "keyword": producer.poll(timeout=0.01),
        "text": attempt(producer.poll, "1"),
        "two": attempt(producer.poll, 1, 2),
    }


def producer_poll_serves_callbacks(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(), session.producer(linger_ms=300), Reports()
    for number in range(4):
        producer.produce(topic, str(number), on_delivery=reports)
    served = 0
    while len(reports) < 4:
        served += producer.poll(READ_S)
    return {
        "served": served,
        "order": [message.value() for _, message in reports],
        "more": producer.poll(0),
    }


def producer_poll_ends_with_deliveries_without_callbacks(session: ProgramRun) -> Any:
    topic, producer = session.topic(), session.producer()
    producer.produce(topic, b"warm")
    producer.flush(READ_S)
    for _ in range(3):
        producer.produce(topic, b"x")
    began = time.monotonic()
    while len(producer) and time.monotonic() - began < READ_S:
        producer.poll(READ_S)
    return {"left": len(producer), "early": time.monotonic() - began < READ_S / 2}


def producer_waits_for_room_as_the_documentation_shows(session: ProgramRun) -> Any:
    topic, producer = session.topic(), session.producer(queue_buffering_max_messages=10)
    began, full = time.monotonic(), 0
    for number in range(200):
        while True:
            try:
                producer.produce(topic, str(number))
                break
            except BufferError:
                full += 1
                producer.poll(READ_S)
    left = producer.flush(READ_S)
    places = session.consumer().get_watermark_offsets(session.place(topic), timeout=READ_S)
    return {
        "left": left,
        "places": places,
        "was_full": full > 0,
        "early": time.monotonic() - began < READ_S / 2,
    }


def producer_positional_arguments(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(partitions=2), session.producer(), Reports()
    producer.produce(topic, "v", "k", 1, reports, reports, T0, [("h", b"1")])
    producer.flush(READ_S)
    return [
        (error, message.key(), message.value(), message.partition(), message.timestamp()[1] == T0)
        for error, message in reports
    ]


def producer_callback_is_an_alias_of_on_delivery(session: ProgramRun) -> Any:
    topic, producer, one, two = session.topic(), session.producer(), Reports(), Reports()
    producer.produce(topic, b"a", callback=one)
    producer.produce(topic, b"b", on_delivery=two)
    producer.produce(topic, b"c", callback=one, on_delivery=two)
    producer.flush(READ_S)
    return {
        name: [message.value() for _, message in reports]
        for name, reports in (("one", one), ("two", two))
    }


def producer_on_delivery_of_the_configuration(session: ProgramRun) -> Any:
    usual, own = Reports(), Reports()
    topic = session.topic()
    found: dict[str, Any] = {"none": type(attempt(session.producer, on_delivery=None)).__name__}
    configured = session.producer(on_delivery=usual)
    configured.produce(topic, b"usual")
    configured.produce(topic, b"own", on_delivery=own)
    configured.flush(READ_S)
    found["usual"] = [message.value() for _, message in usual]
    return found | {"own": [message.value() for _, message in own]}


def producer_callbacks_that_raise(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(), session.producer(), Reports()

    def fail(error: Any, message: Any) -> None:
        raise LookupError("from the callback")

    producer.produce(topic, b"x", on_delivery=fail)
    found = {"flush": attempt(producer.flush, READ_S)}
    producer.produce(topic, b"y", on_delivery=reports)
    return found | {"flush_again": producer.flush(READ_S), "reports": reports.offsets}


def producer_callbacks_may_produce(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(), session.producer(), Reports()

    def again(error: Any, message: Any) -> None:
        producer.produce(topic, b"second", on_delivery=reports)

    producer.produce(topic, b"first", on_delivery=again)
    while not reports:
        producer.poll(READ_S)
    return reports.offsets


def producer_callbacks_are_callable(session: ProgramRun) -> Any:
    address = {"bootstrap.servers": session.target.address}
    return {
        name: attempt(session.kafka.Producer, address | {name: "no"})
        for name in ("error_cb", "stats_cb", "throttle_cb", "on_delivery")
    }


def producer_values_of_other_types(session: ProgramRun) -> Any:
    topic, producer, consumer = session.topic(), session.producer(), session.consumer()
    given: dict[str, Any] = {
        "bytes": b"\xff\x00",
        "text": "ü",
        "bytearray": bytearray(b"ab"),
        "memoryview": memoryview(b"cd"),
        "none": None,
        "int": 5,
        "float": 1.5,
        "list": [1],
        "dict": {},
        "bool": True,
    }
    found = {name: attempt(producer.produce, topic, value) for name, value in given.items()}
    producer.flush(READ_S)
    consumer.assign([session.place(topic, 0, 0)])
    written = [message.value() for message in session.read_all(consumer)]
    return {"answers": found, "written": written}


def producer_keys_of_other_types(session: ProgramRun) -> Any:
    topic, producer = session.topic(), session.producer()
    given: dict[str, Any] = {
        "bytearray": bytearray(b"ab"),
        "float": 1.5,
        "tuple": (1,),
        "bool": False,
    }
    found = {name: attempt(producer.produce, topic, b"x", value) for name, value in given.items()}
    producer.flush(READ_S)
    return found


def producer_topics_of_other_types(session: ProgramRun) -> Any:
    producer = session.producer()
    given: dict[str, Any] = {"bytes": b"t", "int": 5, "none": None, "list": ["t"]}
    found = {name: attempt(producer.produce, topic, b"x") for name, topic in given.items()}
    producer.purge()
    producer.flush(READ_S)
    return {
        name: type(answer).__name__ if isinstance(answer, Exception) else answer
        for name, answer in found.items()
    }


def producer_partitions_and_timestamps_of_other_types(session: ProgramRun) -> Any:
    topic, producer = session.topic(), session.producer()
    found = {
        "partition_text": attempt(producer.produce, topic, b"x", partition="0"),
        "partition_none": attempt(producer.produce, topic, b"x", partition=None),
        "partition_large": attempt(producer.produce, topic, b"x", partition=2**31),
        "timestamp_text": attempt(producer.produce, topic, b"x", timestamp="now"),
        "timestamp_float": attempt(producer.produce, topic, b"x", timestamp=1.5),
        "unknown_argument": attempt(producer.produce, topic, b"x", offset=1),
    }
    producer.flush(READ_S)
    return found


def producer_partitions_that_do_not_exist(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(partitions=2), session.producer(), Reports()
    producer.produce(topic, b"known", partition=1, on_delivery=reports)
    producer.flush(READ_S)
    found = {"above": attempt(producer.produce, topic, b"x", partition=2, on_delivery=reports)}
    producer.flush(READ_S)
    return found | {"reports": reports.errors}


def producer_first_message_to_an_unknown_partition(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(), session.producer(), Reports()
    found = {"call": attempt(producer.produce, topic, b"x", partition=7, on_delivery=reports)}
    producer.flush(READ_S)
    return found | {"reports": reports.errors}


def producer_batches(session: ProgramRun) -> Any:
    topic, producer, usual, own = session.topic(), session.producer(), Reports(), Reports()
    messages: list[dict[str, Any]] = [
        {"value": b"a", "key": b"k"},
        {"value": "text", "key": "key"},
        {"value": None},
        {"value": b"own", "callback": own},
        {},
    ]
    found: dict[str, Any] = {"count": producer.produce_batch(topic, messages, on_delivery=usual)}
    producer.flush(READ_S)
    found["errors"] = ["_error" in message for message in messages]
    for name, reports in (("usual", usual), ("own", own)):
        found[name] = sorted(
            (message.partition(), message.offset(), message.value() or b"")
            for _, message in reports
        )
    return found


def producer_batches_with_their_own_partition(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(partitions=3), session.producer(), Reports()
    messages: list[dict[str, Any]] = [{"value": b"a"}, {"value": b"b", "partition": 2}]
    count = producer.produce_batch(topic, messages, partition=1, on_delivery=reports)
    producer.flush(READ_S)
    return {
        "count": count,
        "written": sorted((message.value(), message.partition()) for _, message in reports),
    }


def producer_batches_with_headers_and_timestamps(session: ProgramRun) -> Any:
    topic, producer, consumer = session.topic(), session.producer(), session.consumer()
    found: dict[str, Any] = {
        "headers": attempt(
            producer.produce_batch, topic, [{"value": b"a", "headers": [("h", b"1")]}]
        ),
        "timestamp": attempt(producer.produce_batch, topic, [{"value": b"b", "timestamp": T0}]),
    }
    producer.flush(READ_S)
    consumer.assign([session.place(topic, 0, 0)])
    return found | {
        "written": [(message.value(), message.headers()) for message in session.read_all(consumer)]
    }


def producer_batches_that_are_queued_again(session: ProgramRun) -> Any:
    topic, producer = session.topic(), session.producer(message_max_bytes=2000)
    messages: list[dict[str, Any]] = [{"value": b"x" * 3000}]
    producer.produce_batch(topic, messages)
    messages[0]["value"] = b"short"
    found = {"count": producer.produce_batch(topic, messages), "error": messages[0].get("_error")}
    producer.flush(READ_S)
    return found


def producer_batches_with_text_that_is_no_utf_8(session: ProgramRun) -> Any:
    topic, producer = session.topic(), session.producer()
    messages: list[dict[str, Any]] = [{"value": b"a"}, {"value": "\ud800"}, {"value": b"c"}]
    answer = attempt(producer.produce_batch, topic, messages)
    producer.flush(READ_S)
    return {"answer": answer, "errors": [message.get("_error") for message in messages]}


def producer_of_a_misspelt_server(session: ProgramRun) -> Any:
    client = attempt(
        session.kafka.Producer, {"bootstrap.servers": "bad_address:9092", "log_level": 0}
    )
    if isinstance(client, Exception):
        return client
    client.close()
    return "made"


def producer_batches_of_other_types(session: ProgramRun) -> Any:
    topic, producer = session.topic(), session.producer()
    given: dict[str, Any] = {
        "tuple": ({"value": b"x"},),
        "empty": [],
        "none": None,
        "texts": ["x"],
        "value_int": [{"value": 5}],
        "key_int": [{"value": b"x", "key": 5}],
        "partition_text": [{"value": b"x", "partition": "0"}],
        "timestamp_text": [{"value": b"x", "timestamp": "0"}],
        "headers_text": [{"value": b"x", "headers": "abc"}],
        "unknown_field": [{"value": b"x", "offset": 5}],
    }
    found = {
        name: attempt(producer.produce_batch, topic, messages) for name, messages in given.items()
    }
    producer.flush(READ_S)
    return found


def producer_batches_with_wrong_messages_among_others(session: ProgramRun) -> Any:
    topic, producer, consumer = session.topic(), session.producer(), session.consumer()
    messages: list[dict[str, Any]] = [{"value": b"a"}, {"value": 5}, {"value": b"c"}]
    found: dict[str, Any] = {"answer": attempt(producer.produce_batch, topic, messages)}
    producer.flush(READ_S)
    consumer.assign([session.place(topic, 0, 0)])
    found["written"] = [message.value() for message in session.read_all(consumer)]
    return found | {"errors": [message.get("_error") for message in messages]}


def producer_batches_into_a_full_queue(session: ProgramRun) -> Any:
    producer = session.producer_cut_off("t", queue_buffering_max_messages=3, linger_ms=60_000)
    messages: list[dict[str, Any]] = [{"value": str(number)} for number in range(5)]
    found: dict[str, Any] = {"answer": attempt(producer.produce_batch, "t", messages)}
    found["errors"] = [message.get("_error") for message in messages]
    producer.purge()
    producer.flush(READ_S)
    return found


def producer_batches_with_messages_that_are_too_large(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(), session.producer(message_max_bytes=2000), Reports()
    messages: list[dict[str, Any]] = [{"value": b"a"}, {"value": b"x" * 3000}, {"value": b"c"}]
    found: dict[str, Any] = {
        "count": attempt(producer.produce_batch, topic, messages, on_delivery=reports)
    }
    producer.flush(READ_S)
    errors = [message.get("_error") for message in messages]
    return found | {"errors": errors, "written": [message.value() for _, message in reports]}


def producer_purges_nothing(session: ProgramRun) -> Any:
    producer = session.producer()
    return {
        "usual": producer.purge(),
        "named": producer.purge(in_queue=False, in_flight=False, blocking=False),
        "text": attempt(producer.purge, in_queue="yes"),
    }


def producer_purges_its_queue(session: ProgramRun) -> Any:
    producer, reports = session.producer_cut_off("t", linger_ms=60_000), Reports()
    producer.produce("t", b"x", on_delivery=reports)
    found: dict[str, Any] = {"in_flight_only": (producer.purge(in_queue=False), len(producer) > 0)}
    producer.purge()
    return found | {
        "flush": producer.flush(READ_S),
        "reports": [error.name() for error in reports.errors],
    }


def producer_in_a_with_block(session: ProgramRun) -> Any:
    topic, reports = session.topic(), Reports()
    with session.producer(linger_ms=60_000) as producer:
        found = {"same": isinstance(producer, session.kafka.Producer)}
        producer.produce(topic, b"x", on_delivery=reports)
    return found | {
        "reports": reports.offsets,
        "produce": attempt(producer.produce, topic, b"x"),
        "flush": attempt(producer.flush, 1),
        "again": type(attempt(producer.__enter__)).__name__,
    }


def producer_after_close(session: ProgramRun) -> Any:
    topic, producer = session.topic(), session.producer()
    found = {"close": attempt(producer.close), "again": attempt(producer.close)}
    calls: dict[str, Any] = {
        "produce": lambda: producer.produce(topic, b"x"),
        "poll": lambda: producer.poll(0),
        "flush": lambda: producer.flush(0),
        "purge": producer.purge,
        "list_topics": lambda: type(producer.list_topics(timeout=1)).__name__,
        "len": lambda: len(producer),
        "batch": lambda: producer.produce_batch(topic, [{"value": b"x"}]),
    }
    return found | {name: attempt(call) for name, call in calls.items()}


def producer_errors_of_the_connection(session: ProgramRun) -> Any:
    seen: list[Any] = []
    producer = session.producer_cut_off("t", error_cb=seen.append)
    producer.produce("t", b"x")
    deadline = time.monotonic() + READ_S
    while time.monotonic() < deadline and "_ALL_BROKERS_DOWN" not in [
        error.name() for error in seen
    ]:
        producer.poll(0.1)
    producer.purge()
    producer.flush(READ_S)
    return sorted({error.name() for error in seen} & {"_ALL_BROKERS_DOWN", "_TRANSPORT"})


def producer_error_callbacks_that_raise(session: ProgramRun) -> Any:
    def fail(error: Any) -> None:
        raise LookupError("from error_cb")

    producer = session.producer_cut_off("t", error_cb=fail)
    producer.produce("t", b"x")
    found: Any = None
    deadline = time.monotonic() + READ_S
    while found is None and time.monotonic() < deadline:
        answer = attempt(producer.poll, 0.1)
        found = answer if isinstance(answer, Exception) else None
    attempt(producer.purge)
    attempt(producer.flush, 1)
    return found


def producer_statistics(session: ProgramRun) -> Any:
    seen: list[str] = []
    producer = session.producer(stats_cb=seen.append, statistics_interval_ms=100, client_id="cl")
    deadline = time.monotonic() + READ_S
    while not seen and time.monotonic() < deadline:
        producer.poll(0.1)
    found = json.loads(seen[0])
    kinds = {
        name: type(found.get(name)).__name__
        for name in ("name", "ts", "time", "replyq", "msg_cnt", "topics")
    }
    return {"type": found["type"], "client_id": found["client_id"], "kinds": kinds}


def producer_configurations(session: ProgramRun) -> Any:
    address = {"bootstrap.servers": session.target.address}

    def made(*arguments: Any, **keywords: Any) -> Any:
        client = attempt(session.kafka.Producer, *arguments, **keywords)
        if isinstance(client, Exception):
            return client
        client.close()
        return "made"

    return {
        "nothing": made(),
        "list": made([]),
        "linger_text": made(address | {"linger.ms": "5"}),
        "linger_float": made(address | {"linger.ms": 0.5}),
        "linger_word": made(address | {"linger.ms": "soon"}),
        "linger_negative": made(address | {"linger.ms": -1}),
        "bool_text": made(address | {"enable.idempotence": "true"}),
        "bool_word": made(address | {"enable.idempotence": "maybe"}),
        "none": made(address | {"client.id": None}),
        "compression": made(address | {"compression.type": "rar"}),
        "acks_all": made(address | {"acks": "all"}),
        "acks_minus_1": made(address | {"acks": -1}),
        "retries": made(address | {"retries": 0}),
        "unknown": made(address | {"no.such.property": 1}),
        "of_a_consumer": made(address | {"auto.offset.reset": "earliest"}),
        "key_of_bytes": made(address | {b"linger.ms": 5}),
        "default_topic_config": made(address | {"default.topic.config": {"acks": "all"}}),
        "partitioner": made(address | {"partitioner": "murmur2_random"}),
        "partitioner_unknown": made(address | {"partitioner": "best"}),
        "keywords": made(address, client_id="x"),
    }


def producer_metadata(session: ProgramRun) -> Any:
    topic, producer = session.topic(partitions=2), session.producer()
    found = producer.list_topics(topic, timeout=READ_S)
    (metadata,) = found.topics.values()
    return {
        "types": [type(each).__name__ for each in (found, metadata, metadata.partitions[0])],
        "topic": metadata.topic,
        "text": str(metadata),
        "partitions": sorted(metadata.partitions),
        "partition_text": str(metadata.partitions[1]),
        "timeout_text": attempt(producer.list_topics, topic, "soon"),
        "topic_int": type(attempt(producer.list_topics, 5, 1)).__name__,
    }


def producer_writes_to_a_topic_that_was_deleted(session: ProgramRun) -> Any:
    topic, reports = session.topic(), Reports()
    producer = session.producer(
        allow_auto_create_topics=False, topic_metadata_propagation_max_ms=1000
    )
    producer.produce(topic, b"x", on_delivery=reports)
    producer.flush(READ_S)
    session.admin.delete_topics([topic])[topic].result(READ_S)
    session.exists(topic)
    late = session.producer(allow_auto_create_topics=False, topic_metadata_propagation_max_ms=1000)
    late.produce(topic, b"y", on_delivery=reports)
    late.flush(READ_S)
    return reports.errors


PROGRAMS = (
    producer_is_true_and_counts_its_queue,
    producer_flush_arguments,
    producer_poll_arguments,
    producer_poll_serves_callbacks,
    producer_poll_ends_with_deliveries_without_callbacks,
    producer_waits_for_room_as_the_documentation_shows,
    producer_positional_arguments,
    producer_callback_is_an_alias_of_on_delivery,
    producer_on_delivery_of_the_configuration,
    producer_callbacks_that_raise,
    producer_callbacks_may_produce,
    producer_callbacks_are_callable,
    producer_values_of_other_types,
    producer_keys_of_other_types,
    producer_topics_of_other_types,
    producer_partitions_and_timestamps_of_other_types,
    producer_partitions_that_do_not_exist,
    producer_first_message_to_an_unknown_partition,
    producer_batches,
    producer_batches_with_their_own_partition,
    producer_batches_with_headers_and_timestamps,
    producer_batches_that_are_queued_again,
    producer_batches_with_text_that_is_no_utf_8,
    producer_of_a_misspelt_server,
    producer_batches_of_other_types,
    producer_batches_with_wrong_messages_among_others,
    producer_batches_into_a_full_queue,
    producer_batches_with_messages_that_are_too_large,
    producer_purges_nothing,
    producer_purges_its_queue,
    producer_in_a_with_block,
    producer_after_close,
    producer_errors_of_the_connection,
    producer_error_callbacks_that_raise,
    producer_statistics,
    producer_configurations,
    producer_metadata,
    producer_writes_to_a_topic_that_was_deleted,
)
