"""Reading offsets out of large files in parts: whatever the row groups, each record once, in order,
and no more bytes than the row groups that have it.
"""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import replace
from itertools import accumulate

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.delta.actions import Add
from deltaq.errors import Corrupt
from deltaq.parquet import segment, segment_file
from deltaq.parquet.segment import SegmentLayout, encode_segment
from deltaq.store import MemoryStore, Store
from deltaq.topics.columns import by_partition, columns_of_rows, table_schema
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.scan import FileRead, first_parts, layout_of, next_read, parts_of, read_file
from deltaq.topics.state import DataFile, data_file

COLUMNS = table_schema(None)

Offsets = dict[int, list[int]]  # partition -> offsets of its records


class CountedStore(MemoryStore):
    """Counts what is asked of it, in bytes and requests."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex)
        self.fetched = self.requests = 0

    def get(self, key: str, size_max: int | None = None) -> bytes:
        found = super().get(key, size_max)
        self.fetched += len(found)
        self.requests += 1
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.fetched += length
        self.requests += 1
        return super().get_range(key, start, length)


def compacted(
    store: MemoryStore,
    offsets: Offsets,
    *,
    row_group_bytes: int,
    ends: dict[int, int] | None = None,
    sparse: bool = True,
    log_append_time: bool = False,
) -> DataFile:
    """A file as compaction writes it: `_offset` filled in, each value naming its record. Batches
    begin at offset 0, or dense ones at their first.
    """
    order = [(partition, offset) for partition in sorted(offsets) for offset in offsets[partition]]
    values = [f"{partition}:{offset}".encode().ljust(50) for partition, offset in order]
    times = pa.array([offset * 1000 for _, offset in order], pa.int64())
    partitions = [partition for partition, _ in order]
    batch, _ = by_partition(
        columns_of_rows(partitions, times, [None] * len(order), [None] * len(order), values, None)
    )
    at = batch.schema.get_field_index("_offset")
    batch = batch.set_column(
        at, batch.schema.field(at), pa.array([offset for _, offset in order], pa.int64())
    )
    partition_rows = [len(offsets[partition]) for partition in sorted(offsets)]
    encoded = encode_segment(batch, partition_rows, "none", row_group_bytes=row_group_bytes)
    batches, first = [], 0
    for partition, rows in zip(sorted(offsets), partition_rows, strict=True):
        base = 0 if sparse or not rows else offsets[partition][0]
        end = (
            []
            if not sparse
            else [(ends or {}).get(partition, max(offsets[partition], default=-1) + 1)]
        )
        batches.append([partition, base, first, rows, *end])
        first += rows
    about = {
        "version": 3,
        "rows": encoded.rows,
        "crc32": encoded.crc32,
        "footer": [encoded.footer_bytes, encoded.footer_crc32],
        "timestamps": [0, 10**12],
        "log_append_time": log_append_time,
    }
    path = f"{uuid.uuid4().hex}.parquet"
    store.put(f"topics/t/{path}", encoded.data)
    tags = {"deltaq.batches": json.dumps(batches), "deltaq.file": json.dumps(about)}
    return data_file(Add(path, len(encoded.data), 0, False, "{}", tags), "topics/t/")


def _layout(store: Store, file: DataFile) -> SegmentLayout:
    layout = layout_of(store, file)
    assert layout is not None
    return layout


def offsets_in(parts) -> Offsets:
    """Offsets by partition, each checked against its record."""
    found: Offsets = {}
    for part in parts:
        offsets = part.rows.column("_offset").to_pylist()
        values = [value.decode().strip() for value in part.rows.column("value").to_pylist()]
        assert values == [f"{part.partition}:{offset}" for offset in offsets]
        found.setdefault(part.partition, []).extend(offsets)
    return found


@pytest.fixture(autouse=True)
def large_files(monkeypatch):
    """Treat every file as too large to be read whole, and the smallest share as worth row groups of
    its own.
    """
    monkeypatch.setattr(segment_file, "WHOLE_FILE_BYTES", 0)


@st.composite
def gappy_files(draw) -> tuple[Offsets, dict[int, int]]:
    """Offsets of a few partitions, dense here and gappy there, and where their batches end."""
    offsets: Offsets = {}
    ends: dict[int, int] = {}
    for partition in range(draw(st.integers(1, 4))):
        steps = draw(st.lists(st.integers(1, 5) | st.just(1) | st.integers(1, 300), max_size=40))
        offsets[partition] = [offset - 1 for offset in accumulate(steps)]
        ends[partition] = sum(steps) + draw(st.integers(0, 20))
    return offsets, ends


row_groups = st.sampled_from([1, 300, 900, 2500, 10**6])
# Bytes from which on a partition gets row groups of its own.
partition_rows = st.sampled_from([1, 400, 10**6])


@given(gappy_files(), row_groups, partition_rows, st.data())
def test_any_range_of_any_sparse_file_is_read_without_a_skipped_or_doubled_record(
    file, row_group_bytes, share, data
):
    offsets, ends = file
    store = MemoryStore(uuid.uuid4().hex)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "ROW_GROUP_PARTITION_BYTES", share)
        whole = compacted(store, offsets, ends=ends, row_group_bytes=row_group_bytes)
    wanted = []
    for batch in whole.batches:
        start = data.draw(st.integers(0, batch.next_offset))
        end = data.draw(st.integers(start, batch.next_offset))
        if start < end:
            wanted.append((batch, start, end))
    layout = data.draw(st.sampled_from([None, _layout(store, whole)]))
    found = offsets_in(read_file(store, FileRead(whole, tuple(wanted), layout), COLUMNS))
    assert found == {
        batch.partition: [offset for offset in offsets[batch.partition] if start <= offset < end]
        for batch, start, end in wanted
    }


@given(gappy_files(), row_groups, partition_rows, st.data())
def test_the_parts_of_a_batch_share_out_its_offsets_and_each_can_be_read_alone(
    file, row_group_bytes, share, data
):
    offsets, ends = file
    store = MemoryStore(uuid.uuid4().hex)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "ROW_GROUP_PARTITION_BYTES", share)
        whole = compacted(store, offsets, ends=ends, row_group_bytes=row_group_bytes)
    layout = _layout(store, whole)
    batch = data.draw(st.sampled_from(whole.batches))
    start = data.draw(st.integers(0, batch.next_offset))
    end = data.draw(st.integers(start, batch.next_offset))
    at = start
    for part in parts_of(layout, batch, start, end):
        assert part.start == at < part.end
        at = part.end
        (found,) = read_file(
            store, FileRead(whole, ((batch, part.start, part.end),), layout), COLUMNS
        )
        mine = [offset for offset in offsets[batch.partition] if part.start <= offset < part.end]
        assert found.rows.column("_offset").to_pylist() == mine
    assert at == end


@given(gappy_files(), row_groups, partition_rows, st.integers(1, 20_000), st.booleans(), st.data())
def test_reading_a_file_in_first_parts_returns_every_record_once(
    file, row_group_bytes, share, bytes_max, dense, data
):
    offsets, ends = file
    if dense:
        offsets = {
            partition: list(range(3, 3 + len(found))) for partition, found in offsets.items()
        }
        ends = {partition: 3 + len(found) for partition, found in offsets.items()}
    store = MemoryStore(uuid.uuid4().hex)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "ROW_GROUP_PARTITION_BYTES", share)
        whole = compacted(
            store, offsets, ends=ends, sparse=not dense, row_group_bytes=row_group_bytes
        )
    layout = _layout(store, whole)
    index = OffsetIndex()
    index.add(whole)
    starts = {partition: data.draw(st.integers(0, end)) for partition, end in ends.items()}
    positions = dict(starts)
    found: Offsets = {partition: [] for partition in offsets}
    while (read := next_read(index, positions)) is not None:
        first = first_parts(read, layout, bytes_max)
        assert first.wanted, "each step gets on"
        for batch, start, end in first.wanted:
            assert positions[batch.partition] <= start < end
            positions[batch.partition] = end
        for partition, more in offsets_in(read_file(store, first, COLUMNS)).items():
            found[partition] += more
    assert found == {p: [offset for offset in offsets[p] if offset >= starts[p]] for p in offsets}


def test_a_part_takes_whole_row_groups_of_about_the_requested_bytes():
    store = CountedStore()
    chance = random.Random(5)
    offsets = sorted(chance.sample(range(100_000), 20_000))
    whole = compacted(store, {0: offsets}, row_group_bytes=50_000)
    layout = _layout(store, whole)
    assert store.fetched == whole.segment.footer_bytes
    (batch,) = whole.batches
    everything = FileRead(whole, ((batch, 40_000, batch.next_offset),))
    for bytes_max in (1, 100_000, 300_000):
        store.fetched = store.requests = 0
        first = first_parts(everything, layout, bytes_max)
        (found,) = read_file(store, first, COLUMNS)
        assert (found.first_offset, found.next_offset) == (40_000, first.wanted[0][2])
        assert store.requests == 1, "the footer is known, and the row groups are neighbours"
        assert max(40_000, bytes_max - 50_000) <= store.fetched <= max(55_000, bytes_max)
        following = next(parts_of(layout, batch, found.next_offset, batch.next_offset))
        assert not set(following.groups) & set(
            next(parts_of(layout, batch, 40_000, found.next_offset)).groups
        ), "no row group is read twice"


def test_batches_beyond_the_byte_budget_wait_for_the_next_read():
    store = MemoryStore(uuid.uuid4().hex)
    whole = compacted(store, {p: list(range(2000)) for p in range(6)}, row_group_bytes=70_000)
    layout = _layout(store, whole)
    read = FileRead(whole, tuple((batch, 0, 2000) for batch in whole.batches))
    first = first_parts(read, layout, 150_000)
    assert [batch.partition for batch, _, _ in first.wanted] == [0, 1, 2]
    assert all(0 < end < 2000 for _, _, end in first.wanted)


def test_row_groups_of_many_partitions_are_fetched_once_for_all_of_them():
    store = CountedStore()
    offsets = {partition: list(range(partition, partition + 10)) for partition in range(100)}
    whole = compacted(store, offsets, sparse=False, row_group_bytes=10**6)
    everything = FileRead(
        whole, tuple((batch, batch.base_offset, batch.next_offset) for batch in whole.batches)
    )
    first = first_parts(everything, _layout(store, whole), 1)
    store.fetched = 0
    assert offsets_in(read_file(store, first, COLUMNS)) == offsets
    assert store.fetched <= whole.segment.size


@pytest.mark.fault("B2")
@pytest.mark.parametrize(
    ("what", "wrong"),
    [("partitions", {"partition": 7}), ("offsets", {"base_offset": 5, "next_offset": 15})],
)
def test_a_batch_that_contradicts_the_rows_of_its_file_is_corrupt(what, wrong):
    store = MemoryStore(uuid.uuid4().hex)
    whole = compacted(
        store, {p: list(range(10)) for p in range(3)}, sparse=False, row_group_bytes=10**6
    )
    batches = tuple(
        replace(batch, **wrong) if batch.partition == 1 else batch for batch in whole.batches
    )
    for wanted in (batches, batches[1:2]):
        read = FileRead(
            whole, tuple((batch, batch.base_offset, batch.next_offset) for batch in wanted)
        )
        with pytest.raises(Corrupt, match=f"its {what} contradict the log"):
            read_file(store, read, COLUMNS)


def test_one_record_of_a_sparse_file_costs_one_row_group():
    store = CountedStore()
    whole = compacted(store, {0: list(range(0, 60_000, 3))}, row_group_bytes=50_000)
    (batch,) = whole.batches
    (found,) = read_file(store, FileRead(whole, ((batch, 30_000, 30_003),)), COLUMNS)
    assert found.rows.column("_offset").to_pylist() == [30_000]
    assert store.fetched < whole.segment.footer_bytes + 55_000 < whole.segment.size / 10


@pytest.mark.fault("B2")
@pytest.mark.parametrize(
    "offsets",
    [[0, 2, 1, 3], [0, 1, 1, 3], [0, 1, 2, 50]],
    ids=["back", "twice", "beyond the batch"],
)
def test_offsets_of_a_sparse_batch_that_do_not_rise_inside_it_are_corrupt(offsets):
    store = MemoryStore(uuid.uuid4().hex)
    whole = compacted(
        store, {0: offsets}, ends={0: 40 if max(offsets) < 40 else 45}, row_group_bytes=10**6
    )
    (batch,) = whole.batches
    with pytest.raises(Corrupt, match="offsets contradict"):
        read_file(store, FileRead(whole, ((batch, 0, 3),)), COLUMNS)


def test_row_groups_with_overlapping_offsets_are_corrupt():
    store = MemoryStore(uuid.uuid4().hex)
    whole = compacted(store, {0: [*range(50), *range(30, 90)]}, ends={0: 200}, row_group_bytes=1000)
    (batch,) = whole.batches
    (first, *_) = parts_of(_layout(store, whole), batch, 40, 200)
    with pytest.raises(Corrupt, match="offsets contradict"):
        read_file(store, FileRead(whole, ((batch, first.start, first.end),)), COLUMNS)


@pytest.mark.fault("B2")
def test_a_footer_damaged_in_transit_is_fetched_once_more():
    class OnceDamaged(CountedStore):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            found = super().get_range(key, start, length)
            return found if self.requests > 1 else found[:5] + b"?" + found[6:]

    store = OnceDamaged()
    whole = compacted(store, {0: list(range(50))}, row_group_bytes=1000)
    layout = _layout(store, whole)
    assert layout is not None
    assert layout.firsts[-1] == 50
    assert store.requests == 2
    wrong = replace(whole, segment=replace(whole.segment, footer_crc32=1))
    with pytest.raises(Corrupt, match="footer"):
        _layout(store, wrong)


def test_log_append_times_keep_their_type_after_compaction():
    store = MemoryStore(uuid.uuid4().hex)
    for log_append_time in (True, False):
        whole = compacted(store, {0: [0, 1]}, row_group_bytes=1000, log_append_time=log_append_time)
        (found,) = read_file(store, FileRead(whole, ((whole.batches[0], 0, 2),)), COLUMNS)
        assert found.log_append_time is log_append_time
        assert found.rows.column("_timestamp").cast(pa.int64()).to_pylist() == [0, 1_000_000]
