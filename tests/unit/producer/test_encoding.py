"""From what producers hand in to columns: the same whichever way a batch of its size is encoded."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import chain

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.partitioner import PartitionChoice
from deltaq.producer.accumulator import RowBlock
from deltaq.producer.encoding import (
    KERNEL_ROWS_MIN,
    chosen_partitions,
    in_segments,
    produced_ms,
    row_columns,
)
from deltaq.topics.columns import columns_of_rows

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


@given(
    sizes=st.lists(st.one_of(st.integers(0, 40), st.integers(900, 4000)), min_size=1, max_size=60),
    bytes_max=st.integers(200, 3000),
)
def test_segments_hold_all_rows_in_order_and_only_a_row_by_itself_exceeds_their_size(
    sizes: list[int], bytes_max: int
) -> None:
    values = [bytes([at % 256]) * size for at, size in enumerate(sizes)]
    rows = len(values)
    columns = columns_of_rows(
        [0] * rows, pa.array([0] * rows, pa.int64()), [None] * rows, [None] * rows, values, None
    )
    pieces = list(in_segments(columns, bytes_max))
    found = [value for piece in pieces for value in piece.values.column(0).to_pylist()]
    assert found == values
    bytes_of = [
        piece.values.nbytes + piece.keys.nbytes + piece.headers.nbytes + 12 * len(piece)
        for piece in [columns, *pieces]
    ]
    assert all(
        size <= 2 * bytes_max or len(piece) == 1
        for size, piece in zip(bytes_of[1:], pieces, strict=True)
    )
    assert (bytes_of[0] <= bytes_max or rows == 1) == (len(pieces) == 1)
