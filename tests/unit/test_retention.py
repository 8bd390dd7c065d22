"""Retention as Kafka means it: what goes is old or too much, in order and in whole files, and nothing else goes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.config import TopicSettings, topic_properties
from deltaq.log.rewrites import Trimmed, check_covered, check_rewrite
from deltaq.log.topic_state import DataFile, TopicHead
from deltaq.maintenance.retention import file_time_ms, plan_deletion, plan_retention
from deltaq.store import MemoryStore
from deltaq.testing import ManualClock
from tests.doubles.data_files import Log, appended_logs, index_of, made_file, offsets_of
from tests.doubles.written_topic import Row, WrittenTopic, seen_by_consumers

NOW = 1_700_000_000_000
HOUR_MS = 3600 * 1000
YEAR_2262_MS = 9_223_372_036_854
TIMES = st.sampled_from([0, 1, NOW - 3 * HOUR_MS, NOW - HOUR_MS - 1, NOW - HOUR_MS, NOW - 1, NOW, YEAR_2262_MS])


def topic(**config: object) -> TopicSettings:
    return TopicSettings.from_properties(topic_properties({k.replace("_", "."): v for k, v in config.items()}))


def planned(log: Log, settings: TopicSettings, now_ms: int = NOW) -> Trimmed:
    return plan_retention(log.index, log.head, settings, now_ms) or Trimmed(log.head.start_offsets, ())


# --- against counting ------------------------------------------------------------------------------------------------


def live_ranges(log: Log, file: DataFile) -> Mapping[int, tuple[int, int]]:
    """The offsets of a file that can still be read."""
    spans = {
        b.partition: (max(b.base_offset, log.head.start_offsets[b.partition]), b.next_offset) for b in file.batches
    }
    return {partition: (low, high) for partition, (low, high) in spans.items() if low < high}


def predecessors(log: Log, file: DataFile) -> set[str]:
    """All that would have to go first, so that no partition gets a hole."""
    found: set[str] = set()
    pending = [file]
    while pending:
        mine = live_ranges(log, pending.pop())
        for other in log.files:
            theirs = live_ranges(log, other)
            if other.path not in found and any(p in theirs and theirs[p] < mine[p] for p in mine):
                found.add(other.path)
                pending.append(other)
    return found - {file.path}


def is_too_much(log: Log, file: DataFile, bytes_max: int) -> bool:
    """Whether each partition of the file has as many bytes as it may have in newer files."""
    for partition, span in live_ranges(log, file).items():
        newer = sum(
            other.segment.size * (batch.next_offset - batch.base_offset) / other.segment.rows
            for other in log.files
            for batch in other.batches
            if batch.partition == partition and batch.base_offset >= span[1]
        )
        if newer < bytes_max - 1e-6:
            return False
    return True


@given(
    appended_logs(times=TIMES), st.sampled_from([-1, 0, 1, HOUR_MS, 10 * HOUR_MS]), st.sampled_from([-1, 0, 700, 2000])
)
def test_a_file_goes_once_it_is_due_and_all_that_is_before_it(
    log: Log, retention_ms: int, retention_bytes: int
) -> None:
    trimmed = planned(log, topic(retention_ms=retention_ms, retention_bytes=retention_bytes))
    due = {
        file.path
        for file in log.files
        if not live_ranges(log, file)
        or (retention_ms >= 0 and NOW - min(file.max_timestamp_ms, file.modified_ms) > retention_ms)
        or (retention_bytes >= 0 and is_too_much(log, file, retention_bytes))
    }
    expected = {file.path for file in log.files if file.path in due and predecessors(log, file) <= due}
    assert set(trimmed.paths) == expected


@pytest.mark.fault("C5")
@given(appended_logs(times=TIMES), st.sampled_from([0, HOUR_MS]))
def test_no_partition_gets_a_hole_and_none_begins_behind_what_stays(log: Log, retention_ms: int) -> None:
    trimmed = planned(log, topic(retention_ms=retention_ms, retention_bytes=1000))
    kept = [file for file in log.files if file.path not in trimmed.paths]
    after = TopicHead("id", log.head.next_offsets, trimmed.start_offsets, 0)
    check_rewrite(log.index, trimmed.paths, [], after, "entry", 99)
    check_covered(index_of(kept), after, "entry", 99)
    starts = log.head.start_offsets
    before = {(p, o) for p, o in offsets_of(log.files) if o >= starts[p]}
    stays = {(p, o) for p, o in offsets_of(kept) if o >= starts[p]}
    assert stays == {(p, o) for p, o in before if o >= trimmed.start_offsets[p]}


def chain(*times: int, size: int = 100, modified_ms: int = NOW) -> Log:
    """One partition, one record in each file."""
    files = [
        made_file(f"{n}", n, [(0, n, n + 1)], size=size, times=(time, time), modified_ms=modified_ms)
        for n, time in enumerate(times)
    ]
    return Log(files, TopicHead("id", (len(times),), (0,), 0))


@given(st.lists(st.integers(1, 500), max_size=12), st.integers(0, 1500))
def test_retention_by_bytes_removes_what_kafka_removes(sizes: list[int], retention_bytes: int) -> None:
    """Kafka: `diff = size - retention.bytes`; from the oldest on, a segment goes while `diff - segment.size >= 0`."""
    files = [made_file(f"{n}", n, [(0, n, n + 1)], size=size, modified_ms=NOW) for n, size in enumerate(sizes)]
    diff = sum(sizes) - retention_bytes
    gone = 0
    for size in sizes:
        if diff - size < 0:
            break
        diff -= size
        gone += 1
    log = Log(files, TopicHead("id", (len(sizes),), (0,), 0))
    assert planned(log, topic(retention_ms=-1, retention_bytes=retention_bytes)).start_offsets == (gone,)


def test_a_record_stays_for_just_its_time() -> None:
    log = chain(NOW - HOUR_MS - 1, NOW - HOUR_MS)
    assert planned(log, topic(retention_ms=HOUR_MS)) == Trimmed((1,), ("0",))


def test_nothing_goes_without_limits_or_under_another_policy() -> None:
    log = chain(0, 1, NOW)
    assert plan_retention(log.index, log.head, topic(retention_ms=-1), NOW) is None
    assert plan_retention(log.index, log.head, topic(retention_ms=1, cleanup_policy="compact"), NOW) is None
    assert planned(log, topic(retention_ms=1, cleanup_policy="compact,delete")).paths == ("0", "1")


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_files_of_which_nothing_can_be_read_go_under_any_policy(policy: str) -> None:
    log = chain(NOW, NOW, NOW)
    log.head = TopicHead("id", (3,), (2,), 0)
    assert planned(log, topic(retention_ms=-1, cleanup_policy=policy)) == Trimmed((2,), ("0", "1"))


@pytest.mark.fault("C5")
def test_a_record_of_the_year_2262_goes_when_its_upload_is_as_old_as_others_may_be() -> None:
    late = made_file("late", 0, [(0, 0, 1)], times=(YEAR_2262_MS, YEAR_2262_MS), modified_ms=NOW - 2 * HOUR_MS)
    old = made_file("old", 1, [(0, 1, 2)], times=(NOW - 2 * HOUR_MS,) * 2, modified_ms=NOW - 2 * HOUR_MS)
    log = Log([late, old], TopicHead("id", (2,), (0,), 0))
    assert planned(log, topic(retention_ms=HOUR_MS)).paths == ("late", "old")
    assert file_time_ms(late) == NOW - 2 * HOUR_MS


@pytest.mark.fault("C5")
@pytest.mark.parametrize("claim", [0, 1, 86_400_000])
def test_an_old_record_behind_a_young_one_waits_for_it(claim: int) -> None:
    """Commit order counts too: no offset in the middle ever goes alone."""
    assert planned(chain(NOW, claim, NOW), topic(retention_ms=HOUR_MS)).paths == ()
    assert planned(chain(claim, NOW, claim), topic(retention_ms=HOUR_MS)).paths == ("0",)


# --- deletion --------------------------------------------------------------------------------------------------------


@given(appended_logs(), st.lists(st.integers(0, 30), min_size=3, max_size=3))
def test_deletion_removes_just_the_files_that_hold_nothing_else(log: Log, before: list[int]) -> None:
    before = [min(offset, end) for offset, end in zip(before, log.head.next_offsets, strict=True)]
    trimmed = plan_deletion(log.index, log.head, dict(enumerate(before)))
    assert trimmed.start_offsets == tuple(map(max, log.head.start_offsets, before))
    kept = [file for file in log.files if file.path not in trimmed.paths]
    check_covered(index_of(kept), TopicHead("id", log.head.next_offsets, trimmed.start_offsets, 0), "entry", 99)
    assert all(any(o >= trimmed.start_offsets[p] for p, o in offsets_of([file])) for file in kept)


def test_what_one_partition_does_not_mention_keeps_its_start() -> None:
    log = Log([made_file("a", 1, [(0, 0, 5), (1, 0, 5)])], TopicHead("id", (5, 5), (2, 3), 0))
    assert plan_deletion(log.index, log.head, {0: 5}) == Trimmed((5, 3), ())
    assert plan_deletion(log.index, log.head, {0: 1, 1: 5}) == Trimmed((2, 5), ())


# --- in a topic ------------------------------------------------------------------------------------------------------


def test_records_go_when_their_time_is_over_and_offsets_stay_what_they_are() -> None:
    clock = ManualClock(auto_advance=True)
    written = WrittenTopic(MemoryStore("test"), clock, partitions=2, retention_ms=HOUR_MS)
    for number in range(6):
        written.append(Row(b"%d" % number, partition=number % 2))
        clock.advance(1200)
    everything = seen_by_consumers(written.store)
    assert written.maintain()["files expired"] == 3
    assert written.starts == (2, 1)
    assert seen_by_consumers(written.store) == [seen for seen in everything if seen[1] >= written.starts[seen[0]]]
    clock.advance(2 * 3600)
    assert written.maintain()["files expired"] == 3
    assert seen_by_consumers(written.store) == []
    written.append(Row(b"new", partition=1))
    assert [seen[:2] for seen in seen_by_consumers(written.store)] == [(1, 3)]


def test_starts_only_rise_and_a_commit_of_retention_adds_nothing() -> None:
    clock = ManualClock(auto_advance=True)
    written = WrittenTopic(MemoryStore("test"), clock, retention_bytes=4000, segment_bytes=2**20)
    starts = []
    for number in range(12):
        written.append(Row(b"%d" % number))
        written.maintain(merge_files=1000)
        starts.append(written.starts[0])
        assert written.starts == written.fresh_log().live_head.start_offsets
    assert all(low <= high for low, high in pairwise(starts))
    assert starts[-1] > 0
    sizes = [file.segment.size for file in written.files]
    assert sum(sizes[1:]) < 4000 <= sum(sizes) + min(sizes)
