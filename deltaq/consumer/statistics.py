"""What a consumer emits for `stats_cb`."""

from __future__ import annotations

import json
from typing import Any, Protocol
from weakref import ref

from deltaq.clock import Clock
from deltaq.config import ConsumerConfig
from deltaq.consumer.calls import PendingEvents
from deltaq.consumer.health import ConsumerHealth, MembershipState, PartitionHealth, ReadState
from deltaq.consumer.lifecycle import ConsumerLifecycle
from deltaq.consumer.offset_queries import known_watermarks
from deltaq.consumer.reader import Reader
from deltaq.message import OFFSET_INVALID
from deltaq.statistics import ClientFields, StatisticsTimer

_UNKNOWN_LAG = -1
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
        offsets = {(place.topic, place.partition): place.offset for place in stored}
        topics: dict[str, Any] = {}
        for at in health.partitions:
            low = OFFSET_INVALID
            if reader is not None and (seen := reader.fetcher.seen(at.topic)) is not None:
                low, _ = known_watermarks(seen.head, at.partition)
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
