"""A queue that workers share: a share group over the topic of the queue and those of the exchanges
to which it is bound.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from deltaq import names
from deltaq.clock import Clock
from deltaq.errors import OutcomeUnknown
from deltaq.kombu.routes import Delivery, queue_topic, takes
from deltaq.message import AcknowledgeType, SharedMessage
from deltaq.share_consumer.topics import ReadPartition, SharedTopics
from deltaq.share_groups.bindings import Binding
from deltaq.share_groups.dead_letters import DeadLetters
from deltaq.share_groups.exchange import Exchange, Exchanged, LogRange, PartitionId
from deltaq.share_groups.log import ShareGroup, ShareLog
from deltaq.share_groups.state import (
    Acknowledgement,
    RecordState,
    SharePartition,
    TakenRange,
)
from deltaq.store import Store, Watch

_log = logging.getLogger("deltaq.kombu")

WRITE_S = 30.0
"""Seconds for which an entry of the group is tried again."""

ACKNOWLEDGE_S = 0.5
"""Seconds for which an acknowledgement waits for the next entry that takes messages."""

DAMAGED_MS = 10_000
"""Milliseconds after which a message that cannot be read is tried again."""

PURGED_AT_ONCE = 1_000
"""Messages of a purge in one entry."""

COUNTED_AT_ONCE = 10_000
"""Messages of an exchange that are read together to count those that the queue takes."""

WARN_AGAIN_S = 60.0
"""Seconds between two log lines about a queue of which no more messages can be taken."""

PASSED_S = 1.0
"""Seconds for which a call passes messages of exchanges that the queue does not take."""

VISIBILITY_S = 300.0
"""Seconds after which others get the messages of a worker that has died, unless the queue has
another duration.
"""

LOCK = "share.record.lock.duration.ms"

SETTINGS: Mapping[str, str] = {
    "share.auto.offset.reset": "earliest",
    # A worker that restarts gives back what it holds, so Celery decides how often a task runs.
    "share.delivery.count.limit": "1000000",
    # Tasks with an `eta` or `countdown` are held until then.
    "share.partition.max.record.locks": "10000",
    LOCK: str(round(VISIBILITY_S * 1000)),
}
"""Settings of the group of a queue, unless an administrator has set others."""


@dataclass(frozen=True, slots=True)
class DecidedMessage:
    """What is to become of a message. A released one is delivered again from `visible_ms` on,
    milliseconds since 1970 UTC.
    """

    tag: str
    type: AcknowledgeType
    visible_ms: int = 0


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """Where a message that this worker holds stands."""

    partition: PartitionId
    range: TakenRange


class SharedQueue:
    """A worker's view of one queue. `acknowledge` may be called by any thread, the rest by one.

    Methods raise Unavailable, OutcomeUnknown, Corrupt, Incompatible, and KafkaException for a group
    that is a consumer group.
    """

    def __init__(
        self, store: Store, clock: Clock, queue: str, lock_s: float | None, watch: Watch
    ) -> None:
        self._clock = clock
        name = queue_topic(queue)
        self._log = ShareLog(store, name, clock, "kombu")
        self._owner = self._log.new_member_id()
        self._topics = SharedTopics(store, clock, lambda _: None)
        about = name, self._topics.contents, self._topics.schemas
        self._dead_letters = DeadLetters(store, clock, *about)
        self._name, self._watch = name, watch
        self._followed: frozenset[str] = frozenset()
        watch.add(names.group_folder(name) + names.LOG_FOLDER)
        self._ready: deque[Delivery] = deque()
        self._held: dict[str, HeldMessage] = {}
        self._decided: deque[DecidedMessage] = deque()
        self._written_at = self._renewed_at = clock.monotonic()
        self._warned_at = float("-inf")
        wanted = {} if lock_s is None else {LOCK: str(round(lock_s * 1000))}
        self._log.alter_settings(partial(_settings_after, name, wanted), self._deadline())

    def bind(self, binding: Binding, ends: Mapping[PartitionId, int]) -> None:
        """Have the queue take what fits a binding, for all processes; of a topic to which it was
        not bound, from these ends on.
        """
        self._log.bind(binding, ends, self._deadline())

    def unbind(self, topic: str, routing_key: str) -> None:
        """Have the queue take no longer what fits a binding, in any process."""
        self._log.unbind(topic, routing_key, self._deadline())

    def take(self, most: int) -> Delivery | None:
        """The next message; None if there is none now. Takes up to `most` at once, which later
        calls return.
        """
        until = self._clock.monotonic() + PASSED_S
        while not self._ready and self._exchange(most):
            if self._clock.monotonic() >= until:
                break  # the others of this process have their turn
        return self._ready.popleft() if self._ready else None

    def keep(self) -> None:
        """Write acknowledgements that have waited, and begin locks anew that have lasted for a
        while.
        """
        if self._is_due():
            self._exchange(0)

    def acknowledge(self, tag: str, decided: AcknowledgeType) -> None:
        """Decide a message. It is written by the next `take`, `keep` or `close`."""
        self._decided.append(DecidedMessage(tag, decided))

    def size(self) -> int:
        """The number of messages that are neither held nor finished. Reads what waits in the topics
        of exchanges, as only some of it is of this queue.
        """
        group = self._log.read()
        self._follow(group)
        total = 0
        for key, log_range in self._topics.log_ranges(self._log).items():
            waiting = _waiting(group.partition(key), log_range)
            if key.topic == self._name:
                total += sum(each.end - each.first for each in waiting)
            else:
                total += self._count(group, key, waiting)
        return total

    def _count(self, group: ShareGroup, key: PartitionId, ranges: Iterable[TakenRange]) -> int:
        """How many messages of an exchange are of this queue, at these offsets."""
        total = 0
        for each in ranges:
            for first in range(each.first, each.end, COUNTED_AT_ONCE):
                some = TakenRange(first, min(each.end, first + COUNTED_AT_ONCE), 0)
                for part in self._topics.read(key.topic, key.topic_id, {key.partition: [some]}):
                    total += sum(self._is_of_queue(group, key, of) for of in part.messages)
        return total

    def _is_of_queue(self, group: ShareGroup, key: PartitionId, message: SharedMessage) -> bool:
        payload = _payload(message)
        return payload is not None and self._takes(group, key.topic, _routing_key(payload))

    def _takes(self, group: ShareGroup, topic: str, routing_key: str) -> bool:
        """Whether the queue takes a message; all of its own topic."""
        return topic == self._name or takes(group.bindings, topic, routing_key)

    def purge(self) -> int:
        """Remove all messages that no worker holds, and return their number."""
        removed = len(self._ready)
        has_more = True
        while has_more:
            for delivery in self._ready:
                self.acknowledge(delivery.tag, AcknowledgeType.ACCEPT)
            self._ready.clear()
            has_more = self._exchange(PURGED_AT_ONCE)
            removed += len(self._ready)
        return removed

    def close(self) -> None:
        """Write what is decided and its dead letters, and give back all else."""
        self._ready.clear()
        if self._held or self._decided:
            self._exchange(0, gives_back=True)
            self._held.clear()
            if any(any(state.failures()) for state in self._log.last_read().partitions().values()):
                self._exchange(0)

    def _is_due(self) -> bool:
        now = self._clock.monotonic()
        return bool(
            (self._decided and now >= self._written_at + ACKNOWLEDGE_S) or self._is_old(now)
        )

    def _is_old(self, now: float) -> bool:
        lock_s = self._log.last_read().settings.share_record_lock_duration_ms / 1000
        return bool(self._held) and now >= self._renewed_at + lock_s / 3

    def _follow(self, group: ShareGroup) -> None:
        """Read the topic of the queue and those of the exchanges to which it is bound now."""
        wanted = frozenset({self._name, *(each.topic for each in group.bindings)})
        if wanted != self._followed:
            self._topics.follow(wanted, self._watch)
            self._followed = wanted

    def _exchange(self, most: int, *, gives_back: bool = False) -> bool:
        """Acknowledge, prolong and take in one entry, after the dead letters of earlier ones were
        written. Whether messages were taken, also others than those of this queue.
        """
        now = self._clock.monotonic()
        self._follow(self._log.last_read())
        log_ranges = self._topics.log_ranges(self._log) if most else {}
        published = self._dead_letters.publish(self._log.last_read(), self._deadline())
        decided = tuple(self._decided)
        renewed: list[DecidedMessage] = []
        if self._is_old(now) and not gives_back:
            self._renewed_at = now
            tags = self._held.keys() - {each.tag for each in decided}
            renewed += (DecidedMessage(tag, AcknowledgeType.RENEW) for tag in tags)
        acknowledgements = self._acknowledgements((*decided, *renewed))
        exchange = Exchange(self._owner, acknowledgements, log_ranges, most, gives_back, published)
        found = self._write(exchange)
        if found is None:
            return False  # the next call does it again
        self._written_at = now
        self._warn(found)
        for each in decided:
            self._held.pop(each.tag, None)
            self._decided.popleft()
        by_topic: dict[tuple[str, str], dict[int, Sequence[TakenRange]]] = {}
        for key, ranges in found.taken.items():
            by_topic.setdefault((key.topic, key.topic_id), {})[key.partition] = ranges
        if by_topic and not self._held:
            self._renewed_at = now
        for (topic, topic_id), taken in by_topic.items():
            for part in self._topics.read(topic, topic_id, taken):
                self._receive(part)
        return bool(by_topic)

    def _write(self, exchange: Exchange) -> Exchanged | None:
        """Make an exchange; None if it was not and will not be made."""
        try:
            return self._log.exchange(exchange, self._deadline())
        except OutcomeUnknown:
            return self._log.resolve(self._deadline())

    def _warn(self, found: Exchanged) -> None:
        """Say why no more messages are taken, from time to time."""
        now = self._clock.monotonic()
        if (found.is_flooded or found.full) and now >= self._warned_at + WARN_AGAIN_S:
            self._warned_at = now
            limit = "errors.deadletterqueue.max.per.minute of them have failed in this minute"
            if not found.is_flooded:
                limit = "share.partition.max.record.locks of them are not finished"
            _log.warning("no more messages are taken, as %s queue=%r", limit, self._name)

    def _acknowledgements(
        self, decided: Iterable[DecidedMessage]
    ) -> dict[PartitionId, list[Acknowledgement]]:
        """What is decided of messages that are held."""
        found: dict[PartitionId, dict[TakenRange, Acknowledgement]] = {}
        for each in decided:
            held = self._held.get(each.tag)
            if held is not None:
                taken = held.range
                found.setdefault(held.partition, {})[taken] = Acknowledgement(
                    taken.first, taken.end, taken.deliveries, each.type, each.visible_ms
                )
        return {key: list(of.values()) for key, of in found.items()}

    def _receive(self, part: ReadPartition) -> None:
        """Keep the messages that the queue takes, and accept all else that was taken. Records that
        cannot be read are given back.
        """
        key = part.partition
        decided, visible_ms = AcknowledgeType.ACCEPT, 0
        if part.damage is not None:
            _log.error("messages cannot be read topic=%r error=%s", key.topic, part.damage)
            decided, visible_ms = AcknowledgeType.RELEASE, self._clock.time_ms() + DAMAGED_MS
        for each in part.others:
            tag = self._tag(key, each)
            self._held[tag] = HeldMessage(key, each)
            self._decided.append(DecidedMessage(tag, decided, visible_ms))
        for message in part.messages:
            self._keep(key, message)

    def _keep(self, key: PartitionId, message: SharedMessage) -> None:
        offset, deliveries = message.offset() or 0, message.delivery_count() or 0
        taken = TakenRange(offset, offset + 1, deliveries)
        tag = self._tag(key, taken)
        self._held[tag] = HeldMessage(key, taken)
        payload = _payload(message)
        if payload is None:
            _log.error("a message that is not of kombu is rejected message=%r", message)
            self.acknowledge(tag, AcknowledgeType.REJECT)
        # By the bindings of the entry that has taken it, or later ones: what was sent after a queue
        # was bound is taken by an entry that follows the binding.
        elif self._takes(self._log.last_read(), key.topic, _routing_key(payload)):
            self._ready.append(Delivery(tag, payload, deliveries))
        else:
            self.acknowledge(tag, AcknowledgeType.ACCEPT)

    def _tag(self, key: PartitionId, taken: TakenRange) -> str:
        """Of this reader, as another one may take the same message of an exchange."""
        place = f"{key.topic}/{key.topic_id}/{key.partition}/{taken.first}"
        return f"{self._owner}/{place}/{taken.deliveries}"

    def _deadline(self) -> float:
        return self._clock.monotonic() + WRITE_S


def _payload(message: SharedMessage) -> dict[str, Any] | None:
    """A message of kombu; None for another one."""
    try:
        payload: dict[str, Any] = json.loads(message.value() or b"")
        _routing_key(payload)
    except (ValueError, KeyError, TypeError):
        return None
    return payload


def _routing_key(payload: Mapping[str, Any]) -> str:
    found: str = payload["properties"]["delivery_info"]["routing_key"]
    return found


def _waiting(state: SharePartition | None, log_range: LogRange) -> list[TakenRange]:
    """The offsets of a partition that are neither held nor finished."""
    if state is None:
        first = log_range.log_start if log_range.first is None else log_range.first
        state = SharePartition(first)
    found = [
        TakenRange(span.first, span.end, 0)
        for span in state.spans
        if span.status.state is RecordState.AVAILABLE
    ]
    if state.end < log_range.log_end:
        found.append(TakenRange(max(state.end, log_range.log_start), log_range.log_end, 0))
    return found


def _settings_after(
    queue: str, wanted: Mapping[str, str], stored: Mapping[str, str]
) -> dict[str, str]:
    """The settings of the group of a queue which has these: with those that a worker asks for, and
    with `SETTINGS` where an administrator has set none.
    """
    for name in wanted.keys() & stored.keys():
        if stored[name] != wanted[name]:
            about = "a setting of a queue is changed by transport options queue=%r %s=%s, was %s"
            _log.warning(about, queue, name, wanted[name], stored[name])
    return {**SETTINGS, **stored, **wanted}
