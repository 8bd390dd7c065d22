"""Plans of file compaction: which files become which, by counting every offset; what a byte costs
over the years.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deltaq.maintenance.file_compaction import (
    GROWTH,
    MERGED_FILES_MAX,
    MERGED_TARGETS_MAX,
    FileRewrite,
    Ranges,
    count_waiting,
    cut,
    divided,
    halved,
    in_log_order,
    plan_compaction,
    plan_trim,
)
from deltaq.maintenance.settings import DEFAULT_SETTINGS, MaintenanceSettings
from deltaq.topics.rewrites import check_covered, check_rewrite
from deltaq.topics.state import DataFile, TopicHead
from tests.doubles.data_files import Log, appended_logs, index_of, made_file, offsets_of

TARGET = 128 * 1024 * 1024
SOON = MaintenanceSettings(merge_files=3)


def written(plan: FileRewrite) -> list[DataFile]:
    """The files that come of a plan, as the log will describe them."""
    if not plan.inputs:
        return []
    newest = max(plan.inputs, key=lambda file: file.segment.version)
    rows = sum(end - start for ranges in plan.outputs for start, end in ranges.values())
    size, decoded = plan.bytes, sum(file.decoded_bytes for file in plan.inputs)
    files = []
    for ranges in plan.outputs:
        share = sum(end - start for start, end in ranges.values())
        path = f"{newest.path}+{min(ranges)},{min(ranges.values())}"
        found = [(partition, *ranges[partition]) for partition in sorted(ranges)]
        part = share / max(1, rows)
        sizes = int(size * part), int(decoded * part)
        version = newest.segment.version
        files.append(made_file(path, version, found, size=sizes[0], decoded_bytes=sizes[1]))
    return files


def readable(files: list[DataFile], head: TopicHead) -> list[tuple[int, int]]:
    return [
        (partition, offset)
        for partition, offset in offsets_of(files)
        if offset >= head.start_offsets[partition]
    ]


# --- what a plan covers
# ----------------------------------------------------------------------------------------------


@given(appended_logs(), st.integers(1, 5000))
def test_new_files_cover_what_the_old_ones_did_as_far_as_it_can_be_read(
    log: Log, target: int
) -> None:
    new = written(FileRewrite(tuple(log.files), cut(log.files, log.head, target)))
    assert offsets_of(new) == readable(log.files, log.head)
    assert all(batch.base_offset < batch.next_offset for file in new for batch in file.batches)


@given(appended_logs(), st.integers(1, 5000))
def test_each_new_file_has_few_partitions_and_about_the_target_size(log: Log, target: int) -> None:
    outputs = cut(log.files, log.head, target)
    order = [partition for ranges in outputs for partition in sorted(ranges)]
    assert order == sorted(order), "a later file goes on where the one before ends"
    sizes = {file.path: file.segment.size / file.segment.rows for file in log.files}
    largest = max(
        (batch.rows * sizes[file.path] for file in log.files for batch in file.batches), default=0
    )
    total = sum(file.segment.size for file in log.files)
    assert len(outputs) <= -(-total // target)
    for ranges in outputs:
        size = sum(
            sizes[file.path] * batch.rows
            for file in log.files
            for batch in file.batches
            if (span := ranges.get(batch.partition)) and span[0] < batch.next_offset <= span[1]
        )
        assert size < target + largest + 1


@given(appended_logs(sizes=st.integers(1, 3000)), st.sampled_from([1000, 5000, 20_000]))
def test_a_merge_takes_whole_neighbours_and_its_result_stands_where_they_stood(
    log: Log, target: int
) -> None:
    plan = plan_compaction(log.index, log.head, target, SOON)
    assume(plan is not None)
    assert plan is not None
    units = in_log_order(log.index)
    at = [number for number, unit in enumerate(units) if set(unit) & set(plan.inputs)]
    assert at == list(range(at[0], at[-1] + 1)), "neighbours"
    assert {file.path for number in at for file in units[number]} == {
        file.path for file in plan.inputs
    }
    largest = max(sum(file.segment.size for file in units[number]) for number in at)
    assert largest < target // 2
    assert largest <= plan.bytes <= MERGED_TARGETS_MAX * target + largest
    new = written(plan)
    after = index_of([*(file for file in log.files if file not in plan.inputs), *new])
    check_rewrite(log.index, [file.path for file in plan.inputs], new, log.head, "entry", 99)
    check_covered(after, log.head, "entry", 99)
    order = [batch for unit in in_log_order(after) for file in unit for batch in file.batches]
    for partition in range(log.head.partitions):
        bases = [batch.base_offset for batch in order if batch.partition == partition]
        assert bases == sorted(bases), "sorted by version, files are still in the order of the log"


@given(appended_logs(sizes=st.integers(1, 50)))
def test_merging_comes_to_an_end_with_few_files(log: Log) -> None:
    files = {file.path: file for file in log.files}
    merges = 0
    while (plan := plan_compaction(index_of(files.values()), log.head, 20_000, SOON)) is not None:
        merges += 1
        assert merges <= len(log.files)
        files = {path: file for path, file in files.items() if file not in plan.inputs}
        files |= {file.path: file for file in written(plan)}
    assert readable(list(files.values()), log.head) == readable(log.files, log.head)
    assert len(files) < max(SOON.merge_files, 1 + len(log.files))


@pytest.mark.parametrize("sizes", [[1000], [1000, 20, 3], [10**5, 1, 1, 1]])
def test_a_merge_takes_a_bounded_number_of_files_and_all_are_merged(sizes: list[int]) -> None:
    """The entry of a merge names all its files, and delays the next commit."""
    total, head = 1000, TopicHead("id", (1000,), (0,), 0)
    files = [
        made_file(f"{n}", n, [(0, n, n + 1)], size=sizes[n % len(sizes)]) for n in range(total)
    ]
    merges = []
    while (plan := plan_compaction(index_of(files), head, TARGET, SOON)) is not None:
        merges.append(len(plan.inputs))
        files = [*(file for file in files if file not in plan.inputs), *written(plan)]
    assert max(merges) <= MERGED_FILES_MAX
    assert len(merges) <= 2 * total / (SOON.merge_files - 1)
    assert len(files) < 2 * SOON.merge_files
    assert offsets_of(files) == [(0, offset) for offset in range(total)]


def test_while_older_files_are_merged_only_the_smallest_of_the_newer_ones_are() -> None:
    head = TopicHead("id", (60,), (0,), 0)

    def plan(size: int, after: int) -> list[str]:
        files = [made_file(f"{n}", n, [(0, n, n + 1)], size=size) for n in range(60)]
        found = plan_compaction(
            index_of(files), head, 512_000, replace(SOON, merge_files=20), after
        )
        return [] if found is None else [file.path for file in found.inputs]

    assert plan(999, after=-1) == [f"{n}" for n in range(60)]
    assert plan(999, after=19) == [f"{n}" for n in range(20, 60)]
    assert plan(999, after=39) == [f"{n}" for n in range(40, 60)]
    assert plan(999, after=40) == []
    assert plan(1000, after=-1) == []


@given(st.lists(st.integers(10, 1000), min_size=1, max_size=60))
def test_small_files_that_decode_to_much_are_merged_as_if_they_were_as_large(
    parts: list[int],
) -> None:
    """A merge of those would be cut into as many again, by what is written at once."""
    at_once = 1000
    head = TopicHead("id", (len(parts),), (0,), 0)

    def merged(files: list[DataFile]) -> list[list[tuple[str, int]]]:
        found = []
        while (
            plan := plan_compaction(index_of(files), head, TARGET, SOON, decoded_max=at_once)
        ) is not None:
            found.append([(file.path, len(plan.outputs)) for file in plan.inputs])
            files = [*(file for file in files if file not in plan.inputs), *written(plan)]
            assert len(found) <= len(parts), "it comes to an end"
        return found

    small = [
        made_file(f"{n}", n, [(0, n, n + 1)], size=1, decoded_bytes=part)
        for n, part in enumerate(parts)
    ]
    large = [
        made_file(f"{n}", n, [(0, n, n + 1)], size=TARGET * part // at_once)
        for n, part in enumerate(parts)
    ]
    assert merged(small) == merged([replace(file, decoded_bytes=7) for file in large])


def test_files_that_a_merge_would_not_reduce_are_skipped() -> None:
    files = [made_file(f"{n}", n, [(0, n, n + 1)]) for n in range(9)]
    head = TopicHead("id", (9,), (0,), 0)
    plan = plan_compaction(index_of(files), head, TARGET, SOON, left_out={"1", "5"})
    assert plan is not None
    assert list(plan.inputs) == files[2:5]
    assert plan_compaction(index_of(files), head, TARGET, SOON, left_out={"1", "4", "7"}) is None


def test_files_with_enough_small_neighbours_are_due_for_a_merge() -> None:
    def waiting(*sizes: int, left_out: Container[str] = (), decoded_bytes: int = 0) -> int:
        files = [
            made_file(f"{n}", n, [(0, n, n + 1)], size=size, decoded_bytes=decoded_bytes)
            for n, size in enumerate(sizes)
        ]
        return count_waiting(
            index_of(files), 1000, replace(SOON, merge_files=4), decoded_max=500, left_out=left_out
        )

    assert waiting() == 0
    assert waiting(1, 1, 1) == 0
    assert waiting(*[1] * 9) == 9
    assert waiting(*[1] * 9, 900, *[1] * 3) == 9
    assert waiting(*[40] * 9, 900, *[1] * 5) == 14, "of all sizes"
    assert waiting(*[500] * 3000) == 0
    assert waiting(*[1] * 3000, decoded_bytes=250) == 0
    assert waiting(*[1] * 9, left_out={"2"}) == 6
    assert waiting(*[1] * 9, left_out={"4"}) == 8
    assert waiting(*[1] * 7, left_out={"3"}) == 0


def test_a_partition_without_records_gets_no_new_file_of_its_own() -> None:
    """A merge of two files into two would be made again and again."""
    files = [
        made_file("0", 7, [(0, 0, 3)], clean=0),
        made_file("1", 7, [(1, 0, 1)], clean=0, gaps=1),
    ]
    head = TopicHead("id", (3, 1), (0, 0), 0)
    assert cut(files, head, TARGET) == ({0: (0, 3), 1: (0, 1)},)


def test_files_with_different_kinds_of_times_are_never_merged() -> None:
    kinds = [False] * 5 + [True] * 5 + [False] * 2
    files = [
        made_file(f"{n}", n, [(0, n, n + 1)], log_append_time=kind) for n, kind in enumerate(kinds)
    ]
    head = TopicHead("id", (12,), (0,), 0)
    plan = plan_compaction(index_of(files), head, TARGET, SOON)
    assert plan is not None
    assert list(plan.inputs) == files[:5]
    plan = plan_compaction(index_of([*files[5:], *written(plan)]), head, TARGET, SOON)
    assert plan is not None
    assert list(plan.inputs) == files[5:10]


def test_an_entry_with_both_kinds_of_times_stays_as_it_is() -> None:
    """The topic's rule may change between an upload and its commit."""
    files = [made_file(f"{n}", n, [(0, n, n + 1)]) for n in range(4)]
    files += [
        made_file(f"4{kind}", 4, [(kind, 0, 1)], log_append_time=bool(kind)) for kind in (1, 0, 2)
    ]
    files[5] = made_file("40", 4, [(0, 4, 5)])
    plan = plan_compaction(index_of(files), TopicHead("id", (5, 1, 1), (0, 0, 0), 0), TARGET, SOON)
    assert plan is not None
    assert list(plan.inputs) == files[:4]


def test_files_that_key_compaction_has_cleaned_are_not_merged_with_others() -> None:
    files = [made_file(f"{n}", n, [(0, n, n + 1)], clean=0 if n < 4 else None) for n in range(9)]
    plan = plan_compaction(index_of(files), TopicHead("id", (9,), (0,), 0), TARGET, SOON)
    assert plan is not None
    assert list(plan.inputs) == files[:4]


# --- trims
# --------------------------------------------------------------------------------------------------


@given(appended_logs())
def test_trims_keep_exactly_the_readable_records(log: Log) -> None:
    files = {file.path: file for file in log.files}
    trims = 0
    while (plan := plan_trim(index_of(files.values()), log.head)) is not None:
        trims += 1
        assert trims <= len(log.files)
        assert len(plan.inputs) == 1
        del files[plan.inputs[0].path]
        files |= {file.path: file for file in written(plan)}
    starts = log.head.start_offsets
    over = {
        file.path
        for file in log.files
        if all(b.next_offset <= starts[b.partition] for b in file.batches)
    }
    left = [file for path, file in files.items() if path not in over]
    assert offsets_of(left) == readable(log.files, log.head)
    assert over <= files.keys(), "files without anything to read are left to retention"


def test_files_without_records_below_the_start_are_not_trimmed_again() -> None:
    """The batch begins below the start, but key compaction has taken its records."""
    file = made_file("a", 1, [(0, 0, 5)], gaps=5)
    assert plan_trim(index_of([file]), TopicHead("id", (5,), (3,), 0)) is None


def test_a_file_that_cannot_be_read_does_not_keep_others_from_being_trimmed() -> None:
    files = [made_file(f"{n}", n, [(n, 0, 5)]) for n in range(2)]
    head = TopicHead("id", (5, 5), (3, 3), 0)
    plan = plan_trim(index_of(files), head, {"0"})
    assert plan is not None
    assert list(plan.inputs) == files[1:]
    assert plan_trim(index_of(files), head, {"0", "1"}) is None


# --- what it costs
# --------------------------------------------------------------------------------------------------


def small(number: int) -> int:
    return 3000


def middle(number: int) -> int:
    return 300_000


def mixed(number: int) -> int:
    return 3000 if number % 20 else 10_000_000


def shrinking(number: int) -> int:
    return 30_000_000 // (1 + number // 10)


@pytest.mark.slow
@pytest.mark.fault("D3")
@pytest.mark.parametrize(
    ("size", "appends", "files_max"),
    [(small, 10_000, 60), (middle, 5000, 100), (mixed, 2000, 90), (shrinking, 2000, 90)],
)
def test_write_amplification_is_independent_of_the_number_of_appends(
    size: Callable[[int], int], appends: int, files_max: int
) -> None:
    index = index_of([])
    times: dict[str, Counter[int]] = {}  # how often how many bytes of a file were written again
    ever: Counter[int] = Counter()
    most = 0
    for number in range(appends):
        file = made_file(f"{number}", number, [(0, number, number + 1)], size=size(number))
        index.add(file)
        times[file.path] = Counter({0: file.segment.size})
        head = TopicHead("id", (number + 1,), (0,), 0)
        while (plan := plan_compaction(index, head, TARGET, DEFAULT_SETTINGS)) is not None:
            again: Counter[int] = Counter()
            for old in plan.inputs:
                index.remove([old.path])
                again.update({count + 1: size for count, size in times.pop(old.path).items()})
            new = written(plan)
            for part in new:
                index.add(part)
                times[part.path] = Counter(
                    {n: size * part.segment.size // plan.bytes for n, size in again.items()}
                )
        most = max(most, len(index.files))
    for counts in times.values():
        ever.update(counts)
    total = sum(ever.values())
    # Each time its file becomes several times as large, and large ones rest.
    assert max(ever) <= 2 + math.log(TARGET / 3000, GROWTH)
    assert sum(count * size for count, size in ever.items()) / total < 5
    large = total // (TARGET // 2)
    assert most <= files_max + large


@pytest.mark.parametrize("width", [31, 32, 33, 40, 200])
def test_entries_of_many_files_as_spark_writes_them_are_merged_like_others(width: int) -> None:
    entries = 100
    files = [
        made_file(
            f"{entry}-{n}", entry, [(0, width * entry + n, width * entry + n + 1)], size=20_000
        )
        for entry in range(entries)
        for n in range(width)
    ]
    head = TopicHead("id", (entries * width,), (0,), 0)
    plan = plan_compaction(index_of(files), head, TARGET, MaintenanceSettings())
    assert plan is not None
    assert len(plan.inputs) >= MaintenanceSettings().merge_files
    assert len(plan.inputs) % width == 0, "entries whole"


@pytest.mark.parametrize(("limit", "expected"), [(1, 14), (40, 4), (10**9, 1)])
def test_offsets_are_halved_until_they_come_from_one_batch(limit: int, expected: int) -> None:
    files = [
        made_file(f"{n}", n, [(0, 10 * n, 10 * n + 10), (1, 5 * n, 5 * n + 5)]) for n in range(7)
    ]
    todo: list[Ranges] = list(cut(files, TopicHead("id", (70, 35), (3, 0), 0), 2**40))
    done = []
    while todo:
        ranges = todo.pop()
        parts = halved(files, ranges)
        if len(parts) == 1 or sum(end - start for start, end in ranges.values()) <= limit:
            done.append(ranges)
        else:
            todo += parts
    covered = sorted(
        (p, offset)
        for ranges in done
        for p, (start, end) in ranges.items()
        for offset in range(start, end)
    )
    assert covered == [(0, offset) for offset in range(3, 70)] + [
        (1, offset) for offset in range(35)
    ]
    assert len(done) == expected


@given(appended_logs(), st.integers(1, 5_000))
def test_divided_batches_are_complete_ordered_and_small(log: Log, bytes_max: int) -> None:
    files = log.files
    outputs = cut(files, log.head, 2**62)
    assume(outputs)  # not all have expired
    (whole,) = outputs
    parts = divided(files, whole, bytes_max)
    assert [places for part in parts for places in each_place(part)] == list(each_place(whole))
    for part in parts:
        size = sum(
            file.segment.size * inside(file, part) / file.segment.rows
            for file in files
            if file.segment.rows
        )
        assert size <= bytes_max * (1 + 1e-9) or len(halved(files, part)) == 1


def each_place(ranges: Ranges) -> Iterator[tuple[int, int]]:
    return (
        (partition, offset) for partition in sorted(ranges) for offset in range(*ranges[partition])
    )


def inside(file: DataFile, ranges: Ranges) -> float:
    """About how many rows of the file have these offsets."""
    rows = 0.0
    for batch in file.batches:
        start, end = ranges.get(batch.partition, (0, 0))
        offsets = len(range(max(start, batch.base_offset), min(end, batch.next_offset)))
        rows += batch.rows * offsets / (batch.next_offset - batch.base_offset)
    return rows
