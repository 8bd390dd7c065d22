"""Tasks of a batch: every offset once, in order, and tasks of about equal size."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from deltaq.parquet.segment_file import SegmentFile
from deltaq.spark.options import TaskLimits
from deltaq.spark.tasks import FILE_COST_BYTES, TASK_BYTES, TopicRead, in_tasks
from deltaq.topics.scan import FileRead
from deltaq.topics.state import Batch, DataFile

TOPIC = ("orders", "one")


def file_reads(rows_of_files: Iterable[list[int]], row_bytes: int = 100) -> list[FileRead]:
    """Files of dense batches: a number for each partition's rows, offsets going on from file to
    file.
    """
    next_offsets: dict[int, int] = {}
    reads = []
    for number, shares in enumerate(rows_of_files):
        path, first, batches = f"{number}.parquet", 0, []
        for partition, rows in enumerate(shares):
            base = next_offsets.get(partition, 0)
            batches.append(Batch(partition, base, base + rows, first, rows, False, path))
            next_offsets[partition] = base + rows
            first += rows
        segment = SegmentFile(path, number, first * row_bytes, first, 0, 0, 0)
        file = DataFile(
            path, segment, tuple(batches), 0, 0, 0, None, log_append_time=False, clean=None
        )
        reads.append(
            FileRead(file, tuple((b, b.base_offset, b.next_offset) for b in batches if b.rows))
        )
    return reads


def spans(tasks: Iterable[Iterable[TopicRead]]) -> dict[int, list[int]]:
    """The offsets of each partition, in the order in which the tasks have them."""
    found: dict[int, list[int]] = {}
    for task in tasks:
        for unit in task:
            for batch, start, end in unit.read.wanted:
                assert batch.base_offset <= start < end <= batch.next_offset
                found.setdefault(batch.partition, []).extend(range(start, end))
    return found


files = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), max_size=12)


@given(files, st.integers(1, 20))
def test_every_offset_is_in_one_task_and_in_order(
    rows_of_files: list[list[int]], tasks_min: int
) -> None:
    reads = file_reads(rows_of_files)
    tasks = in_tasks({TOPIC: reads}, TaskLimits(tasks_min))
    assert spans(tasks) == spans([[TopicRead(*TOPIC, read) for read in reads]])


@given(files, st.integers(2, 20))
def test_the_requested_number_of_tasks_is_made_if_there_are_enough_rows(
    rows_of_files: list[list[int]], tasks_min: int
) -> None:
    tasks = in_tasks({TOPIC: file_reads(rows_of_files)}, TaskLimits(tasks_min))
    assert len(tasks) >= min(tasks_min, sum(map(sum, rows_of_files)))


@given(files, st.integers(1, 20), st.integers(1, 50))
def test_no_task_has_more_offsets_than_allowed(
    rows_of_files: list[list[int]], tasks_min: int, most: int
) -> None:
    reads = file_reads(rows_of_files)
    tasks = in_tasks({TOPIC: reads}, TaskLimits(tasks_min, most))
    assert spans(tasks) == spans([[TopicRead(*TOPIC, read) for read in reads]])
    assert all(0 < sum(unit.rows for unit in task) <= most for task in tasks)
    assert len(tasks) >= min(tasks_min, sum(map(sum, rows_of_files)))


def test_a_high_limit_of_offsets_makes_no_task_larger() -> None:
    reads = file_reads([[1000]] * 5, row_bytes=TASK_BYTES // 1000)
    assert in_tasks({TOPIC: reads}, TaskLimits(1, 10**9)) == in_tasks({TOPIC: reads})


def test_small_files_share_a_task_and_large_ones_do_not() -> None:
    small, large = [[10]] * 20, [[1000]] * 3
    assert len(in_tasks({TOPIC: file_reads(small)})) == 1
    assert len(in_tasks({TOPIC: file_reads(large, row_bytes=TASK_BYTES // 1000)})) == 3


def test_very_many_small_files_are_spread_over_tasks() -> None:
    tasks = in_tasks({TOPIC: file_reads([[1]] * 20_000)})
    assert max(len(task) for task in tasks) <= TASK_BYTES // FILE_COST_BYTES
    assert len(tasks) > 30


def test_a_low_minimum_of_tasks_makes_no_task_larger() -> None:
    reads = file_reads([[1000]] * 5, row_bytes=TASK_BYTES // 1000)
    assert in_tasks({TOPIC: reads}, TaskLimits(2)) == in_tasks({TOPIC: reads})


def test_parts_of_one_file_in_one_task_are_one_read() -> None:
    (task,) = in_tasks({TOPIC: file_reads([[5, 5, 5]])}, TaskLimits(1))
    assert len(task) == 1
    first, second = in_tasks({TOPIC: file_reads([[5, 5, 5]])}, TaskLimits(2))[:2]
    assert [len(first), len(second)] == [1, 1]


def test_nothing_to_read_needs_no_task() -> None:
    assert in_tasks({}) == in_tasks({TOPIC: []}, TaskLimits(4)) == []
