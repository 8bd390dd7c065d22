"""A short measurement of a root: how fast its store answers, and how fast messages are written and
read.

For a first impression, and to compare roots. `make bench` has the benchmarks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deltaq import names
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.consumer.consumer import Consumer
from deltaq.delta.store_errors import raising_unavailable
from deltaq.errors import KafkaError, KafkaException, UnknownTopic
from deltaq.message import OFFSET_BEGINNING, TopicPartition
from deltaq.producer.producer import Producer
from deltaq.store import Store
from deltaq.topic import Topic
from deltaq.topics.listing import topic_names

PREFIX = "deltaq-bench-"
"""The beginning of the names of topics that a measurement makes, and deletes."""

LEFT_BEHIND_S = 3600
"""Seconds after the last change of such a topic from which on no measurement can be using it."""

MESSAGES_MAX = 1_000_000
"""Messages that one measurement writes at full speed."""

_NAME = re.compile(re.escape(PREFIX) + "[0-9a-f]{12}")
_REQUESTS = 10
_AT_ONCE = 1_000
_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured. Times are in milliseconds; of each kind there are the median and the
    longest.

    `written_per_s` are messages acknowledged a second, `read_per_s` messages returned by `consume`,
    both at full speed. `arrival` is the time from `produce` of a message alone until `poll` returns
    it.
    """

    messages: int
    message_bytes: int
    put_ms: tuple[float, float]
    get_ms: tuple[float, float]
    written_per_s: float
    read_per_s: float
    arrival_ms: tuple[float, float]
    arrivals: int


def measure_speed(
    store: Store,
    clock: Clock = SYSTEM_CLOCK,
    conf: Mapping[str, Any] | None = None,
    *,
    seconds: float = 6.0,
    message_bytes: int = 100,
    partitions: int = 1,
    notify: Callable[[str], object] = lambda _: None,
) -> Speed:
    """Measure a root for about so many seconds, a third for each of writing, reading, and messages
    one by one.

    Makes a topic with a name of its own, and removes it with all its objects, also after an error.
    Removes what killed measurements have left, too. `conf` are settings of clients. `notify` is
    called with the name of each part. Raises Unavailable, KafkaException for a message that is not
    delivered or does not arrive within a minute, UnsafeStore.
    """
    part_s = seconds / 3
    settings = {**(conf or {}), "maintenance.enable": False, "bootstrap.servers": store.url}
    with _topic(store, clock, partitions) as topic:
        notify("requests")
        put_ms, get_ms = _request_times(store, clock, names.topic_folder(topic.name))
        notify("writing")
        count, took_s = _write(topic, settings, clock, part_s, bytes(message_bytes))
        notify("reading")
        read, read_s = _read(topic, settings, clock, partitions, count, part_s)
        notify("latency")
        arrivals = _one_by_one(topic, settings, clock, part_s, bytes(message_bytes))
    return Speed(
        count,
        message_bytes,
        put_ms,
        get_ms,
        count / max(took_s, 1e-9),
        read / max(read_s, 1e-9),
        _median_and_longest(arrivals),
        len(arrivals),
    )


@contextmanager
def _topic(store: Store, clock: Clock, partitions: int) -> Iterator[Topic]:
    topic = Topic(
        f"{PREFIX}{clock.unique_id()[:12]}", partitions=partitions, store=store, clock=clock
    )
    try:
        topic.create()
        # By the time of the store: with a clock that is wrong, measurements that run now would seem
        # old.
        for left in left_behind(store, _changed_ms(store, topic.name)):
            _remove_objects(store, left)
        yield topic
    finally:
        _remove(topic)


def left_behind(store: Store, now_ms: int) -> list[str]:
    """The topics that killed measurements have left, at this time. Raises Unavailable."""
    oldest_ms = now_ms - LEFT_BEHIND_S * 1000
    return [
        name
        for name in topic_names(store)
        if _NAME.fullmatch(name) and _changed_ms(store, name) < oldest_ms
    ]


def _changed_ms(store: Store, topic: str) -> int:
    """When the newest object of a topic was written."""
    with raising_unavailable():
        return max(
            (entry.modified_ms for entry in store.list(names.topic_folder(topic))), default=0
        )


def _remove(topic: Topic) -> None:
    """Delete the topic, then its objects."""
    try:
        topic.delete()
    except UnknownTopic:
        pass  # it was not created
    _remove_objects(topic.store, topic.name)


def _remove_objects(store: Store, topic: str) -> None:
    """Remove all objects of a topic whose name is used only once, so that nothing is left that
    needs them.
    """
    with raising_unavailable():
        for entry in list(store.list(names.topic_folder(topic))):
            store.delete(entry.key)


def _request_times(
    store: Store, clock: Clock, folder: str
) -> tuple[tuple[float, float], tuple[float, float]]:
    key, content = f"{folder}_bench", bytes(1_000)
    put, get = [], []
    with raising_unavailable():
        for _ in range(_REQUESTS):
            begun_at = clock.monotonic()
            store.put(key, content)
            put_at = clock.monotonic()
            store.get(key)
            put.append(put_at - begun_at)
            get.append(clock.monotonic() - put_at)
    return _median_and_longest(put), _median_and_longest(get)


def _write(
    topic: Topic, settings: Mapping[str, Any], clock: Clock, seconds: float, value: bytes
) -> tuple[int, float]:
    """Messages that were acknowledged, and in how many seconds."""
    failures: list[KafkaError] = []

    def reported(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(error)

    count, begun_at = 0, clock.monotonic()
    waiting = {**settings, "max.block.ms": int(_WAIT_S * 1000), "delivery.report.only.error": True}
    with Producer(waiting, on_delivery=reported, store=topic.store, clock=clock) as producer:
        while not count or (
            count < MESSAGES_MAX and clock.monotonic() < begun_at + seconds and not failures
        ):
            for _ in range(_AT_ONCE):
                producer.produce(topic.name, value)
            count += _AT_ONCE
            producer.poll(0)
        left = producer.flush(_WAIT_S)
        took_s = clock.monotonic() - begun_at
    if failures or left:
        raise KafkaException(
            failures[0]
            if failures
            else KafkaError(KafkaError._TIMED_OUT, f"{left} are not written")
        )
    return count, took_s


def _reader(topic: Topic, settings: Mapping[str, Any], clock: Clock) -> Consumer:
    conf = {**settings, "group.id": topic.name, "enable.auto.commit": False}
    return Consumer(conf, store=topic.store, clock=clock)


def _read(
    topic: Topic,
    settings: Mapping[str, Any],
    clock: Clock,
    partitions: int,
    count: int,
    seconds: float,
) -> tuple[int, float]:
    """Messages that were read, all or those of so many seconds, and in how many seconds."""
    found = 0
    with _reader(topic, settings, clock) as consumer:
        consumer.assign(
            [TopicPartition(topic.name, number, OFFSET_BEGINNING) for number in range(partitions)]
        )
        begun_at = clock.monotonic()
        while not found or (found < count and clock.monotonic() < begun_at + seconds):
            # No more than there are: `consume` would wait for the others.
            messages = consumer.consume(
                min(10_000, count - found), timeout=_WAIT_S if not found else seconds
            )
            for error in filter(None, (message.error() for message in messages[:1])):
                raise KafkaException(error)
            if not messages and not found:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no message came back"))
            found += len(messages)
        return found, clock.monotonic() - begun_at


def _one_by_one(
    topic: Topic, settings: Mapping[str, Any], clock: Clock, seconds: float, value: bytes
) -> list[float]:
    """The seconds that messages took, each written after the one before was read."""
    took: list[float] = []
    quick = {**settings, "linger.ms": 0}
    with (
        _reader(topic, settings, clock) as consumer,
        Producer(quick, store=topic.store, clock=clock) as producer,
    ):
        # Not OFFSET_END: the consumer would look up the end in the background, perhaps after the
        # first message.
        _, end = consumer.get_watermark_offsets(TopicPartition(topic.name, 0), _WAIT_S)
        consumer.assign([TopicPartition(topic.name, 0, end)])
        end_at = clock.monotonic() + seconds
        while clock.monotonic() < end_at or not took:
            begun_at = clock.monotonic()
            producer.produce(topic.name, value, partition=0)
            message = consumer.poll(_WAIT_S)
            if message is None or (error := message.error()) is not None:
                raise KafkaException(
                    error if message is not None else KafkaError(KafkaError._TIMED_OUT)
                )
            took.append(clock.monotonic() - begun_at)
            producer.poll(0)
    return took


def _median_and_longest(seconds: Sequence[float]) -> tuple[float, float]:
    """In milliseconds."""
    ordered = sorted(seconds)
    return ordered[math.ceil(len(ordered) / 2) - 1] * 1000, ordered[-1] * 1000
