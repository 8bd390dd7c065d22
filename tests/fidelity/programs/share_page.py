"""What the documentation of the client says of share groups, statement by statement."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tests.fidelity.session import READ_S, ProgramRun, attempt

EARLIEST = {"share.auto.offset.reset": "earliest"}


def _set(session: ProgramRun, group: str, settings: dict[str, str]) -> Any:
    """What changing the settings of a group answers."""
    names = session.admin_names
    entries = [
        names.ConfigEntry(name, value, incremental_operation=names.AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = names.ConfigResource(
        names.ConfigResource.Type.GROUP, group, incremental_configs=entries
    )
    return session.result(session.admin.incremental_alter_configs([resource]))


def _group(session: ProgramRun, **settings: str) -> str:
    """A new group that begins with the earliest record."""
    group = session.name("g")
    _set(session, group, EARLIEST | {key.replace("_", "."): of for key, of in settings.items()})
    return group


def _filled(session: ProgramRun, number: int) -> str:
    topic: str = session.topic()
    session.fill(topic, number)
    return topic


def _explicit(session: ProgramRun, group: str, *topics: str) -> Any:
    consumer = session.share_consumer(group, share_acknowledgement_mode="explicit")
    consumer.subscribe(list(topics))
    return consumer


def _implicit(session: ProgramRun, group: str, *topics: str) -> Any:
    consumer = session.share_consumer(group)
    consumer.subscribe(list(topics))
    return consumer


def _read(consumer: Any, number: int, seconds: float = READ_S) -> list[Any]:
    """The messages of the first polls that return so many, or those of all polls in so long."""
    found: list[Any] = []
    deadline = time.monotonic() + seconds
    while len(found) < number and (left := deadline - time.monotonic()) > 0:
        found += consumer.poll(min(0.5, left))
    return found


def _more(session: ProgramRun, consumer: Any) -> list[Any]:
    """What else comes, where nothing is expected."""
    return _places(_read(consumer, 1, session.target.quiet_s))


def _places(messages: Any) -> list[Any]:
    return [(message.offset(), message.delivery_count()) for message in messages]


def _results(found: Any) -> Any:
    """The answer of a commit, with the offsets of its keys, which say nothing, left out."""
    if isinstance(found, Exception):
        return found
    return {f"{key.topic}:{key.partition}": (key.error, error) for key, error in found.items()}


def _heard(consumer: Any) -> list[Any]:
    """What the callback for acknowledgements gets."""
    heard: list[Any] = []

    def callback(offsets: Any, error: Any) -> None:
        places = {f"{key.topic}:{key.partition}": sorted(of) for key, of in offsets.items()}
        heard.append((places, error))

    consumer.set_acknowledgement_commit_callback(callback)
    return heard


# --- making one ---


def share_settings_of_consumers(session: ProgramRun) -> Any:
    wrong = {
        "auto.offset.reset": "earliest",
        "enable.auto.commit": True,
        "enable.partition.eof": True,
        "group.instance.id": "x",
        "group.protocol": "classic",
        "group.remote.assignor": "x",
        "heartbeat.interval.ms": 100,
        "isolation.level": "read_committed",
        "on_commit": print,
        "partition.assignment.strategy": "range",
        "queued.min.messages": 5,
        "session.timeout.ms": 6000,
        "share.acquire.mode": "record_limit",
    }
    make = session.kafka.ShareConsumer
    base = {"bootstrap.servers": session.target.address}
    return {
        # Through `attempt` alone, it would be called with an empty dict of keywords.
        "nothing": attempt(lambda: make()),
        "no_group": attempt(make, base),
        **{
            name: attempt(make, base | {"group.id": "g", name: value})
            for name, value in wrong.items()
        },
    }


def share_subscribe_arguments(session: ProgramRun) -> Any:
    consumer = session.share_consumer()
    found: dict[str, Any] = {"before": consumer.subscription()}
    given: dict[str, Any] = {
        "text": "t",
        "none": None,
        "tuple": ("t",),
        "one": ["t"],
        "empty": [""],
        "twice": ["t", "t"],
        "two": ["a", "b"],
        "nothing": [],
    }
    for name, topics in given.items():
        found[name] = attempt(consumer.subscribe, topics), sorted(consumer.subscription())
    consumer.subscribe(["t"])
    return found | {"unsubscribe": consumer.unsubscribe(), "after": consumer.subscription()}


def share_calls_without_a_subscription(session: ProgramRun) -> Any:
    consumer, message = session.share_consumer(), session.kafka.Message("t", 0, 0)
    return {
        "poll": attempt(consumer.poll, 0),
        "acknowledge": attempt(consumer.acknowledge, message),
        "acknowledge_offset": attempt(consumer.acknowledge_offset, "t", 0, 0),
        "commit_sync": consumer.commit_sync(),
        "commit_sync_for_ever": consumer.commit_sync(-1),
        "commit_async": consumer.commit_async(),
        "credentials": consumer.set_sasl_credentials("a", "b"),
        "no_callback": consumer.set_acknowledgement_commit_callback(None),
        "bool": bool(consumer),
    }


def share_arguments_of_other_types(session: ProgramRun) -> Any:
    consumer = session.share_consumer(share_acknowledgement_mode="explicit")
    message = session.kafka.Message
    return {
        "poll_text": attempt(consumer.poll, "1"),
        "poll_none": attempt(consumer.poll, None),
        "commit_text": attempt(consumer.commit_sync, "1"),
        "commit_none": attempt(consumer.commit_sync, None),
        "async_argument": attempt(consumer.commit_async, 1),
        "callback": attempt(consumer.set_acknowledgement_commit_callback, 1),
        "no_message": attempt(consumer.acknowledge, "m"),
        "unknown": attempt(consumer.acknowledge, message("t", 0, 0)),
        "no_topic": attempt(consumer.acknowledge, message(None, 0, 0)),
        "no_partition": attempt(consumer.acknowledge, message("t", -1, 0)),
        "no_offset": attempt(consumer.acknowledge, message("t", 0, -1)),
        **{
            f"type_{kind}": attempt(consumer.acknowledge, message("t", 0, 0), kind)
            for kind in (0, 4, 9, "x")
        },
        "topic_number": attempt(consumer.acknowledge_offset, 1, 0, 0),
        "partition_text": attempt(consumer.acknowledge_offset, "t", "x", 0),
        "partition_negative": attempt(consumer.acknowledge_offset, "t", -1, 0),
        "offset_negative": attempt(consumer.acknowledge_offset, "t", 0, -1),
        "keywords": attempt(
            consumer.acknowledge_offset, topic="t", partition=0, offset=0, ack_type=1
        ),
    }


def share_calls_after_close(session: ProgramRun) -> Any:
    consumer = session.share_consumer()
    message = session.kafka.Message("t", 0, 0)
    calls: dict[str, tuple[Any, ...]] = {
        "poll": (0,),
        "subscribe": (["t"],),
        "unsubscribe": (),
        "subscription": (),
        "commit_sync": (),
        "commit_async": (),
        "acknowledge": (message,),
        "acknowledge_offset": ("t", 0, 0),
        "set_acknowledgement_commit_callback": (None,),
        "set_sasl_credentials": ("a", "b"),
    }
    return {
        "close": (consumer.close(), consumer.close()),
        **{name: attempt(getattr(consumer, name), *given) for name, given in calls.items()},
    }


# --- implicit mode ---


def share_implicit_accepts_by_polling(session: ProgramRun) -> Any:
    topic, group = _filled(session, 3), _group(session)
    consumer = _implicit(session, group, topic)
    heard = _heard(consumer)
    first = _read(consumer, 3)
    then = _more(session, consumer)
    consumer.close()
    again = _implicit(session, group, topic)
    session.fill(topic, 1, start=3)
    return {
        "first": [(message.offset(), message.value(), message.key()) for message in first],
        "counts": _places(first),
        "then": then,
        "heard": heard,
        "again": _places(_read(again, 1)),
    }


def share_implicit_accepts_by_committing(session: ProgramRun) -> Any:
    topic, group = _filled(session, 3), _group(session)
    consumer = _implicit(session, group, topic)
    _read(consumer, 3)
    committed = [_results(consumer.commit_sync()) for _ in range(2)]
    consumer.close()
    again = _implicit(session, group, topic)
    session.fill(topic, 1, start=3)
    return {"committed": committed, "again": _places(_read(again, 1))}


def share_implicit_close_gives_back(session: ProgramRun) -> Any:
    topic, group = _filled(session, 2), _group(session)
    consumer = _implicit(session, group, topic)
    _read(consumer, 2)
    consumer.close()
    return _places(_read(_implicit(session, group, topic), 2))


# --- explicit mode ---


def share_explicit_decisions(session: ProgramRun) -> Any:
    topic, kinds = _filled(session, 4), session.kafka.AcknowledgeType
    consumer = _explicit(session, _group(session), topic)
    messages = _read(consumer, 4)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[1], kinds.RELEASE)
    consumer.acknowledge(messages[2], kinds.REJECT)
    consumer.acknowledge_offset(topic, 0, 3, kinds.RELEASE)
    committed = _results(consumer.commit_sync())
    again = _read(consumer, 2)
    for message in again:
        consumer.acknowledge(message)
    return {
        "kinds": [(kind.name, int(kind)) for kind in kinds],
        "committed": committed,
        "again": _places(again),
        "then": _more(session, consumer),
    }


def share_explicit_poll_needs_decisions(session: ProgramRun) -> Any:
    consumer = _explicit(session, _group(session), _filled(session, 3))
    messages = _read(consumer, 3)
    found: dict[str, Any] = {"none": attempt(consumer.poll, 0)}
    consumer.acknowledge(messages[0])
    found |= {"one": attempt(consumer.poll, 0), "committed": _results(consumer.commit_sync())}
    found["after_commit"] = attempt(consumer.poll, 0)
    for message in messages[1:]:
        consumer.acknowledge(message)
    return found | {"all": _more(session, consumer)}


def share_explicit_last_decision_counts(session: ProgramRun) -> Any:
    kinds = session.kafka.AcknowledgeType
    consumer = _explicit(session, _group(session), _filled(session, 1))
    (message,) = _read(consumer, 1)
    found = [attempt(consumer.acknowledge, message, kind) for kind in (kinds.REJECT, kinds.RELEASE)]
    committed = _results(consumer.commit_sync())
    after = attempt(consumer.acknowledge, message)
    return {
        "acknowledged": found,
        "committed": committed,
        "after": after,
        "again": _places(_read(consumer, 1)),
    }


def share_explicit_close_gives_back(session: ProgramRun) -> Any:
    topic, group = _filled(session, 3), _group(session)
    consumer = _explicit(session, group, topic)
    messages = _read(consumer, 3)
    consumer.acknowledge(messages[1])
    consumer.close()
    return _places(_read(_implicit(session, group, topic), 2))


def share_explicit_unsubscribed(session: ProgramRun) -> Any:
    topic = _filled(session, 2)
    consumer = _explicit(session, _group(session), topic)
    messages = _read(consumer, 2)
    consumer.unsubscribe()
    found: dict[str, Any] = {"poll": attempt(consumer.poll, 0)}
    found["acknowledged"] = [attempt(consumer.acknowledge, message) for message in messages]
    found["committed"] = _results(consumer.commit_sync())
    return found


def share_deliveries_are_limited(session: ProgramRun) -> Any:
    consumer = _explicit(session, _group(session), _filled(session, 1))
    found = []
    for _ in range(5):
        for message in _read(consumer, 1):
            found += _places([message])
            consumer.acknowledge(message, session.kafka.AcknowledgeType.RELEASE)
    return {"found": found, "then": _more(session, consumer)}


def share_deliveries_are_limited_by_the_group(session: ProgramRun) -> Any:
    group = _group(session, share_delivery_count_limit="2")
    consumer = _explicit(session, group, _filled(session, 1))
    found = []
    for _ in range(2):
        for message in _read(consumer, 1):
            found += _places([message])
            consumer.acknowledge(message, session.kafka.AcknowledgeType.RELEASE)
    return {"found": found, "then": _more(session, consumer)}


def share_lock_that_is_over(session: ProgramRun) -> Any:
    lock_s = session.target.lock_s
    group = _group(session, share_record_lock_duration_ms=str(round(lock_s * 1000)))
    topic = _filled(session, 2)
    slow, other = _explicit(session, group, topic), _implicit(session, group, topic)
    late: list[Any] = []
    while not late:
        late = list(slow.poll(0.5))
        other.poll(0)
    heard = _heard(slow)
    again = _read(other, len(late), lock_s + READ_S)
    for message in late:
        slow.acknowledge(message)
    return {
        "again": _places(again),
        "late": _results(slow.commit_sync()),
        "heard": heard,
        "other": _results(other.commit_sync()),
    }


# --- several consumers, topics and groups ---


def share_two_consumers_of_one_partition(session: ProgramRun) -> Any:
    topic, group = _filled(session, 4), _group(session)
    one, two = _implicit(session, group, topic), _implicit(session, group, topic)
    found: list[Any] = []
    deadline = time.monotonic() + READ_S
    while len(found) < 4 and time.monotonic() < deadline:
        found += _places(one.poll(0.2)) + _places(two.poll(0.2))
    return sorted(found)


def share_two_groups(session: ProgramRun) -> Any:
    topic = _filled(session, 2)
    return [_places(_read(_implicit(session, _group(session), topic), 2)) for _ in range(2)]


def share_begins_at_the_end(session: ProgramRun) -> Any:
    topic = _filled(session, 2)
    consumer = _implicit(session, session.name("g"), topic)
    consumer.poll(session.target.join_s)
    session.fill(topic, 1, start=2)
    return _places(_read(consumer, 1))


def share_topic_that_is_missing(session: ProgramRun) -> Any:
    topic = session.name("t")
    consumer = _implicit(session, _group(session), topic)
    return {"found": _more(session, consumer), "exists": session.exists(topic)}


def share_topics_of_several_partitions(session: ProgramRun) -> Any:
    topic = session.topic(partitions=2)
    for partition in range(2):
        session.fill(topic, 2, partition)
    consumer = _implicit(session, _group(session), topic)
    messages: list[Any] = []
    committed: dict[str, Any] = {}
    deadline = time.monotonic() + READ_S
    while len(messages) < 4 and time.monotonic() < deadline:
        messages += consumer.poll(0.5)
        committed |= _results(consumer.commit_sync())
    places = sorted((message.partition(), message.offset()) for message in messages)
    return {"places": places, "committed": committed}


def share_group_named_like_a_consumer_group(session: ProgramRun) -> Any:
    topic, group = _filled(session, 1), session.name("g")
    consumer = session.consumer(group)
    consumer.subscribe([topic])
    read = [message.offset() for message in session.read(consumer, 1)]
    consumer.commit(asynchronous=False)
    return {"read": read, "poll": attempt(_read, _implicit(session, group, topic), 1)}


def share_group_joined_by_a_consumer(session: ProgramRun) -> Any:
    topic, group = _filled(session, 1), _group(session)
    _read(_implicit(session, group, topic), 1)
    consumer = session.consumer(group)
    consumer.subscribe([topic])
    message = consumer.poll(READ_S)
    committed = consumer.committed([session.place(topic)], timeout=READ_S)
    return {"poll": message.error().name(), "committed": committed}


def share_transactions(session: ProgramRun) -> Any:
    topic = session.topic()
    producer = session.producer(transactional_id=session.name("id"))
    producer.init_transactions(READ_S)
    for value, ends in (("a", "abort"), ("b", "commit")):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(READ_S)
        getattr(producer, f"{ends}_transaction")(READ_S)
    group = _group(session, share_isolation_level="read_committed")
    return [message.value() for message in _read(_implicit(session, group, topic), 1)]


# --- settings of groups ---


def share_settings_that_are_refused(session: ProgramRun) -> Any:
    group = session.name("g")
    wrong = {
        "reset": {"share.auto.offset.reset": "other"},
        "duration": {"share.auto.offset.reset": "by_duration:x"},
        "lock": {"share.record.lock.duration.ms": "10"},
        "limit": {"share.delivery.count.limit": "0"},
        "locks": {"share.partition.max.record.locks": "0"},
        "isolation": {"share.isolation.level": "foo"},
        "unknown": {"share.foo": "1"},
        "of_a_topic": {"retention.ms": "1"},
        "number": {"share.delivery.count.limit": "x"},
    }
    right = {"share.auto.offset.reset": "by_duration:PT1H"}
    return {name: _set(session, group, each) for name, each in (wrong | {"right": right}).items()}


def share_settings_that_are_described(session: ProgramRun) -> Any:
    group = session.name("g")
    _set(session, group, EARLIEST | {"share.delivery.count.limit": "3"})
    resource = session.admin_names.ConfigResource(
        session.admin_names.ConfigResource.Type.GROUP, group
    )
    found = session.result(session.admin.describe_configs([resource]))
    names = (
        "share.auto.offset.reset",
        "share.delivery.count.limit",
        "share.isolation.level",
        "share.partition.max.record.locks",
        "share.record.lock.duration.ms",
    )
    return {name: (found[name].value, found[name].is_default) for name in names}


# --- callbacks and threads ---


def share_callback_results(session: ProgramRun) -> Any:
    consumer = _explicit(session, _group(session), _filled(session, 3))
    heard = _heard(consumer)
    messages = _read(consumer, 3)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2])
    consumer.commit_sync()
    first = len(heard)
    consumer.acknowledge(messages[1])
    found = consumer.commit_async()
    _more(session, consumer)
    return {"heard": heard, "first": first, "async": found}


def share_callback_that_raises(session: ProgramRun) -> Any:
    consumer = _implicit(session, _group(session), _filled(session, 1))
    _read(consumer, 1)

    def raises(*_: Any) -> None:
        raise KeyError("boom")

    consumer.set_acknowledgement_commit_callback(raises)
    return {"commit": attempt(consumer.commit_sync), "then": _more(session, consumer)}


def share_callback_that_calls(session: ProgramRun) -> Any:
    consumer = _implicit(session, _group(session), _filled(session, 1))
    _read(consumer, 1)
    found: dict[str, Any] = {}

    def calls(*_: Any) -> None:
        for name, given in (
            ("poll", (0,)),
            ("commit_sync", ()),
            ("acknowledge_offset", ("t", 0, 0)),
            ("subscription", ()),
            ("set_acknowledgement_commit_callback", (None,)),
            ("close", ()),
        ):
            found[name] = attempt(getattr(consumer, name), *given)

    consumer.set_acknowledgement_commit_callback(calls)
    return {"committed": _results(consumer.commit_sync()), "found": found}


def share_calls_of_another_thread(session: ProgramRun) -> Any:
    consumer = _implicit(session, _group(session), session.topic())
    consumer.poll(0)
    polling = threading.Thread(target=lambda: consumer.poll(session.target.quiet_s))
    polling.start()
    time.sleep(session.target.quiet_s / 2)
    found = {
        name: attempt(getattr(consumer, name), *given)
        for name, given in (
            ("poll", (0,)),
            ("subscription", ()),
            ("commit_sync", ()),
            ("subscribe", (["t"],)),
            ("acknowledge_offset", ("t", 0, 0)),
            ("close", ()),
        )
    }
    polling.join()
    return found | {"after": len(consumer.subscription())}


def share_messages_are_a_sequence(session: ProgramRun) -> Any:
    consumer = _implicit(session, _group(session), _filled(session, 3))
    messages: Any = ()
    while not messages:
        messages = consumer.poll(1.0)
    empty = consumer.poll(session.target.quiet_s)
    return {
        "name": type(messages).__name__,
        "count": (messages.count(), len(messages), messages.is_empty(), bool(messages)),
        "one": messages[-1].offset(),
        "slice": (type(messages[1:]).__name__, len(messages[1:])),
        "records": type(messages.records()).__name__,
        "none": (empty.count(), empty.is_empty(), bool(empty), repr(empty)),
    }


PROGRAMS: tuple[Callable[[ProgramRun], Any], ...] = (
    share_settings_of_consumers,
    share_subscribe_arguments,
    share_calls_without_a_subscription,
    share_arguments_of_other_types,
    share_calls_after_close,
    share_implicit_accepts_by_polling,
    share_implicit_accepts_by_committing,
    share_implicit_close_gives_back,
    share_explicit_decisions,
    share_explicit_poll_needs_decisions,
    share_explicit_last_decision_counts,
    share_explicit_close_gives_back,
    share_explicit_unsubscribed,
    share_deliveries_are_limited,
    share_deliveries_are_limited_by_the_group,
    share_lock_that_is_over,
    share_two_consumers_of_one_partition,
    share_two_groups,
    share_begins_at_the_end,
    share_topic_that_is_missing,
    share_topics_of_several_partitions,
    share_group_named_like_a_consumer_group,
    share_group_joined_by_a_consumer,
    share_transactions,
    share_settings_that_are_refused,
    share_settings_that_are_described,
    share_callback_results,
    share_callback_that_raises,
    share_callback_that_calls,
    share_calls_of_another_thread,
    share_messages_are_a_sequence,
)
