"""Which partition a message goes to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tests.fidelity.session import READ_S, ProgramRun

_KEYS = [
    *(f"key-{number}" for number in range(40)),
    "",
    "a",
    "b",
    "ab",
    "user:1",
    "user:2",
    "ü",
    "0",
    "x" * 100,
]
_KEYS += ["The quick brown fox"]
_RANDOM = ("consistent_random", "murmur2_random", "fnv1a_random")
"""Partitioners that may place a message with an empty key at random."""


def _partitions(
    producer: Any, topic: str, keys: Sequence[str | None], pause_after: int = 0
) -> list[int]:
    """Where messages with these keys go. With `pause_after`, time passes after each so many of
    them.
    """
    found: dict[int, int] = {}
    for number, key in enumerate(keys):
        producer.produce(
            topic, "v", key, on_delivery=lambda _, m, at=number: found.update({at: m.partition()})
        )
        if pause_after and number % pause_after == pause_after - 1:
            time.sleep(0.015)  # longer than the time for which a partition stays: it may change now
    producer.flush(READ_S)
    return [found[number] for number in range(len(keys))]


def partitioner_50_keys(session: ProgramRun) -> Any:
    topic = session.topic(partitions=7)
    found: dict[str, Any] = {"keys": _KEYS}
    for partitioner in (
        "consistent_random",
        "consistent",
        "murmur2_random",
        "murmur2",
        "fnv1a_random",
        "fnv1a",
    ):
        found[partitioner] = _partitions(session.producer(partitioner=partitioner), topic, _KEYS)
    chosen = _partitions(session.producer(), topic, _KEYS[:40])
    found["default_is_consistent_random"] = chosen == found["consistent_random"][:40]
    for partitioner in _RANDOM:
        producer = session.producer(partitioner=partitioner, sticky_partitioning_linger_ms=0)
        is_random = len(set(_partitions(producer, topic, [""] * 60))) > 1
        found[f"empty_key_random_{partitioner}"] = is_random
        if is_random:
            found[partitioner][_KEYS.index("")] = "random"
    return found


def null_key_sticky(session: ProgramRun) -> Any:
    topic, found = session.topic(partitions=12), {}
    for partitioner in ("consistent_random", "murmur2_random", "consistent", "murmur2", "random"):
        for linger_ms in (0, 10, 5000):
            producer = session.producer(
                partitioner=partitioner, sticky_partitioning_linger_ms=linger_ms
            )
            partitions = _partitions(producer, topic, [None] * 240, pause_after=40)
            changes = sum(first != second for first, second in pairwise(partitions))
            if changes == 0:
                how = "one partition"
            else:
                how = "sticky runs" if changes < len(partitions) / 2 else "random per message"
            found[f"{partitioner}_{linger_ms}ms"] = how
    return found


PROGRAMS = (
    partitioner_50_keys,
    null_key_sticky,
)
