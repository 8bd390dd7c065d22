"""Prefetch: within its budget, in order, several files at once where that pays, and nothing skipped when files go."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaq import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    Corrupt,
    KafkaError,
    OffsetOutOfRange,
    Producer,
    Topic,
    UnknownTopic,
)
from deltaq.clock import SYSTEM_CLOCK
from deltaq.consumer import tail
from deltaq.consumer.fetch_queue import PartitionEnd, PartitionError, PartitionRecords, StoreUnavailable
from deltaq.consumer.fetcher import Fetcher, FetchSettings, PollTimer
from deltaq.consumer.read_ahead import FIRST_READ_BYTES, Cursor
from deltaq.consumer.tail import TopicTail
from deltaq.consumer.topic_fetcher import TopicFetcher
from deltaq.message import OFFSET_TAIL_BASE
from deltaq.names import log_entry, topic_log
from deltaq.parquet import segment
from deltaq.store import MemoryStore, PollInterval, Store
from deltaq.store.parallel import REQUESTS_MAX
from deltaq.store.watch import SignalWatch
from deltaq.testing import Effect, Fault, FaultyStore, ManualClock, Rule
from deltaq.topics.follower import Progress, TopicFollower, TopicReader
from deltaq.topics.log import TopicLog
from deltaq.topics.lookup import TopicLookup
from tests.doubles.compaction import compact
from tests.doubles.reading import TIMEOUT_S, eventually


def a_store() -> MemoryStore:
    return MemoryStore(uuid.uuid4().hex)


def fill(store: Store, commits: int, rows: int = 1, size: int = 10, partitions: int = 1) -> None:
    """Commit by commit, `rows` records for each partition; a value tells partition and offset."""
    Topic("t", partitions=partitions, store=store).create(exist_ok=True)
    conf = {
        "bootstrap.servers": "memory://unused",
        "linger.ms": 60_000,
        "batch.size": 10**9,
        "batch.num.messages": 10**6,
    }
    with Producer(conf, store=store) as producer:
        for commit in range(commits):
            for row in range(rows):
                for partition in range(partitions):
                    value = f"{partition}:{commit * rows + row}".encode()
                    producer.produce("t", value.ljust(size), partition=partition)
            assert producer.flush(TIMEOUT_S) == 0


class Fetching:
    """A fetcher of topic `t`, and what it has handed out."""

    def __init__(self, store: Store, *, stored: dict[int, int] | None = None, **settings: object) -> None:
        base: dict[str, object] = {
            "bytes_max": 2**30,
            "read_bytes_max": 2**30,
            "reset": "earliest",
            "wait_max_s": 0.01,
            "report_end": False,
        }
        self.asked: list[list[int]] = []
        self.stored = stored or {}
        wanted = FetchSettings(**base | settings)  # type: ignore[arg-type]  # chosen by each test
        lookup = TopicLookup(store, SYSTEM_CLOCK)
        self.fetcher = Fetcher(store, wanted, self._stored, SYSTEM_CLOCK, "test", lookup)
        self.fetcher.begin()
        self.fetcher.follow(["t"])

    def _stored(self, topic: str, topic_id: str, partitions) -> list[int | None]:
        self.asked.append(sorted(partitions))
        return [self.stored.get(partition) for partition in partitions]

    def __enter__(self) -> Fetching:
        return self

    def __exit__(self, *_: object) -> None:
        self.fetcher.close()

    def assign(self, *offsets: int) -> None:
        self.fetcher.assign({("t", partition): offset for partition, offset in enumerate(offsets)})

    def next(self):
        deadline = time.monotonic() + TIMEOUT_S
        while (item := self.fetcher.queue.first(0.1)) is None:
            assert time.monotonic() < deadline, "nothing comes"
        self.fetcher.queue.remove(item)
        return item

    def records(self, count: int) -> dict[int, list[int]]:
        """Offsets by partition of the next `count` records, each checked against its value."""
        found: dict[int, list[int]] = {}
        while sum(map(len, found.values())) < count:
            item = self.next()
            assert isinstance(item, PartitionRecords), item
            rows = item.fetched.rows
            offsets = rows.column("_offset").to_pylist()
            values = [value.decode().strip() for value in rows.column("value").to_pylist()]
            assert values == [f"{item.partition}:{offset}" for offset in offsets]
            found.setdefault(item.partition, []).extend(offsets)
        assert sum(map(len, found.values())) == count
        return found

    def error(self) -> PartitionError:
        item = self.next()
        assert isinstance(item, PartitionError), item
        return item


def test_records_of_each_partition_come_in_order():
    store = a_store()
    fill(store, 20, rows=3, partitions=3)
    with Fetching(store) as fetching:
        fetching.assign(0, 10, 60)
        assert fetching.records(110) == {0: list(range(60)), 1: list(range(10, 60))}
        fill(store, 1, partitions=1)


def test_fetched_records_stay_within_the_budget():
    store = FaultyStore(a_store())
    fill(store, 40, size=10_000)
    with Fetching(store, bytes_max=50_000) as fetching:
        fetching.assign(0)
        eventually(lambda: fetching.fetcher.queue.room <= 0)
        reads = store.operations["get"]
        for _ in range(20):
            time.sleep(0.001)
        assert fetching.fetcher.queue.room >= -11_000
        assert store.operations["get"] <= reads + 1
        assert fetching.records(40) == {0: list(range(40))}


class Metered(FaultyStore):
    """A store that notes the bytes of every answer about a data file."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.answers: list[int] = []

    def _noted(self, key: str, found: bytes) -> bytes:
        if key.endswith(".parquet"):
            self.answers.append(len(found))
        return found

    def get(self, key: str) -> bytes:
        return self._noted(key, super().get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._noted(key, super().get_range(key, start, length))


@pytest.fixture
def small_row_groups(monkeypatch):
    """What is written now gets row groups of 100 records."""
    monkeypatch.setattr(segment, "ROW_GROUP_ROWS_MAX", 100)


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
        assert isinstance(item, PartitionRecords)
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
            assert isinstance(item, PartitionRecords)
            assert item.fetched.rows.column("_offset")[0].as_py() == offset
            costs.append(sum(store.answers[:2]))
    assert max(costs) < FIRST_READ_BYTES + 0.01 * size


def test_a_position_set_anew_does_not_wait_for_a_partition_that_is_read_in_large_parts(small_row_groups):
    store = Metered(a_store())
    fill(store, 1, rows=10_000, size=1000, partitions=2)
    with Fetching(store, bytes_max=1) as fetching:
        fetching.assign(0, OFFSET_END)
        parts = [fetching.next().bytes for _ in range(3)]
        assert parts[2] > 3 * FIRST_READ_BYTES
        fetching.fetcher.seek("t", 1, 4000)
        while (item := fetching.next()).partition != 1:
            pass
        assert item.fetched.first_offset == 4000
        assert item.bytes <= FIRST_READ_BYTES


@pytest.mark.fault("B2")
def test_damage_inside_a_large_file_stops_the_partition_where_it_is_and_not_before(small_row_groups):
    store = a_store()
    size = one_file(store, 4000, 1000)
    (entry,) = [e for e in store.list("topics/t/") if e.key.endswith(".parquet")]
    damaged = bytearray(store.get(entry.key))
    damaged[size * 3 // 4] ^= 1
    store.put(entry.key, bytes(damaged))
    with Fetching(store, read_bytes_max=300_000) as fetching:
        fetching.assign(0)
        found: list[int] = []
        while isinstance(item := fetching.next(), PartitionRecords):
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
@settings(max_examples=12)
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
        patch.setattr(segment, "ROW_GROUP_SHARE_BYTES", 500)
        patch.setattr(segment, "WHOLE_FILE_BYTES", 0)
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
                assert isinstance(item, PartitionRecords), item
                found[item.partition] += item.fetched.rows.column("_offset").to_pylist()
            assert {p: [offset for offset in found[p] if offset != 150] for p in found} == expected


class FarStore(FaultyStore):
    is_remote = True


class NotedLog(TopicLog):
    """A log that remembers how many entries it was asked for at once."""

    asked: list[int]

    def read_following(self, count):
        self.asked.append(count)
        return super().read_following(count)


def reader_of(log: TopicLog) -> TopicReader:
    """A reader at the position of `log`, which reads on by it."""
    follower = TopicFollower(log._store, log.topic, SYSTEM_CLOCK)
    follower._log, follower._is_loaded, follower.progress = log, True, Progress(log.snapshot())
    return TopicReader(follower)


def topic_fetcher(fetching: Fetching, log: TopicLog, cursor: Cursor) -> TopicFetcher:
    """A fetcher of the topic at the position of `log`, with one partition, and without a thread."""
    found = fetching.fetcher._topic_fetcher("t", None)
    found.tail.log, found.tail._is_open = reader_of(log), True
    found.tail.ask_anew()
    found.cursors = {0: cursor}
    found._publish()
    return found


def looks_until_the_end(fetcher: TopicFetcher, log: NotedLog) -> list[list[int]]:
    """What each turn asks for, until one sees the end of the log."""
    turns: list[list[int]] = []
    while not turns or fetcher.tail._full_reads:
        log.asked = []
        fetcher.tail.ask_anew()
        fetcher.tail._read_entries(fetcher._needs_end())
        turns.append(log.asked)
    return turns


@pytest.mark.parametrize(
    ("settings", "offset", "turns"),
    [
        ({}, 0, [[[1], [1]], [[1], [1], [1], [2]], [[1], [1], [1], [2], [4], [8], [8, 8]], [[8]]]),
        ({"report_end": True}, 0, [[[1, 1]], [[1, 1, 2]], [[3, 1, 2, 4, 8, 8, 8]], [[8]]]),
        ({}, OFFSET_END, [[[1, 1]], [[1, 1, 2]], [[3, 1, 2, 4, 8, 8, 8]], [[8]]]),
        ({}, 1000, [[[1, 1]], [[1, 1, 2]], [[3, 1, 2, 4, 8, 8, 8]], [[8]]]),
    ],
    ids=["records", "ends", "a position at the end", "a position beyond what is known"],
)
def test_a_far_store_delivers_records_before_it_is_polled_unless_the_end_is_needed(settings, offset, turns):
    store = FarStore(a_store())
    fill(store, 1)
    log = NotedLog(store, "t", indexed=True)
    log.load()
    with Fetching(store, **settings) as fetching:
        fetcher = topic_fetcher(fetching, log, Cursor(offset, 1))
        for grown, looks in zip((1, 3, 30, 0), turns, strict=True):
            fill(store, grown)
            before = log.version
            assert looks_until_the_end(fetcher, log) == looks
            assert log.version == before + grown


@pytest.mark.parametrize("far", [True, False])
@pytest.mark.parametrize("wanted", [OFFSET_END, OFFSET_TAIL_BASE - 5, OFFSET_STORED])
def test_a_position_at_the_end_waits_until_the_end_of_a_log_that_is_far_ahead_was_seen(wanted, far, monkeypatch):
    monkeypatch.setattr(tail, "ENTRIES_AT_ONCE", 4)
    store = FarStore(a_store()) if far else a_store()
    fill(store, 1)
    log = TopicLog(store, "t", indexed=True)
    log.load()
    with Fetching(store, reset="latest") as fetching:
        fetcher = topic_fetcher(fetching, log, Cursor(wanted, 1, paused=True))
        fill(store, 20)
        rounds = 0
        while fetcher.cursors[0].offset < 0:
            fetcher.tail.ask_anew()
            fetcher.advance()
            rounds += 1
        assert rounds > 1, "it was seen in one look: nothing is tested"
        end = log.live_head.next_offsets[0]
        assert end == 21
        assert fetcher.cursors[0].offset == (end - 5 if wanted == OFFSET_TAIL_BASE - 5 else end)


def test_polls_grow_rare_only_after_a_pause_longer_than_a_producers_linger():
    waits, clock = [], ManualClock()

    class SteadyStore(FaultyStore):
        poll_interval = PollInterval(busy_s=0.005, idle_s=0.1, steady_s=0.012)

    class Waiting:
        def wait(self, timeout_s):
            waits.append(round(timeout_s, 6))
            clock.advance(timeout_s)
            return False

    watch: Any = Waiting()
    timer = PollTimer(SteadyStore(a_store()), watch, 1.0, clock)
    for found in (True, False, False, False, False, False, True, False):
        timer.wait(found)
    assert waits == [0.005, 0.005, 0.005, 0.005, 0.0075, 0.005]


def test_an_end_is_reported_only_when_it_was_seen():
    store = FarStore(a_store())
    fill(store, 1)
    log = TopicLog(store, "t", indexed=True)
    log.load()
    ends_reported = []
    with Fetching(store, report_end=True) as fetching:
        fetcher = topic_fetcher(fetching, log, Cursor(1, 1))
        assert fetcher.tail.live is not None
        for is_read in (False, True):
            if is_read:
                fetcher.tail._read_entries(needs_end=True)
            fetcher._fetch(fetcher.tail.live)
            ends_reported.append(fetcher.cursors[0].reported_end)
    assert ends_reported == [-1, 1]


@pytest.mark.parametrize("far", [True, False])
def test_a_far_store_is_asked_for_as_many_entries_as_came_last_time(far):
    store = FarStore(a_store()) if far else a_store()
    fill(store, 1)
    log = NotedLog(store, "t", indexed=True)
    log.load()
    following = TopicTail(reader_of(log), store, SYSTEM_CLOCK)
    looks = []
    for grown in (3, 3, 3, 0, 1, 20):
        fill(store, grown)
        log.asked, before = [], log.version
        following.ask_anew()
        following._read_entries(needs_end=True)
        assert log.version == before + grown
        looks.append(log.asked)
    if far:
        assert looks == [[1, 1, 2], [3, 1], [3, 1], [3], [1, 1], [1, 1, 2, 4, REQUESTS_MAX, REQUESTS_MAX]]
    else:
        assert looks == [[1] * (grown + 1) for grown in (3, 3, 3, 0, 1, 20)]


def test_several_files_are_read_concurrently_from_a_far_store():
    class Far(FaultyStore):
        is_remote = True
        at_once = most = 0
        lock = threading.Lock()

        def get(self, key):
            if not key.endswith(".parquet"):
                return super().get(key)
            with self.lock:
                self.at_once += 1
                self.most = max(self.most, self.at_once)
            if self.most < 4:
                time.sleep(0.01)
            try:
                return super().get(key)
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
    class Far(FaultyStore):
        is_remote = True

    store = Far(a_store())
    Topic("t", partitions=2, store=store).create()
    with Producer({"bootstrap.servers": "memory://unused", "linger.ms": 0}, store=store) as producer:
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
        assert found == {0: [0, 1, 2, 3, 4, 5], 1: [0]}, "not even what was read together with the damaged file"
        (error,) = errors
        assert error.partition == 1
        assert isinstance(error.error, Corrupt)


@pytest.mark.parametrize("large", [False, True])
def test_a_file_that_was_compacted_away_is_found_in_the_newest_snapshot(large, monkeypatch):
    monkeypatch.setattr(segment, "WHOLE_FILE_BYTES", 0 if large else 2**20)
    store = a_store()
    fill(store, 10)
    with Fetching(store, bytes_max=1, read_bytes_max=1 if large else 2**20) as fetching:
        fetching.assign(0)
        first = fetching.records(1)
        compact(store, "t")
        rest = fetching.records(9)
        assert first[0] + rest[0] == list(range(10))


@pytest.mark.fault("B3")
def test_a_lost_file_stops_the_partition_without_a_busy_loop():
    store = FaultyStore(a_store())
    fill(store, 3)
    data = [entry.key for entry in store.list("topics/t/") if entry.key.endswith(".parquet")]
    with Fetching(store) as fetching:
        fetching.assign(0)
        fetching.records(3)
        paths = [batch.path for batch in fetching.fetcher._topics["t"].tail.log.index.batches(0)]
    lost = f"topics/t/{paths[1]}"
    assert lost in data
    content = store.inner.get(lost)
    store.inner.delete(lost)
    with Fetching(store) as fetching:
        fetching.assign(0)
        assert fetching.records(1) == {0: [0]}
        error = fetching.error()
        assert isinstance(error.error, Corrupt)
        assert (error.error.path, error.error.version) == (lost, 2)
        assert "missing" in str(error.error)
        tried = store.operations["get"]
        assert fetching.fetcher.queue.first(0.2) is None
        assert store.operations["get"] < tried + 60, "only the tail is followed"
        store.inner.put(lost, content)
        fetching.fetcher.seek("t", 0, 1)
        assert fetching.records(2) == {0: [1, 2]}


def test_records_that_key_compaction_removed_leave_gaps():
    store = a_store()
    fill(store, 5, rows=2)
    compact(store, "t", keep=lambda partition, offset: offset % 3 == 0)
    with Fetching(store, report_end=True) as fetching:
        fetching.assign(1)
        assert fetching.records(3) == {0: [3, 6, 9]}
        end = fetching.next()
        assert isinstance(end, PartitionEnd)
        assert end.offset == 10


def test_committed_offsets_are_looked_up_for_all_partitions_at_once():
    store = a_store()
    fill(store, 4, partitions=3)
    with Fetching(store, stored={0: 3, 2: 1}) as fetching:
        fetching.assign(OFFSET_INVALID, OFFSET_INVALID, OFFSET_INVALID)
        assert fetching.records(1 + 4 + 3) == {0: [3], 1: [0, 1, 2, 3], 2: [1, 2, 3]}
        assert fetching.asked == [[0, 1, 2]]


def test_records_removed_by_retention_are_reported():
    store = a_store()
    fill(store, 4)
    for reset, expected in (("earliest", "reset"), ("error", "told")):
        with Fetching(store, reset=reset) as fetching:
            fetching.assign(99)
            if expected == "reset":
                assert fetching.records(4) == {0: [0, 1, 2, 3]}
            else:
                error = fetching.error()
                assert error.error.args[0] == KafkaError._AUTO_OFFSET_RESET
                assert error.offset == 99
                reason = str(OffsetOutOfRange(topic="t", partition=0, requested=99, earliest=0, latest=4).args[0].str())
                assert error.error.args[0].str() == reason


def test_records_fetched_for_an_earlier_position_are_marked():
    store = a_store()
    fill(store, 3)
    with Fetching(store) as fetching:
        fetching.assign(0)
        first = fetching.next()
        epoch = fetching.fetcher.seek("t", 0, 2)
        assert isinstance(first, PartitionRecords)
        assert first.epoch < epoch
        while (item := fetching.next()).epoch != epoch:
            pass
        assert item.fetched.first_offset == 2


@pytest.mark.fault("B1")
def test_a_gap_in_the_log_of_a_quiet_topic_is_found():
    store = a_store()
    fill(store, 2)
    with Fetching(store) as fetching:
        fetching.assign(0)
        fetching.records(2)
        head = log_entry(topic_log("t"), 2)
        store.put(log_entry(topic_log("t"), 5), store.get(head))
        error = fetching.error()
        assert isinstance(error.error, Corrupt)
        assert error.error.version == 3
        assert "later ones exist" in str(error.error)


def test_a_store_outage_is_reported_once_until_it_ends():
    store = FaultyStore(a_store())
    fill(store, 1)
    with Fetching(store) as fetching:
        fetching.assign(0)
        fetching.records(1)
        for _ in range(2):
            store.effects.clear()
            store.add(Rule("get", "*", Fault.error_before(), 3))
            item = fetching.next()
            assert isinstance(item, StoreUnavailable)
            assert item.error.args[0].retriable()
            eventually(lambda: store.effects[Effect.ERROR_BEFORE] == 3)
            eventually(lambda: fetching.fetcher._topics["t"]._failures == 0)


def test_a_lasting_error_is_reported_again_only_after_the_last_was_taken():
    damage, refusal = Corrupt("checksum", path="p", version=1), UnknownTopic("t")
    with Fetching(a_store()) as fetching:
        broken = fetching.fetcher
        missing = fetching.next()
        assert (missing.topic, missing.partition, missing.error.error.code()) == ("t", -1, refusal.error.code())
        for topic in ("t", "t", "u", "t"):
            broken._topic_fetcher(topic, None)._failed(damage)
        broken._topic_fetcher("t", None)._failed(refusal)
        items = [fetching.next() for _ in range(3)]
        assert [(item.topic, item.error) for item in items] == [("t", damage), ("u", damage), ("t", refusal)]
        assert broken.queue.first(0) is None
        broken._topic_fetcher("t", None)._failed(damage)
        assert fetching.next().error is damage


def test_topics_no_longer_followed_are_ignored():
    store = a_store()
    fill(store, 2)
    with Fetching(store) as fetching:
        fetching.assign(0)
        fetching.records(2)
        fetching.fetcher.follow([])
        fetching.fetcher.pause("t", 0, True)
        fetching.fetcher.seek("t", 0, 1)
        fetching.fetcher.drop("t", 0)
        assert fetching.fetcher.seen("t") is None
        assert fetching.fetcher.counts() == {}


def test_changes_are_counted_when_topics_come_grow_and_go():
    store = a_store()
    with Fetching(store) as fetching:
        error = fetching.error()
        assert isinstance(error.error, UnknownTopic)
        before = fetching.fetcher.changes
        topic = Topic("t", partitions=2, store=store).create()
        eventually(lambda: fetching.fetcher.counts() == {"t": 2})
        assert fetching.fetcher.changes > before
        before = fetching.fetcher.changes
        topic.delete()
        eventually(lambda: fetching.fetcher.counts() == {"t": None})
        assert fetching.fetcher.changes > before


@pytest.mark.parametrize(
    ("reset", "expected"), [("earliest", [0, 1, 2]), ("latest", [0, 1, 2])], ids=["earliest", "latest"]
)
def test_a_topic_that_came_later_has_only_new_records(reset, expected):
    store = a_store()
    with Fetching(store, reset=reset) as fetching:
        fetching.assign(OFFSET_INVALID)
        fetching.error()
        fill(store, 3)
        assert fetching.records(3) == {0: expected}


def test_a_committed_offset_of_a_topic_that_was_created_again_is_looked_up_in_the_new_one():
    """The thread is just about to see the end of the old topic when the partition is assigned."""
    fill(a := a_store(), 1)
    with Fetching(store := FaultyStore(a), stored={0: 2}) as fetching:
        fetching.assign(OFFSET_BEGINNING)
        assert fetching.records(1) == {0: [0]}
        get, assigned = store.get, threading.Event()

        def slow_get(key: str) -> bytes:
            if key == log_entry(topic_log("t"), 2) and not assigned.is_set():
                Topic("t", store=a).delete()
                fill(a, 4)
                fetching.assign(OFFSET_STORED)
                assigned.set()
            return get(key)

        store.get = slow_get  # type: ignore[method-assign]  # the moment that matters
        assert fetching.records(2) == {0: [2, 3]}
        assert assigned.is_set()


def test_latest_and_logical_offsets():
    store = a_store()
    fill(store, 5)
    for offset, expected in ((OFFSET_END, []), (OFFSET_BEGINNING, [0, 1, 2, 3, 4]), (-2003, [2, 3, 4])):
        with Fetching(store, reset="latest", report_end=True) as fetching:
            fetching.assign(offset)
            if expected:
                assert fetching.records(len(expected)) == {0: expected}
            assert isinstance(fetching.next(), PartitionEnd)


def test_closing_ends_the_thread_even_while_the_budget_is_used_up():
    store = a_store()
    fill(store, 5, size=1000)
    fetching = Fetching(store, bytes_max=1)
    fetching.assign(0)
    eventually(lambda: fetching.fetcher.queue.room <= 0)
    done = threading.Thread(target=fetching.fetcher.close)
    done.start()
    done.join(TIMEOUT_S)
    assert not done.is_alive()


def test_an_abandoned_fetcher_ends_by_itself_and_releases_its_watch():
    watches: list[CountedWatch] = []

    class CountedWatch(SignalWatch):
        closed = 0

        def __init__(self) -> None:
            super().__init__(SYSTEM_CLOCK)
            watches.append(self)

        def close(self) -> None:
            self.closed += 1
            super().close()

    class Watched(MemoryStore):
        def watch(self) -> SignalWatch:
            return CountedWatch()

    Fetching(Watched(uuid.uuid4().hex)).fetcher.abandon()
    eventually(lambda: [watch.closed for watch in watches] == [1])
