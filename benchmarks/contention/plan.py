"""What shares a topic: producers, consumers and partitions, each in several numbers."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.contention.producers import ProducerLoad
from benchmarks.load import Load

__all__ = ["FULL_CONTENTION", "QUICK_CONTENTION", "ContentionPlan"]


@dataclass(frozen=True, slots=True)
class ContentionPlan:
    """Measurements in their order: each load of `producers`, some of them again without group
    commit; each number of `readers` of the same load; each number of `partitions`, under a load and
    then with `burst` messages as fast as they can be sent.
    """

    producers: tuple[ProducerLoad, ...]
    reader_load: Load
    readers: tuple[int, ...]
    spread_load: Load
    partitions: tuple[int, ...]
    burst: int


FULL_CONTENTION = ContentionPlan(
    tuple(
        ProducerLoad(producers, 20.0, rate, without_group_commit=alone)
        for rate in (100, 0)
        for producers, alone in (
            (1, False),
            (4, False),
            (4, True),
            (16, False),
            (16, True),
            (64, False),
        )
    ),
    Load(1_000, 20.0, 20.0, 3.0),
    (1, 20),
    Load(10_000, 20.0, 15.0, 3.0),
    (1, 10, 100, 1_000),
    burst=500_000,
)
QUICK_CONTENTION = ContentionPlan(
    tuple(ProducerLoad(producers, 3.0, rate=100) for producers in (1, 4)),
    Load(1_000, 20.0, 2.0, 0.5),
    (1, 3),
    Load(2_000, 20.0, 2.0, 0.5),
    (1, 10, 100),
    burst=20_000,
)
