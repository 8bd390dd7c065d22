"""How long writers of one log back off: not at all when alone, and fairly under contention."""

from __future__ import annotations

import heapq
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq import Producer, Topic
from deltaq.delta.retry import race_pause_s
from deltaq.producer.linger import (
    COMMITS_MAX,
    EXTRA_S_MAX,
    LONE_MIN,
    AdaptiveLinger,
    BatchTimes,
    Lingering,
    LoneRecords,
)
from deltaq.store import MemoryStore
from deltaq.testing import ManualClock
from deltaq.topics.log import Appended, TopicLog
from deltaq.topics.maintenance_log import MaintenanceLog

COMMIT_S = 0.005


LINGER_S = 1.0


def departures(produced_at: list[float]) -> list[tuple[float, int]]:
    """When records leave, and how many at once, if each batch waits for the oldest of its records
    only.
    """
    lone, waiting, left = LoneRecords(), list(produced_at), []
    while waiting:
        oldest = waiting[0]
        leaves_at = oldest + (0.0 if lone.is_next(oldest, LINGER_S) else LINGER_S)
        together = [at for at in waiting if at <= leaves_at]
        del waiting[: len(together)]
        lone.left(len(together), oldest, LINGER_S)
        left.append((leaves_at, len(together)))
    return left


def test_records_do_not_wait_after_a_pause_without_followers():
    sparse = [1.5 * number for number in range(LONE_MIN + 3)]
    waits = [leaves_at - at for (leaves_at, _), at in zip(departures(sparse), sparse, strict=True)]
    assert waits == [LINGER_S] * LONE_MIN + [0.0] * 3


def test_records_that_come_close_together_wait_for_each_other():
    bursts = [10.0 * burst + 0.01 * number for burst in range(9) for number in range(3)]
    assert [count for _, count in departures(bursts)] == [3] * 9


def test_only_the_first_record_of_denser_traffic_leaves_alone():
    sparse = [10.0 * number for number in range(LONE_MIN + 1)]
    dense = [sparse[-1] + 10.0 + 0.1 * number for number in range(40)]
    counts = [count for _, count in departures(sparse + dense)]
    assert counts[: LONE_MIN + 3] == [1] * (LONE_MIN + 2) + [11]
    assert 1 not in counts[LONE_MIN + 2 :]


def test_records_that_come_in_pairs_are_soon_written_together():
    sparse = [10.0 * number for number in range(LONE_MIN + 1)]
    pairs = [sparse[-1] + 10.0 * pair + late for pair in range(1, 6) for late in (0.0, 0.5)]
    assert [count for _, count in departures(sparse + pairs)] == [1] * (LONE_MIN + 3) + [2] * 4


@given(st.lists(st.sampled_from([1 / 64, 0.25, 0.75, 1.0, 1.25, 5.0]), max_size=60))
def test_waits_stay_within_linger_with_hardly_more_commits(gaps):
    produced_at = list(accumulate(gaps))
    left = departures(produced_at)
    assert sum(count for _, count in left) == len(produced_at)
    oldest = 0
    for leaves_at, count in left:
        assert 0.0 <= leaves_at - produced_at[oldest] <= LINGER_S
        oldest += count
    always = 0
    until = float("-inf")
    for at in produced_at:
        if at > until:
            always, until = always + 1, at + LINGER_S
    at_once = sum(leaves_at in produced_at for leaves_at, _ in left)
    assert always <= len(left) <= always + at_once


@pytest.fixture
def lingering() -> Iterator[Producer]:
    """A producer of topic `t` whose time stands still."""
    store, clock = MemoryStore("test"), ManualClock()
    Topic("t", store=store).create()
    conf = {"bootstrap.servers": "memory://unused", "linger.ms": 1000 * LINGER_S}
    with Producer(conf, store=store, clock=clock) as producer:
        yield producer


def send_now_and_then(producer: Producer, messages: int) -> None:
    """So often that it counts, so many messages at once, and nothing in between."""
    for _ in range(LONE_MIN):
        for _ in range(messages):
            producer.produce("t", b"")
        assert producer.flush() == 0
        producer._clock.advance(LINGER_S)  # type: ignore[attr-defined]  # a manual one


def rows_of_files(producer: Producer) -> list[int]:
    log = TopicLog(producer._store, "t", indexed=True)
    log.load()
    return [file.segment.rows for file in log.index.files.values()]


def test_a_sparse_message_is_written_at_once_and_the_next_one_lingers(lingering):
    send_now_and_then(lingering, 1)
    lingering.produce("t", b"at once", callback=lambda *_: None)
    while not lingering.poll():
        pass
    lingering.produce("t", b"waits")
    lingering.produce("t", b"for this one")
    lingering.close()
    assert rows_of_files(lingering) == [1] * (LONE_MIN + 1) + [2]


def test_a_message_lingers_where_messages_come_together(lingering):
    send_now_and_then(lingering, 2)
    lingering.produce("t", b"waits")
    lingering._clock.until_waiting(2)
    lingering.produce("t", b"for this one")
    lingering.close()
    assert rows_of_files(lingering) == [2] * (LONE_MIN + 1)


# --- how long a batch takes ---


def test_idle_records_wait_as_long_as_recent_batches_took():
    times = BatchTimes()
    assert times.enough_s(LINGER_S) == LINGER_S, "nothing is known yet"
    times.committed(0.5)
    assert times.enough_s(LINGER_S) == 0.5
    for _ in range(20):
        times.committed(0.75)
    assert times.enough_s(LINGER_S) == pytest.approx(0.75, abs=0.01)


def test_records_wait_between_a_third_of_linger_and_linger():
    slow, fast = BatchTimes(), BatchTimes()
    slow.committed(7.0)
    fast.committed(0.001)
    assert slow.enough_s(LINGER_S) == LINGER_S
    assert fast.enough_s(LINGER_S) == LINGER_S / COMMITS_MAX
    assert fast.enough_s(0.0) == slow.enough_s(0.0) == 0.0


def test_one_slow_batch_does_not_raise_the_expected_batch_time():
    times = BatchTimes()
    times.committed(0.5)
    times.committed(3600.0)
    assert times.enough_s(LINGER_S) == 0.625


class TimedStore(MemoryStore):
    """A store in which time passes only when something is written, half a second a commit: half of
    it for the data, half for the entry. `gate` lets entries through; `at_the_gate` is set once one
    is there.
    """

    def __init__(self, clock: ManualClock, *, is_remote: bool = False) -> None:
        super().__init__("test")
        self.gate = threading.Event()
        self.gate.set()
        self.at_the_gate = threading.Event()
        self.puts = 0
        self._time = clock
        self.is_remote = is_remote

    def put(self, key, data):
        if key.endswith(".parquet"):
            self.puts += 1
            self._time.advance(LINGER_S / 4)
        super().put(key, data)

    def create(self, key, data, after=""):
        self.at_the_gate.set()
        assert self.gate.wait(20.0)
        if self.puts:
            self._time.advance(LINGER_S / 4)
        super().create(key, data, after)


@contextmanager
def sending(*, is_remote: bool = False) -> Iterator[tuple[Producer, TimedStore, ManualClock]]:
    """A producer that has sent a message, alone."""
    clock = ManualClock()
    store = TimedStore(clock, is_remote=is_remote)
    Topic("t", store=store).create()
    conf = {"bootstrap.servers": "memory://unused", "linger.ms": 1000 * LINGER_S}
    with Producer(conf, store=store, clock=clock) as producer:
        producer.produce("t", b"first")
        assert producer.flush() == 0
        yield producer, store, clock


def leaves_after(seconds: float, producer: Producer, store: TimedStore, clock: ManualClock) -> None:
    """What was produced just now leaves then, and not before."""
    puts = store.puts
    clock.until_waiting(2)  # the sender and the maintenance
    clock.advance(seconds - 0.01 * LINGER_S)
    clock.until_waiting(2)
    assert store.puts == puts
    clock.advance(0.01 * LINGER_S)
    while len(producer):
        producer.poll(0)


def test_a_message_without_batches_in_flight_waits_one_commit_time():
    with sending() as (producer, store, clock):
        for value in (b"waits", b"for this one"):
            producer.produce("t", value)
        leaves_after(0.5 * LINGER_S, producer, store, clock)
        assert rows_of_files(producer) == [1, 2]


def test_on_an_object_store_a_message_waits_its_whole_linger():
    with sending(is_remote=True) as (producer, store, clock):
        for value in (b"waits", b"for this one"):
            producer.produce("t", value)
        leaves_after(1.0 * LINGER_S, producer, store, clock)
        assert rows_of_files(producer) == [1, 2]


def test_a_message_of_a_contended_writer_waits_its_whole_linger():
    with sending() as (producer, store, clock):
        other = TopicLog(store, "t")
        other.load()
        assert other.head is not None
        for _ in range(2):
            other.append(list, other.head.topic_id, float("inf"))
            producer.produce("t", b"beside the other")
            assert producer.flush() == 0
        producer.produce("t", b"waits")
        leaves_after(1.0 * LINGER_S, producer, store, clock)


def test_a_message_waits_for_the_batch_in_flight():
    with sending() as (producer, store, clock):
        store.gate.clear()
        store.at_the_gate.clear()
        producer.produce("t", b"on its way")
        clock.until_waiting(2)
        clock.advance(0.5 * LINGER_S)
        assert store.at_the_gate.wait(20.0)
        producer.produce("t", b"waits")
        clock.until_waiting(1)
        clock.advance(0.6 * LINGER_S)
        clock.until_waiting(1)
        assert store.puts == 2
        store.gate.set()
        while len(producer):
            producer.poll(0)
        assert rows_of_files(producer) == [1, 1, 1]


# --- under contention ---


def after(
    linger: AdaptiveLinger,
    commits: int,
    others: dict[str, int],
    interval_s: float,
    start: float = 0.0,
) -> float:
    """What the linger has come to after so many commits, each the same time after the last one."""
    for number in range(1, commits + 1):
        linger.committed(others, start + number * interval_s, COMMIT_S, 0.5)
    return linger.extra_s


def test_a_writer_knows_whether_others_wrote_recently():
    linger = AdaptiveLinger()
    after(linger, 6, {}, 0.01)
    assert linger.is_alone
    after(linger, 1, {"a": 1}, 0.01, start=1.0)
    assert not linger.is_alone
    after(linger, 3, {}, 0.01, start=2.0)
    assert not linger.is_alone
    after(linger, 1, {}, 0.01, start=3.0)
    assert linger.is_alone


def test_a_sole_writer_never_backs_off():
    assert after(AdaptiveLinger(), 50, {}, 0.001) == 0


def test_a_writer_beside_rare_writers_does_not_back_off():
    assert after(AdaptiveLinger(), 50, {"a": 1, "b": 1}, 0.5) == 0


def test_under_contention_the_wait_grows_within_its_bound():
    others = {f"w{number}": 1 for number in range(10)}
    waits = [after(AdaptiveLinger(), commits, others, 0.01) for commits in (2, 4, 6, 50)]
    assert 0 < waits[0] < waits[1] < waits[2] < waits[3] == EXTRA_S_MAX


def test_the_wait_ends_with_the_contention():
    linger = AdaptiveLinger()
    assert after(linger, 6, {"a": 1, "b": 1, "c": 1}, 0.01) > COMMIT_S
    assert after(linger, 10, {}, 0.02, start=1.0) == 0


def test_equal_waits_are_spread_by_jitter():
    early, late = AdaptiveLinger(), AdaptiveLinger()
    for number in range(4):
        early.committed({"a": 1, "b": 1}, number * 0.01, COMMIT_S, 0.0)
        late.committed({"a": 1, "b": 1}, number * 0.01, COMMIT_S, 0.999)
    assert early.extra_s * 1.5 < late.extra_s


def test_one_slow_commit_does_not_raise_later_waits():
    linger = AdaptiveLinger()
    before = after(linger, 30, {"a": 1, "b": 1}, 0.03)
    linger.committed({"a": 1, "b": 1}, 2.0, 60.0, 0.5)
    assert linger.extra_s <= 2 * before + COMMIT_S


class Log:
    """A log that takes one commit at a time, and writers that always have something to write; all
    of it in numbers.

    A writer looks at the log, sends its commit, and has lost if another one arrived between look
    and arrival.
    """

    def __init__(self, writers: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.entries: list[int] = []
        self.commits = [0] * writers
        self.creates = 0
        self.lingers = [AdaptiveLinger() for _ in range(writers)]
        self.read = [0] * writers
        self.lost = [0] * writers
        self.slower = [1.0] * writers
        self.exposed_s = [0.0] * writers
        self.events = [(self.chance.random() * 0.01, writer, -1, 0.0) for writer in range(writers)]
        heapq.heapify(self.events)

    def took(self, writer: int) -> float:
        return COMMIT_S * self.slower[writer] * self.chance.uniform(0.3, 1.7)

    def run(self, until: float) -> None:
        while self.events[0][0] < until:
            now, writer, seen, took = heapq.heappop(self.events)
            if seen < 0:
                took = self.took(writer)
                heapq.heappush(self.events, (now + took, writer, len(self.entries), took))
                continue
            self.creates += 1
            self.exposed_s[writer] += took
            if seen == len(self.entries):
                self.stands(now, writer)
            else:
                self.lost[writer] += 1
                pause = race_pause_s(self.lost[writer], took, self.chance.random())
                heapq.heappush(self.events, (now + pause, writer, -1, 0.0))

    def stands(self, now: float, writer: int) -> None:
        self.commits[writer] += 1
        others = Counter(str(other) for other in self.entries[self.read[writer] :])
        self.entries.append(writer)
        linger = self.lingers[writer]
        linger.committed(others, now, self.exposed_s[writer], self.chance.random())
        self.read[writer], self.lost[writer], self.exposed_s[writer] = len(self.entries), 0, 0.0
        heapq.heappush(self.events, (now + COMMIT_S + linger.extra_s, writer, -1, 0.0))


@pytest.mark.fault("P11")
@pytest.mark.parametrize("writers", [2, 4, 16, 24, 64])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_writer_of_many_starves_and_most_creates_succeed(writers, seed):
    log = Log(writers, seed)
    log.run(60.0)
    assert min(log.commits) >= 0.5 * max(log.commits)
    assert log.creates < (2 if writers <= 24 else 3) * len(log.entries)
    assert len(log.entries) * COMMIT_S > 0.2 * 60.0, "they hold back, but not more than they must"


@pytest.mark.fault("P11")
@pytest.mark.parametrize("seed", [1, 2])
def test_a_writer_whose_commits_take_three_times_as_long_gets_no_less_than_it_can_win(seed):
    log = Log(8, seed)
    log.slower[0] = 3.0
    log.run(60.0)
    others = sorted(log.commits[1:])
    assert log.commits[0] >= 0.4 * others[0]
    assert others[0] >= 0.5 * others[-1]


@pytest.mark.fault("P11")
def test_shares_adapt_to_writers_that_join_and_leave():
    log = Log(8, seed=3)
    late = [event for event in log.events if event[1] == 0]
    log.events = [event for event in log.events if event[1] != 0]
    heapq.heapify(log.events)
    log.run(20.0)
    heapq.heappush(log.events, (20.0, *late[0][1:]))
    log.run(25.0)  # until the waits are stable
    before = list(log.commits)
    log.run(60.0)
    got = [after - before for after, before in zip(log.commits, before, strict=True)]
    assert got[0] >= 0.5 * max(got)
    log.events = [event for event in log.events if event[1] == 0]
    log.run(70.0)
    assert log.lingers[0].extra_s == 0


def test_a_log_counts_the_entries_of_other_writers_between_two_appends():
    store = MemoryStore("test")
    ours, theirs, third = (TopicLog(store, "t") for _ in range(3))
    topic_id = ours.create(1, "{}", {}, float("inf")).topic_id
    for log in (theirs, third):
        log.load()

    def append(log: TopicLog) -> list[int]:
        appended = log.append(list, topic_id, float("inf"))
        assert isinstance(appended, Appended)
        return sorted(appended.others.values())

    append(theirs)
    assert append(ours) == [], "an earlier writer may have left"
    for _ in range(3):
        append(theirs)
    append(third)
    assert append(ours) == [1, 3]
    assert append(ours) == []
    append(theirs)
    assert ours.load(), "what was read anew is no news"
    assert append(ours) == []


def test_maintenance_does_not_count_as_a_writer_that_wants_the_log_for_itself():
    store = MemoryStore("test")
    ours, theirs = (TopicLog(store, "t") for _ in range(2))
    keeper = MaintenanceLog(store, "t")
    topic_id = ours.create(1, "{}", {}, float("inf")).topic_id
    for log in (theirs, keeper):
        log.load()
    ours.append(list, topic_id, float("inf"))
    keeper.raise_min_upload_version(1, float("inf"))
    keeper.raise_min_upload_version(2, float("inf"))
    theirs.append(list, topic_id, float("inf"))
    appended = ours.append(list, topic_id, float("inf"))
    assert isinstance(appended, Appended)
    assert list(appended.others.values()) == [1]


# --- all together ---


def test_records_linger_less_only_where_a_further_commit_costs_nothing() -> None:
    linger = Lingering()
    linger.batch_times.committed(0.002)
    seconds = partial(linger.seconds, 1.0, 0.01)
    assert seconds(is_contended=False, is_quiet=True) == pytest.approx(0.01 / COMMITS_MAX)
    assert seconds(is_contended=False, is_quiet=False) == 0.01, "a batch is under way"
    assert seconds(is_contended=True, is_quiet=True) == 0.01, "others commit, too"
    linger.adaptive.is_alone = False
    assert seconds(is_contended=False, is_quiet=True) == 0.01, "others commit, too"
    linger.adaptive.extra_s = 0.5
    assert seconds(is_contended=False, is_quiet=True) == 0.5
    assert seconds(is_contended=True, is_quiet=True) == 0.01, "group commit takes care of it"
