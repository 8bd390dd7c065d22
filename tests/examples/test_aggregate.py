"""The computation of the replicas, which needs neither a topic nor a database."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from examples.replicas.aggregate import TotalsChange, aggregate

RECORDS = st.lists(
    st.tuples(st.sampled_from(["ada", "bob", "eve"]), st.integers(1, 400), st.integers(0, 10**13)),
    min_size=1,
)


def batch(partition: int, first: int, records: list[tuple[str, int, int]]) -> pa.RecordBatch:
    """Records as `consume_arrow` returns them; values are quarters, whose sum is exact."""
    return pa.record_batch(
        {
            "_partition": pa.array([partition] * len(records), pa.int32()),
            "_offset": pa.array(range(first, first + len(records)), pa.int64()),
            "_timestamp": pa.array(
                [time * 1000 for _, _, time in records], pa.timestamp("us", "UTC")
            ),
            "user_id": [user for user, _, _ in records],
            "value": [quarters / 4 for _, quarters, _ in records],
        }
    )


def as_totals(change: TotalsChange) -> dict[str, tuple[float, ...]]:
    rows = zip(change.users, change.counts, change.values, change.times, strict=True)
    return {user: tuple(totals) for user, *totals in rows}


def test_a_change_has_one_row_per_user_and_the_next_offset_of_each_partition():
    change = aggregate(
        [
            batch(3, 7, [("bob", 4, 50), ("ada", 2, 10)]),
            batch(1, 0, [("bob", 1, 20)]),
            batch(3, 9, [("bob", 8, 40)]),
        ]
    )
    assert change == TotalsChange(["ada", "bob"], [1, 3], [0.5, 3.25], [10, 50], {3: 10, 1: 1})


@given(RECORDS)
def test_a_change_equals_a_sum_over_single_records(records):
    expected: dict[str, tuple[float, ...]] = {}
    for user, quarters, time in records:
        count, value, newest = expected.get(user, (0, 0.0, 0))
        expected[user] = count + 1, value + quarters / 4, max(newest, time)
    assert as_totals(aggregate([batch(0, 0, records)])) == expected


@given(RECORDS, st.data())
def test_how_records_are_divided_into_batches_does_not_change_the_result(records, data):
    cut = data.draw(st.integers(0, len(records) - 1))
    parts = [batch(0, 0, records[:cut])] * bool(cut) + [batch(0, cut, records[cut:])]
    assert aggregate(parts) == aggregate([batch(0, 0, records)])
