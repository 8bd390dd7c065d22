"""From times to offsets: Kafka's rules, checked against looking at every record, and reading only
what is needed.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltaq import OFFSET_BEGINNING, OFFSET_END, Corrupt, Producer, Topic, Unavailable, UnknownTopic
from deltaq.clock import SYSTEM_CLOCK, SystemClock
from deltaq.parquet import segment, segment_file
from deltaq.producer import encoding
from deltaq.store import MemoryStore, Store
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from deltaq.topics.layout_cache import LAYOUTS_KEPT, LayoutCache
from deltaq.topics.log import TopicLog
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.time_lookup import newest_time, offset_for_time, time_of_offset, times_from
from tests.doubles.compaction import compact
from tests.doubles.reading import eventually

Records = list[tuple[int, int]]  # (partition, timestamp in ms)


def write(store: Store, *files: Records, partitions: int = 2, **config: str) -> None:
    """Produce records into topic "t"; each list becomes a file of its own."""
    topic = Topic(
        "t",
        partitions=partitions,
        config={k.replace("_", "."): v for k, v in config.items()},
        store=store,
    )
    topic.create()
    with Producer(bootstrap_servers="memory://unused", store=store, linger_ms=60_000) as producer:
        for records in files:
            for partition, timestamp in records:
                producer.produce("t", b"", partition=partition, timestamp=timestamp)
            assert producer.flush(60) == 0


def opened(store: Store) -> TopicLog:
    log = TopicLog(store, "t", indexed=True)
    log.load()
    return log


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(uuid.uuid4().hex)


@pytest.fixture
def counted(store) -> FaultyStore:
    return FaultyStore(store)


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [(500, 0), (1500, 0), (5000, 0), (5500, 2), (9500, None), (0, 0), (9000, 2)],
)
def test_times_out_of_order_are_found_as_kafka_finds_them(store, timestamp, expected):
    # What Kafka answers for records with these four timestamps.
    write(store, [(0, 5000), (0, 1000), (0, 9000), (0, 2000)])
    assert offset_for_time(store, opened(store), 0, timestamp) == expected


_files = st.lists(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 12)), min_size=1, max_size=6), max_size=4
)


@given(_files, st.booleans(), st.sets(st.tuples(st.integers(0, 1), st.integers(0, 8))))
def test_a_time_lookup_equals_a_scan_of_every_record(files, compacted, dropped):
    _check_against_every_record(files, compacted, dropped)


@given(
    _files,
    st.booleans(),
    st.sets(st.tuples(st.integers(0, 1), st.integers(0, 8))),
    st.integers(1, 4),
    st.sampled_from([1, 2**20]),
)
@example(files=[[(0, 5), (1, 6)]], compacted=True, dropped={(0, 0)}, row_group_rows=1, share=1)
def test_a_time_lookup_in_large_files_equals_a_scan_of_every_record(
    files, compacted, dropped, row_group_rows, share
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_file, "WHOLE_FILE_BYTES", 0)
        patch.setattr(segment, "ROW_GROUP_ROWS_MAX", row_group_rows)
        patch.setattr(segment, "ROW_GROUP_PARTITION_BYTES", share)
        _check_against_every_record(files, compacted, dropped)


def _check_against_every_record(files, compacted, dropped):
    store = MemoryStore(uuid.uuid4().hex)
    write(store, *files)
    kept = {
        partition: {
            offset: timestamp
            for offset, timestamp in enumerate(
                t for file in files for p, t in file if p == partition
            )
            if not (compacted and (partition, offset) in dropped)
        }
        for partition in (0, 1)
    }
    if compacted and any(kept.values()):
        compact(store, "t", keep=lambda partition, offset: offset in kept[partition])
    elif compacted:
        return
    log = opened(store)
    for partition, times in kept.items():
        for timestamp in range(14):
            expected = min(
                (offset for offset, time in times.items() if time >= timestamp), default=None
            )
            assert offset_for_time(store, log, partition, timestamp) == expected
        for offset in range(24):
            assert time_of_offset(store, log, partition, offset) == times.get(offset)
            following = min((other for other in times if other >= offset), default=None)
            expected = None if following is None else times[following]
            assert times_from(store, log, [(partition, offset)], SYSTEM_CLOCK) == [expected]
        newest = max(times.items(), key=lambda item: (item[1], -item[0]), default=None)
        assert newest_time(store, log, partition) == newest


def test_only_a_file_that_can_hold_the_answer_is_read(counted):
    write(
        counted,
        [(0, 1000), (0, 2000)],
        [(0, 3000), (0, 4000)],
        [(0, 5000), (0, 6000)],
        partitions=1,
    )
    log = opened(counted)

    def reads(timestamp):
        before = counted.operations["get"]
        offset_for_time(counted, log, 0, timestamp)
        return counted.operations["get"] - before

    assert [reads(timestamp) for timestamp in (500, 1000, 3500, 5500, 7000)] == [0, 0, 1, 1, 0]


def test_a_time_lookup_with_log_append_time_reads_no_file():
    clock = ManualClock(auto_advance=True)
    store = FaultyStore(MemoryStore("append", clock))
    topic = Topic(
        "t", config={"message.timestamp.type": "LogAppendTime"}, store=store, clock=clock
    ).create()
    with Producer(
        bootstrap_servers="memory://unused", store=store, clock=clock, linger_ms=60_000
    ) as producer:
        for _ in range(2):
            clock.advance(1000)
            for _ in range(2):
                producer.produce("t", b"", timestamp=5)
            assert producer.flush(60) == 0
    log = opened(store)
    first, second = (
        time.timestamp() * 1000 for time in topic.to_arrow()["_timestamp"].to_pylist()[1:3]
    )
    before = store.operations["get"]
    assert second >= first + 1000
    assert [
        offset_for_time(store, log, 0, int(time)) for time in (5, first, first + 1, second)
    ] == [0, 0, 2, 2]
    assert offset_for_time(store, log, 0, int(second) + 1) is None
    assert time_of_offset(store, log, 0, 3) == int(second)
    assert times_from(store, log, [(0, 3), (0, 0)], SYSTEM_CLOCK) == [int(second), int(first)]
    assert store.operations["get"] == before


def test_records_below_the_start_of_the_partition_do_not_count(store):
    write(store, [(0, 1000), (0, 2000), (0, 3000)])
    log = opened(store)
    head = log.live_head
    assert offset_for_time(store, log, 0, 0) == 0
    object.__setattr__(head, "start_offsets", (2, 0))
    assert offset_for_time(store, log, 0, 0) == 2
    assert offset_for_time(store, log, 0, 1500) == 2


def test_a_time_lookup_continues_after_the_files_were_compacted(store):
    write(store, [(0, 1000), (0, 2000)], [(0, 3000), (0, 4000)])
    log = opened(store)
    compact(store, "t")
    assert offset_for_time(store, log, 0, 3500) == 3
    assert log.version == opened(store).version


def test_a_time_lookup_in_a_deleted_topic_raises(store):
    write(store, [(0, 1000), (0, 2000)])
    log = opened(store)
    files = [entry.key for entry in store.list("topics/t/") if entry.key.endswith(".parquet")]
    Topic("t", store=store).delete()
    for key in files:
        store.delete(key)
    with pytest.raises(UnknownTopic):
        offset_for_time(store, log, 0, 1500)


class Metered(FaultyStore):
    """A store that counts the bytes of data files that it hands out."""

    fetched = 0

    def get(self, key: str, size_max: int | None = None) -> bytes:
        found = super().get(key, size_max)
        self.fetched += len(found) if key.endswith(".parquet") else 0
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.fetched += length if key.endswith(".parquet") else 0
        return super().get_range(key, start, length)


@pytest.fixture
def large(monkeypatch, store) -> Metered:
    """A topic with one file of 4,000 records in 40 row groups, a record a second."""
    monkeypatch.setattr(segment_file, "WHOLE_FILE_BYTES", 0)
    monkeypatch.setattr(segment, "ROW_GROUP_ROWS_MAX", 100)
    monkeypatch.setattr(encoding, "PLAIN_BYTES_MAX", 0)  # only Arrow writes several row groups
    Topic("t", store=store).create()
    with Producer(
        bootstrap_servers="memory://unused", store=store, linger_ms=60_000, batch_size=10**9
    ) as producer:
        for number in range(4000):
            producer.produce("t", b"x" * 500, timestamp=1_000_000 + number * 1000)
        assert producer.flush(60) == 0
    return Metered(store)


def test_a_time_in_a_large_file_costs_its_footer_and_one_row_group(large):
    log = opened(large)
    (file,) = log.index.files.values()
    for number in (1234, 3999):
        for look in (
            lambda at: offset_for_time(large, log, 0, 1_000_000 + at * 1000 - 1),
            lambda at: time_of_offset(large, log, 0, at) == 1_000_000 + at * 1000 and at,
            lambda at: newest_time(large, log, 0) == (3999, 1_000_000 + 3999 * 1000) and at,
        ):
            large.fetched = 0
            before = large.operations["get_range"]
            assert look(number) == number
            assert large.operations["get_range"] - before == 2
            assert large.fetched < file.segment.footer_bytes + 100 * 30
            assert large.fetched < file.segment.size / 40


def test_a_time_at_which_a_row_group_begins_is_found_without_reading_it(large):
    log = opened(large)
    (file,) = log.index.files.values()
    assert offset_for_time(large, log, 0, 1_000_000 + 1199 * 1000 + 1) == 1200
    assert large.fetched == file.segment.footer_bytes


def test_the_time_of_a_large_record_is_found_without_reading_the_record(store, monkeypatch):
    monkeypatch.setattr(segment_file, "WHOLE_FILE_BYTES", 0)
    Topic("t", store=store).create()
    with Producer(bootstrap_servers="memory://unused", store=store) as producer:
        producer.produce("t", b"x" * 100_000, timestamp=77)
        assert producer.flush(60) == 0
    metered = Metered(store)
    assert time_of_offset(metered, opened(metered), 0, 0) == 77
    assert metered.fetched < 10_000


@pytest.mark.fault("B2")
def test_damaged_times_of_a_large_file_give_no_answer(large, store):
    log = opened(large)
    (file,) = log.index.files.values()
    places = []

    class Noting(Metered):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            places.append((start, length))
            return super().get_range(key, start, length)

    offset_for_time(Noting(store), log, 0, 1_000_000 + 1234 * 1000)
    (start, length) = places[-1]
    sound = store.get(file.segment.key)
    caught = 0
    for place in range(start, start + length, 5):
        damaged = bytearray(sound)
        damaged[place] ^= 4
        store.put(file.segment.key, bytes(damaged))
        try:
            assert offset_for_time(large, log, 0, 1_000_000 + 1234 * 1000) == 1234
        except Corrupt:
            caught += 1
    assert caught > length / 5 * 0.9


def test_the_commit_time_counts_although_the_records_have_others(large):
    # As in a file that was uploaded before the topic changed its rule.
    log = opened(large)
    (file,) = log.index.files.values()
    stamped = 9_000_000_000
    for name, value in (
        ("append_time_ms", stamped),
        ("min_timestamp_ms", stamped),
        ("max_timestamp_ms", stamped),
    ):
        object.__setattr__(file, name, value)
    assert newest_time(large, log, 0) == (0, stamped)
    assert offset_for_time(large, log, 0, stamped) == 0
    assert offset_for_time(large, log, 0, stamped + 1) is None


def test_skipped_row_groups_hold_no_matching_time(monkeypatch, store):
    monkeypatch.setattr(segment_file, "WHOLE_FILE_BYTES", 0)
    monkeypatch.setattr(segment, "ROW_GROUP_ROWS_MAX", 10)
    monkeypatch.setattr(encoding, "PLAIN_BYTES_MAX", 0)  # only Arrow writes several row groups
    # Each row group has times of its own, and these do not rise.
    times = [1000 * (7 * (number // 10) % 40) + number % 10 for number in range(400)]
    write(store, [(0, 1_000_000 + time) for time in times])
    log, layouts = opened(store), LayoutCache(store)
    (file,) = log.index.files.values()
    assert (layout := layouts.of(file)) is not None
    assert layout.firsts == tuple(range(0, 401, 10))
    for asked in sorted({time + around for time in times for around in (-1, 0, 1)}):
        expected = next((number for number, time in enumerate(times) if time >= asked), None)
        assert offset_for_time(store, log, 0, 1_000_000 + asked, layouts) == expected


def test_no_record_before_the_start_of_its_partition_is_found(large):
    # As after the records before it were deleted, and before their file was rewritten.
    log = opened(large)
    object.__setattr__(log.live_head, "start_offsets", (1250,))
    assert offset_for_time(large, log, 0, 1_000_000 + 1) == 1250
    assert offset_for_time(large, log, 0, 1_000_000 + 1249 * 1000 + 1) == 1250


class Remote(FaultyStore):
    """A store that answers about data files only when two are asked about at once."""

    is_remote = True

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.both = threading.Barrier(2, timeout=20)

    def get(self, key: str, size_max: int | None = None) -> bytes:
        if key.endswith(".parquet"):
            self.both.wait()
        return super().get(key, size_max)


def test_a_remote_lookup_reads_partitions_concurrently_and_the_log_once(store):
    write(store, [(0, 1000), (0, 3000)], [(1, 2000), (1, 4000)])
    remote = Remote(store)
    lookup = TopicLookup(remote, SYSTEM_CLOCK)
    lookup.head("t")
    before = remote.operations["get"]
    asked = [(1, 2500), (7, 1000), (0, 1500), (1, 5000), (0, OFFSET_END), (1, OFFSET_BEGINNING)]
    found = lookup.offsets_for_times("t", asked)
    assert isinstance(found.pop(1), UnknownTopic)
    assert found == [1, 1, OFFSET_END, 2, 0]
    assert remote.operations["get"] - before == 3


def test_concurrent_readers_fetch_a_footer_once(large):
    (file,) = opened(large).index.files.values()
    layouts, ready = LayoutCache(large), threading.Barrier(4, timeout=20)

    def look(_: int) -> object:
        ready.wait()
        return layouts.of(file)

    with ThreadPoolExecutor(4) as pool:
        assert len(set(map(id, pool.map(look, range(4))))) == 1
    assert large.operations["get_range"] == 1


class SeenLock:
    """A lock that tells how many have asked for it."""

    def __init__(self) -> None:
        self._lock, self.asked = threading.Lock(), 0

    def __enter__(self) -> bool:
        self.asked += 1
        return self._lock.__enter__()

    def __exit__(self, *about: Any) -> None:
        self._lock.__exit__(*about)


class QueuesSeen(SystemClock):
    """A clock that remembers its locks."""

    def __init__(self) -> None:
        self.locks: list[SeenLock] = []

    def lock(self) -> SeenLock:
        self.locks.append(SeenLock())
        return self.locks[-1]


def test_a_reader_that_waited_for_a_failed_footer_does_not_wait_again(large):
    (file,) = opened(large).index.files.values()
    clock = QueuesSeen()
    layouts = LayoutCache(large, clock)
    large.add(Rule("get_range", "*", Fault.hang(), times=1))
    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(layouts.of, file) for _ in range(3)]
        eventually(lambda: large.blocked == 1 and clock.locks[-1].asked == 3)
        large.release()
        failures = [future.exception() for future in asking]
    assert [type(failure) for failure in failures] == [Unavailable] * 3
    assert large.operations["get_range"] == 1
    assert layouts.of(file) is not None
    assert large.operations["get_range"] == 2


def test_a_failed_footer_fetch_is_repeated_by_the_next_reader(large):
    (file,) = opened(large).index.files.values()
    layouts = LayoutCache(large)
    large.add(Rule("get_range", "*", Fault.error_before(), times=1))
    with pytest.raises(Unavailable):
        layouts.of(file)
    assert layouts.of(file) is not None
    assert large.operations["get_range"] == 2


def test_a_footer_is_parsed_once_for_several_lookups(large):
    log, layouts = opened(large), LayoutCache(large)
    costs = []
    for number in (1234, 3999, 17):
        before = large.operations["get_range"]
        assert offset_for_time(large, log, 0, 1_000_000 + number * 1000 - 1, layouts) == number
        costs.append(large.operations["get_range"] - before)
    assert costs == [2, 1, 1]


def test_only_a_few_footers_are_kept(large):
    log, layouts = opened(large), LayoutCache(large)
    (file,) = log.index.files.values()
    first = layouts.of(file)
    others = [
        replace(file, segment=replace(file.segment, key=f"{n}.parquet"))
        for n in range(LAYOUTS_KEPT)
    ]
    content = large.get(file.segment.key)
    for other in others:
        large.put(other.segment.key, content)
        assert layouts.of(file) is first
        layouts.of(other)
    assert layouts.of(file) is not first
