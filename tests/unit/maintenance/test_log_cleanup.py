"""Log clean-up: removal of entries after a grace period; crashes on the way and sleepers of forty
days change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.config import topic_properties
from deltaq.delta.checkpoint import read_checkpoint
from deltaq.delta.log import DeltaLog
from deltaq.delta.position import LogCleaned
from deltaq.delta.schema import delta_schema
from deltaq.delta.slot_proof import CLEAN_UP_GRACE_S
from deltaq.errors import Corrupt, KafkaException, Unavailable, UnknownTopic
from deltaq.maintenance import log_cleanup
from deltaq.maintenance.checkpoint import write_checkpoint
from deltaq.maintenance.log_cleanup import (
    LogCleanup,
    LogListing,
    LogPlan,
    plan_log_start,
    plan_removal,
)
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.names import checkpoint_file, entry_version, log_entry, log_start_marker
from deltaq.store import MemoryStore, Store, StoreError, StoreUnavailable
from deltaq.testing import Crash, Effect, Fault, FaultyStore, ManualClock, Rule
from deltaq.topics.columns import table_schema
from deltaq.topics.log import TopicLog
from deltaq.topics.state import PendingSegment
from deltaq.work import finish
from tests.depth import depth

FOLDER = "topics/t/"
LOG = "topics/t/_delta_log/"
DAY_S = 24 * 60 * 60
SMALL = MaintenanceSettings(
    checkpoint_interval=10, keep_entries_min=20, keep_entries_max=200, keep_checkpoint_interval=50
)
DEADLINE = float("inf")


def pending(name: str, partition: int = 0) -> PendingSegment:
    """An uploaded segment of two records that only the log knows: these tests read no data."""
    return PendingSegment(f"{name}.parquet", 100, 2, 0, 10, 0, ((partition, 2),), 0, 0, 0)


class World:
    """A store with topic `t`, and a clock that moves by itself during a sleep."""

    def __init__(
        self, store: MemoryStore | None = None, settings: MaintenanceSettings = SMALL
    ) -> None:
        self.clock = ManualClock(auto_advance=True)
        self.store = store or MemoryStore("test")
        self.settings = settings
        self._delta = DeltaLog(self.store, FOLDER, self.clock)

    def topic(self, store: Store | None = None) -> TopicLog:
        log = TopicLog(store or self.store, "t", self.clock, indexed=True)
        log.load()
        return log

    def create(self, partitions: int = 1) -> TopicLog:
        log = self.topic()
        log.create(partitions, delta_schema(table_schema(None)), topic_properties({}), DEADLINE)
        return log

    def append(self, log: TopicLog, name: str) -> None:
        log.append([pending(name)].copy, log.live_head.topic_id, DEADLINE)
        self.checkpoint()

    def grow(self, log: TopicLog, count: int, seconds_each: float = 60.0) -> None:
        """Appends, with a checkpoint where one is due."""
        for _ in range(count):
            self.append(log, f"f{log.version + 1}")
            self.clock.advance(seconds_each)

    def checkpoint(self) -> None:
        """What a writer does in the background when it lands on a multiple of the interval."""
        if self._delta.state.version < 0:
            self._delta.load()
        try:
            while self._delta.read_next() is not None:
                if self._delta.state.version % self.settings.checkpoint_interval == 0:
                    write_checkpoint(self.store, LOG, self._delta.state)
        except LogCleaned:
            self._delta.load()

    def cleaner(self, store: Store | None = None) -> LogCleanup:
        return LogCleanup(store or self.store, FOLDER, self.clock, self.settings)

    def delta(self, store: Store | None = None, folder: str = FOLDER) -> DeltaLog[None]:
        log = DeltaLog(store or self.store, folder, self.clock)
        log.load()
        return log

    def clean(self, cleaner: LogCleanup | None = None) -> int:
        """Both steps, with the time between them; how many objects went."""
        cleaner = cleaner or self.cleaner()
        finish(cleaner.mark(self.delta()))
        finish(cleaner.remove())
        self.clock.advance(CLEAN_UP_GRACE_S)
        return finish(cleaner.remove())

    def entries(self, folder: str = FOLDER) -> list[int]:
        found = [entry_version(entry.key) for entry in self.store.list(f"{folder}_delta_log/")]
        return [version for version in found if version is not None]

    def names(self, folder: str = FOLDER) -> list[str]:
        return [entry.key.removeprefix(folder) for entry in self.store.list(folder)]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def old(world: World) -> World:
    """A topic after 105 entries, the newest of them two days old."""
    world.grow(world.create(), 105)
    world.clock.advance(2 * DAY_S)
    return world


def same(one: TopicLog, other: TopicLog) -> bool:
    return one.version >= 0 and seen(one) == seen(other)


def seen(log: TopicLog) -> object:
    return log.version, log.head, None if log.head is None else log.metadata, log.index.files


# --- the plan ---


def listing(
    checkpoints: list[int], markers: list[int] | None = None, entries: range | None = None
) -> LogListing:
    versions = range(max(checkpoints, default=0) + 1) if entries is None else entries
    keys = {version: [log_entry(LOG, version)] for version in versions}
    for version in checkpoints:
        keys.setdefault(version, []).append(checkpoint_file(LOG, version))
    return LogListing(dict(sorted(keys.items())), markers or [])


@given(
    st.lists(st.integers(0, 400), unique=True).map(sorted),
    st.integers(0, 100),
    st.integers(0, 50_000),
    st.lists(st.integers(0, 300), min_size=1, max_size=30).map(sorted),
    st.integers(0, 400),
    st.sets(st.integers(0, 400)),
)
def test_the_log_starts_at_the_newest_checkpoint_that_is_old_enough(
    checkpoints, more, now, times, start, unfit
):
    settings = MaintenanceSettings(log_retention_ms=100, keep_entries_min=7, keep_entries_max=60)
    head = max(checkpoints, default=0) + more
    asked: list[int] = []

    def time_of(version: int) -> int:
        asked.append(version)
        return int(times[min(version // 15, len(times) - 1)])

    found = plan_log_start(
        listing(checkpoints, [start], range(head + 1)),
        head,
        time_of,
        now,
        settings,
        frozenset(unfit),
    )
    calls = len(asked)
    allowed = [
        version
        for version in checkpoints
        if version > start
        and version not in unfit
        and head - version + 1 >= 7
        and (head - version + 1 >= 60 or time_of(version) < now - 100)
    ]
    assert found == max(allowed, default=None)
    assert calls <= 9, "binary search over at most 400 checkpoints"


@pytest.mark.parametrize(("head", "start"), [(15, None), (16, 10)])
def test_exactly_as_many_entries_stay_as_are_to_be_kept(head, start):
    settings = MaintenanceSettings(keep_entries_min=7, log_retention_ms=0)
    assert (
        plan_log_start(listing([10], entries=range(head + 1)), head, lambda _: 0, 10**15, settings)
        == start
    )


def test_an_entry_with_unknown_time_stays():
    settings = MaintenanceSettings(keep_entries_min=1, log_retention_ms=0)
    assert plan_log_start(listing([10]), 50, lambda _: None, 10**15, settings) is None


def test_a_log_does_not_start_at_a_checkpoint_whose_entry_is_missing():
    settings = MaintenanceSettings(keep_entries_min=1, log_retention_ms=0)
    assert (
        plan_log_start(listing([10, 20], entries=range(20)), 50, lambda _: 0, 10**15, settings)
        == 10
    )


def test_exactly_the_objects_below_the_log_start_are_removed():
    names = [
        "00000000000000000001.json",
        "00000000000000000002.00000000000000000009.compacted.json",
        "00000000000000000003.checkpoint.parquet",
        "00000000000000000003.checkpoint.0000000001.0000000002.parquet",
        "00000000000000000004.crc",
    ]
    kept = ["00000000000000000005.json", "00000000000000000005.checkpoint.parquet"]
    store = MemoryStore("test")
    for name in [
        *names,
        *kept,
        "_last_checkpoint",
        "_sidecars/00000000000000000001.parquet",
        "7.json",
        "notes.txt",
    ]:
        store.put(LOG + name, b"")
    store.put(log_start_marker(FOLDER, 5), b"")
    assert plan_removal(finish(log_cleanup._list_log(store, FOLDER)), 5, SMALL) == sorted(
        LOG + name for name in names
    )


def test_checkpoints_are_thinned_to_the_newest_the_starts_and_one_in_each_span():
    checkpoints = [*range(100, 3000, 100)]
    checkpoints.remove(1000)
    settings = MaintenanceSettings()
    gone = plan_removal(listing(checkpoints, [300, 700]), 300, settings)
    kept = [v for v in checkpoints if v >= 300 and checkpoint_file(LOG, v) not in gone]
    assert kept == [300, 700, 1100, 2000, 2700, 2800, 2900]
    assert log_entry(LOG, 299) in gone
    assert log_entry(LOG, 300) not in gone


# --- the two steps ---


def test_a_cleaned_log_is_the_same_topic_with_fewer_objects(old):
    before = old.topic()
    removed = old.clean()
    assert removed > 0
    assert old.entries() == list(range(80, 106)), (
        "80 has a checkpoint, and 20 entries stay at least"
    )
    assert same(old.topic(), before)
    assert old.store.get(log_start_marker(FOLDER, 80)) == b""


def test_a_plan_matches_the_two_steps_and_writes_nothing(old):
    objects = {entry.key: old.store.get(entry.key) for entry in old.store.list("")}
    planned = old.cleaner().plan(old.delta())
    assert {entry.key: old.store.get(entry.key) for entry in old.store.list("")} == objects
    assert planned.start == 80
    cleaner = old.cleaner()
    finish(cleaner.mark(old.delta()))
    thinned = finish(cleaner.remove())
    waiting = old.cleaner().plan(old.delta())
    assert waiting == LogPlan(None, planned.removed - thinned)
    old.clock.advance(CLEAN_UP_GRACE_S)
    assert finish(cleaner.remove()) == waiting.removed > 0
    assert old.cleaner().plan(old.delta()) == LogPlan(None, 0)


def test_nothing_goes_before_the_grace_period_is_over_and_suspended_time_counts(old):
    cleaner = old.cleaner()
    assert finish(cleaner.mark(old.delta())) == 80
    old.clock.advance(CLEAN_UP_GRACE_S / 2)
    finish(cleaner.remove())
    assert old.entries() == list(range(106))
    assert cleaner.is_waiting
    old.clock.suspend(CLEAN_UP_GRACE_S / 2)
    assert finish(cleaner.remove()) > 0
    assert old.entries()[0] == 80
    assert not cleaner.is_waiting


def test_the_grace_period_begins_when_the_cleaner_itself_saw_the_marker(old):
    finish(old.cleaner().mark(old.delta()))
    old.clock.advance(10 * DAY_S)
    other = old.cleaner()
    finish(other.remove())
    assert old.entries() == list(range(106))
    assert other.is_waiting
    old.clock.advance(CLEAN_UP_GRACE_S)
    assert finish(other.remove()) > 0
    assert old.entries()[0] == 80


def test_no_new_marker_is_made_before_the_last_one_is_cleaned_up(old):
    cleaner = old.cleaner()
    assert finish(cleaner.mark(old.delta())) == 80
    old.grow(old.topic(), 100)
    old.clock.advance(2 * DAY_S)
    assert old.cleaner().plan(old.delta()).start is None
    assert finish(old.cleaner().mark(old.delta())) is None, (
        "one that has just come waits with the others"
    )
    assert finish(cleaner.remove()) > 0
    assert finish(cleaner.mark(old.delta())) == 180


def test_young_entries_stay_and_of_very_many_even_they_go(world):
    topic = world.create()
    world.grow(topic, 150, seconds_each=1)
    world.clean()
    assert world.entries() == list(range(151))
    world.grow(topic, 100, seconds_each=1)
    world.clean()
    assert world.entries() == list(range(50, 251)), "200 stay"


@pytest.mark.slow
def test_a_log_that_grows_while_it_is_cleaned_stays_short(old):
    """Marking before each clean-up must not postpone it for ever."""
    cleaner, topic = old.cleaner(), old.topic()
    for _ in range(6):
        finish(cleaner.mark(old.delta()))
        finish(cleaner.remove())
        old.grow(topic, 50)
        old.clock.advance(2 * DAY_S)
    assert len(old.entries()) <= 200


@pytest.mark.slow
def test_cleaning_again_and_again_removes_each_lower_marker(old):
    cleaner = old.cleaner()
    for _ in range(3):
        old.clean(cleaner)
        old.grow(old.topic(), 50)
        old.clock.advance(2 * DAY_S)
    markers = [entry.key for entry in old.store.list(f"{FOLDER}_deltaq/log_start/")]
    assert markers == [log_start_marker(FOLDER, 180)]
    assert old.entries() == list(range(180, 256))


def test_a_limited_clean_up_removes_the_lowest_entries_first_and_resumes(old):
    cleaner = old.cleaner()
    finish(cleaner.mark(old.delta()))
    old.clock.advance(CLEAN_UP_GRACE_S)
    before = old.topic()
    assert finish(cleaner.remove(limit=30)) == 30
    assert 0 < old.entries()[0] < 80
    assert same(old.topic(), before)
    while finish(cleaner.remove(limit=30)):
        pass
    assert old.entries()[0] == 80


def test_a_clean_up_yields_and_resumes_where_it_was_stopped(old, monkeypatch):
    """Beside a fast writer there are a hundred thousand objects every ten minutes."""
    monkeypatch.setattr(log_cleanup, "LISTED_AT_ONCE", 10)
    monkeypatch.setattr(log_cleanup, "DELETES_AT_ONCE", 2)
    listed = len(list(old.store.list(LOG)))
    cleaner = old.cleaner()
    assert len(list(cleaner.mark(old.delta()))) == listed // 10
    old.clock.advance(CLEAN_UP_GRACE_S)
    with closing(cleaner.remove()) as work:
        for _ in range(listed // 10 + 4):
            next(work)
    assert listed - len(list(old.store.list(LOG))) in range(7, 10), (
        "the lowest entry, and three times two, and two"
    )
    assert finish(cleaner.remove()) > 10
    assert finish(cleaner.remove()) == 0
    assert old.delta().state.version > 0


def test_on_a_remote_store_objects_are_removed_concurrently():
    class RemoteStore(MemoryStore):
        is_remote = True

    world = World(RemoteStore("test"))
    world.grow(world.create(), 105)
    world.clock.advance(2 * DAY_S)
    world.clean()
    assert world.entries() == list(range(80, 106))


@pytest.mark.fault("M6")
def test_a_log_starts_only_at_a_checkpoint_that_can_be_read(old):
    key = checkpoint_file(LOG, 80)
    old.store.put(key, old.store.get(key)[:-1])
    before = old.topic()
    old.clean()
    assert old.entries()[0] == 70
    assert same(old.topic(), before)


def test_a_log_does_not_start_at_a_checkpoint_that_another_tool_has_made(old):
    """No checksum vouches for it, and the entries that it stands for would be gone for good."""
    key = checkpoint_file(LOG, 80)
    data = old.store.get(key)
    seal_at = data.index(b"\xffdeltaq checkpoint\xff")
    footer_at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    old.store.put(key, data[:seal_at] + data[footer_at:])
    found = read_checkpoint(old.store, LOG, 80)
    assert found is not None
    assert not found.is_sealed
    old.clean()
    assert old.entries()[0] == 70


@pytest.mark.fault("M6")
@pytest.mark.parametrize("pointer", [b'{"version":10,"size":7}', b"{"])
def test_the_checkpoint_pointer_is_updated_before_any_removal(pointer, old):
    before = old.topic()
    old.store.put(f"{LOG}_last_checkpoint", pointer)
    old.clean()
    found = json.loads(old.store.get(f"{LOG}_last_checkpoint"))
    rows = pq.read_table(pa.BufferReader(old.store.get(checkpoint_file(LOG, 80)))).num_rows
    assert found == {"version": 80, "size": rows, "numOfAddFiles": 80}
    assert same(old.topic(), before)


@pytest.mark.fault("M6")
def test_with_all_checkpoints_damaged_nothing_goes(old):
    for entry in [*old.store.list(LOG)]:
        if entry.key.endswith(".parquet"):
            old.store.put(entry.key, b"cut")
    old.clean()
    assert old.entries() == list(range(106))


@pytest.mark.fault("M6")
def test_entries_stay_if_checkpoints_were_damaged_after_the_marker(old):
    cleaner = old.cleaner()
    assert finish(cleaner.mark(old.delta())) == 80
    before, state = old.topic(), old.delta().state
    for entry in [*old.store.list(LOG)]:
        if entry.key.endswith(".parquet"):
            old.store.put(entry.key, b"cut")
    old.clock.advance(CLEAN_UP_GRACE_S)
    finish(cleaner.remove())
    assert old.entries() == list(range(106))
    with pytest.raises(Corrupt, match="no checkpoint at or above the log's start") as caught:
        old.topic()
    assert caught.value.version == 80
    write_checkpoint(old.store, LOG, state)
    assert same(old.topic(), before), "a backup of one file is enough"


@pytest.mark.fault("M6")
def test_checkpoints_that_are_only_slow_to_appear_are_no_damage(old):
    old.clean()
    hidden = FaultyStore(
        old.store, Rule("get", "*.checkpoint.parquet", Fault.missing(), times=None)
    )
    with pytest.raises(Unavailable):
        old.topic(hidden)
    assert hidden.effects[Effect.OBJECT_HIDDEN] > 5


@pytest.mark.fault("M6")
def test_a_truncated_pointer_and_newest_checkpoint_fall_back_to_older_ones_after_a_clean_up(old):
    old.clean()
    before = old.topic()
    old.store.put(f"{LOG}_last_checkpoint", b'{"ver')
    old.store.put(checkpoint_file(LOG, 100), old.store.get(checkpoint_file(LOG, 100))[:1000])
    assert same(old.topic(), before)


def clean_through(world: World, store: Store) -> None:
    cleaner = world.cleaner(store)
    finish(cleaner.mark(world.delta(store)))
    world.clock.advance(CLEAN_UP_GRACE_S)
    finish(cleaner.remove())


def copy_of(store: Store) -> MemoryStore:
    copy = MemoryStore("copy")
    for entry in store.list(""):
        copy.put(entry.key, store.get(entry.key))
    return copy


@pytest.mark.slow
@pytest.mark.fault("M6", "M7")
@pytest.mark.parametrize("deleted", [False, True], ids=["a topic that lives", "a deleted topic"])
@pytest.mark.parametrize("fault", ["crash_before", "crash_after", "error_before", "error_after"])
def test_an_interrupted_clean_up_is_harmless_and_finished_by_the_next(fault, deleted, world):
    topic = world.create()
    world.grow(topic, 13 if deleted else 23)
    if deleted:
        topic.delete(DEADLINE)
    world.clock.advance(2 * DAY_S)
    before = world.topic()
    inner = world.store
    counting = FaultyStore(copy_of(inner))
    clean_through(world, counting)
    final = [entry.key for entry in counting.inner.list("")]
    assert len(final) < 30
    for nth in range(1, counting.operations.total() + 1, depth(3, 1)):
        world.store = copy_of(inner)
        faulty = FaultyStore(world.store, Rule("*", "*", getattr(Fault, fault)(), nth=nth))
        with pytest.raises((Crash, StoreError, KafkaException)):
            clean_through(world, faulty)
        assert faulty.effects.total() == 1, nth
        assert same(world.topic(), before), nth
        world.clean()
        world.clean()
        assert [entry.key for entry in world.store.list("")] == final, nth
        assert same(world.topic(), before), nth


# --- suspended clients ---


@pytest.mark.fault("M7", "C4")
def test_a_writer_suspended_for_forty_days_commits_at_the_head(old):
    sleeper = old.topic()
    others = old.topic()
    old.clock.suspend(40 * DAY_S)
    old.grow(others, 100)
    old.clock.suspend(2 * DAY_S)
    cleaner = old.cleaner()
    old.clean(cleaner)
    assert old.entries()[0] > sleeper.version + 1, "its slot is open again"
    old.append(sleeper, "late")
    assert sleeper.version == others.version + 1
    assert (
        sleeper.index.files["late.parquet"].batches[0].base_offset
        == others.live_head.next_offsets[0]
    )
    assert same(old.topic(), sleeper)
    assert 106 not in old.entries(), "it has seen that the entry before is gone"


@pytest.mark.fault("M7", "C4")
def test_a_writer_suspended_during_a_create_commits_at_the_head(old):
    cleaner = old.cleaner()
    sleeper = old.topic(
        SleepsBeforeCreate(old.store, log_entry(LOG, 106), lambda: forty_days(old, cleaner))
    )
    old.append(sleeper, "late")
    assert 106 in old.entries(), "what it wrote below the log's start belongs to no reader"
    assert old.entries()[1] > 107
    assert same(old.topic(), sleeper)
    assert "late.parquet" in sleeper.index.files
    old.clock.advance(CLEAN_UP_GRACE_S)
    finish(cleaner.remove())
    assert 106 not in old.entries()
    assert same(old.topic(), sleeper)


class SleepsBeforeCreate(FaultyStore):
    """The machine is suspended before it sends a create, to a store that does not look at the entry
    before.
    """

    def __init__(self, inner: Store, key: str, meanwhile: Callable[[], None]) -> None:
        super().__init__(inner)
        self._key, self._meanwhile = key, meanwhile

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        if key == self._key:
            self._key, after = "", ""
            self._meanwhile()
        super().create(key, data, after)


class SleepsInCreate(FaultyStore):
    """The machine is suspended in the middle of a create, `landed` or not; meanwhile the world goes
    on.
    """

    def __init__(
        self, inner: Store, key: str, meanwhile: Callable[[], None], *, landed: bool
    ) -> None:
        super().__init__(inner)
        self._key, self._meanwhile, self._landed = key, meanwhile, landed
        self.slept = 0

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        if key != self._key or self.slept:
            return super().create(key, data, after)
        if self._landed:
            super().create(key, data, after)
        self.slept += 1
        self._meanwhile()
        raise StoreUnavailable("create", key, "the connection is gone")


def forty_days(world: World, cleaner: LogCleanup | None = None) -> None:
    """The others write on, and clean up."""
    world.clock.suspend(40 * DAY_S)
    world.grow(world.topic(), 100)
    world.clock.suspend(2 * DAY_S)
    world.clean(cleaner)


@pytest.mark.fault("M7", "C4")
def test_a_commit_before_a_suspension_stands_once_after_its_entry_is_gone(old):
    store = SleepsInCreate(old.store, log_entry(LOG, 106), lambda: forty_days(old), landed=True)
    sleeper = old.topic(store)
    sleeper.append([pending("mine")].copy, sleeper.live_head.topic_id, DEADLINE)
    assert store.slept == 1
    assert old.entries()[0] > 106
    found = old.topic()
    assert found.index.files["mine.parquet"].batches[0].base_offset == 2 * 105
    assert found.live_head.next_offsets == (2 * 206,), "no record twice"


@pytest.mark.fault("M7", "C4")
def test_a_reader_suspended_for_forty_days_ignores_entries_in_reopened_slots(old):
    reader = old.topic()
    writer = old.topic(SleepsBeforeCreate(old.store, log_entry(LOG, 106), lambda: forty_days(old)))
    writer.append([pending("late")].copy, writer.live_head.topic_id, DEADLINE)
    assert 106 in old.entries()
    assert old.entries()[1] > 107
    with pytest.raises(LogCleaned):
        reader.read_next()
    reader.catch_up()
    assert same(reader, writer)


@pytest.mark.fault("M7", "C4")
def test_a_copied_position_expires_with_its_original(old):
    lender = old.topic()
    writer = old.topic(SleepsBeforeCreate(old.store, log_entry(LOG, 106), lambda: forty_days(old)))
    writer.append([pending("late")].copy, writer.live_head.topic_id, DEADLINE)
    assert 106 in old.entries()
    assert old.entries()[1] > 107
    borrower = TopicLog(old.store, "t", old.clock, known=lender.known)
    assert lender.known.newest is not None
    borrower.delta_log.begin_at(lender.known.newest)
    with pytest.raises(LogCleaned):
        borrower.read_next()
    borrower.catch_up()
    assert same(borrower, writer)


# --- deleted topics ---


def buried(world: World) -> TopicLog:
    """The topic after it was deleted, and cleaned when that was two days ago."""
    topic = world.topic()
    topic.delete(DEADLINE)
    world.clock.advance(2 * DAY_S)
    world.clean()
    return topic


def test_a_deleted_topic_leaves_four_small_objects(old):
    topic = buried(old)
    assert topic.version == 106
    assert old.names() == [
        "_delta_log/00000000000000000106.checkpoint.parquet",
        "_delta_log/00000000000000000106.json",
        "_delta_log/_last_checkpoint",
        "_deltaq/log_start/00000000000000000106",
    ]
    assert old.topic().head is None
    before = old.names()
    assert old.clean() == 0
    assert old.names() == before


def test_a_topic_that_was_deleted_just_now_keeps_its_newest_entries(old):
    old.topic().delete(DEADLINE)
    old.clean()
    assert old.entries() == list(range(80, 107))


def test_a_topic_that_was_created_again_meanwhile_does_not_become_a_stub(old):
    old.topic().delete(DEADLINE)
    old.clock.advance(2 * DAY_S)
    behind = old.delta()
    again = old.create()
    assert finish(old.cleaner().mark(behind)) == 80
    assert same(old.topic(), again)


def test_a_topic_created_again_on_a_stub_goes_on_behind_it(old):
    topic = buried(old)
    again = old.create(partitions=2)
    assert again.version == topic.version + 1
    assert again.live_head.next_offsets == (0, 0)
    assert topic.catch_up()
    assert same(topic, again)
    old.grow(again, 50)
    old.clock.advance(2 * DAY_S)
    old.clean()
    assert old.entries() == list(range(130, 158))
    assert same(old.topic(), again)


@pytest.mark.fault("M7", "C4")
def test_a_writer_that_slept_through_the_end_of_its_topic_writes_to_no_other_life_of_it(old):
    sleeper = old.topic()
    meant_for = sleeper.live_head.topic_id
    buried(old)
    again = old.create()
    old.clock.suspend(40 * DAY_S)
    with pytest.raises(UnknownTopic):
        sleeper.append([pending("late")].copy, meant_for, DEADLINE)
    assert old.topic().index.files == {}
    assert same(old.topic(), again)


# --- what opening costs ---


def cost_of_opening(world: World) -> dict[str, int]:
    counting = FaultyStore(world.store)
    assert world.topic(counting).version % 100 == 50
    return dict(counting.operations)


@pytest.mark.fault("D3")
@pytest.mark.slow
@pytest.mark.parametrize(("partitions", "more"), [(1, 600), (1000, 100)])
def test_opening_a_topic_costs_as_many_requests_after_a_thousand_commits_as_after_hundreds(
    partitions, more
):
    world = World(settings=MaintenanceSettings(keep_entries_min=200))
    topic = world.create(partitions)
    world.grow(topic, 450)
    world.clock.advance(2 * DAY_S)
    world.clean()
    first = cost_of_opening(world)
    world.grow(topic, more)
    world.clock.advance(2 * DAY_S)
    world.clean()
    assert topic.version == 450 + more
    assert cost_of_opening(world) == first
    # Pointer, checkpoint, entries since and none, each looked up in the log archive too; end and
    # log start.
    assert first == {"get": 2 + 2 * (50 + 1), "list": 2}
    assert len(world.names()) < 300 + 50
