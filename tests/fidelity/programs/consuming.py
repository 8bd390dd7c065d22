"""What `poll` and `consume` return, and how consumers are misused."""

from __future__ import annotations

import re
import time
from typing import Any

from tests.fidelity.programs.messages import in_full, offsets
from tests.fidelity.session import READ_S, ProgramRun, attempt


def consume_batch(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    session.fill(topic, 7)
    consumer.assign([session.place(topic, 0, 0)])
    session.read(consumer, 1)
    found: dict[str, Any] = {"num_0": in_full(consumer.consume(0, 0.5))}
    began = time.monotonic()
    found["got"] = offsets(consumer.consume(100, 1.0))
    found["waited_full_timeout"] = time.monotonic() - began > 0.9
    found["num_-1"] = attempt(consumer.consume, -1, 0.1)
    found["num_too_big"] = attempt(consumer.consume, 1_000_001, 0.1)
    consumer.seek(session.place(topic, 0, 0))
    began = time.monotonic()
    found["exact_3"] = offsets(consumer.consume(3, READ_S))
    found["exact_3_early"] = time.monotonic() - began < READ_S
    return found | {"timeout_none_returns": type(consumer.consume(4, 0.5)).__name__}


def partition_eof(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer(enable_partition_eof=True)
    session.fill(topic, 2)
    consumer.assign([session.place(topic, 0, 0)])
    found: dict[str, Any] = {"first": in_full(session.read_all(consumer, 3))}
    session.fill(topic, 1, start=2)
    found["after_new"] = in_full(session.read_all(consumer, 2))
    empty, other = session.topic(), session.consumer(enable_partition_eof=True)
    other.assign([session.place(empty, 0, 0)])
    found["empty"] = in_full(session.read_all(other, 1))
    consumer.seek(session.place(topic, 0, 2))
    found["after_seek"] = in_full(session.read_all(consumer, 2))
    consumer.seek(session.place(topic, 0, session.kafka.OFFSET_END))
    (event,) = session.read(consumer, 1)
    found["event_fields"] = {
        "value": event.value(),
        "key": event.key(),
        "offset": event.offset(),
        "error": event.error(),
        "ts": event.timestamp(),
        "headers": event.headers(),
    }
    return found


def closed_and_misuse(session: ProgramRun) -> Any:
    topic, closed, other = session.topic(), session.consumer(), session.consumer()
    closed.close()
    found = {
        "poll": attempt(closed.poll, 0),
        "consume": attempt(closed.consume, 1, 0),
        "assign": attempt(closed.assign, [session.place(topic)]),
        "subscribe": attempt(closed.subscribe, [topic]),
        "commit": attempt(closed.commit),
        "close_twice": attempt(closed.close),
        "position": attempt(closed.position, [session.place(topic)]),
        "poll_unsubscribed": attempt(other.poll, 0.2),
        "subscribe_str": attempt(other.subscribe, topic),
        "subscribe_empty": attempt(other.subscribe, []),
        "subscription_none": other.assignment(),
    }
    address = {"bootstrap.servers": session.target.address}
    nowhere = attempt(session.kafka.Consumer, {"group.id": "x"})
    return found | {
        "no_group_id": attempt(session.kafka.Consumer, address),
        "unknown_property": attempt(session.kafka.Producer, address | {"no.such": 1}),
        "bad_value": attempt(session.kafka.Producer, address | {"acks": "7777"}),
        "no_bootstrap_consumer": "constructed"
        if isinstance(nowhere, session.kafka.Consumer)
        else nowhere,
        "idempotence_acks_1": attempt(
            session.kafka.Producer, address | {"enable.idempotence": True, "acks": 1}
        ),
    }


def subscribe_patterns(session: ProgramRun) -> Any:
    base = session.name("pat")
    session.create(f"{base}-one")
    reader = session.consumer(topic_metadata_refresh_interval_ms=300)
    reader.subscribe([f"^{re.escape(base)}-.*"])

    def assigned(count: int) -> list[str]:
        deadline = time.monotonic() + READ_S
        while len(reader.assignment()) < count and time.monotonic() < deadline:
            reader.poll(0.05)
        return sorted(place.topic for place in reader.assignment())

    found: dict[str, Any] = {"first": assigned(1)}
    session.create(f"{base}-two")
    found["after_new_topic"] = assigned(2)
    unknown = session.consumer(allow_auto_create_topics=False)
    unknown.subscribe([session.name("nope")])
    found["unknown_topic"] = in_full(session.read(unknown, 1))
    unmatched = session.consumer(allow_auto_create_topics=False)
    unmatched.subscribe([f"^nomatch-{session.prefix}"])
    return found | {"unmatched_pattern": in_full(session.read_all(unmatched, 1))}


PROGRAMS = (
    consume_batch,
    partition_eof,
    closed_and_misuse,
    subscribe_patterns,
)
