"""The gauges of consumers, read from what they know of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from deltaq.metrics.catalogue import ASSIGNED_PARTITIONS, LAST_HEARTBEAT, LAST_POLL, RECORDS_LAG
from deltaq.metrics.events import Gauge
from deltaq.metrics.totals import Sample


class ObservedPartition(Protocol):
    """A partition as `ConsumerHealth` has it."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def lag(self) -> int | None: ...


class ObservedHealth(Protocol):
    """What `Consumer.health` returns."""

    @property
    def group_id(self) -> str: ...
    @property
    def partitions(self) -> Iterable[ObservedPartition]: ...
    @property
    def since_poll_s(self) -> float | None: ...
    @property
    def since_heartbeat_s(self) -> float | None: ...


class ObservedConsumer(Protocol):
    """A consumer, as far as its gauges need it."""

    def health(self) -> ObservedHealth:
        """What it knows of itself."""


def consumer_samples(*consumers: ObservedConsumer) -> Iterator[Sample]:
    """The gauges of consumers now. Does not ask the store. A value that a consumer does not know is
    left out.

    Of several consumers of one group, partitions are added up, and the longest times count.
    """
    found: dict[tuple[Gauge, tuple[str, ...]], float] = {}
    for health in [consumer.health() for consumer in consumers]:
        group = (health.group_id,)
        partitions = list(health.partitions)
        assigned = (ASSIGNED_PARTITIONS, group)
        found[assigned] = found.get(assigned, 0) + len(partitions)
        known: list[tuple[Gauge, tuple[str, ...], float | None]] = [
            (LAST_POLL, group, health.since_poll_s),
            (LAST_HEARTBEAT, group, health.since_heartbeat_s),
            *((RECORDS_LAG, (*group, at.topic, str(at.partition)), at.lag) for at in partitions),
        ]
        for gauge, labels, value in known:
            if value is not None:
                found[gauge, labels] = max(value, found.get((gauge, labels), value))
    for (gauge, labels), value in found.items():
        yield Sample(gauge, dict(zip(gauge.labels, labels, strict=True)), value)
