"""The offset index against a plain list of every record's place."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.parquet.segment_file import SegmentFile
from deltaq.topics import offset_index
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.scan import next_read, plan_reads
from deltaq.topics.state import Batch, DataFile

PARTITIONS = 3
CHUNK_BATCHES = offset_index.CHUNK_BATCHES


@pytest.fixture(autouse=True, scope="module", params=[2, CHUNK_BATCHES], ids=["small", "real"])
def chunks(request):
    """Chunks as large as they are, and so small that few batches fill several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_index, "CHUNK_BATCHES", request.param)
        yield


def file_of(number: int, partition_rows: list[tuple[int, int, int]]) -> DataFile:
    """A file with (partition, base offset, rows) batches."""
    path = f"{number}.parquet"
    first = 0
    batches = []
    for partition, base, rows in partition_rows:
        batches.append(Batch(partition, base, base + rows, first, rows, False, path))
        first += rows
    return DataFile(
        path,
        SegmentFile(f"topics/t/{path}", number, 1, first, 0, 0, 0),
        tuple(batches),
        0,
        0,
        0,
        None,
        False,
        None,
    )


@st.composite
def histories(draw):
    """Appended files, and the place of every record: (partition, offset) -> file."""
    ends = [0] * PARTITIONS
    files: list[DataFile] = []
    places: dict[tuple[int, int], int] = {}
    for number in range(draw(st.integers(0, 12))):
        partitions = draw(
            st.lists(st.integers(0, PARTITIONS - 1), unique=True, min_size=1, max_size=PARTITIONS)
        )
        partition_rows = []
        for partition in sorted(partitions):
            rows = draw(st.integers(1, 5))
            partition_rows.append((partition, ends[partition], rows))
            places |= {(partition, ends[partition] + i): number for i in range(rows)}
            ends[partition] += rows
        files.append(file_of(number, partition_rows))
    gone = (
        draw(st.lists(st.sampled_from(range(len(files))), unique=True, max_size=len(files)))
        if files
        else []
    )
    return files, {place: number for place, number in places.items() if number not in gone}, gone


@given(histories(), st.randoms())
def test_every_offset_is_found_in_any_order_of_additions(history, chance):
    files, places, gone = history
    index = OffsetIndex()
    for file in chance.sample(files, len(files)):
        index.add(file)
    for some in chance.sample((gone[: len(gone) // 2], gone[len(gone) // 2 :]), 2):
        index.remove(f"{number}.parquet" for number in some)
    for partition in range(PARTITIONS):
        offsets = sorted(offset for p, offset in places if p == partition)
        for asked in range(max(offsets, default=0) + 3):
            found = index.find(partition, asked)
            at = min((offset for offset in offsets if offset >= asked), default=None)
            if at is None:
                assert found is None
            else:
                assert found is not None
                assert max(found.base_offset, asked) == at
                assert found.path == f"{places[partition, at]}.parquet"


@given(histories(), st.randoms())
def test_replacing_a_file_removes_the_replaced_one(history, chance):
    files, _, gone = history
    index = OffsetIndex()
    left = {file.path: file for number, file in enumerate(files) if number not in gone}
    for file in left.values():
        index.add(file)
    for number, file in enumerate(list(left.values())):
        partition_rows = [
            (batch.partition, batch.base_offset, batch.rows) for batch in file.batches
        ]
        rewritten = file_of(len(files) + number, partition_rows)
        index.add(rewritten)  # as the entry of a rewrite may have it: what comes, before what goes
        loser = chance.choice((file, rewritten))
        index.remove([loser.path])
        left[rewritten.path] = rewritten
        del left[loser.path]
    places = {
        (batch.partition, batch.base_offset + at): file.path
        for file in left.values()
        for batch in file.batches
        for at in range(batch.rows)
    }
    for (partition, offset), path in places.items():
        found = index.find(partition, offset)
        assert found is not None
        assert found.path == path
    for partition in range(PARTITIONS):
        assert [batch.base_offset for batch in index.batches(partition)] == sorted(
            batch.base_offset
            for file in left.values()
            for batch in file.batches
            if batch.partition == partition
        )


class SeenBatch(Batch):
    """A batch that counts how often anything of any one is looked at."""

    __slots__ = ()
    looks = 0

    def __getattribute__(self, name):
        SeenBatch.looks += 1
        return super().__getattribute__(name)


def looks_to_remove_the_newest(files: int) -> int:
    index = OffsetIndex()
    for number in range(files):
        path = f"{number}.parquet"
        batch = SeenBatch(0, number * 5, number * 5 + 5, 0, 5, False, path)
        index.add(replace(file_of(number, []), path=path, batches=(batch,)))
    SeenBatch.looks = 0
    index.remove([f"{files - 1}.parquet"])
    return SeenBatch.looks


@pytest.mark.parametrize("files", [1_000, 30_000])
def test_removing_a_new_file_is_independent_of_the_number_of_older_ones(files):
    assert (
        looks_to_remove_the_newest(files) <= looks_to_remove_the_newest(10) + 2 * files.bit_length()
    )


@given(
    histories(),
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=PARTITIONS, max_size=PARTITIONS
    ),
)
def test_a_plan_reads_each_wanted_record_once_in_order_and_each_file_once(history, bounds):
    files, places, gone = history
    index = OffsetIndex()
    for file in files:
        index.add(file)
    index.remove(f"{number}.parquet" for number in gone)
    ranges = dict(enumerate(bounds))
    reads = plan_reads(index, ranges)
    assert len({read.file.path for read in reads}) == len(reads)
    planned = [
        (batch.partition, offset)
        for read in reads
        for batch, start, end in read.wanted
        for offset in range(start, end)
    ]
    for partition, (start, end) in ranges.items():
        wanted = sorted(offset for p, offset in places if p == partition and start <= offset < end)
        assert [offset for p, offset in planned if p == partition] == wanted


def test_nothing_is_read_for_consumers_at_the_end():
    index = OffsetIndex()
    index.add(file_of(0, [(0, 0, 5)]))
    assert next_read(index, {0: 5}) is None
    assert next_read(index, {1: 0}) is None
    assert next_read(index, {}) is None


@given(histories(), st.randoms())
def test_a_copy_stays_as_it_is_while_the_original_and_other_copies_change(history, chance):
    files, _, _ = history
    index = OffsetIndex()
    copies: list[tuple[OffsetIndex, object]] = []

    def content(of: OffsetIndex) -> object:
        return dict(of.files), {
            partition: list(of.batches(partition)) for partition in range(PARTITIONS)
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_index, "CHUNK_BATCHES", 2)
        for file in files:
            changed = chance.choice([index, index, *(copy for copy, _ in copies)])
            changed.add(file)
            if chance.random() < 0.4 and changed.files:
                changed.remove([chance.choice(sorted(changed.files))])
            copies = [
                (copy, content(copy) if copy is changed else before) for copy, before in copies
            ]
            copies.append((taken := index.copy(), content(taken)))
            assert all(content(copy) == before for copy, before in copies)
            assert len(changed.files) == len(dict(changed.files))


def test_a_copy_of_a_large_index_shares_its_files_and_batches(monkeypatch):
    monkeypatch.setattr(offset_index, "CHUNK_BATCHES", CHUNK_BATCHES)
    index = OffsetIndex()
    for number in range(10_000):
        index.add(file_of(number, [(0, number * 5, 5)]))
    tracemalloc.start()
    try:
        copies = []
        for number in range(10_000, 10_100):
            copies.append(index.copy())
            index.add(file_of(number, [(0, number * 5, 5)]))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(copies[0].files) == 10_000
    assert taken / len(copies) < 20_000, "an index of 10,000 files takes megabytes"
