"""What the documentation of the client says of `Consumer`, statement by statement."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, Rule
from tests.fidelity.programs.messages import offsets, places
from tests.fidelity.session import READ_S, ProgramRun, attempt


def _until(consumer: Any, condition: Callable[[], object]) -> bool:
    """Poll until the condition is true."""
    deadline = time.monotonic() + READ_S
    while not condition() and time.monotonic() < deadline:
        consumer.poll(0.05)
    return bool(condition())


def _partitions(found: Any) -> list[tuple[str, int]]:
    return sorted((place.topic, place.partition) for place in found)


def consumer_poll_arguments(session: ProgramRun) -> Any:
    consumer = session.consumer()
    return {
        "zero": consumer.poll(0),
        "keyword": consumer.poll(timeout=0.01),
        "text": attempt(consumer.poll, "1"),
        "two": attempt(consumer.poll, 1, 2),
    }


def consumer_consume_arguments(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    session.fill(topic, 3)
    consumer.assign([session.place(topic, 0, 0)])
    return {
        "keywords": offsets(consumer.consume(num_messages=2, timeout=READ_S)),
        "positional": offsets(consumer.consume(1, READ_S)),
        "text": attempt(consumer.consume, "1"),
        "none_there": consumer.consume(1, 0.1),
    }


def consumer_assign_takes_a_list_of_places(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    given: dict[str, Any] = {
        "text": topic,
        "tuples": [(topic, 0)],
        "none": None,
        "tuple": (session.place(topic),),
        "empty": [],
        "negative_partition": [session.place(topic, -1)],
    }
    return {name: type(attempt(consumer.assign, places)).__name__ for name, places in given.items()}


def consumer_assign_replaces_the_assignment(session: ProgramRun) -> Any:
    topic, consumer = session.topic(partitions=3), session.consumer()
    consumer.assign([session.place(topic, 0), session.place(topic, 1)])
    first = _partitions(consumer.assignment())
    consumer.assign([session.place(topic, 2)])
    return {
        "first": first,
        "then": _partitions(consumer.assignment()),
        "empty": attempt(consumer.assign, []),
    }


def consumer_assign_of_one_partition_twice(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    answer = attempt(consumer.assign, [session.place(topic, 0), session.place(topic, 0)])
    return {"answer": answer, "assignment": _partitions(consumer.assignment())}


def consumer_subscribe_arguments(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    given: dict[str, Any] = {
        "tuple": (topic,),
        "numbers": [5],
        "none": None,
        "nothing_in_it": [None],
    }
    found = {name: attempt(consumer.subscribe, topics) for name, topics in given.items()}
    return found | {
        "on_assign": attempt(consumer.subscribe, [topic], on_assign="no"),
        "unknown_argument": attempt(consumer.subscribe, [topic], on_join=print),
        "pattern": attempt(consumer.subscribe, ["^["]),
    }


def consumer_subscribe_replaces_the_subscription(session: ProgramRun) -> Any:
    one, two, consumer = session.topic("one"), session.topic("two"), session.consumer()
    session.fill(one, 1)
    session.fill(two, 1)
    consumer.subscribe([one])
    session.read(consumer, 1)
    consumer.subscribe([two])
    found = {"read": [message.topic() for message in session.read(consumer, 1)]}
    return found | {"assignment": _partitions(consumer.assignment())}


def consumer_joins_its_group_without_poll(session: ProgramRun) -> Any:
    topic, group = session.topic(partitions=2), session.name("g")
    consumer = session.consumer(group)
    consumer.subscribe([topic])
    deadline, members = time.monotonic() + READ_S, 0
    while not members and time.monotonic() < deadline:
        members = len(session.admin.describe_consumer_groups([group])[group].result(READ_S).members)
        time.sleep(0.05)
    return {"members": members, "assignment_before_poll": _partitions(consumer.assignment())}


def consumer_tells_what_it_is_assigned(session: ProgramRun) -> Any:
    topic, calls = session.topic(partitions=2), []
    consumer = session.consumer()

    def assigned(who: Any, found: Any) -> None:
        calls.append(
            ("assigned", who is consumer, [(place.partition, place.offset) for place in found])
        )

    def revoked(who: Any, found: Any) -> None:
        calls.append(("revoked", who is consumer, sorted(place.partition for place in found)))

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    _until(consumer, lambda: calls)
    consumer.close()
    return [(event, same, sorted(found)) for event, same, found in calls]


def consumer_callbacks_that_raise(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()

    def fail(who: Any, found: Any) -> None:
        raise LookupError("from on_assign")

    consumer.subscribe([topic], on_assign=fail)
    deadline, found = time.monotonic() + READ_S, None
    while found is None and time.monotonic() < deadline:
        found = attempt(consumer.poll, 0.1)
    return found


def consumer_keeps_what_stays_of_a_cooperative_subscription(session: ProgramRun) -> Any:
    one, two, calls = session.topic("one"), session.topic("two"), []
    consumer = session.consumer(partition_assignment_strategy="cooperative-sticky")

    def noted(event: str) -> Any:
        return lambda _, found: calls.append((event, _partitions(found)))

    callbacks = {
        "on_assign": noted("assign"),
        "on_revoke": noted("revoke"),
        "on_lost": noted("lost"),
    }
    consumer.subscribe([one], **callbacks)
    _until(consumer, lambda: consumer.assignment())
    consumer.subscribe([one, two], **callbacks)
    _until(consumer, lambda: len(consumer.assignment()) == 2)
    found = {
        "grown": [call for call in calls if call[1]],
        "assignment": _partitions(consumer.assignment()),
    }
    calls.clear()
    consumer.subscribe([two], **callbacks)
    _until(consumer, lambda: len(consumer.assignment()) == 1)
    return found | {
        "shrunk": [call for call in calls if call[1]],
        "then": _partitions(consumer.assignment()),
    }


def consumer_changes_its_subscription(session: ProgramRun) -> Any:
    """What the callbacks of the second `subscribe` get, after a first one to topics a and b."""
    names = {letter: session.topic(letter) for letter in "abc"}
    second = {"more": "abc", "fewer": "b", "others": "bc", "none of them": "c", "the same": "ba"}
    return {
        strategy: {
            what: _changed(session, names, strategy, ["a", "b"], list(topics))
            for what, topics in second.items()
        }
        for strategy in ("cooperative-sticky", "range")
    }


def consumer_changes_its_patterns(session: ProgramRun) -> Any:
    names = {letter: session.topic(letter) for letter in "abc"}
    return {
        strategy: {
            second: _changed(session, names, strategy, ["^[ab]$"], [second])
            for second in ("^[bc]$", "^[ab]$", "^[a-c]$")
        }
        for strategy in ("cooperative-sticky", "range")
    }


def _changed(
    session: ProgramRun, names: dict[str, str], strategy: str, first: list[str], second: list[str]
) -> Any:
    """What two calls of `subscribe` do. There is no `on_lost`, which Kafka's client calls for
    topics that others replace if it does not know those yet. Then it may also call `on_assign`
    without partitions first.
    """
    calls: list[Any] = []
    consumer = session.consumer(
        partition_assignment_strategy=strategy, topic_metadata_refresh_interval_ms=1000
    )

    def noted(event: str) -> Any:
        return lambda _, found: calls.append((event, _partitions(found)))

    def subscribe(topics: list[str]) -> None:
        listed = [
            names.get(topic) or topic.replace("^", f"^{session.prefix}.*") for topic in topics
        ]
        consumer.subscribe(listed, on_assign=noted("assign"), on_revoke=noted("revoke"))

    subscribe(first)
    _until(consumer, lambda: calls)
    member_id = consumer.memberid()
    calls.clear()
    subscribe(second)
    found = {"calls in subscribe": list(calls)}
    if strategy == "range" or sorted(first) != sorted(second):
        _until(consumer, lambda: calls and calls[-1][0] == "assign")
    deadline = time.monotonic() + session.target.quiet_s
    while time.monotonic() < deadline:
        consumer.poll(0.05)
    has_both = {event for event, partitions in calls if partitions} == {"assign", "revoke"}
    found["calls"] = [call for call in calls if call[1] or not has_both]
    found["assignment"] = _partitions(consumer.assignment())
    return found | {"same member": consumer.memberid() == member_id}


def consumer_subscribes_twice_before_it_polls(session: ProgramRun) -> Any:
    one, two, calls = session.topic("one"), session.topic("two"), []
    consumer = session.consumer()
    consumer.subscribe(
        [one], on_assign=lambda _, found: calls.append(("first", _partitions(found)))
    )
    consumer.subscribe(
        [two], on_assign=lambda _, found: calls.append(("second", _partitions(found)))
    )
    _until(consumer, lambda: calls)
    return calls


def consumer_subscribes_in_on_assign(session: ProgramRun) -> Any:
    one, two, calls = session.topic("one"), session.topic("two"), []
    consumer = session.consumer()

    def noted(event: str) -> Any:
        return lambda _, found: calls.append((event, _partitions(found)))

    def assigned(_: Any, found: Any) -> None:
        calls.append(("first", _partitions(found)))
        consumer.subscribe([one, two], on_assign=noted("assign"), on_revoke=noted("revoke"))

    consumer.subscribe([one], on_assign=assigned)
    _until(consumer, lambda: len(consumer.assignment()) == 2)
    return calls


def consumer_commit_arguments(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    session.fill(topic, 2)
    consumer.subscribe([topic])
    (message,) = session.read(consumer, 1)
    place = session.place(topic, 0, 1)
    return {
        "both": attempt(consumer.commit, message=message, offsets=[place]),
        "text": attempt(consumer.commit, offsets="x"),
        "message_text": attempt(consumer.commit, message="x"),
        "asynchronous": attempt(consumer.commit, offsets=[place]),
        "synchronous": attempt(consumer.commit, offsets=[place], asynchronous=False),
        "empty": attempt(consumer.commit, offsets=[], asynchronous=False),
    }


def consumer_on_commit_of_the_configuration(session: ProgramRun) -> Any:
    topic, calls = session.topic(), []
    consumer = session.consumer(on_commit=lambda error, found: calls.append((error, found)))
    session.fill(topic, 2)
    consumer.subscribe([topic])
    session.read(consumer, 2)
    found = {
        "returns": consumer.commit(asynchronous=True),
        "called": _until(consumer, lambda: calls),
    }
    return found | {"calls": [(error, places) for error, places in calls]}


def consumer_committed_arguments(session: ProgramRun) -> Any:
    topic, consumer = session.topic(partitions=3), session.consumer()
    consumer.commit(
        offsets=[session.place(topic, 2, 5), session.place(topic, 0, 3)], asynchronous=False
    )
    asked = [session.place(topic, partition) for partition in (2, 1, 0)]
    return {
        "order": [
            (place.partition, place.offset) for place in consumer.committed(asked, timeout=READ_S)
        ],
        "empty": type(attempt(consumer.committed, [], 1)).__name__,
        "text": attempt(consumer.committed, "x"),
    }


def consumer_metadata_of_offsets(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()

    def kept(metadata: Any) -> Any:
        place = attempt(session.kafka.TopicPartition, topic, 0, 1, metadata=metadata)
        if isinstance(place, Exception):
            return place
        answer = attempt(consumer.commit, offsets=[place], asynchronous=False)
        if isinstance(answer, Exception):
            return answer
        return consumer.committed([session.place(topic)], timeout=READ_S)[0].metadata

    return {
        "text": kept("made by hand"),
        "unicode": kept("ü"),
        "empty": kept(""),
        "none": kept(None),
        "nul": kept("a\0b"),
        "int": kept(5),
        "long": kept("x" * 4000) == "x" * 4000,
        "too_long": kept("x" * 5000),
    }


def consumer_store_offsets_arguments(session: ProgramRun) -> Any:
    topic, other = session.topic(), session.topic("other")
    consumer = session.consumer(enable_auto_offset_store=False)
    session.fill(topic, 2)
    consumer.subscribe([topic])
    (message,) = session.read(consumer, 1)
    return {
        "nothing": attempt(consumer.store_offsets),
        "both": attempt(
            consumer.store_offsets, message=message, offsets=[session.place(topic, 0, 1)]
        ),
        "message": attempt(consumer.store_offsets, message=message),
        "text": attempt(consumer.store_offsets, offsets="x"),
        "unassigned_topic": attempt(consumer.store_offsets, offsets=[session.place(other, 0, 1)]),
        "unknown_topic": attempt(
            consumer.store_offsets, offsets=[session.place(session.name("nope"), 0, 1)]
        ),
        "committed": consumer.commit(asynchronous=False),
    }


def consumer_position_arguments(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    return {
        "empty": attempt(consumer.position, []),
        "text": attempt(consumer.position, "x"),
        "unknown": attempt(consumer.position, [session.place(session.name("nope"))]),
        "several": attempt(consumer.position, [session.place(topic), session.place(topic, 5)]),
    }


def consumer_seek_arguments(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    session.fill(topic, 3)
    consumer.assign([session.place(topic, 0, 0)])
    session.read(consumer, 1)
    return {
        "text": attempt(consumer.seek, "x"),
        "list": attempt(consumer.seek, [session.place(topic, 0, 1)]),
        "nothing": attempt(consumer.seek),
        "place": attempt(consumer.seek, session.place(topic, 0, 2)),
        "read": offsets(session.read(consumer, 1)),
    }


def consumer_pause_and_resume_arguments(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    consumer.assign([session.place(topic, 0, 0)])
    return {
        "empty": attempt(consumer.pause, []),
        "text": attempt(consumer.pause, "x"),
        "twice": [attempt(consumer.pause, [session.place(topic)]) for _ in range(2)],
        "resume_empty": attempt(consumer.resume, []),
        "resume": attempt(consumer.resume, [session.place(topic)]),
    }


def consumer_pauses_end_with_the_assignment(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    session.fill(topic, 2)
    consumer.assign([session.place(topic, 0, 0)])
    consumer.pause([session.place(topic)])
    paused = places(session.read_all(consumer))
    consumer.unassign()
    consumer.assign([session.place(topic, 0, 0)])
    return {"paused": paused, "assigned_again": places(session.read_all(consumer))}


def consumer_times_and_watermarks_arguments(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    return {
        "no_times": type(attempt(consumer.offsets_for_times, [], 1)).__name__,
        "times_text": attempt(consumer.offsets_for_times, "x"),
        "watermarks_text": attempt(consumer.get_watermark_offsets, "x"),
        "watermarks_list": attempt(consumer.get_watermark_offsets, [session.place(topic)]),
        "cached_by_name": consumer.get_watermark_offsets(
            partition=session.place(topic), timeout=READ_S, cached=False
        ),
    }


def consumer_member_ids(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer(client_id="cl")
    found: dict[str, Any] = {"before": consumer.memberid()}
    consumer.subscribe([topic])
    _until(consumer, consumer.assignment)
    found["joined"] = type(consumer.memberid()).__name__
    consumer.unsubscribe()
    consumer.poll(session.target.quiet_s)
    found["left"] = bool(consumer.memberid())
    consumer.close()
    return found | {"closed": attempt(consumer.memberid)}


def consumer_group_metadata_is_opaque(session: ProgramRun) -> Any:
    consumer = session.consumer()
    found = consumer.consumer_group_metadata()
    consumer.close()
    return {"is_something": found is not None, "closed": attempt(consumer.consumer_group_metadata)}


def consumer_in_a_with_block(session: ProgramRun) -> Any:
    topic, calls = session.topic(), []
    with session.consumer() as consumer:
        consumer.subscribe([topic], on_revoke=lambda _, found: calls.append(_partitions(found)))
        _until(consumer, consumer.assignment)
    return {
        "revoked": calls,
        "poll": attempt(consumer.poll, 0),
        "again": type(attempt(consumer.__enter__)).__name__,
        "close": attempt(consumer.close),
    }


def consumer_after_close(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    place = session.place(topic)
    consumer.close()
    calls: dict[str, Callable[[], Any]] = {
        "assignment": consumer.assignment,
        "unassign": consumer.unassign,
        "unsubscribe": consumer.unsubscribe,
        "committed": lambda: consumer.committed([place], timeout=1),
        "pause": lambda: consumer.pause([place]),
        "resume": lambda: consumer.resume([place]),
        "seek": lambda: consumer.seek(place),
        "store_offsets": lambda: consumer.store_offsets(offsets=[place]),
        "list_topics": lambda: consumer.list_topics(timeout=1),
        "watermarks": lambda: consumer.get_watermark_offsets(place, timeout=1),
        "times": lambda: consumer.offsets_for_times([place], timeout=1),
        "incremental_assign": lambda: consumer.incremental_assign([place]),
    }
    return {name: attempt(call) for name, call in calls.items()}


def consumer_configurations(session: ProgramRun) -> Any:
    address = {"bootstrap.servers": session.target.address, "group.id": "g"}

    def made(**settings: Any) -> Any:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        client = attempt(session.kafka.Consumer, address | named)
        if isinstance(client, Exception):
            return client
        client.close()
        return "made"

    return {
        "reset_beginning": made(auto_offset_reset="beginning"),
        "reset_smallest": made(auto_offset_reset="smallest"),
        "reset_none": made(auto_offset_reset="none"),
        "reset_error": made(auto_offset_reset="error"),
        "session_0": made(session_timeout_ms=0),
        "session_text": made(session_timeout_ms="6000"),
        "poll_below_session": made(max_poll_interval_ms=1000, session_timeout_ms=6000),
        "isolation": made(isolation_level="read_uncommitted"),
        "isolation_unknown": made(isolation_level="serializable"),
        "strategy_unknown": made(partition_assignment_strategy="best"),
        "strategies": made(partition_assignment_strategy="range,roundrobin"),
        "strategies_mixed": made(partition_assignment_strategy="range,cooperative-sticky"),
        "auto_commit_text": made(enable_auto_commit="false"),
        "of_a_producer": made(linger_ms=5),
        "default_topic_config": made(default_topic_config={"auto.offset.reset": "earliest"}),
        "default_topic_config_and_the_same": made(
            default_topic_config={"auto.offset.reset": "latest"}, auto_offset_reset="earliest"
        ),
    }


def consumer_statistics(session: ProgramRun) -> Any:
    seen: list[str] = []
    topic = session.topic()
    consumer = session.consumer(stats_cb=seen.append, statistics_interval_ms=100, client_id="cl")
    consumer.subscribe([topic])
    _until(consumer, lambda: seen)
    found = json.loads(seen[0])
    return {
        "type": found["type"],
        "client_id": found["client_id"],
        "cgrp": type(found.get("cgrp")).__name__,
    }


def consumer_unsubscribes_without_a_subscription(session: ProgramRun) -> Any:
    consumer = session.consumer()
    return [attempt(consumer.unsubscribe), attempt(consumer.unassign), attempt(consumer.close)]


def consumer_subscription_gives_way_to_an_assignment(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    session.fill(topic, 2)
    consumer.assign([session.place(topic, 0, 1)])
    found: dict[str, Any] = {"assigned": offsets(session.read(consumer, 1))}
    consumer.subscribe([topic])
    return found | {"subscribed": offsets(session.read(consumer, 2))}


def consumer_errors_of_the_connection(session: ProgramRun) -> Any:
    if session.kafka.__name__ == "confluent_kafka":
        consumer = session.consumer(bootstrap_servers="127.0.0.1:1")
        return {
            "committed": attempt(consumer.committed, [session.place("t")], 1),
            "list_topics": attempt(consumer.list_topics, timeout=1),
        }
    return _without_a_store(session)


def _without_a_store(session: ProgramRun) -> Any:
    store = FaultyStore(MemoryStore(session.prefix))
    consumer = session.kafka.Consumer(
        {"bootstrap.servers": session.target.address, "group.id": "g"}, store=store
    )
    store.add(Rule("*", "*", Fault.error_before(), times=None))
    found = {
        "committed": attempt(consumer.committed, [session.place("t")], 1),
        "list_topics": attempt(consumer.list_topics, timeout=1),
    }
    store.clear()
    consumer.close()
    return found


PROGRAMS = (
    consumer_poll_arguments,
    consumer_consume_arguments,
    consumer_assign_takes_a_list_of_places,
    consumer_assign_replaces_the_assignment,
    consumer_assign_of_one_partition_twice,
    consumer_subscribe_arguments,
    consumer_subscribe_replaces_the_subscription,
    consumer_joins_its_group_without_poll,
    consumer_tells_what_it_is_assigned,
    consumer_callbacks_that_raise,
    consumer_keeps_what_stays_of_a_cooperative_subscription,
    consumer_changes_its_subscription,
    consumer_changes_its_patterns,
    consumer_subscribes_twice_before_it_polls,
    consumer_subscribes_in_on_assign,
    consumer_commit_arguments,
    consumer_on_commit_of_the_configuration,
    consumer_committed_arguments,
    consumer_metadata_of_offsets,
    consumer_store_offsets_arguments,
    consumer_position_arguments,
    consumer_seek_arguments,
    consumer_pause_and_resume_arguments,
    consumer_pauses_end_with_the_assignment,
    consumer_times_and_watermarks_arguments,
    consumer_member_ids,
    consumer_group_metadata_is_opaque,
    consumer_in_a_with_block,
    consumer_after_close,
    consumer_configurations,
    consumer_statistics,
    consumer_unsubscribes_without_a_subscription,
    consumer_subscription_gives_way_to_an_assignment,
    consumer_errors_of_the_connection,
)
