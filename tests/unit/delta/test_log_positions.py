"""Positions in a topic's log: copies, catching up, and maintenance beside a writer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deltaq.errors import Corrupt, OutcomeUnknown, Unavailable
from deltaq.maintenance.checkpoint import write_checkpoint
from deltaq.maintenance.file_compaction import FileRewrite, cut
from deltaq.maintenance.orphan_files import OrphanFileRemover
from deltaq.maintenance.rewrite import Rewriter
from deltaq.maintenance.throttle import Stopped, Throttle
from deltaq.maintenance.topic_pass import TopicPass
from deltaq.maintenance.work_queue import NEW_VERSIONS
from deltaq.names import checkpoint_file, last_checkpoint, log_entry, topic_log
from deltaq.store import LocalStore, MemoryStore, ObjectEntry, Store
from deltaq.testing import Effect, Fault, FaultyStore, ManualClock, Rule
from deltaq.topics.log import StalePlan, TopicLog
from deltaq.topics.maintenance_log import LOCK_HOLD_MAX_S, MaintenanceLog
from deltaq.topics.state import DataFile
from deltaq.work import Work, finish
from tests.doubles.written_topic import SMALL, RowToWrite, WrittenTopic, seen_by_consumers


@pytest.fixture
def topic() -> WrittenTopic:
    return WrittenTopic(MemoryStore("test"), ManualClock(auto_advance=True))


def position(topic: WrittenTopic, *, beside: bool = False) -> MaintenanceLog:
    known = topic.log.known if beside else None
    return MaintenanceLog(topic.store, "t", topic.clock, beside=known)


def test_a_repeatedly_copied_position_equals_a_loaded_one(topic: WrittenTopic) -> None:
    follower = position(topic, beside=True)
    for number in range(12):
        topic.append(RowToWrite(b"%d" % number), RowToWrite(b"x"))
        if number % 5 == 4:
            topic.maintain(merge_files=3)
        topic.log.catch_up()
        follower.take_over()
        loaded = position(topic)
        loaded.load()
        assert (follower.version, follower.head) == (loaded.version, loaded.head)
        assert follower.index.files == loaded.index.files
        assert list(follower.index.batches(0)) == list(loaded.index.batches(0))


def test_copying_a_position_parses_nothing_again(
    topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        topic.append(RowToWrite(b"%d" % number))
    topic.log.catch_up()
    follower = position(topic, beside=True)
    monkeypatch.setattr(
        "deltaq.topics.view.data_file", lambda *_: pytest.fail("a file was looked at again")
    )
    follower.take_over()
    assert len(follower.index.files) == 3


def test_a_copied_position_stays_while_the_original_advances(topic: WrittenTopic) -> None:
    topic.append(RowToWrite(b"a"))
    follower = position(topic, beside=True)
    follower.take_over()
    before = dict(follower.index.files), list(follower.index.batches(0)), follower.version
    topic.append(RowToWrite(b"b"))
    topic.maintain(merge_files=2)
    topic.log.catch_up()
    assert (dict(follower.index.files), list(follower.index.batches(0)), follower.version) == before
    assert follower.catch_up()
    assert follower.index.files == topic.log.index.files


def test_maintenance_pauses_after_each_entry_that_it_reads_and_can_be_stopped(
    topic: WrittenTopic,
) -> None:
    seen: list[int] = []

    class Noting(Throttle):
        def pause(self) -> None:
            seen.append(follower.version)
            if len(seen) == 3:
                raise TimeoutError

    follower = TopicPass(topic.store, "t", topic.clock, SMALL, Noting(topic.clock))._log
    follower.load()
    for number in range(5):
        topic.append(RowToWrite(b"%d" % number))
    start = follower.version
    with pytest.raises(TimeoutError):
        follower.catch_up()
    assert seen == [start + 1, start + 2, start + 3]
    assert follower.catch_up()
    assert seen == list(range(start + 1, topic.log.version + 1))


class Growing(FaultyStore):
    """A remote store in which another client writes three entries during a checkpoint read."""

    is_remote = True

    def __init__(self, topic: WrittenTopic, lost: int | None) -> None:
        super().__init__(topic.store)
        self._topic, self._lost, self.listings = topic, lost, 0
        self._listed = threading.Event()

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        found = [*super().list(prefix, start_after)]
        self.listings += prefix == topic_log("t")
        self._listed.set()
        return iter(found)

    def get(self, key: str, size_max: int | None = None) -> bytes:
        if "checkpoint.parquet" in key:
            assert self._listed.wait(20)
            for number in range(3):
                self._topic.append(RowToWrite(b"%d" % number))
            if self._lost is not None:
                self._topic.store.delete(log_entry(topic_log("t"), self._lost))
        return super().get(key, size_max)


@pytest.mark.parametrize("lost", [None, 14])
@pytest.mark.parametrize(
    "checkpoint", [8, 12], ids=["entries behind the checkpoint", "none behind it"]
)
def test_a_gap_in_entries_written_during_a_load_is_found(
    topic: WrittenTopic, checkpoint: int, lost: int | None
) -> None:
    for number in range(12):
        topic.append(RowToWrite(b"%d" % number))
        if topic.log.version == checkpoint:
            write_checkpoint(topic.store, topic_log("t"), topic.log.state)
    store = Growing(topic, lost)
    log = MaintenanceLog(store, "t", topic.clock)
    if lost is None:
        assert log.load()
        assert log.version == topic.log.version == 15
        assert store.listings == 2, "what came since the first listing may have a gap too"
    else:
        with pytest.raises(Corrupt, match="log entry is missing"):
            log.load()


class Remote(FaultyStore):
    is_remote = True


def test_entries_after_an_unreadable_checkpoint_do_not_prove_those_after_an_older_one(
    topic: WrittenTopic,
) -> None:
    for number in range(8):
        topic.append(RowToWrite(b"%d" % number))
        if topic.log.version in {4, 8}:
            write_checkpoint(topic.store, topic_log("t"), topic.log.state)
    topic.store.put(checkpoint_file(topic_log("t"), 8), b"damaged")
    topic.store.delete(log_entry(topic_log("t"), 5))
    log = MaintenanceLog(Remote(topic.store), "t", topic.clock)
    with pytest.raises(Corrupt, match="log entry is missing"):
        log.load()


@pytest.mark.parametrize("damaged", ["the checkpoint", "the pointer"])
def test_a_remote_log_without_its_first_entries_is_read_from_any_checkpoint(
    topic: WrittenTopic, damaged: str
) -> None:
    for number in range(8):
        topic.append(RowToWrite(b"%d" % number))
        if topic.log.version in {4, 8}:
            write_checkpoint(topic.store, topic_log("t"), topic.log.state)
    for version in range(4):
        topic.store.delete(log_entry(topic_log("t"), version))
    is_pointer = damaged == "the pointer"
    topic.store.put(
        last_checkpoint(topic_log("t")) if is_pointer else checkpoint_file(topic_log("t"), 8),
        b"damaged",
    )
    log = MaintenanceLog(Remote(topic.store), "t", topic.clock)
    assert log.load()
    assert (log.version, log.index.files) == (8, topic.log.index.files)


def test_an_entry_that_is_listed_but_not_found_is_read_again(topic: WrittenTopic) -> None:
    for number in range(6):
        topic.append(RowToWrite(b"%d" % number))
        if topic.log.version == 4:
            write_checkpoint(topic.store, topic_log("t"), topic.log.state)
    store = Remote(topic.store, Rule("get", log_entry(topic_log("t"), 5), Fault.missing(), times=1))
    log = MaintenanceLog(store, "t", topic.clock)
    assert log.load()
    assert (log.version, log.index.files) == (6, topic.log.index.files)


# --- beside a writer
# -------------------------------------------------------------------------------------------------


class Counted(FaultyStore):
    """Counts the log entries that are read, and those that a client tries to create."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.read: list[str] = []
        self.tried: list[str] = []

    def get(self, key: str, size_max: int | None = None) -> bytes:
        data = super().get(key, size_max)
        if key.endswith(".json"):
            self.read.append(key)
        return data

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        if key.endswith(".json"):
            self.tried.append(key)
        super().create(key, data, after)


@pytest.fixture
def store(topic: WrittenTopic) -> Counted:
    """The store as maintenance sees it."""
    return Counted(topic.store)


def beside(topic: WrittenTopic, store: Store) -> MaintenanceLog:
    shared = topic.log.known
    return MaintenanceLog(store, "t", topic.clock, client_id="maintenance", beside=shared)


def test_entries_known_to_the_writer_are_not_read_again(
    topic: WrittenTopic, store: Counted
) -> None:
    log = beside(topic, store)
    for number in range(10):
        topic.append(RowToWrite(b"%d" % number))
        if number % 3 == 0:
            assert log.catch_up()
            assert log.version == topic.log.version
            assert log.index.files == topic.log.index.files
    topic.maintain(merge_files=3)  # by another process, unknown to the writer so far
    log.catch_up()
    assert len(store.read) == 1
    assert log.index.files == topic.fresh_log().index.files


def test_a_rewrite_beside_a_writer_causes_no_lost_race(topic: WrittenTopic, store: Counted) -> None:
    topic.log = MaintenanceLog(store, "t", topic.clock)
    topic.log.load()
    log = beside(topic, store)
    for round_ in range(5):
        for number in range(4):
            topic.append(RowToWrite(b"%d" % (4 * round_ + number)))
        log.catch_up()
        store.read.clear()
        work = Rewriter(store, log, topic.clock)
        finish(
            work.rewrite(
                FileRewrite(tuple(topic.files), cut(topic.files, topic.log.live_head, 2**30))
            )
        )
        assert topic.log.take_over()
        assert log.version == topic.log.version
        assert len(topic.files) == 1
    assert len(store.tried) == len(set(store.tried)) == topic.log.version
    assert store.read == [], "neither had to read what the other one wrote"
    assert [value for *_, value, _ in seen_by_consumers(topic.store)] == [
        b"%d" % number for number in range(20)
    ]
    assert topic.fresh_log().index.files == log.index.files


def test_an_unanswering_store_blocks_the_writer_for_seconds_only(topic: WrittenTopic) -> None:
    for number in range(4):
        topic.append(RowToWrite(b"%d" % number))
    faulty = FaultyStore(topic.store, Rule("create", "*.json", Fault.error_before(), times=None))
    topic.log = MaintenanceLog(faulty, "t", topic.clock)
    topic.log.load()
    log = beside(topic, faulty)
    log.catch_up()
    began = topic.clock.monotonic()
    with pytest.raises(OutcomeUnknown):
        log.raise_min_upload_version(1, began + 60)
    assert topic.clock.monotonic() - began < 1.5 * LOCK_HOLD_MAX_S


def test_a_stale_plan_is_refused_and_leaves_nothing(topic: WrittenTopic) -> None:
    for number in range(4):
        topic.append(RowToWrite(b"%d" % number))
    log = beside(topic, topic.store)
    log.catch_up()
    plan = FileRewrite(tuple(topic.files), cut(topic.files, topic.log.live_head, 2**30))
    topic.maintain(merge_files=3)
    topic.log.catch_up()
    assert finish(Rewriter(topic.store, log, topic.clock).rewrite(plan)) == StalePlan()
    assert topic.stored() - {file.path for file in plan.inputs} == topic.live()


def test_maintenance_beside_an_idle_writer_covers_the_entries_of_others(
    topic: WrittenTopic, store: Counted
) -> None:
    resting = MaintenanceLog(store, "t", topic.clock)
    resting.load()
    for number in range(8):
        topic.append(RowToWrite(b"%d" % number))
    shared = resting.known
    work = TopicPass(store, "t", topic.clock, SMALL, Throttle(topic.clock), beside=shared)
    assert work.run()["files merged"] == 8
    assert resting.take_over()
    assert resting.version == topic.fresh_log().version, (
        "its writer knows what was committed in its turn"
    )
    topic.log.catch_up()
    topic.log = resting
    topic.append(RowToWrite(b"from the one that rested"))
    assert [value for *_, value, _ in seen_by_consumers(topic.store)][
        -1
    ] == b"from the one that rested"


@pytest.mark.parametrize("why", ["never loaded", "not loaded whole"])
def test_an_unloaded_writer_is_loaded_by_its_maintenance(topic: WrittenTopic, why: str) -> None:
    faulty = FaultyStore(topic.store)
    writer = MaintenanceLog(faulty, "t", topic.clock)
    if why == "not loaded whole":
        faulty.add(Rule("list", "*", Fault.error_before(), times=None))
        with pytest.raises(Unavailable):
            writer.load()
        faulty.clear()
    for number in range(8):
        topic.append(RowToWrite(b"%d" % number))
    shared = writer.known
    work = TopicPass(topic.store, "t", topic.clock, SMALL, Throttle(topic.clock), beside=shared)
    assert work.run()["files merged"] == 8
    writer.catch_up()
    assert (writer.version, writer.head) == (topic.fresh_log().version, topic.fresh_log().head)


def test_shared_files_of_a_writer_stay_known_after_a_commit_of_lagging_maintenance(
    topic: WrittenTopic,
) -> None:
    """A position loaded from a checkpoint has not seen earlier shared files. The writer has, and
    must keep them.
    """
    resting = TopicLog(topic.store, "t", topic.clock, indexed=True)
    resting.load()
    shared = replace(topic.upload(RowToWrite(b"on its way")), as_of=resting.version)
    resting.pending_shared.expect(shared.path, shared.as_of)
    for number in range(4):
        topic.append(RowToWrite(b"%d" % number))
    write_checkpoint(topic.store, topic_log("t"), topic.log.state)
    log = MaintenanceLog(topic.store, "t", topic.clock, beside=resting.known)
    log.load()
    log.raise_min_upload_version(0, topic.clock.monotonic() + 60)
    resting.catch_up()
    assert resting.version == log.version == topic.fresh_log().version
    assert resting.committed_by_peer([shared]) is None, "else it would be called unknown"


class Writing(Throttle):
    """While maintenance pauses, the writer commits so many times, as long as there are rounds
    left.
    """

    def __init__(self, topic: WrittenTopic, commits: int, rounds: int) -> None:
        super().__init__(topic.clock)
        self._topic, self._commits, self.rounds = topic, commits, rounds

    def step(self) -> None:
        self._topic.clock.sleep(1.0)
        if self.rounds:
            self.rounds -= 1
            for _ in range(self._commits):
                self._topic.append(RowToWrite(b"new"))


def merges(topic: WrittenTopic) -> list[int]:
    """How many files each merge has taken, in the order of the log."""
    entries = [
        entry.key for entry in topic.store.list(topic_log("t")) if entry.key.endswith(".json")
    ]
    taken = [
        sum(line.startswith(b'{"remove"') for line in topic.store.get(key).splitlines())
        for key in entries
    ]
    return [count for count in taken if count]


def test_files_added_during_a_large_merge_are_merged_before_it_ends(topic: WrittenTopic) -> None:
    for number in range(8):
        topic.append(RowToWrite(b"%d" % number))
    shared = topic.log.known
    work = TopicPass(
        topic.store, "t", topic.clock, SMALL, Writing(topic, NEW_VERSIONS, 1), beside=shared
    )
    work.run()
    assert merges(topic)[:2] == [NEW_VERSIONS, 8]
    seen = seen_by_consumers(topic.store)
    assert [offset for _, offset, *_ in seen] == list(range(8 + NEW_VERSIONS))
    assert [value for *_, value, _ in seen] == [b"%d" % n for n in range(8)] + [
        b"new"
    ] * NEW_VERSIONS


@pytest.mark.slow
def test_a_busy_writer_does_not_starve_a_merge(
    topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaq.maintenance.work_queue.NEW_VERSIONS", 8)
    for number in range(8):
        topic.append(RowToWrite(b"%d" % number, partition=0))
    shared = topic.log.known
    throttle = Writing(topic, 8, 40)
    work = TopicPass(topic.store, "t", topic.clock, SMALL, throttle, beside=shared)
    work.run()
    assert merges(topic).index(8) <= 3
    assert throttle.rounds == 0
    assert len(seen_by_consumers(topic.store)) == 8 + 40 * 8


@pytest.mark.slow
def test_a_long_merge_is_interrupted_repeatedly_but_has_half_of_the_time(
    topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("deltaq.maintenance.work_queue.NEW_VERSIONS", 4)
    caplog.set_level("INFO", "deltaq.maintenance")
    for number in range(60):
        topic.append(RowToWrite(b"%d" % number))
    shared = topic.log.known
    TopicPass(topic.store, "t", topic.clock, SMALL, Writing(topic, 1, 150), beside=shared).run()
    small = merges(topic)[: merges(topic).index(60)]
    assert 2 <= len(small) <= 3, "each takes what came meanwhile, and that is more each time"
    assert 4 <= small[0] <= 12, (
        "as soon as there are so many, but for what came while the long one was planned"
    )
    assert "was not made" not in caplog.text, (
        "a small merge is not interrupted by one of the same files"
    )
    assert len(seen_by_consumers(topic.store)) == 60 + 150


def test_files_added_during_a_long_listing_are_merged_before_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deltaq.maintenance.orphan_files.LISTED_AT_ONCE", 1)
    clock = ManualClock(auto_advance=True)
    topic = WrittenTopic(MemoryStore("test", clock), clock)
    for number in range(5):
        topic.store.put(f"topics/t/orphan-{number}.parquet", b"x")
    throttle, scanning = Writing(topic, NEW_VERSIONS, 0), OrphanFileRemover.scan

    def scan(remover: OrphanFileRemover) -> Work[int]:
        throttle.rounds = 1
        return scanning(remover)

    monkeypatch.setattr(OrphanFileRemover, "scan", scan)
    shared = topic.log.known
    done = TopicPass(topic.store, "t", topic.clock, SMALL, throttle, beside=shared).run()
    assert merges(topic) == [NEW_VERSIONS]
    assert done["files noted"] >= 5


@pytest.mark.parametrize("operation", ["put", "get"], ids=["its file", "its look at the log"])
def test_a_failed_small_merge_does_not_end_the_interrupted_large_one(
    topic: WrittenTopic, operation: str
) -> None:
    store = FaultyStore(topic.store)
    for number in range(8):
        topic.append(RowToWrite(b"%d" % number))
    shared = topic.log.known
    throttle = Writing(topic, NEW_VERSIONS, 1)
    work = TopicPass(store, "t", topic.clock, SMALL, throttle, beside=shared)
    newest = topic.log.version + NEW_VERSIONS
    key = {"put": "topics/*.parquet", "get": f"topics/t/_delta_log/{newest + 1:020d}.json"}[
        operation
    ]
    store.add(Rule(operation, key, Fault.error_before(), times=1))
    work.run(checkpoint=False)
    assert store.effects[Effect.ERROR_BEFORE] == 1
    assert merges(topic)[0] == 8
    assert len(seen_by_consumers(topic.store)) == 8 + NEW_VERSIONS


class Meddling(Writing):
    """Once the writer has committed, something happens to its new files at the next pause, in the
    merge of them.
    """

    def __init__(self, topic: WrittenTopic, meddle: Callable[[list[DataFile]], object]) -> None:
        super().__init__(topic, NEW_VERSIONS, 1)
        self._meddle: Callable[[list[DataFile]], object] | None = meddle

    def step(self) -> None:
        if not self.rounds and self._meddle is not None:
            meddle, self._meddle = self._meddle, None
            meddle(self._topic.files[-NEW_VERSIONS:])
        super().step()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stale plan", "a file is gone"])
def test_a_small_merge_with_stale_plan_does_not_end_the_interrupted_large_one(
    topic: WrittenTopic, how: str
) -> None:
    store = FaultyStore(topic.store)
    for number in range(8):
        topic.append(RowToWrite(b"%d" % number))

    def make_stale(files: list[DataFile]) -> None:
        log = topic.fresh_log()
        work = Rewriter(topic.store, log, topic.clock)
        finish(work.rewrite(FileRewrite(tuple(files), cut(files, log.live_head, 2**30))))

    def hide(files: list[DataFile]) -> None:
        store.add(Rule("get", files[-1].segment.key, Fault.missing(), times=1))

    shared = topic.log.known
    throttle = Meddling(topic, make_stale if how == "stale plan" else hide)
    work = TopicPass(store, "t", topic.clock, SMALL, throttle, beside=shared)
    work.run(checkpoint=False)
    assert merges(topic)[:2] == ([NEW_VERSIONS, 8] if how == "stale plan" else [8, NEW_VERSIONS])
    assert [value for *_, value, _ in seen_by_consumers(topic.store)] == [
        b"%d" % n for n in range(8)
    ] + ([b"new"] * NEW_VERSIONS)
    assert topic.stored() >= topic.live()


def test_stopping_during_a_small_merge_stops_the_large_one_too(topic: WrittenTopic) -> None:
    for number in range(8):
        topic.append(RowToWrite(b"%d" % number))
    before = topic.stored()

    def stop(_: list[DataFile]) -> None:
        raise Stopped

    shared = topic.log.known
    work = TopicPass(topic.store, "t", topic.clock, SMALL, Meddling(topic, stop), beside=shared)
    with pytest.raises(Stopped):
        work.run(checkpoint=False)
    assert merges(topic) == []
    assert topic.stored() == before | topic.live(), "nothing that was half done stays"


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_only_maintenance_that_shares_the_time_with_a_client_writes_files_in_pieces(
    tmp_path: Path, share: float
) -> None:
    in_pieces: list[str] = []

    class NotedStore(LocalStore):
        def put_in_pieces(self, key: str, data: bytes | memoryview) -> Generator[None, None, None]:
            in_pieces.append(key)
            return super().put_in_pieces(key, data)

    topic = WrittenTopic(NotedStore(str(tmp_path)))
    for number in range(8):
        topic.append(RowToWrite(b"%d" % number))
    done = TopicPass(topic.store, "t", topic.clock, SMALL, Throttle(topic.clock, share)).run()
    assert done["files merged"] == 8
    assert len(in_pieces) == (share < 1)


def test_a_merge_without_a_writer_beside_it_is_not_interrupted(topic: WrittenTopic) -> None:
    for number in range(8):
        topic.append(RowToWrite(b"%d" % number))
    TopicPass(topic.store, "t", topic.clock, SMALL, Writing(topic, NEW_VERSIONS, 1)).run()
    assert merges(topic)[0] == 8


def test_rows_of_expired_or_merged_files_leave_the_row_cache(topic: WrittenTopic) -> None:
    topic.append(RowToWrite(b"old", timestamp_ms=1), RowToWrite(b"old", timestamp_ms=1))
    for number in range(6):
        topic.append(RowToWrite(b"%d" % number))
    files = topic.files
    topic.maintain(merge_files=3)
    (newest,) = topic.append(RowToWrite(b"newest"))
    shared = topic.log.known
    kept = topic.row_cache
    assert all(kept.rows(file.path) is not None for file in [*files, newest])
    work = TopicPass(
        topic.store, "t", topic.clock, SMALL, Throttle(topic.clock), row_cache=kept, beside=shared
    )
    work.run(checkpoint=False)
    assert [file for file in [*files, newest] if kept.rows(file.path) is not None] == [newest]
    work.run()  # by now little is written
    assert kept.rows(newest.path) is None
