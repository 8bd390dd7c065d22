"""Delivery reports, and what `produce` accepts."""

from __future__ import annotations

import time
from typing import Any

from tests.fidelity.session import READ_S, T0, ProgramRun, attempt

_HOUR_MS = 3_600_000


class Reports(list[Any]):
    """The (error, message) of each delivery callback."""

    def __call__(self, error: Any, message: Any) -> None:
        self.append((error, message))

    @property
    def offsets(self) -> list[Any]:
        """Errors and offsets."""
        return [(error, message.offset()) for error, message in self]

    @property
    def errors(self) -> list[Any]:
        """The errors, None for a message that was written."""
        return [error for error, _ in self]


def produce_reports(session: ProgramRun) -> Any:
    topic, producer, reports, refused = (
        session.topic(partitions=2),
        session.producer(),
        Reports(),
        Reports(),
    )
    producer.produce(topic, "v", "k", 1, timestamp=T0, headers=[("a", b"1")], on_delivery=reports)
    found = {
        "len_before": len(producer),
        "flush": producer.flush(READ_S),
        "len_after": len(producer),
    }
    ((error, message),) = reports
    about = (
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.timestamp(),
    )
    found["report"] = [(error, *about, message.headers(), message.latency() is not None)]
    found["poll_nothing"] = producer.poll(0)
    found["bad_partition"] = attempt(
        producer.produce, topic, value="x", partition=9, on_delivery=refused
    )
    producer.flush(READ_S)
    return found | {
        "bad_partition_report": refused,
        "value_int": attempt(producer.produce, topic, value=5),
        "key_int": attempt(producer.produce, topic, value="a", key=5),
        "no_topic": attempt(producer.produce),
        "empty_topic_name": attempt(producer.produce, "", value="x"),
        "negative_ts": attempt(producer.produce, topic, value="x", timestamp=-5),
    }


def produce_none_and_empty(session: ProgramRun) -> Any:
    topic, producer, consumer = session.topic(), session.producer(), session.consumer()
    for key, value in ((None, None), (b"", b""), (None, b"v"), (b"k", None), ("é", "ü")):
        producer.produce(topic, key=key, value=value)
        producer.flush(READ_S)
    consumer.assign([session.place(topic, 0, 0)])
    return [
        {
            "key": _numbers(message.key()),
            "value": _numbers(message.value()),
            "len": len(message),
            "bool": bool(message),
        }
        for message in session.read(consumer, 5)
    ]


def _numbers(data: bytes | None) -> list[int] | None:
    return None if data is None else list(data)


def produce_unknown_topic(session: ProgramRun) -> Any:
    producer, made, refused, invalid = session.producer(), Reports(), Reports(), Reports()
    topic, other = session.name("auto"), session.name("auto2")
    producer.produce(topic, value="x", on_delivery=made)
    producer.flush(READ_S)
    found: dict[str, Any] = {
        "autocreate": [(error, message.partition(), message.offset()) for error, message in made],
        "autocreate_partitions": len(
            session.admin.list_topics(topic, timeout=READ_S).topics[topic].partitions
        ),
    }
    careful = session.producer(
        allow_auto_create_topics=False, topic_metadata_propagation_max_ms=1000
    )
    careful.produce(other, value="x", on_delivery=refused)
    careful.flush(READ_S)
    found |= {"client_disallows": refused.errors, "created": session.exists(other)}
    producer.produce("bad/name", value="x", on_delivery=invalid)
    producer.flush(READ_S)
    return found | {"invalid_name": invalid.errors}


def too_large(session: ProgramRun) -> Any:
    topic, usual = session.topic(max_message_bytes=5000), session.topic()

    def report(to: str, size: int, **settings: Any) -> Any:
        producer, reports = session.producer(**settings), Reports()
        producer.produce(to, value=b"x" * size, on_delivery=reports)
        producer.flush(READ_S)
        return reports.offsets

    producer, small = session.producer(), session.producer(message_max_bytes=2000)
    found = {
        "client_default_limit": attempt(producer.produce, topic, value=b"x" * 1_000_001),
        "client_just_below": attempt(producer.produce, topic, value=b"x" * 4000),
    }
    producer.flush(READ_S)
    return found | {
        "broker": report(topic, 6000),
        "client_small": attempt(small.produce, topic, value=b"x" * 2001),
        "client_small_2000": attempt(small.produce, topic, value=b"x" * 2000),
        "broker_default_2MB": report(usual, 2_000_000, message_max_bytes=3_000_000),
        "compressed_fits": report(topic, 100_000, compression_type="lz4"),
    }


def queue_full_and_purge(session: ProgramRun) -> Any:
    # `flush` ends the long linger, so that all messages begin their way together.
    producer = session.producer_cut_off("t", queue_buffering_max_messages=3, linger_ms=60_000)
    reports = Reports()
    found: dict[str, Any] = {
        "four": [attempt(producer.produce, "t", value="x", on_delivery=reports) for _ in range(4)],
        "flush_left": producer.flush(1.0),
    }
    producer.purge()
    found["after_purge"] = (producer.flush(READ_S), [error.name() for error in reports.errors])
    hurried, late = session.producer_cut_off("t", message_timeout_ms=500), Reports()
    hurried.produce("t", value="x", on_delivery=late)
    hurried.flush(READ_S)
    return found | {"message_timeout": late.errors}


def timestamps(session: ProgramRun) -> Any:
    found: dict[str, Any] = {}
    for kind in ("CreateTime", "LogAppendTime"):
        topic = session.topic(message_timestamp_type=kind)
        producer, consumer, reports = session.producer(), session.consumer(), Reports()
        for value, time_ms in (("given", T0), ("now", None), ("zero", 0)):
            producer.produce(
                topic,
                value=value,
                on_delivery=reports,
                **({} if time_ms is None else {"timestamp": time_ms}),
            )
            producer.flush(READ_S)
        consumer.assign([session.place(topic, 0, 0)])
        found[kind] = {
            "reports": [(error, *_when(message)) for error, message in reports],
            "consumed": [
                (message.value(), *_when(message)) for message in session.read(consumer, 3)
            ],
        }
    topic, producer, future = session.topic(), session.producer(), Reports()
    producer.produce(topic, value="future", timestamp=_now_ms() + 2 * _HOUR_MS, on_delivery=future)
    producer.flush(READ_S)
    return found | {"two_hours_ahead": future.offsets}


def _when(message: Any) -> tuple[int, str]:
    kind, time_ms = message.timestamp()
    if time_ms == T0:
        return kind, "given"
    return kind, "now" if abs(time_ms - _now_ms()) < _HOUR_MS else "other"


def _now_ms() -> int:
    return int(time.time() * 1000)


def headers(session: ProgramRun) -> Any:
    topic, producer, consumer = session.topic(), session.producer(), session.consumer()
    accepted: list[Any] = [
        None,
        [],
        {},
        [("a", b"1")],
        {"a": "1", "b": None},
        [("d", b"1"), ("c", b"2"), ("d", b"3")],
        [("ü", "é")],
        [("e", b"")],
        [("", b"x")],
        [("n", None)],
    ]
    for number, each in enumerate(accepted):
        producer.produce(topic, value=str(number), headers=each)
        producer.flush(READ_S)
    strange: dict[str, Any] = {
        "int_value": [("a", 1)],
        "bytes_key": [(b"a", b"1")],
        "str": "abc",
        "triple": [("a", b"1", b"2")],
    }
    errors = {
        name: attempt(producer.produce, topic, value="x", headers=each)
        for name, each in strange.items()
    }
    producer.flush(READ_S)
    consumer.assign([session.place(topic, 0, 0)])
    read = {
        message.value(): message.headers() for message in session.read_all(consumer, len(accepted))
    }
    return {"errors": errors, "read": read}


def compacted(session: ProgramRun) -> Any:
    topic, producer, consumer, reports = (
        session.topic(cleanup_policy="compact"),
        session.producer(),
        session.consumer(),
        Reports(),
    )
    producer.produce(topic, value="nokey", on_delivery=reports)
    producer.flush(READ_S)
    producer.produce(topic, key="", value="emptykey", on_delivery=reports)
    producer.flush(READ_S)
    producer.produce(topic, key="a", value="1", on_delivery=reports)
    producer.produce(topic, key="a", value=None, on_delivery=reports)
    producer.flush(READ_S)
    consumer.assign([session.place(topic, 0, 0)])
    found: dict[str, Any] = {
        "reports": reports.offsets,
        "read": [
            (message.offset(), message.key(), message.value())
            for message in session.read(consumer, 3)
        ],
    }
    lingering, mixed = session.producer(linger_ms=200), Reports()
    lingering.produce(topic, key="k", value="1", on_delivery=mixed)
    lingering.produce(topic, value="x", on_delivery=mixed)
    lingering.flush(READ_S)
    return found | {
        "mixed_batch": sorted("True" if error is None else error.name() for error in mixed.errors)
    }


def idempotent_producer(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(), session.producer(enable_idempotence=True), Reports()
    for number in range(100):
        producer.produce(topic, value=str(number), on_delivery=reports)
    producer.flush(READ_S)
    in_order = [message.offset() for _, message in reports] == list(range(100))
    watermarks = session.consumer().get_watermark_offsets(session.place(topic), timeout=READ_S)
    return {"in_order": in_order, "watermarks": watermarks}


def acks_0(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(), session.producer(acks=0), Reports()
    producer.produce(topic, value="x", on_delivery=reports)
    producer.flush(READ_S)
    return [(error, message.offset(), message.partition()) for error, message in reports]


PROGRAMS = (
    produce_reports,
    produce_none_and_empty,
    produce_unknown_topic,
    too_large,
    queue_full_and_purge,
    timestamps,
    headers,
    compacted,
    idempotent_producer,
    acks_0,
)
