"""Retention as Kafka means it: what goes is old or too much, from each partition's oldest on, and
nothing else goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.config import TopicSettings, topic_properties
from deltaq.maintenance import retention
from deltaq.maintenance.file_compaction import plan_trim
from deltaq.maintenance.retention import file_time_ms, plan_deletion, plan_retention
from deltaq.store import MemoryStore
from deltaq.testing import ManualClock
from deltaq.topics.rewrites import Trimmed, check_covered, check_rewrite
from deltaq.topics.state import TopicHead
from tests.doubles.data_files import Log, appended_logs, index_of, made_file, offsets_of
from tests.doubles.written_topic import RowToWrite, WrittenTopic, seen_by_consumers

NOW = 1_700_000_000_000
HOUR_MS = 3600 * 1000
YEAR_2262_MS = 9_223_372_036_854
TIMES = st.sampled_from(
    [0, 1, NOW - 3 * HOUR_MS, NOW - HOUR_MS - 1, NOW - HOUR_MS, NOW - 1, NOW, YEAR_2262_MS]
)


def topic(**config: object) -> TopicSettings:
    return TopicSettings.from_properties(
        topic_properties({k.replace("_", "."): v for k, v in config.items()})
    )


def planned(log: Log, settings: TopicSettings, now_ms: int = NOW) -> Trimmed:
    return plan_retention(log.index, log.head, settings, now_ms) or Trimmed(
        log.head.start_offsets, ()
    )


# --- against counting
# ------------------------------------------------------------------------------------------------

Share = tuple[str, int]
"""A file, and a partition that has live records in it."""


def live_shares(log: Log) -> dict[Share, tuple[int, Fraction]]:
    """Of each share where it ends, and its bytes."""
    return {
        (file.path, b.partition): (
            b.next_offset,
            Fraction(file.segment.size * b.rows, file.segment.rows),
        )
        for file in log.files
        for b in file.batches
        if b.next_offset > log.head.start_offsets[b.partition]
    }


def without_holes(shares: Mapping[Share, tuple[int, Fraction]], going: set[Share]) -> set[Share]:
    """Those before which none of their partition stays."""

    def is_first(share: Share) -> bool:
        before = (
            other
            for other in shares
            if other[1] == share[1] and shares[other][0] < shares[share][0]
        )
        return all(other in going for other in before)

    return {share for share in going if is_first(share)}


def mostly_staying(shares: Mapping[Share, tuple[int, Fraction]], going: set[Share]) -> set[str]:
    """The files from which something goes, and more stays."""
    return {
        path
        for path, _ in going
        if freed(shares, {share for share in going if share[0] == path}) < 0
    }


def freed(shares: Mapping[Share, tuple[int, Fraction]], going: set[Share]) -> Fraction:
    """The bytes that go, less those that are rewritten without them."""
    touched = {path for path, _ in going}
    gone = sum((shares[share][1] for share in going), Fraction())
    return gone - sum(
        size for share, (_, size) in shares.items() if share[0] in touched and share not in going
    )


def expired_shares(log: Log, retention_ms: int, bytes_max: float) -> set[Share]:
    shares = live_shares(log)
    files = {file.path: file for file in log.files}

    def has_expired(share: Share) -> bool:
        file = files[share[0]]
        newer = sum(
            size
            for other, (end, size) in shares.items()
            if other[1] == share[1] and end > shares[share][0]
        )
        is_old = (
            retention_ms >= 0 and NOW - min(file.max_timestamp_ms, file.modified_ms) > retention_ms
        )
        return is_old or (bytes_max >= 0 and newer >= bytes_max)

    return without_holes(shares, {share for share in shares if has_expired(share)})


def limits_about(retention_bytes: int) -> list[float]:
    """The product counts in floats."""
    return (
        [retention_bytes + error for error in (-1e-6, 1e-6)]
        if retention_bytes > 0
        else [retention_bytes]
    )


def acceptable_starts(log: Log, retention_ms: int, bytes_max: float) -> list[tuple[int, ...]]:
    """The starts after retention; several where what is gained is the same."""
    shares = live_shares(log)
    going = expired_shares(log, retention_ms, bytes_max)
    choices = [going]
    while refused := mostly_staying(shares, going):
        going = without_holes(shares, {share for share in going if share[0] not in refused})
        choices.append(going)
    most = max(freed(shares, choice) for choice in choices)
    return [
        tuple(
            max([start, *(shares[share][0] for share in choice if share[1] == partition)])
            for partition, start in enumerate(log.head.start_offsets)
        )
        for choice in choices
        if freed(shares, choice) > most - Fraction(1, 10**6)
    ]


@given(
    appended_logs(times=TIMES),
    st.sampled_from([-1, 0, 1, HOUR_MS, 10 * HOUR_MS]),
    st.sampled_from([-1, 0, 700, 2000]),
)
def test_due_records_are_removed_unless_the_rewrite_costs_too_much(
    log: Log, retention_ms: int, retention_bytes: int
) -> None:
    trimmed = planned(log, topic(retention_ms=retention_ms, retention_bytes=retention_bytes))
    assert trimmed.start_offsets in [
        starts
        for limit in limits_about(retention_bytes)
        for starts in acceptable_starts(log, retention_ms, limit)
    ]
    nothing_left = {
        file.path
        for file in log.files
        if all(b.next_offset <= trimmed.start_offsets[b.partition] for b in file.batches)
    }
    assert set(trimmed.paths) == nothing_left


@pytest.mark.fault("C5")
@given(appended_logs(times=TIMES), st.sampled_from([0, HOUR_MS]))
def test_retention_leaves_no_hole_and_no_start_beyond_kept_records(
    log: Log, retention_ms: int
) -> None:
    trimmed = planned(log, topic(retention_ms=retention_ms, retention_bytes=1000))
    kept = [file for file in log.files if file.path not in trimmed.paths]
    after = TopicHead("id", log.head.next_offsets, trimmed.start_offsets, 0)
    check_rewrite(log.index, trimmed.paths, [], after, "entry", 99)
    check_covered(index_of(kept), after, "entry", 99)
    # What goes can be seen in the starts alone.
    assert all(
        low <= high for low, high in zip(log.head.start_offsets, trimmed.start_offsets, strict=True)
    )
    stays = set(offsets_of(kept))
    assert {(p, o) for p, o in offsets_of(log.files) if o >= trimmed.start_offsets[p]} <= stays


def chain(*times: int, size: int = 100, modified_ms: int = NOW) -> Log:
    """One partition, one record in each file."""
    files = [
        made_file(
            f"{n}", n, [(0, n, n + 1)], size=size, times=(time, time), modified_ms=modified_ms
        )
        for n, time in enumerate(times)
    ]
    return Log(files, TopicHead("id", (len(times),), (0,), 0))


@given(st.lists(st.integers(1, 500), max_size=12), st.integers(0, 1500))
def test_retention_by_bytes_removes_what_kafka_removes(
    sizes: list[int], retention_bytes: int
) -> None:
    """Kafka: `diff = size - retention.bytes`; from the oldest on, a segment goes while `diff -
    segment.size >= 0`.
    """
    files = [
        made_file(f"{n}", n, [(0, n, n + 1)], size=size, modified_ms=NOW)
        for n, size in enumerate(sizes)
    ]
    diff = sum(sizes) - retention_bytes
    gone = 0
    for size in sizes:
        if diff - size < 0:
            break
        diff -= size
        gone += 1
    log = Log(files, TopicHead("id", (len(sizes),), (0,), 0))
    assert planned(log, topic(retention_ms=-1, retention_bytes=retention_bytes)).start_offsets == (
        gone,
    )


def test_a_record_stays_for_just_its_time() -> None:
    log = chain(NOW - HOUR_MS - 1, NOW - HOUR_MS)
    assert planned(log, topic(retention_ms=HOUR_MS)) == Trimmed((1,), ("0",))


def test_nothing_is_removed_without_limits_or_under_another_policy() -> None:
    log = chain(0, 1, NOW)
    assert plan_retention(log.index, log.head, topic(retention_ms=-1), NOW) is None
    assert (
        plan_retention(log.index, log.head, topic(retention_ms=1, cleanup_policy="compact"), NOW)
        is None
    )
    assert planned(log, topic(retention_ms=1, cleanup_policy="compact,delete")).paths == ("0", "1")


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_files_without_readable_records_are_removed_under_any_policy(policy: str) -> None:
    log = chain(NOW, NOW, NOW)
    log.head = TopicHead("id", (3,), (2,), 0)
    assert planned(log, topic(retention_ms=-1, cleanup_policy=policy)) == Trimmed((2,), ("0", "1"))


@pytest.mark.fault("C5")
def test_a_record_of_the_year_2262_goes_when_its_upload_is_as_old_as_others_may_be() -> None:
    late = made_file(
        "late", 0, [(0, 0, 1)], times=(YEAR_2262_MS, YEAR_2262_MS), modified_ms=NOW - 2 * HOUR_MS
    )
    old = made_file(
        "old", 1, [(0, 1, 2)], times=(NOW - 2 * HOUR_MS,) * 2, modified_ms=NOW - 2 * HOUR_MS
    )
    log = Log([late, old], TopicHead("id", (2,), (0,), 0))
    assert planned(log, topic(retention_ms=HOUR_MS)).paths == ("late", "old")
    assert file_time_ms(late) == NOW - 2 * HOUR_MS


@pytest.mark.fault("C5")
@pytest.mark.parametrize("claim", [0, 1, 86_400_000])
def test_an_old_record_behind_a_young_one_waits_for_it(claim: int) -> None:
    """Commit order counts too: no offset in the middle ever goes alone."""
    assert planned(chain(NOW, claim, NOW), topic(retention_ms=HOUR_MS)).paths == ()
    assert planned(chain(claim, NOW, claim), topic(retention_ms=HOUR_MS)).paths == ("0",)


# --- partitions of different rates
# -----------------------------------------------------------------------------------


class KeptLog:
    """A log that is appended to, and of which retention and trims are done at once; it counts the
    bytes of both.
    """

    def __init__(self, partitions: int, settings: TopicSettings) -> None:
        self.settings = settings
        self.log = Log([], TopicHead("id", (0,) * partitions, (0,) * partitions, 0))
        self.appended = self.rewritten = self.names = 0

    def append(self, rows: Mapping[int, int], time_ms: int = NOW) -> None:
        """A file with so many rows of each partition, each of 1,000 bytes."""
        ends = list(self.log.head.next_offsets)
        ranges = [
            (partition, ends[partition], ends[partition] + count)
            for partition, count in sorted(rows.items())
        ]
        for partition, _, end in ranges:
            ends[partition] = end
        self.appended += 1000 * sum(rows.values())
        self._add(self.appended, ranges, time_ms)
        self.log.head = replace(self.log.head, next_offsets=tuple(ends))

    def _add(self, version: int, ranges: list[tuple[int, int, int]], time_ms: int) -> None:
        size = 1000 * sum(end - start for _, start, end in ranges)
        self.names += 1
        file = made_file(
            str(self.names), version, ranges, size=size, times=(time_ms, time_ms), modified_ms=NOW
        )
        self.log.files.append(file)

    def maintain(self) -> None:
        if trimmed := plan_retention(self.log.index, self.log.head, self.settings, NOW):
            self.log.head = replace(self.log.head, start_offsets=trimmed.start_offsets)
            self.log.files = [file for file in self.log.files if file.path not in trimmed.paths]
        while trim := plan_trim(self.log.index, self.log.head):
            (old,), (ranges,) = trim.inputs, trim.outputs
            self.log.files.remove(old)
            self._add(
                old.segment.version,
                [(p, *span) for p, span in sorted(ranges.items())],
                old.max_timestamp_ms,
            )
            self.rewritten += self.log.files[-1].segment.size
        assert plan_retention(self.log.index, self.log.head, self.settings, NOW) is None
        check_covered(self.log.index, self.log.head, "entry", 99)

    @property
    def kept(self) -> list[int]:
        """The bytes of each partition."""
        bounds = zip(self.log.head.start_offsets, self.log.head.next_offsets, strict=True)
        return [1000 * (end - start) for start, end in bounds]


@pytest.mark.parametrize("quiet_rows", [1, 30])
def test_a_partition_that_fell_silent_does_not_keep_the_bytes_of_others(quiet_rows: int) -> None:
    kept = KeptLog(2, topic(retention_ms=-1, retention_bytes=50_000))
    kept.append({0: 10, 1: quiet_rows})
    for _ in range(100):
        kept.append({0: 10})
        kept.maintain()
    assert kept.kept == [50_000, 1000 * quiet_rows]
    assert kept.rewritten == 1000 * quiet_rows


@pytest.mark.parametrize("young_rows", [1, 30])
def test_a_young_record_does_not_keep_old_ones_of_other_partitions(young_rows: int) -> None:
    kept = KeptLog(3, topic(retention_ms=HOUR_MS))
    kept.append({1: young_rows})
    kept.append({0: 10, 1: 1}, NOW - 2 * HOUR_MS)
    kept.append({0: 30, 2: 1}, NOW - 2 * HOUR_MS)
    kept.maintain()
    assert kept.kept == [0, 1000 * young_rows + 1000, 0]


def test_a_mostly_needed_file_is_not_rewritten_until_it_pays() -> None:
    kept = KeptLog(2, topic(retention_ms=-1, retention_bytes=50_000))
    kept.append({0: 10, 1: 30})
    for _ in range(6):
        kept.append({0: 10})
        kept.maintain()
    assert (kept.kept, kept.rewritten) == ([70_000, 30_000], 0)
    kept.append({0: 10})
    kept.maintain()
    assert (kept.kept, kept.rewritten) == ([50_000, 30_000], 30_000)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1.0, 0.9, 0.5])
def test_a_hundred_partitions_of_very_different_rates_hold_about_their_limit_and_are_rewritten_little(  # noqa: E501
    ratio: float,
) -> None:
    limit = 40_000
    kept = KeptLog(100, topic(retention_ms=-1, retention_bytes=limit))
    sent = Counter[int]()
    for number in range(150):
        rows = {
            partition: int(20 * ratio**partition * (number + 1)) - sent[partition]
            for partition in range(100)
        }
        rows = {partition: count for partition, count in rows.items() if count}
        sent.update(rows)
        kept.append(rows)
        kept.maintain()
        # More than what may stay is never there for nothing: it would be worth rewriting that.
        needed = sum(min(1000 * rows, limit + 20_000) for rows in sent.values())
        assert sum(kept.kept) <= 2 * needed
    assert all(
        size >= min(limit, 1000 * sent[partition]) for partition, size in enumerate(kept.kept)
    )
    assert kept.rewritten <= kept.appended - sum(kept.kept)


# --- very much at once
# -----------------------------------------------------------------------------------------------


def retained(log: Log, settings: TopicSettings) -> Iterator[Log]:
    """What is left of it, one removal after the other."""
    while trimmed := plan_retention(log.index, log.head, settings, NOW):
        kept = [file for file in log.files if file.path not in trimmed.paths]
        log = Log(kept, replace(log.head, start_offsets=trimmed.start_offsets))
        yield log


@given(
    appended_logs(times=TIMES),
    st.sampled_from([-1, 0, HOUR_MS]),
    st.sampled_from([-1, 0, 700]),
    st.integers(1, 3),
)
def test_removal_in_steps_covers_only_expired_records_in_small_steps(
    log: Log, retention_ms: int, retention_bytes: int, files_max: int
) -> None:
    settings = topic(retention_ms=retention_ms, retention_bytes=retention_bytes)
    limits = limits_about(retention_bytes)
    expired = {share for limit in limits for share in expired_shares(log, retention_ms, limit)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "EXPIRED_FILES_MAX", files_max)
        steps = [log, *retained(log, settings)]
    for before, after in pairwise(steps):
        check_covered(after.index, after.head, "entry", 99)
        went = Counter(file.segment.version for file in before.files if file not in after.files)
        assert went.total() <= files_max or went.total() - went[max(went)] < files_max
        assert live_shares(before).keys() - live_shares(after).keys() <= expired


def test_the_oldest_of_many_expired_files_are_removed_first() -> None:
    log = chain(*([0] * 1000))
    settings = topic(retention_ms=HOUR_MS)
    assert planned(log, settings) == Trimmed((256,), tuple(sorted(map(str, range(256)))))
    log.files, log.head = log.files[800:], TopicHead("id", (1000,), (800,), 0)
    assert planned(log, settings) == Trimmed((1000,), tuple(sorted(map(str, range(800, 1000)))))


# --- deletion
# --------------------------------------------------------------------------------------------------


@given(appended_logs(), st.lists(st.integers(0, 30), min_size=3, max_size=3))
def test_deletion_removes_just_the_files_that_hold_nothing_else(
    log: Log, before: list[int]
) -> None:
    before = [min(offset, end) for offset, end in zip(before, log.head.next_offsets, strict=True)]
    trimmed = plan_deletion(log.index, log.head, dict(enumerate(before)))
    assert trimmed.start_offsets == tuple(map(max, log.head.start_offsets, before))
    kept = [file for file in log.files if file.path not in trimmed.paths]
    check_covered(
        index_of(kept),
        TopicHead("id", log.head.next_offsets, trimmed.start_offsets, 0),
        "entry",
        99,
    )
    assert all(any(o >= trimmed.start_offsets[p] for p, o in offsets_of([file])) for file in kept)


def test_unmentioned_partitions_keep_their_start() -> None:
    log = Log([made_file("a", 1, [(0, 0, 5), (1, 0, 5)])], TopicHead("id", (5, 5), (2, 3), 0))
    assert plan_deletion(log.index, log.head, {0: 5}) == Trimmed((5, 3), ())
    assert plan_deletion(log.index, log.head, {0: 1, 1: 5}) == Trimmed((2, 5), ())


# --- in a topic
# --------------------------------------------------------------------------------------------------


def test_records_expire_and_offsets_stay_unchanged() -> None:
    clock = ManualClock(auto_advance=True)
    written = WrittenTopic(MemoryStore("test", clock), clock, partitions=2, retention_ms=HOUR_MS)
    for number in range(6):
        written.append(RowToWrite(b"%d" % number, partition=number % 2))
        clock.advance(1200)
    everything = seen_by_consumers(written.store)
    assert written.maintain()["files expired"] == 3
    assert written.starts == (2, 1)
    assert seen_by_consumers(written.store) == [
        seen for seen in everything if seen[1] >= written.starts[seen[0]]
    ]
    clock.advance(2 * 3600)
    assert written.maintain()["files expired"] == 3
    assert seen_by_consumers(written.store) == []
    written.append(RowToWrite(b"new", partition=1))
    assert [seen[:2] for seen in seen_by_consumers(written.store)] == [(1, 3)]


def test_starts_only_rise_and_a_commit_of_retention_adds_nothing() -> None:
    clock = ManualClock(auto_advance=True)
    written = WrittenTopic(
        MemoryStore("test", clock), clock, retention_bytes=4000, segment_bytes=2**20
    )
    starts = []
    for number in range(12):
        written.append(RowToWrite(b"%d" % number))
        written.maintain(merge_files=1000)
        starts.append(written.starts[0])
        assert written.starts == written.fresh_log().live_head.start_offsets
    assert all(low <= high for low, high in pairwise(starts))
    assert starts[-1] > 0
    sizes = [file.segment.size for file in written.files]
    assert sum(sizes[1:]) < 4000 <= sum(sizes) + min(sizes)


def test_expired_records_of_a_kept_file_are_trimmed() -> None:
    """Other readers of the table know nothing of starts."""
    written = WrittenTopic(partitions=2, retention_bytes=4000, segment_bytes=2**20)
    written.append(RowToWrite(b"quiet", partition=1), RowToWrite(b"loud"))
    for number in range(12):
        written.append(RowToWrite(b"%d" % number))
    written.maintain(merge_files=1000)
    assert [(seen[0], seen[4]) for seen in seen_by_consumers(written.store) if seen[0] == 1] == [
        (1, b"quiet")
    ]
    old, *_ = written.files
    assert (written.starts[1], [(batch.partition, batch.rows) for batch in old.batches]) == (
        0,
        [(1, 1)],
    )
    assert 1 < written.starts[0] < 12
    table = written.fresh_log().index.files.values()
    assert sum(file.segment.rows for file in table) == 1 + 13 - written.starts[0]
