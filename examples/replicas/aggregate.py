"""The computation of the service, without I/O: what a batch of events adds to the totals of the
users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class TotalsChange:
    """What one transaction writes. The columns have one element per user, sorted by user."""

    users: Sequence[str]
    counts: Sequence[int]
    values: Sequence[float]
    times: Sequence[int]
    positions: Mapping[int, int]
    """Partition -> the offset after the last record that the change includes."""


def aggregate(batches: Sequence[pa.RecordBatch]) -> TotalsChange:
    """The change that these records make. Each batch has records of one partition, in order, as
    `consume_arrow` returns them.
    """
    totals = (
        pa.Table.from_batches(batches)
        .group_by("user_id")
        .aggregate([("value", "count"), ("value", "sum"), ("_timestamp", "max")])
        # All replicas update users in the same order, so that two transactions cannot wait for each
        # other.
        .sort_by("user_id")
    )
    milliseconds = (
        totals["_timestamp_max"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    )
    return TotalsChange(
        totals["user_id"].to_pylist(),
        totals["value_count"].to_pylist(),
        totals["value_sum"].to_pylist(),
        milliseconds.to_pylist(),
        {batch["_partition"][0].as_py(): batch["_offset"][-1].as_py() + 1 for batch in batches},
    )
