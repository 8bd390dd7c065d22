"""What is measured of Spark: batch reads, fresh sessions, micro-batches, messages end to end."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.load import Load

BATCH_ROWS = 1_000
"""Rows of a micro-batch that is measured."""


@dataclass(frozen=True, slots=True)
class SparkPlan:
    """`messages` in `partitions` are read `reads` times by each source, after `warm_up` reads that
    do not count.

    `sessions`: how many fresh sessions of each kind are started for each source. `batches`: how
    many micro-batches of `BATCH_ROWS` count, after as many that do not. `loads` run end to end.
    """

    messages: int
    partitions: int
    reads: int
    warm_up: int
    sessions: int
    batches: int
    loads: tuple[Load, ...]


FULL_SPARK = SparkPlan(1_000_000, 8, 5, 2, 2, 10, (Load(10_000, 5.0, 12.0, 6.0),))
QUICK_SPARK = SparkPlan(20_000, 2, 1, 0, 1, 2, (Load(1_000, 5.0, 2.0, 2.0),))
