"""Calls of the application: which are refused, checks of what it passes, callbacks that run inside
calls, and how the consumer ends: by `close`, at the exit of the process, by garbage collection, and
in a forked child.
"""

from __future__ import annotations

import atexit
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar
from weakref import WeakSet, finalize

from deltaq.clock import Clock, Thread, after_fork, this_thread
from deltaq.config import ConsumerConfig
from deltaq.errors import InvalidConfig, KafkaError, Unavailable, WrongState
from deltaq.log_forwarding import forward_logs
from deltaq.message import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    OFFSET_TAIL_BASE,
    TopicPartition,
)
from deltaq.names import check_topic
from deltaq.outage import OutageReports
from deltaq.topic import Topic

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound="Guarded")

_CONSUME_MAX = 1_000_000
_LOGICAL = (OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, OFFSET_INVALID)
_log = logging.getLogger("deltaq.consumer")


class CallGuard:
    """Refuses calls of a closed consumer, and calls that a signal handler makes inside another one
    on the same thread: a nested call could deadlock on the locks of the first.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self.is_close_delayed = False
        self._why_closed = "Consumer closed"
        # Ids of the threads that are inside a method, but not in a callback.
        self._inside: set[int] = set()

    def refuse_all(self, why: str) -> None:
        """Close for this reason."""
        self.is_closed = True
        self._why_closed = why

    @property
    def is_ending(self) -> bool:
        """Whether a callback has closed the consumer, or a signal handler has called `close`."""
        return self.is_closed or self.is_close_delayed

    def check_open(self) -> None:
        """Raise RuntimeError if the consumer is closed."""
        if self.is_closed:
            raise RuntimeError(self._why_closed)

    def check_not_inside(self) -> None:
        """Raise WrongState if a signal handler makes this call inside another one on the same
        thread.
        """
        if self._inside and this_thread() in self._inside:
            raise WrongState(
                "a signal handler called this consumer inside another of its calls; set a flag in "
                "the handler, and handle it after that call has returned"
            )

    def run(self, call: Callable[[], R]) -> R:
        """Run a call that must not be re-entered."""
        thread = this_thread()
        try:
            self._inside.add(thread)
            return call()
        finally:
            self._inside.discard(thread)

    def run_close(self, close: Callable[[], None]) -> None:
        """Run `close` once, or delay it until the call ends inside which a signal handler calls
        it.
        """
        if self.is_closed:
            return
        if this_thread() in self._inside:
            self.is_close_delayed = True
        else:
            self.run(close)

    def call_out(self, call: Callable[[], object]) -> None:
        """Run a callback of the application, which may call the consumer."""
        thread = this_thread()
        was_inside = thread in self._inside
        try:
            self._inside.discard(thread)
            call()
        finally:
            if was_inside:
                self._inside.add(thread)


class Guarded(Protocol):
    """A client with a `CallGuard`."""

    _calls: CallGuard

    def close(self) -> None: ...


def exclusive(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Decorate a method that must not be re-entered on the same thread.

    Only a signal handler can nest calls. A nested `close` is delayed until this call ends; other
    methods raise WrongState.
    """

    @wraps(method)
    def call(self: C, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        calls = self._calls
        calls.check_open()
        calls.check_not_inside()
        try:
            return calls.run(lambda: method(self, *arguments, **keywords))
        finally:
            if calls.is_close_delayed:
                self.close()

    return call


class PendingEvents:
    """Callbacks about events (`on_commit`, `error_cb`) that wait for the next call of the
    application. Thread-safe.
    """

    def __init__(self, config: ConsumerConfig, calls: CallGuard, clock: Clock) -> None:
        self._on_commit = config.on_commit
        self._error_cb = config.error_cb
        self._outage = OutageReports(clock)
        self._stats_cb = config.stats_cb
        self._statistics: str | None = None  # that no call has handed over yet
        self._calls = calls
        self.pending: deque[Callable[[], object]] = deque()

    def committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The result of an asynchronous or periodic commit."""
        callback = self._on_commit
        if callback is not None:
            self.pending.append(lambda: callback(error, partitions))

    def store_unavailable(self, error: Unavailable) -> None:
        """The store does not answer."""
        callback = self._error_cb
        if callback is not None:
            self.pending.extend(partial(callback, each) for each in self._outage.due(error.error))

    def statistics(self, text: str) -> None:
        """Statistics as JSON. They replace those that still wait."""
        waiting, self._statistics = self._statistics, text
        if waiting is None:
            self.pending.append(self._hand_over_statistics)

    def _hand_over_statistics(self) -> None:
        text, self._statistics = self._statistics, None
        if self._stats_cb is not None and text is not None:
            self._stats_cb(text)

    def run(self) -> None:
        """Run the callbacks. Raises what they raise."""
        while self.pending:
            self._calls.call_out(self.pending.popleft())


def topic_name(topic: object, *, deserializes: bool) -> str:
    """The name of a topic that is given by name or handle. Raises TypeError, and InvalidConfig for
    a handle with deserializers unless the consumer `deserializes`.
    """
    if isinstance(topic, str):
        return topic
    if not isinstance(topic, Topic):
        raise TypeError(f"a topic must be str or Topic, not {type(topic).__name__}")
    if topic.deserializers and not deserializes:
        raise InvalidConfig(
            f"{topic!r} has deserializers: use a DeserializingConsumer", key="value_deserializer"
        )
    return topic.name


def check_count(num_messages: int) -> None:
    """Raise ValueError for a number of messages that `consume` does not take."""
    if not 0 <= num_messages <= _CONSUME_MAX:
        raise ValueError(f"num_messages must be between 0 and {_CONSUME_MAX} (1M)")


def partition_list(partitions: object) -> list[TopicPartition]:
    """`partitions` if it is a list of TopicPartition. Raises TypeError."""
    if not isinstance(partitions, list) or not all(
        isinstance(tp, TopicPartition) for tp in partitions
    ):
        raise TypeError("expected a list of TopicPartition")
    return partitions


def check_partition(tp: TopicPartition) -> None:
    """Raise InvalidConfig for an invalid topic name, an offset of 2^63-1 or more, and a negative
    partition.
    """
    check_topic(tp.topic)
    if tp.offset >= 2**63 - 1:
        reason = (
            f"offset {tp.offset} of {tp.topic}[{tp.partition}] is beyond the last that there can be"
        )
        raise InvalidConfig(reason, key="offset")
    if tp.partition < 0:
        raise InvalidConfig(
            f"partition {tp.partition} of topic {tp.topic!r} is negative", key="partition"
        )


def assignable(partitions: object) -> list[TopicPartition]:
    """`partitions` if they can be assigned: valid offsets, no duplicates. Raises TypeError,
    InvalidConfig.
    """
    listed = partition_list(partitions)
    for tp in listed:
        check_partition(tp)
        if tp.offset < 0 and tp.offset not in _LOGICAL and tp.offset > OFFSET_TAIL_BASE:
            reason = (
                f"offset {tp.offset} of {tp.topic}[{tp.partition}] is neither an offset nor an "
                "OFFSET_ constant"
            )
            raise InvalidConfig(reason, key="offset")
    if len(set(listed)) < len(listed):
        raise InvalidConfig("the list names a partition twice", key="partitions")
    return listed


class ThreadOwner(Protocol):
    """A part of a consumer that has threads."""

    def close(self) -> None:
        """End the threads and wait for them. May be called again."""

    def abandon(self) -> Thread | None:
        """Let a thread end soon, and return it. May be called in any thread, also in that one."""


class ConsumerLifecycle:
    """The parts of one consumer that have threads, which end with the consumer. It holds no
    reference to that one.
    """

    def __init__(
        self, consumer: object, group: str, calls: CallGuard, logger: logging.Logger | None = None
    ) -> None:
        self._calls = calls
        self._forwarding = forward_logs(logger, consumer)
        self._parts: list[ThreadOwner] = []
        _OPEN.add(self)
        self._dropped = finalize(consumer, _abandon, group, self._parts)
        self._dropped.atexit = False  # `_end_all` handles the exit of the process

    def add(self, part: ThreadOwner) -> None:
        """Add a part, before its first thread starts."""
        if part not in self._parts:
            self._parts.append(part)

    def remove(self, part: ThreadOwner) -> None:
        """Forget a part that has ended."""
        if part in self._parts:
            self._parts.remove(part)

    def end(self) -> None:
        """Refuse further calls, and end all threads, those of the newest part first."""
        self._calls.is_closed = True
        self._dropped.detach()
        for part in reversed(self._parts):
            part.close()
        if self._forwarding is not None:
            self._forwarding()
        # Last: after an interrupted close, the exit of the process ends the threads.
        _OPEN.discard(self)

    def refuse_in_child(self) -> None:
        """Make the consumer unusable in a forked child: its threads and its membership stay in the
        parent.
        """
        self._calls.refuse_all(
            "this Consumer was created before the process forked: create one in the child"
        )
        self._dropped.detach()


def _abandon(group: str, parts: Sequence[ThreadOwner]) -> None:
    """End the threads of a consumer that was garbage-collected without `close`.

    This may run in any thread, including one of the consumer's own.
    """
    if parts:
        text = (
            "a Consumer of group %r was garbage-collected without close(): it leaves the group and "
            "commits nothing"
        )
        _log.warning(text, group)
    _ENDING.difference_update([thread for thread in tuple(_ENDING) if not thread.is_alive()])
    _ENDING.update([thread for part in tuple(parts) if (thread := part.abandon()) is not None])


_OPEN: WeakSet[ConsumerLifecycle] = WeakSet()
_ENDING: set[Thread] = set()
"""The threads of garbage-collected consumers. They may still be leaving their group."""


def _refuse_forked() -> None:
    for lifecycle in tuple(_OPEN):
        lifecycle.refuse_in_child()
    _OPEN.clear()
    _ENDING.clear()


after_fork(_refuse_forked)


def _end_all() -> None:
    """At exit, end the threads of consumers that were not closed.

    Python must not finalize while such a thread reads. As if the process had died, nothing is
    committed and no callback runs; but the consumer leaves its group, so the next member need not
    wait for the session time-out.
    """
    for lifecycle in tuple(_OPEN):
        lifecycle.end()
    while _ENDING:
        _ENDING.pop().join()


atexit.register(_end_all)
