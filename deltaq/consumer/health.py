"""What a consumer knows of itself: its membership, how far it has come in each partition, and why
nothing comes; and what of it `stats_cb` gets.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol
from weakref import ref

from deltaq.clock import Clock
from deltaq.config import ConsumerConfig
from deltaq.consumer.assignment import HeldProgress
from deltaq.consumer.calls import ConsumerLifecycle, PendingEvents
from deltaq.consumer.offset_reset import FetchState
from deltaq.consumer.reader import Reader, watermarks
from deltaq.consumer.subscription import Subscription
from deltaq.consumer.topic_fetcher import TopicProgress
from deltaq.delta.table_state import TableState
from deltaq.errors import Unavailable
from deltaq.groups.membership import Membership
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.session import GroupView
from deltaq.groups.state import Key
from deltaq.message import OFFSET_INVALID
from deltaq.statistics import ClientFields, StatisticsTimer
from deltaq.topics.state import TopicHead

_UNKNOWN_LAG = -1


class MembershipState(StrEnum):
    """How a consumer stands to its group."""

    NONE = "none"
    """It does not subscribe."""
    JOINING = "joining"
    """It is about to become a member, for the first time or again."""
    STABLE = "stable"
    """It is a member, and reads all that it is assigned."""
    REBALANCING = "rebalancing"
    """It is a member, and partitions are on their way to it or from it."""
    NOT_A_MEMBER = "not a member"
    """It is no member; `ConsumerHealth.problem` says why."""
    CLOSED = "closed"
    """It is closed."""


class Ownership(StrEnum):
    """Whose a partition is. Only its owner may commit its offsets."""

    OWNED = "owned"
    """This member owns it."""
    AWAITED = "awaited"
    """It is assigned to this member, and another one still owns it."""
    RELEASING = "releasing"
    """This member owns it, and is to release it."""
    LOST = "lost"
    """It was this member's, and the session has ended: its records may be read by another
    member.
    """
    MANUAL = "manual"
    """`assign` was called for it."""


class ReadState(StrEnum):
    """Why the next record of a partition comes at once, soon or not."""

    READY = "ready"
    """Records are there for the next `poll`."""
    FETCHING = "fetching"
    """The topic has records that are not fetched yet."""
    END_REACHED = "end reached"
    """All records were returned."""
    PAUSED = "paused"
    """`pause` was called for it."""
    STARTING = "starting"
    """The topic or the position is not known yet."""
    UNPOLLED = "waits for poll"
    """It is assigned since the last `poll`; the next one begins to read it."""
    AWAITED = "waits for its owner"
    """Another member has not released it yet."""
    UNAVAILABLE = "store unavailable"
    """The store does not answer; the consumer tries again."""
    MISSING = "missing"
    """There is no such topic, or no such partition."""
    STOPPED = "stopped"
    """An error was reported as an event. `seek` continues."""


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """A partition as a consumer knows it.

    `position` is the next offset that a call returns, `committed` the group's committed offset,
    `end_offset` the offset of the next record that will be written, each as last read and None if
    it is not known. `lag` is `end_offset - position`.
    """

    topic: str
    partition: int
    ownership: Ownership
    state: ReadState
    position: int | None
    committed: int | None
    end_offset: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """What a consumer knows of itself. All values can be written as JSON:
    `json.dumps(dataclasses.asdict(health))`.

    `problem` says why the consumer is not a member, or soon will not be. `why_idle` says why `poll`
    returns nothing; it is empty if records are ready. The times are in seconds since the last
    success, and None before the first: of a `poll`, of a heartbeat, of reading the group's log, of
    reading the logs of the topics (the oldest), and of fetching records.
    """

    group_id: str
    membership: MembershipState
    member_id: str | None
    generation: int | None
    problem: str
    why_idle: str
    partitions: tuple[PartitionHealth, ...]
    since_poll_s: float | None
    since_heartbeat_s: float | None
    since_group_read_s: float | None
    since_topic_read_s: float | None
    since_fetch_s: float | None

    @property
    def lag(self) -> int | None:
        """The total lag of the partitions, 0 without any; None while that of one is not known."""
        known = [partition.lag for partition in self.partitions if partition.lag is not None]
        return sum(known) if len(known) == len(self.partitions) else None


def closed_health(group: str) -> ConsumerHealth:
    """The health of a closed consumer."""
    why = "the consumer is closed"
    return ConsumerHealth(
        group, MembershipState.CLOSED, None, None, "", why, (), None, None, None, None, None
    )


@dataclass(frozen=True, slots=True)
class _PartitionProgress:
    """A partition in the parts of a consumer that its records pass: the fetcher, its queue (the
    offset of the first queued record), and the assignment, which is None before `poll` has made it.
    """

    number: int
    topic: TopicProgress | None
    queued: int | None
    held: HeldProgress | None

    @property
    def fetched(self) -> int | None:
        """The offset of the first record that is fetched and not returned yet."""
        accepted = None if self.held is None else self.held.first_accepted
        return self.queued if accepted is None else accepted

    @property
    def fetch_position(self) -> tuple[int, FetchState]:
        """Where the fetcher reads on; a negative offset if that is not known yet."""
        unknown = OFFSET_INVALID, FetchState.READING
        return unknown if self.topic is None else self.topic.positions.get(self.number, unknown)

    @property
    def position(self) -> int | None:
        """The next offset that a call returns."""
        if self.held is not None and self.held.position is not None:
            return self.held.position[0]
        offset = self.fetch_position[0] if self.fetched is None else self.fetched
        return offset if offset >= 0 else None

    @property
    def head(self) -> TopicHead | None:
        """The head of the topic, if it has the partition."""
        live = None if self.topic is None else self.topic.live
        return None if live is None or self.number >= live.head.partitions else live.head

    @property
    def topic_id(self) -> str | None:
        """The id of the topic that the position is in."""
        position = None if self.held is None else self.held.position
        if position is not None and position[1] is not None:
            return position[1]
        return None if self.head is None else self.head.topic_id

    @property
    def end(self) -> int | None:
        """The offset that the next record written will get."""
        return None if self.head is None else self.head.next_offsets[self.number]

    def state(self, ownership: Ownership) -> ReadState:
        """Why the next record comes or not."""
        if self.held is None:
            return ReadState.AWAITED if ownership is Ownership.AWAITED else ReadState.UNPOLLED
        if self.held.paused:
            return ReadState.PAUSED
        return ReadState.READY if self.fetched is not None else self._fetch_state()

    def _fetch_state(self) -> ReadState:
        offset, state = self.fetch_position
        topic, position, end = self.topic, self.position, self.end
        if topic is None or topic.failure is not None:
            failure = None if topic is None else topic.failure
            is_outage = isinstance(failure, Unavailable)
            return (
                ReadState.UNAVAILABLE
                if is_outage
                else ReadState.STOPPED
                if failure
                else ReadState.STARTING
            )
        if end is None:
            return ReadState.MISSING if topic.is_read else ReadState.STARTING
        if state is FetchState.STOPPED or offset < 0 or position is None:
            return ReadState.STOPPED if state is FetchState.STOPPED else ReadState.STARTING
        return ReadState.END_REACHED if position >= end else ReadState.FETCHING


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """Looks at the parts of a consumer, in any thread. Does no I/O, and takes no lock that is held
    during I/O.

    The parts are looked at one after the other, in the order in which records pass them, so that no
    record is missed. `committed` is the group's table as the consumer's commits have read it.
    """

    group: str
    reader: Reader | None
    subscription: Subscription[Any] | None
    committed: TableState
    clock: Clock

    def health(self) -> ConsumerHealth:
        """The consumer's health."""
        membership = None if self.subscription is None else self.subscription.membership
        view = None if membership is None else membership.view
        problem = "" if membership is None else membership.problem()
        state = _membership_state(membership, view, problem)
        topics = {} if self.reader is None else self.reader.fetcher.progress()
        partitions = self._partitions(membership, view, topics)
        session = None if membership is None else membership.session
        now = self.clock.monotonic()
        return ConsumerHealth(
            self.group,
            state,
            None if view is None else view.member_id,
            None if view is None else view.generation,
            problem,
            self._why_idle(state, problem, partitions, topics),
            partitions,
            None if membership is None else _since(membership.polled_s_ago()),
            None if session is None else _since(session.heartbeat.s_ago()),
            None if session is None else _since(session.read_s_ago()),
            _since(now - min((topic.read_at for topic in topics.values()), default=float("-inf"))),
            _since(
                now - max((topic.fetched_at for topic in topics.values()), default=float("-inf"))
            ),
        )

    def _partitions(
        self,
        membership: Membership | None,
        view: GroupView | None,
        topics: Mapping[str, TopicProgress],
    ) -> tuple[PartitionHealth, ...]:
        if self.reader is None:
            return ()
        queued, held = self.reader.fetcher.queue.first_offsets(), self.reader.held.progress()
        keys = held.keys() if view is None else held.keys() | view.assigned | view.owned
        tables = (
            [self.committed] if membership is None else [self.committed, membership.last_read()]
        )
        group = max(tables, key=lambda table: table.version)
        found = []
        for topic, partition in sorted(keys):
            mine = held.get((topic, partition))
            first_queued = None if mine is None else queued.get((topic, partition, mine.epoch))
            progress = _PartitionProgress(partition, topics.get(topic), first_queued, mine)
            ownership = (
                Ownership.MANUAL if membership is None else _ownership((topic, partition), view)
            )
            found.append(_partition_health(topic, progress, ownership, group))
        return tuple(found)

    def _why_idle(
        self,
        state: MembershipState,
        problem: str,
        partitions: Iterable[PartitionHealth],
        topics: Mapping[str, TopicProgress],
    ) -> str:
        states = Counter(partition.state for partition in partitions)
        wanted = None if self.subscription is None else self.subscription.wanted
        if states[ReadState.READY]:
            return ""
        if wanted is None and not states:
            return "nothing is subscribed or assigned"
        reasons = [
            f"topic {name!r}: {failure}"
            for name, topic in topics.items()
            if (failure := _failure(topic))
        ]
        if state in (MembershipState.JOINING, MembershipState.NOT_A_MEMBER):
            reasons.insert(0, problem or "the consumer is joining its group")
        elif wanted is not None and not wanted.topics:
            reasons.append("no topic matches the subscription")
        elif not states and not reasons:
            reasons.append("no partition is assigned to this member: others have them all")
        reasons += [
            f"{which.value}: {count} of {states.total()} partitions"
            for which, count in sorted(states.items())
        ]
        return "; ".join(reasons)


def _membership_state(
    membership: Membership | None, view: GroupView | None, problem: str
) -> MembershipState:
    if membership is None:
        return MembershipState.NONE
    if view is None:
        return MembershipState.NOT_A_MEMBER if problem else MembershipState.JOINING
    is_stable = view.assigned == view.owned == membership.held
    return MembershipState.STABLE if is_stable else MembershipState.REBALANCING


def _ownership(key: Key, view: GroupView | None) -> Ownership:
    if view is None:
        return Ownership.LOST
    if key in view.owned:
        return Ownership.OWNED if key in view.assigned else Ownership.RELEASING
    return Ownership.AWAITED if key in view.assigned else Ownership.MANUAL


def _partition_health(
    topic: str, progress: _PartitionProgress, ownership: Ownership, group: TableState
) -> PartitionHealth:
    position, end, topic_id = progress.position, progress.end, progress.topic_id
    committed = None
    if topic_id is not None:
        committed = group.txns.get(CommittedOffset(topic, topic_id, progress.number, 0).app_id)
    return PartitionHealth(
        topic,
        progress.number,
        ownership,
        progress.state(ownership),
        position,
        None if committed is None else committed.version,
        end,
        None if end is None or position is None else max(0, end - position),
    )


def _failure(topic: TopicProgress) -> str:
    if topic.failure is not None:
        return topic.failure.error.str()
    return "does not exist" if topic.is_read and topic.live is None else ""


def _since(seconds: float) -> float | None:
    return seconds if 0 <= seconds < float("inf") else None


_STATES = {
    MembershipState.JOINING: "init",
    MembershipState.NOT_A_MEMBER: "init",
    MembershipState.CLOSED: "term",
}
_JOIN_STATES = {MembershipState.STABLE: "steady", MembershipState.REBALANCING: "wait-sync"}
_FETCH_STATES = {
    ReadState.STARTING: "offset-query",
    ReadState.UNPOLLED: "none",
    ReadState.AWAITED: "none",
    ReadState.MISSING: "stopped",
    ReadState.STOPPED: "stopped",
}


class MeasuredConsumer(Protocol):
    """What statistics are read from."""

    _reader: Reader | None
    _events: PendingEvents

    def health(self) -> ConsumerHealth: ...


class ConsumerStatistics:
    """Queues a call of `stats_cb` every `statistics.interval.ms`. A call that the application is
    late for is replaced by a newer one. Does not keep the consumer alive.
    """

    def __init__(self, consumer: MeasuredConsumer, client_id: str, clock: Clock) -> None:
        self._fields = ClientFields("consumer", client_id, clock)
        # Nor a reference to its events: a callback may be a method of its owner.
        self._consumer = ref(consumer)
        self._first_generation: int | None = None

    def emit(self) -> bool:
        """Queue a call of the callback. False if the consumer is gone."""
        consumer = self._consumer()
        if consumer is None:
            return False
        consumer._events.statistics(json.dumps(self._read(consumer)))
        return True

    def _read(self, consumer: MeasuredConsumer) -> dict[str, Any]:
        health, reader = consumer.health(), consumer._reader
        stored = [] if reader is None else [entry.wanted for entry in reader.held.stored()]
        offsets = {(position.topic, position.partition): position.offset for position in stored}
        topics: dict[str, Any] = {}
        for at in health.partitions:
            low = OFFSET_INVALID
            if reader is not None and (seen := reader.fetcher.seen(at.topic)) is not None:
                low, _ = watermarks(seen.head, at.partition)
            fields = _partition(at, low, offsets.get((at.topic, at.partition)))
            topic = topics.setdefault(at.topic, {"topic": at.topic, "partitions": {}})
            topic["partitions"][str(at.partition)] = fields
        messages, size = (0, 0) if reader is None else reader.fetcher.queue.totals()
        return {
            **self._fields.now(),
            "replyq": len(consumer._events.pending),
            "metadata_cache_cnt": len(topics),
            "brokers": {},
            "topics": topics,
            "cgrp": self._group(health),
            "rxmsgs": messages,
            "rxmsg_bytes": size,
        }

    def _group(self, health: ConsumerHealth) -> dict[str, Any]:
        if self._first_generation is None:
            self._first_generation = health.generation
        rebalances = 0
        if health.generation is not None and self._first_generation is not None:
            rebalances = health.generation - self._first_generation + 1
        joining = "wait-join" if health.membership is MembershipState.JOINING else "init"
        return {
            "state": _STATES.get(health.membership, "up"),
            "join_state": _JOIN_STATES.get(health.membership, joining),
            "rebalance_cnt": rebalances,
            "rebalance_reason": health.problem,
            "assignment_size": len(health.partitions),
        }


def _partition(at: PartitionHealth, low: int, stored: int | None) -> dict[str, Any]:
    end = _offset(at.end_offset)
    return {
        "partition": at.partition,
        "fetch_state": _FETCH_STATES.get(at.state, "active"),
        "app_offset": _offset(at.position),
        "stored_offset": _offset(stored),
        "committed_offset": _offset(at.committed),
        "eof_offset": end if at.state is ReadState.END_REACHED else OFFSET_INVALID,
        "lo_offset": low,
        "hi_offset": end,
        "ls_offset": end,
        "consumer_lag": _lag(at.end_offset, at.committed),
        "consumer_lag_stored": _lag(at.end_offset, stored),
    }


def _offset(known: int | None) -> int:
    return OFFSET_INVALID if known is None else known


def _lag(end: int | None, offset: int | None) -> int:
    return _UNKNOWN_LAG if end is None or offset is None else max(0, end - offset)


def start_statistics(
    consumer: MeasuredConsumer, config: ConsumerConfig, clock: Clock, life: ConsumerLifecycle
) -> None:
    """Emit statistics until the consumer ends, if its settings ask for them."""
    if config.stats_cb is not None and config.statistics_interval_ms:
        statistics = ConsumerStatistics(consumer, config.client_id, clock)
        life.add(
            StatisticsTimer(
                clock, config.statistics_interval_ms / 1000, statistics.emit, config.group_id
            )
        )
