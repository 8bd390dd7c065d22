"""Watermarks, committed and stored offsets, and offsets by time."""

from __future__ import annotations

from typing import Any

from tests.fidelity.programs.messages import offsets
from tests.fidelity.session import READ_S, T0, ProgramRun, attempt


def watermark_empty(session: ProgramRun) -> Any:
    consumer, place = session.consumer(), session.place(session.topic())
    query = consumer.get_watermark_offsets(place, timeout=READ_S)
    return {"query": query, "cached": consumer.get_watermark_offsets(place, cached=True)}


def watermark_filled(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    session.fill(topic, 10)
    place = session.place(topic)
    found = {
        "query": consumer.get_watermark_offsets(place, timeout=READ_S),
        "cached_before_fetch": consumer.get_watermark_offsets(place, cached=True),
    }
    consumer.assign([session.place(topic, 0, 4)])
    session.read(consumer, 6)
    return found | {"cached_after_fetch": consumer.get_watermark_offsets(place, cached=True)}


def watermark_unknown(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer(allow_auto_create_topics=False)
    return {
        "topic": attempt(
            consumer.get_watermark_offsets, session.place(session.name("nope")), timeout=3
        ),
        "partition": attempt(consumer.get_watermark_offsets, session.place(topic, 7), timeout=3),
    }


def committed_before_any(session: ProgramRun) -> Any:
    topic = session.topic(partitions=2)
    return session.consumer().committed(
        [session.place(topic, 0), session.place(topic, 1)], timeout=READ_S
    )


def committed_unknown_topic(session: ProgramRun) -> Any:
    session.topic()
    return session.consumer().committed([session.place(session.name("nope"))], timeout=READ_S)


def commit_forms(session: ProgramRun) -> Any:
    topic, consumer = session.topic(partitions=2), session.consumer()
    session.fill(topic, 5)
    consumer.subscribe([topic])

    def commit(*places: Any, **what: Any) -> Any:
        return attempt(
            consumer.commit, asynchronous=False, **({"offsets": list(places)} if places else what)
        )

    found = {"nothing_consumed": commit()}
    messages = session.read(consumer, 3)
    found |= {
        "by_message_1": commit(message=messages[0]),
        "current": commit(),
        "again_no_change": commit(),
        "offsets_lower": commit(session.place(topic, 0, 1)),
        "committed": consumer.committed(
            [session.place(topic, 0), session.place(topic, 1)], timeout=READ_S
        ),
        "past_end": commit(session.place(topic, 0, 9999)),
        "metadata": commit(session.place(topic, 0, 2, "hello")),
        "metadata_back": consumer.committed([session.place(topic)], timeout=READ_S),
    }
    return found | {
        "async_returns": attempt(consumer.commit, asynchronous=True),
        "unknown_topic": commit(session.place(session.name("nope"), 0, 1)),
        "negative": commit(session.place(topic, 0, -5)),
    }


def commit_assign_only_then_resume(session: ProgramRun) -> Any:
    topic, group = session.topic(), session.name("g")
    session.fill(topic, 6)
    first, second = session.consumer(group), session.consumer(group)
    first.assign([session.place(topic)])
    found: dict[str, Any] = {"first": offsets(session.read(first, 2))}
    first.commit(asynchronous=False)
    first.close()
    second.assign([session.place(topic)])
    found["second_starts"] = offsets(session.read(second, 1))
    described = session.admin.describe_consumer_groups([group])[group].result(READ_S)
    return found | {"group_state": described.state}


def auto_commit_on_close(session: ProgramRun) -> Any:
    topic, group = session.topic(), session.name("g")
    session.fill(topic, 6)
    first = session.consumer(group, enable_auto_commit=True)
    first.subscribe([topic])
    session.read(first, 4)
    first.close()
    return session.consumer(group).committed([session.place(topic)], timeout=READ_S)


def store_offsets(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    session.fill(topic, 6)
    consumer.subscribe([topic])
    session.read(consumer, 2)
    found = {"auto_store_on": attempt(consumer.store_offsets, offsets=[session.place(topic, 0, 1)])}
    storing = session.consumer(enable_auto_offset_store=False)
    storing.subscribe([topic])
    session.read(storing, 4)
    return found | {
        "commit_without_store": attempt(storing.commit, asynchronous=False),
        "store": attempt(storing.store_offsets, offsets=[session.place(topic, 0, 3)]),
        "commit": attempt(storing.commit, asynchronous=False),
        "store_unassigned": attempt(storing.store_offsets, offsets=[session.place(topic, 5, 3)]),
    }


def offsets_for_times(session: ProgramRun) -> Any:
    topic, empty, consumer = session.topic(), session.topic(), session.consumer()
    session.fill(topic, 5)

    def at(time_ms: int, name: str = topic, partition: int = 0) -> Any:
        found = attempt(
            consumer.offsets_for_times, [session.place(name, partition, time_ms)], timeout=5
        )
        return found[0] if isinstance(found, list) else found

    found = {
        "before_first": at(T0 - 5),
        "exact_0": at(T0),
        "exact_2": at(T0 + 2000),
        "between_2_3": at(T0 + 2001),
        "last": at(T0 + 4000),
        "past_end": at(T0 + 4001),
        "empty_topic": at(T0, empty),
        "unknown_partition": at(T0, partition=9),
    }
    return found | {f"ts_{time_ms}": at(time_ms) for time_ms in (0, -1, -2)}


def offsets_for_times_out_of_order(session: ProgramRun) -> Any:
    topic, producer, consumer = session.topic(), session.producer(), session.consumer()
    for number, ms in enumerate([5000, 1000, 9000, 2000]):
        producer.produce(topic, value=f"{number}", timestamp=T0 + ms)
        producer.flush(READ_S)
    asked = {ms: [session.place(topic, 0, T0 + ms)] for ms in (500, 1500, 5000, 5500, 9500)}
    return {
        ms: consumer.offsets_for_times(places, timeout=READ_S)[0].offset
        for ms, places in asked.items()
    }


def admin_list_offsets(session: ProgramRun) -> Any:
    topic, spec = session.topic(), session.admin_names.OffsetSpec
    session.fill(topic, 5)
    asked = {
        "earliest": spec.earliest(),
        "latest": spec.latest(),
        "max_timestamp": spec.max_timestamp(),
        "for_ts_mid": spec.for_timestamp(T0 + 2500),
        "for_ts_past": spec.for_timestamp(T0 + 99_999),
    }
    found = {
        name: session.result(session.admin.list_offsets({session.place(topic): each}))
        for name, each in asked.items()
    }
    return {
        name: {
            "offset": each.offset,
            "ts": each.timestamp - T0 if each.timestamp > 0 else each.timestamp,
            "leader_epoch": each.leader_epoch,
        }
        for name, each in found.items()
    }


PROGRAMS = (
    watermark_empty,
    watermark_filled,
    watermark_unknown,
    committed_before_any,
    committed_unknown_topic,
    commit_forms,
    commit_assign_only_then_resume,
    auto_commit_on_close,
    store_offsets,
    offsets_for_times,
    offsets_for_times_out_of_order,
    admin_list_offsets,
)
