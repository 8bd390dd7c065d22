"""A subscription by pattern to many topics."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from uuid import uuid4

from benchmarks.groups.members import START_S
from deltaq import Consumer, Topic, TopicPartition
from deltaq.store import MemoryStore, Store, open_store

__all__ = ["Pattern", "measure_patterns"]


@dataclass(frozen=True, slots=True)
class Pattern:
    """From `subscribe` until all topics that a pattern matches were assigned."""

    place: str
    strategy: str
    topics: int
    seconds: float


def measure_patterns(root: str, topics: int, strategies: tuple[str, ...]) -> list[Pattern]:
    """On a store in memory, and on local disk below `root`. Raises TimeoutError."""
    return [
        Pattern(place, strategy, topics, seconds)
        for place, store in (("memory", MemoryStore("patterns")), ("local disk", open_store(root)))
        for strategy, seconds in _assigned_s(store, topics, strategies)
    ]


def _assigned_s(store: Store, topics: int, strategies: tuple[str, ...]) -> list[tuple[str, float]]:
    prefix = f"many-{uuid4().hex[:8]}"
    for number in range(topics):
        Topic(f"{prefix}-{number}", store=store).create()
    return [(strategy, _assign_s(store, prefix, topics, strategy)) for strategy in strategies]


def _assign_s(store: Store, prefix: str, topics: int, strategy: str) -> float:
    assigned: set[str] = set()

    def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
        assigned.update(tp.topic for tp in partitions)

    conf = {
        "bootstrap.servers": store.url,
        "group.id": uuid4().hex,
        "partition.assignment.strategy": strategy,
    }
    with Consumer(conf, store=store) as consumer:
        begun_at = monotonic()
        consumer.subscribe([f"^{prefix}-"], on_assign=on_assign)
        while len(assigned) < topics:
            consumer.poll(0.01)
            if monotonic() - begun_at > START_S:
                raise TimeoutError(
                    f"{len(assigned)} of {topics} topics were assigned within {START_S:g} s"
                )
        return monotonic() - begun_at
