"""The record batches that a task of the source gives to Spark."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq import Producer
from deltaq.spark.columns import in_batches
from deltaq.spark.data_source import DeltaqDataSource
from deltaq.spark.source import BYTES_AT_ONCE
from deltaq.store import LocalStore


def numbered(sizes: list[int]) -> list[pa.RecordBatch]:
    """Batches of these sizes, whose rows are numbered through."""
    batches, first = [], 0
    for size in sizes:
        batches.append(
            pa.RecordBatch.from_arrays([pa.array(range(first, first + size), pa.int64())], ["n"])
        )
        first += size
    return batches


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(1, 30), st.integers(8, 400))
def test_rows_stay_in_order_and_no_batch_exceeds_the_limit(sizes, rows_max, bytes_max):
    found = list(in_batches(numbered(sizes), rows_max, bytes_max))
    assert [n for batch in found for n in batch.column(0).to_pylist()] == list(range(sum(sizes)))
    assert all(batch.num_rows <= rows_max for batch in found)


@given(st.lists(st.integers(1, 10), max_size=20), st.integers(10, 30), st.integers(80, 400))
def test_small_batches_are_joined_as_long_as_they_fit(sizes, rows_max, bytes_max):
    found = list(in_batches(numbered(sizes), rows_max, bytes_max))
    assert all(batch.nbytes <= bytes_max for batch in found)
    given_at = {sum(sizes[:at]): sizes[at] for at in range(len(sizes))}
    for batch, after in pairwise(found):
        next_size = given_at[after.column(0)[0].as_py()]
        assert batch.num_rows + next_size > rows_max or batch.nbytes + 8 * next_size > bytes_max


def test_files_written_in_different_ways_come_as_one_batch_in_order(tmp_path: Path) -> None:
    """Small files without headers are decoded without Arrow, others with it."""
    expected = []
    with Producer(
        {"bootstrap.servers": str(tmp_path), "linger.ms": 60_000, "maintenance.enable": False}
    ) as producer:
        for number in range(24):
            key = None if number % 5 < 2 else b"k%d" % number
            headers = {"h": b"1"} if number % 7 == 0 else None
            for copy in range(2):
                value = b"%d-%d" % (number, copy)
                producer.produce("t", value, key, timestamp=1_000 + number, headers=headers)
                expected.append((key, value, 2 * number + copy, 1_000 + number))
            producer.flush()
    source = DeltaqDataSource({"path": str(tmp_path), "subscribe": "t"})
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    (found,) = reader.read(task)
    assert isinstance(found, pa.RecordBatch)
    keys, values, offsets = (found.column(name).to_pylist() for name in ("key", "value", "offset"))
    times = found.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    assert list(zip(keys, values, offsets, times, strict=True)) == expected
    assert set(found.column("topic").to_pylist()) == {"t"}


def test_small_files_of_large_values_are_read_when_their_batch_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of 32 MiB of such files would otherwise be in memory twice, and reach the JVM as one
    batch.
    """
    values = [b"%02d" % number + bytes(400_000) for number in range(25)]
    with Producer(
        {"bootstrap.servers": str(tmp_path), "linger.ms": 60_000, "maintenance.enable": False}
    ) as producer:
        for value in values:
            producer.produce("t", value)
            producer.flush()
    fetched = 0

    get = LocalStore.get

    def counted(store: LocalStore, key: str, size_max: int | None = None) -> bytes:
        nonlocal fetched
        data = get(store, key, size_max)
        fetched += len(data)
        return data

    source = DeltaqDataSource({"path": str(tmp_path), "subscribe": "t"})
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    monkeypatch.setattr(LocalStore, "get", counted)
    found: list[bytes] = []
    for batch in reader.read(task):
        assert isinstance(batch, pa.RecordBatch)
        assert batch.nbytes <= BYTES_AT_ONCE
        found += batch.column("value").to_pylist()
        # The file that fills the batch after this one may have been read as well.
        assert fetched <= 400_002 * len(found) + 2 * BYTES_AT_ONCE
    assert found == values
