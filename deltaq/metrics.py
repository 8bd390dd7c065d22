"""Metrics: events inside the clients of this process, counted for its listeners.

A client adds to a `Counter` at most once per batch, commit or poll of a log, never per message. Without a listener that
costs one check. Listeners are called by the thread on which the event happens, which may hold a client's locks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from deltaq.clock import SYSTEM_CLOCK

_log = logging.getLogger("deltaq.metrics")


@dataclass(frozen=True, slots=True, eq=False)
class Counter:
    """A number that only grows. `name` and `unit` are OpenMetrics'; `labels` are those that each event has."""

    name: str
    unit: str
    when: str
    labels: tuple[str, ...] = ("topic",)

    def add(self, amount: int = 1, **labels: str) -> None:
        """Count `amount` more, of the topic or another subject that the `labels` name."""
        if _listeners:
            _notify(Event(self, amount, labels))


@dataclass(frozen=True, slots=True)
class Event:
    """An addition to a counter."""

    counter: Counter
    amount: int
    labels: Mapping[str, str]


Listener: TypeAlias = Callable[[Event], object]
"""Is called with each event. It must return soon, call no client, and raise nothing: an `Exception` is only logged."""

PIPELINED_BATCHES = Counter(
    "deltaq_producer_pipelined_batches_total",
    "batches",
    "A batch is to be shared with other writers before the batch ahead of it is committed.",
    labels=(),
)
UNKNOWN_OUTCOMES = Counter(
    "deltaq_producer_unknown_outcomes_total",
    "batches",
    "A batch is reported with `OutcomeUnknown`, since another writer may still commit its shared file.",
)
REVOCATIONS = Counter(
    "deltaq_producer_revocations_total",
    "commits",
    "Shared files of failed batches are revoked. `outcome` is `committed` if another writer had committed one of them "
    "before, otherwise `revoked`.",
    labels=("topic", "outcome"),
)
EXPIRED_UPLOADS = Counter(
    "deltaq_producer_expired_uploads_total",
    "files",
    "Uploaded files waited so long for their commit that they may have been removed as orphans; they are uploaded "
    "again.",
)
MISSING_FILES = Counter(
    "deltaq_consumer_missing_files_total",
    "files",
    "A data file is missing when a consumer reads it, usually because it was compacted meanwhile.",
)
STALE_REWRITES = Counter(
    "deltaq_maintenance_stale_rewrites_total",
    "rewrites",
    "Maintenance gives up a rewrite of files, since the topic has changed since it was planned.",
)

JOINS = Counter(
    "deltaq_group_joins_total",
    "members",
    "A consumer joins its group, for the first time or again.",
    labels=("group",),
)
REBALANCES = Counter(
    "deltaq_group_rebalances_total",
    "generations",
    "A member sees that its group has a new generation: members have come or gone, or the partitions of a topic.",
    labels=("group",),
)
MEMBERS_REMOVED = Counter(
    "deltaq_group_members_removed_total",
    "members",
    "Members are removed from their group because they sent no heartbeat for their `session.timeout.ms`. Clients that "
    "find this out at the same time count it each.",
    labels=("group",),
)
SESSIONS_LOST = Counter(
    "deltaq_group_sessions_lost_total",
    "sessions",
    "A member loses its membership without leaving. `reason` is the name of an error: `_TIMED_OUT` if it could not "
    "send heartbeats, `UNKNOWN_MEMBER_ID` if others have removed it, `FENCED_INSTANCE_ID` if another consumer has "
    "taken its place, `_MAX_POLL_EXCEEDED` if the application did not poll.",
    labels=("group", "reason"),
)
HEARTBEATS_FAILED = Counter(
    "deltaq_group_heartbeats_failed_total",
    "heartbeats",
    "The store does not accept a heartbeat.",
    labels=("group",),
)
COMMITS_REFUSED = Counter(
    "deltaq_group_commits_refused_total",
    "commits",
    "A group refuses an offset commit. `reason` is the name of the error.",
    labels=("group", "reason"),
)

COUNTERS = (
    PIPELINED_BATCHES,
    UNKNOWN_OUTCOMES,
    REVOCATIONS,
    EXPIRED_UPLOADS,
    MISSING_FILES,
    STALE_REWRITES,
    JOINS,
    REBALANCES,
    MEMBERS_REMOVED,
    SESSIONS_LOST,
    HEARTBEATS_FAILED,
    COMMITS_REFUSED,
)
"""All counters."""


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` with the events of all clients in this process, until the end of the block."""
    key = object()
    _listeners[key] = listener
    try:
        yield
    finally:
        del _listeners[key]


class Totals:
    """A listener that adds up the amounts of each counter. Thread-safe."""

    def __init__(self) -> None:
        self._lock = SYSTEM_CLOCK.condition()  # re-entrant: a signal handler may cause an event while one is counted
        self._totals = {counter.name: 0 for counter in COUNTERS}

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._totals[event.counter.name] += event.amount

    def read(self) -> dict[str, int]:
        """The total of each counter, by name, since this listener was made."""
        with self._lock:
            return dict(self._totals)


_listeners: dict[object, Listener] = {}


def _notify(event: Event) -> None:
    for listener in tuple(_listeners.values()):  # a listener may be added or removed meanwhile
        try:
            listener(event)
        except Exception:  # noqa: BLE001 - a listener must not break a client
            _log.exception("a listener of metrics failed metric=%s", event.counter.name)
