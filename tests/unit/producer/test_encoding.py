"""From what producers hand in to columns: the same whichever way a batch of its size is encoded."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import chain

import pytest

from deltaq.partitioner import PartitionChoice
from deltaq.producer.accumulator import RowBlock
from deltaq.producer.encoding import KERNEL_ROWS_MIN, chosen_partitions, produced_ms, row_columns

EPOCH_MS = 1_790_000_000_123.456


def rows(count: int, partition: int = -1) -> RowBlock:
    chance = random.Random(count)
    row = [(b"v", None, partition, 0, None, chance.random() * 1e6, None) for _ in range(count)]
    return RowBlock.of(list(chain.from_iterable(row)), count)


@pytest.mark.parametrize("count", [1, KERNEL_ROWS_MIN - 1, KERNEL_ROWS_MIN, KERNEL_ROWS_MIN + 1])
@pytest.mark.parametrize("timed", [0, 1, 2])
def test_a_row_has_its_given_time_or_that_of_its_produce_call(count: int, timed: int) -> None:
    batch = rows(count)
    for at in range(min(timed, count)):
        batch.timestamps[at] = 1000 + at
    columns = row_columns(batch, [0] * count, EPOCH_MS, None)
    given = zip(batch.timestamps, batch.times, strict=True)
    expected = [timestamp or produced_ms(produced, EPOCH_MS) for timestamp, produced in given]
    assert columns.timestamps.to_pylist() == expected
    assert columns.timestamp_bounds == (min(expected), max(expected))


@pytest.mark.parametrize(
    ("named", "expected"),
    [([-1, -1], [0, 0]), ([-1, 0], [0, 0]), ([0, 3], [0, 3]), ([-1, 3], [0, 3])],
)
def test_records_without_partition_go_to_the_only_partition(
    named: list[int], expected: list[int]
) -> None:
    batch = replace(rows(len(named)), partitions=named)
    assert chosen_partitions(batch, PartitionChoice("consistent_random", 1, 0)) == expected, (
        "3 may have come to be meanwhile"
    )
