"""Which files are read next, how much of them at a time, and what damage in them stops."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaq import (
    OFFSET_END,
    Corrupt,
    Producer,
    Topic,
)
from deltaq.consumer.fetch_buffer import CompletedFetch, PartitionError
from deltaq.consumer.offset_reset import FIRST_READ_BYTES
from deltaq.parquet import segment, segment_file
from deltaq.producer import encoding
from deltaq.store import Store
from deltaq.store.parallel import REQUESTS_MAX
from deltaq.testing import FaultyStore
from tests.depth import depth
from tests.doubles.compaction import compact
from tests.doubles.fetching import FarStore, Fetching, a_store, fill
from tests.doubles.reading import TIMEOUT_S


class Metered(FaultyStore):
    """A store that notes the bytes of every answer about a data file."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.answers: list[int] = []

    def _noted(self, key: str, found: bytes) -> bytes:
        if key.endswith(".parquet"):
            self.answers.append(len(found))
        return found

    def get(self, key: str, size_max: int | None = None) -> bytes:
        return self._noted(key, super().get(key, size_max))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._noted(key, super().get_range(key, start, length))


@pytest.fixture
def small_row_groups(monkeypatch):
    """What is written now gets row groups of 100 records."""
    monkeypatch.setattr(segment, "ROW_GROUP_ROWS_MAX", 100)
    monkeypatch.setattr(encoding, "PLAIN_BYTES_MAX", 0)  # only Arrow writes several row groups


def one_file(store: Store, rows: int, size: int) -> int:
    """Fill the topic with one file; its size."""
    fill(store, 1, rows=rows, size=size)
    (entry,) = [e for e in store.list("topics/t/") if e.key.endswith(".parquet")]
    return entry.size


def test_a_large_file_is_read_in_parts(small_row_groups):
    store = FaultyStore(a_store())
    size = one_file(store, 4000, 1000)
    assert size > 3_000_000
    with Fetching(store, read_bytes_max=500_000) as fetching:
        fetching.assign(0)
        item = fetching.next()
        assert isinstance(item, CompletedFetch)
        assert item.fetched.rows.num_rows <= 4000 * 500_000 / size + 1
        rest = fetching.records(4000 - item.fetched.rows.num_rows)
        assert rest[0][0] == item.fetched.next_offset


@pytest.mark.slow
def test_a_first_record_comes_quickly_and_a_long_scan_makes_few_requests(small_row_groups):
    store = Metered(a_store())
    size = one_file(store, 20_000, 1000)
    group = size // 200
    with Fetching(store, read_bytes_max=16 * FIRST_READ_BYTES) as fetching:
        fetching.assign(3000)
        assert fetching.records(17_000) == {0: list(range(3000, 20_000))}
        footer, *parts = store.answers
        assert footer < size / 100
        for part, limit in zip(parts, [1, 2, 4, 8, 16, 16], strict=True):
            assert part <= limit * FIRST_READ_BYTES
        for part, limit in zip(parts[:-1], [1, 2, 4, 8, 16], strict=True):
            assert part > limit * FIRST_READ_BYTES - 2 * group
        assert sum(parts) < 0.85 * size + 2 * group, "no row group twice"
        store.answers.clear()
        fetching.fetcher.seek("t", 0, 10_000)
        fetching.records(10_000)
        assert store.answers[0] <= FIRST_READ_BYTES, "a seek begins with little again"
        assert store.answers[1] > FIRST_READ_BYTES
        assert footer not in store.answers, "what was learned of the file is still known"


def test_a_record_of_a_large_file_costs_the_same_wherever_it_is(small_row_groups):
    store = Metered(a_store())
    size = one_file(store, 12_000, 1000)
    costs = []
    for offset in (0, 6000, 11_999):
        store.answers.clear()
        with Fetching(store, bytes_max=1) as fetching:
            fetching.assign(offset)
            item = fetching.next()
            assert isinstance(item, CompletedFetch)
            assert item.fetched.rows.column("_offset")[0].as_py() == offset
            costs.append(sum(store.answers[:2]))
    assert max(costs) < FIRST_READ_BYTES + 0.01 * size


def test_a_position_set_anew_does_not_wait_for_a_partition_that_is_read_in_large_parts(
    small_row_groups,
):
    store = Metered(a_store())
    fill(store, 1, rows=10_000, size=1000, partitions=2)
    with Fetching(store, bytes_max=1) as fetching:
        fetching.assign(0, OFFSET_END)
        parts = [fetching.next().fetched.bytes for _ in range(3)]
        assert parts[2] > 3 * FIRST_READ_BYTES
        fetching.fetcher.seek("t", 1, 4000)
        while (item := fetching.next()).partition != 1:
            pass
        assert item.fetched.first_offset == 4000
        assert item.fetched.bytes <= FIRST_READ_BYTES


@pytest.mark.fault("B2")
def test_damage_inside_a_large_file_stops_the_partition_where_it_is_and_not_before(
    small_row_groups,
):
    store = a_store()
    size = one_file(store, 4000, 1000)
    (entry,) = [e for e in store.list("topics/t/") if e.key.endswith(".parquet")]
    damaged = bytearray(store.get(entry.key))
    damaged[size * 3 // 4] ^= 1
    store.put(entry.key, bytes(damaged))
    with Fetching(store, read_bytes_max=300_000) as fetching:
        fetching.assign(0)
        found: list[int] = []
        while isinstance(item := fetching.next(), CompletedFetch):
            found += item.fetched.rows.column("_offset").to_pylist()
        assert isinstance(item, PartitionError)
        assert isinstance(item.error, Corrupt)
        assert found == list(range(len(found)))
        assert 2600 <= len(found) <= 3000
        fetching.fetcher.seek("t", 0, 3100)
        assert fetching.records(900) == {0: list(range(3100, 4000))}


def test_a_large_file_whose_footer_is_damaged_stops_the_partition(small_row_groups):
    store = a_store()
    one_file(store, 4000, 1000)
    (entry,) = [e for e in store.list("topics/t/") if e.key.endswith(".parquet")]
    damaged = bytearray(store.get(entry.key))
    damaged[-20] ^= 1
    store.put(entry.key, bytes(damaged))
    with Fetching(store, read_bytes_max=300_000) as fetching:
        fetching.assign(0)
        error = fetching.error()
        assert isinstance(error.error, Corrupt)
        assert error.partition == 0


@pytest.mark.slow
@settings(max_examples=depth(6, 12))
@given(
    st.lists(st.sets(st.integers(0, 150)), min_size=3, max_size=3),
    st.lists(st.integers(0, 151), min_size=3, max_size=3),
    st.integers(1, 30),
    st.sampled_from([300, 2000, 20_000]),
    st.booleans(),
)
def test_compacted_records_of_any_file_come_once_and_in_order_from_any_position(
    dropped, starts, row_group_rows, read_bytes_max, far
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "ROW_GROUP_ROWS_MAX", row_group_rows)
        patch.setattr(segment, "ROW_GROUP_PARTITION_BYTES", 500)
        patch.setattr(segment_file, "WHOLE_FILE_BYTES", 0)
        store = a_store()
        fill(store, 3, rows=50, partitions=3)
        compact(store, "t", keep=lambda partition, offset: offset not in dropped[partition])
        fill(store, 1, rows=1, partitions=3)  # starts again at 0 in its values, so it is not read
        expected = {
            partition: [offset for offset in range(start, 150) if offset not in dropped[partition]]
            for partition, start in enumerate(starts)
        }

        class Placed(FaultyStore):
            is_remote = far

        with Fetching(Placed(store), read_bytes_max=read_bytes_max) as fetching:
            fetching.assign(*starts)
            found: dict[int, list[int]] = {0: [], 1: [], 2: []}
            while any(found[p][-1:] != [150] and starts[p] <= 150 for p in found):
                item = fetching.next()
                assert isinstance(item, CompletedFetch), item
                found[item.partition] += item.fetched.rows.column("_offset").to_pylist()
            assert {p: [offset for offset in found[p] if offset != 150] for p in found} == expected


def test_several_files_are_read_concurrently_from_a_far_store():
    class Far(FaultyStore):
        is_remote = True
        at_once = most = 0
        lock = threading.Lock()

        def get(self, key, size_max=None):
            if not key.endswith(".parquet"):
                return super().get(key, size_max)
            with self.lock:
                self.at_once += 1
                self.most = max(self.most, self.at_once)
            if self.most < 4:
                time.sleep(0.01)
            try:
                return super().get(key, size_max)
            finally:
                with self.lock:
                    self.at_once -= 1

    store = Far(a_store())
    fill(store, 40, rows=2, partitions=2)
    with Fetching(store) as fetching:
        fetching.assign(0, 0)
        assert fetching.records(160) == {0: list(range(80)), 1: list(range(80))}
    assert 1 < store.most <= REQUESTS_MAX


@pytest.mark.fault("B2")
def test_a_damaged_file_among_concurrent_reads_stops_only_its_partitions():
    store = FarStore(a_store())
    Topic("t", partitions=2, store=store).create()
    with Producer(
        {"bootstrap.servers": "memory://unused", "linger.ms": 0}, store=store
    ) as producer:
        for number in range(12):
            producer.produce("t", f"{number % 2}:{number // 2}", partition=number % 2)
            producer.flush(TIMEOUT_S)
    with Fetching(store) as probe:
        probe.assign(0, 0)
        probe.records(12)
        path = next(probe.fetcher._topics["t"].tail.log.index.batches(1, 1)).path
    store.inner.put(f"topics/t/{path}", b"damaged")
    with Fetching(store) as fetching:
        fetching.assign(0, 0)
        found: dict[int, list[int]] = {0: [], 1: []}
        errors: list[PartitionError] = []
        while len(found[0]) < 6 or not errors:
            item = fetching.next()
            if isinstance(item, PartitionError):
                errors.append(item)
            else:
                found[item.partition] += item.fetched.rows.column("_offset").to_pylist()
        assert found == {0: [0, 1, 2, 3, 4, 5], 1: [0]}, (
            "not even what was read together with the damaged file"
        )
        (error,) = errors
        assert error.partition == 1
        assert isinstance(error.error, Corrupt)
