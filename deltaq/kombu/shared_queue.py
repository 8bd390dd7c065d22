"""A queue that workers share: a share group over the topic of the queue and those of the exchanges
to which it is bound.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deltaq import names
from deltaq.clock import Clock
from deltaq.errors import OutcomeUnknown
from deltaq.kombu.routes import Delivery, Route, queue_topic
from deltaq.message import AcknowledgeType, SharedMessage
from deltaq.share_consumer.topics import ReadPartition, SharedTopics
from deltaq.share_groups.exchange import Exchange, Exchanged, LogRange, PartitionId
from deltaq.share_groups.log import ShareLog
from deltaq.share_groups.state import Acknowledgement, TakenRange
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

SETTINGS: Mapping[str, str] = {
    "share.auto.offset.reset": "earliest",
    # A worker that restarts gives back what it holds, so Celery decides how often a task runs.
    "share.delivery.count.limit": "1000000",
    # Tasks with an `eta` or `countdown` are held until then.
    "share.partition.max.record.locks": "10000",
}
"""Settings of the groups of queues, with the duration of a lock."""


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
        self, store: Store, clock: Clock, queue: str, route: Route, lock_s: float, watch: Watch
    ) -> None:
        self._clock = clock
        self._route = route
        self._lock_s = lock_s
        name = queue_topic(queue)
        self._owner = names.member_id("kombu", clock.unique_id())
        self._log = ShareLog(store, name, clock, "kombu")
        self._topics = SharedTopics(store, clock, lambda _: None)
        self._name, self._watch = name, watch
        self._topics.follow([name, *route.bindings], watch)
        watch.add(names.group_folder(name) + names.LOG_FOLDER)
        self._ready: deque[Delivery] = deque()
        self._held: dict[str, HeldMessage] = {}
        self._decided: deque[DecidedMessage] = deque()
        self._written_at = self._renewed_at = clock.monotonic()
        settings = {**SETTINGS, "share.record.lock.duration.ms": str(round(lock_s * 1000))}
        self._log.alter_settings(lambda stored: {**stored, **settings}, self._deadline())

    def bind(self, ends: Mapping[PartitionId, int]) -> None:
        """Read the topics of new bindings, too, from these ends on unless the queue has read them
        before.
        """
        self._topics.follow([self._name, *self._route.bindings], self._watch)
        ranges = {key: LogRange(0, end, first=end) for key, end in ends.items()}
        self._log.exchange(Exchange(self._owner, log_ranges=ranges), self._deadline())

    def take(self, most: int) -> Delivery | None:
        """The next message; None if there is none now. Takes up to `most` at once, which later
        calls return.
        """
        if not self._ready:
            self._exchange(most)
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
        """The number of messages that are neither held nor finished."""
        group = self._log.read()
        total = 0
        for key, log_range in self._topics.log_ranges(self._log).items():
            state = group.partition(key)
            if state is None:
                total += log_range.log_end - (log_range.first or log_range.log_start)
            else:
                held = sum(s.end - s.first for s in state.spans if s.status.lock is not None)
                total += max(0, log_range.log_end - state.end) + state.undecided - held
        return total

    def purge(self) -> int:
        """Remove all messages that no worker holds, and return their number."""
        removed = 0
        while True:
            self._exchange(PURGED_AT_ONCE)
            if not self._ready:
                return removed
            for delivery in self._ready:
                self.acknowledge(delivery.tag, AcknowledgeType.ACCEPT)
            removed += len(self._ready)
            self._ready.clear()

    def close(self) -> None:
        """Write what is decided, and give back all else."""
        self._ready.clear()
        if self._held or self._decided:
            self._exchange(0, gives_back=True)
            self._held.clear()

    def _is_due(self) -> bool:
        now = self._clock.monotonic()
        return bool(
            (self._decided and now >= self._written_at + ACKNOWLEDGE_S) or self._is_old(now)
        )

    def _is_old(self, now: float) -> bool:
        return bool(self._held) and now >= self._renewed_at + self._lock_s / 3

    def _exchange(self, most: int, *, gives_back: bool = False) -> None:
        """Acknowledge, prolong and take in one entry."""
        now = self._clock.monotonic()
        log_ranges = self._topics.log_ranges(self._log) if most else {}
        decided = tuple(self._decided)
        renewed: list[DecidedMessage] = []
        if self._is_old(now) and not gives_back:
            self._renewed_at = now
            tags = self._held.keys() - {each.tag for each in decided}
            renewed += (DecidedMessage(tag, AcknowledgeType.RENEW) for tag in tags)
        acknowledgements = self._acknowledgements((*decided, *renewed))
        exchange = Exchange(self._owner, acknowledgements, log_ranges, most, gives_back)
        found = self._write(exchange)
        if found is None:
            return  # the next call does it again
        self._written_at = now
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

    def _write(self, exchange: Exchange) -> Exchanged | None:
        """Make an exchange; None if it was not and will not be made."""
        try:
            return self._log.exchange(exchange, self._deadline())
        except OutcomeUnknown:
            return self._log.resolve(self._deadline())

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
        try:
            payload = json.loads(message.value() or b"")
            routing_key = payload["properties"]["delivery_info"]["routing_key"]
        except (ValueError, KeyError, TypeError):
            _log.error("a message that is not of kombu is rejected message=%r", message)
            self.acknowledge(tag, AcknowledgeType.REJECT)
            return
        if self._route.takes(key.topic, routing_key):
            self._ready.append(Delivery(tag, payload, deliveries))
        else:
            self.acknowledge(tag, AcknowledgeType.ACCEPT)

    def _tag(self, key: PartitionId, taken: TakenRange) -> str:
        """Of this reader, as another one may take the same message of an exchange."""
        place = f"{key.topic}/{key.topic_id}/{key.partition}/{taken.first}"
        return f"{self._owner}/{place}/{taken.deliveries}"

    def _deadline(self) -> float:
        return self._clock.monotonic() + WRITE_S
