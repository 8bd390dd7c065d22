"""What the positions of one process share: entries are read once, values stay, and a writer misses
nothing of what it must know.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deltaq.delta.actions import Entry
from deltaq.delta.position import LogCleaned
from deltaq.delta.slot_proof import HEAD_PROOF_S
from deltaq.delta.table_state import TableState
from deltaq.errors import Corrupt, KafkaException, Unavailable
from deltaq.maintenance.checkpoint import write_checkpoint
from deltaq.names import log_entry, topic_log
from deltaq.store import LocalStore, MemoryStore, ObjectEntry, Store
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from deltaq.topics import view
from deltaq.topics.follower import Polled, topic_reader
from deltaq.topics.log import TopicLog
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.shared_files import WRITERS_MAX
from deltaq.topics.state import PendingSegment
from deltaq.topics.view import known_topic
from tests.doubles.written_topic import RowToWrite, WrittenTopic

FOREVER = 1e9
LOG = topic_log("t")


class Counted(FaultyStore):
    """The store as one process sees it: counts the reads of log entries, by version."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.read: Counter[int] = Counter()
        self.listed: list[str] = []

    def get(self, key: str, size_max: int | None = None) -> bytes:
        if key.startswith(LOG) and key.endswith(".json"):
            self.read[int(key.removeprefix(LOG).removesuffix(".json"))] += 1
        return super().get(key, size_max)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        self.listed.append(prefix)
        return super().list(prefix, start_after)


@pytest.fixture
def topic() -> WrittenTopic:
    """Of another process."""
    return WrittenTopic(MemoryStore("test"), ManualClock(auto_advance=True))


@pytest.fixture
def store(topic: WrittenTopic) -> Counted:
    return Counted(topic.store)


def of_process(store: Store, topic: WrittenTopic) -> TopicLog:
    """A further position of one process that has several in the topic."""
    return TopicLog(store, "t", topic.clock, known=known_topic(store, "t", topic.clock))


def append(log: TopicLog, topic: WrittenTopic, value: bytes = b"x") -> None:
    """As the sender: in its turn."""
    with log.known.turn:
        log.append([topic.upload(RowToWrite(value))].copy, log.live_head.topic_id, FOREVER)


def passed_by_a_checkpoint(
    store: Store, topic: WrittenTopic, entries: int
) -> tuple[TopicLog, PendingSegment]:
    """A writer with a shared file under way, and the file. Others have committed since, and another
    position of the process was loaded from a checkpoint of their last entry.
    """
    writer = of_process(store, topic)
    writer.load()
    shared = replace(topic.upload(RowToWrite(b"on its way")), as_of=writer.version)
    writer.pending_shared.expect(shared.path, shared.as_of)
    for number in range(entries):
        topic.append(RowToWrite(b"%d" % number))
    write_checkpoint(store, LOG, topic.log.state)
    of_process(store, topic).load()
    return writer, shared


def test_what_a_process_has_read_or_written_none_of_its_positions_reads_again(
    store: Counted, topic: WrittenTopic
) -> None:
    writer, other = of_process(store, topic), of_process(store, topic)
    reader = topic_reader(store, "t", topic.clock)
    writer.load()
    reader.open()
    other.load()
    for _ in range(5):
        append(writer, topic)
        topic.append(RowToWrite(b"of another process"))
        store.read.clear()
        assert reader.poll(reader.polls) is Polled.SHARED
        assert reader.version == writer.version
        while reader.poll(reader.polls) is not Polled.END:
            pass
        other.catch_up()
        append(writer, topic)
        assert store.read[writer.version - 1] == 1, "the one of the other process"
        assert store.read[writer.version - 2] == 0, "the own one"
        assert writer.index.files == topic.fresh_log().index.files
        assert reader.version == other.version == writer.version - 1


def test_an_entry_is_checked_once_although_writer_and_reader_meet_at_it(
    topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader may find an entry before its create has returned to the writer."""

    class Meeting(FaultyStore):
        def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
            super().create(key, data, after)
            if key.startswith(LOG):
                reader.poll(reader.polls)

    store = Meeting(topic.store)
    writer, reader = of_process(store, topic), topic_reader(store, "t", topic.clock)
    writer.load()
    reader.open()
    folded = Counter[int]()
    following = view.following

    def counted(before: view.TopicView, entry: Entry, *more: Any) -> view.TopicView:
        folded[entry.version] += 1
        return following(before, entry, *more)

    monkeypatch.setattr(view, "following", counted)
    for _ in range(3):
        append(writer, topic)
    topic.log.catch_up()
    assert [folded[version] for version in range(1, 4)] == [2, 2, 2], "once for the test's own log"
    assert writer.view is reader.view
    assert writer.index.files == topic.fresh_log().index.files


def test_one_entry_is_one_step_though_another_position_is_further(
    store: Counted, topic: WrittenTopic
) -> None:
    log, other = of_process(store, topic), of_process(store, topic)
    log.load()
    other.load()
    for _ in range(3):
        topic.append(RowToWrite(b"x"))
    other.catch_up()
    assert log.read_next() is not None
    assert log.version == 1
    assert log.read_following(2) == 2
    assert log.view is other.view


def test_another_entry_of_the_same_version_is_not_mistaken_for_the_next_one(
    store: Counted, topic: WrittenTopic
) -> None:
    """As of a log that was there before."""
    log, other = of_process(store, topic), of_process(store, topic)
    log.load()
    topic.append(RowToWrite(b"x"))
    other.load()
    newest = log.known.newest
    assert newest is not None
    table = replace(newest.state.table, txn_id="another")
    log.known.newest = replace(newest, state=replace(newest.state, table=table))
    assert log.read_next() is not None
    assert log.state.txn_id == other.state.txn_id
    assert log.view is not newest.state.view


def test_an_entry_that_another_position_knows_does_not_hide_a_shared_file(
    store: Counted, topic: WrittenTopic
) -> None:
    """The other one was loaded behind the file; this one reads each entry itself."""
    writer, shared = passed_by_a_checkpoint(store, topic, entries=1)
    assert writer.read_next() is not None
    assert writer.committed_by_peer([shared]) is None, "else it would be called unknown"


def test_a_value_that_a_position_holds_never_changes(store: Counted, topic: WrittenTopic) -> None:
    writer, reader = of_process(store, topic), topic_reader(store, "t", topic.clock)
    writer.load()
    append(writer, topic)
    reader.catch_up()
    view, table = reader.view, writer.state
    before = dict(view.index.files), view.last_head, dict(table.files), dict(view.history.writers)
    for _ in range(5):
        append(writer, topic)
        topic.append(RowToWrite(b"of another process"))
    writer.catch_up()
    after = dict(view.index.files), view.last_head, dict(table.files), dict(view.history.writers)
    assert before == after
    assert reader.view is view


def test_a_writer_reads_on_by_itself_while_a_shared_file_of_it_is_open(
    store: Counted, topic: WrittenTopic
) -> None:
    """A position that was loaded does not know which entry had which file."""
    writer, shared = passed_by_a_checkpoint(store, topic, entries=4)
    assert not writer.take_over()
    store.read.clear()
    writer.catch_up()
    assert [store.read[version] for version in range(1, 5)] == [1, 1, 1, 1]
    assert writer.committed_by_peer([shared]) is None, "else it would be called unknown"
    writer.pending_shared.forget(shared.path)
    topic.append(RowToWrite(b"later"))
    of_process(store, topic).load()
    assert writer.take_over()


def test_appends_of_others_are_counted_also_when_another_position_read_them(
    store: Counted, topic: WrittenTopic
) -> None:
    writer, other = of_process(store, topic), of_process(store, topic)
    writer.load()
    assert writer.others_since() == ({}, 0)
    append(writer, topic)
    append(writer, topic)
    for _ in range(3):
        topic.append(RowToWrite(b"of another process"))
    other.catch_up()
    assert writer.take_over()
    assert writer.others_since() == ({topic.log.writer: 3}, 3)
    assert writer.others_since() == ({}, 0)
    topic.append(RowToWrite(b"one more"))
    writer.catch_up()
    assert writer.others_since() == ({topic.log.writer: 1}, 1)
    write_checkpoint(store, LOG, topic.log.state)
    writer.load()
    assert writer.others_since() == ({}, 0), "nothing is known of the entries before"


def test_counts_begin_anew_when_too_many_writers_were_forgotten(
    store: Counted, topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert WRITERS_MAX > 3
    monkeypatch.setattr("deltaq.topics.shared_files.WRITERS_MAX", 3)
    writer = of_process(store, topic)
    writer.load()
    writer.others_since()
    for _ in range(5):
        other = topic.fresh_log()
        append(other, topic)
    writer.catch_up()
    assert writer.others_since() == ({}, 0)
    append(topic.fresh_log(), topic)
    writer.catch_up()
    counts, files = writer.others_since()
    assert (sum(counts.values()), files) == (1, 1)


def test_a_log_that_was_replaced_is_not_taken_over(store: Counted, topic: WrittenTopic) -> None:
    """Removed by hand, which only a writer or a load notices."""
    writer, other = of_process(store, topic), of_process(store, topic)
    other.load()
    for _ in range(4):
        topic.append(RowToWrite(b"x"))
    writer.load()
    for version in range(1, 5):
        store.delete(log_entry(LOG, version))
    writer.load()
    assert writer.version == 0
    assert not other.take_over()
    assert other.version == 0


def test_a_log_that_was_found_replaced_is_not_taken_over(
    store: Counted, topic: WrittenTopic
) -> None:
    writer, other = of_process(store, topic), of_process(store, topic)
    other.load()
    for _ in range(4):
        topic.append(RowToWrite(b"x"))
    writer.load()
    segments = [topic.upload(RowToWrite(b"y"))]
    topic_id = writer.live_head.topic_id
    for entry in list(topic.store.list("topics/")):
        topic.store.delete(entry.key)
    with pytest.raises(Corrupt):
        writer.append(segments.copy, topic_id, FOREVER)
    assert not other.take_over()


def test_what_was_read_of_a_log_half_way_is_not_taken_over(
    store: Counted, topic: WrittenTopic
) -> None:
    for _ in range(4):
        topic.append(RowToWrite(b"x"))
    log, other = of_process(store, topic), of_process(store, topic)
    store.add(Rule("get", f"*{3:020d}.json", Fault.error_before(), times=None))
    with pytest.raises(Unavailable):
        log.load()
    assert not other.take_over()
    store.clear()
    log.load()
    assert other.take_over()
    assert other.index.files == topic.fresh_log().index.files


def test_an_end_that_was_not_checked_is_not_taken_for_checked(
    store: Counted, topic: WrittenTopic
) -> None:
    log, other = of_process(store, topic), of_process(store, topic)
    log.load(to_end=False)
    assert log.is_end_open
    assert other.take_over()
    assert other.is_end_open
    other.catch_up()
    assert not other.is_end_open


def test_a_proof_is_taken_over_with_the_position(store: Counted, topic: WrittenTopic) -> None:
    """Else each position would list the markers of log clean-up by itself."""
    log, other = of_process(store, topic), of_process(store, topic)
    log.load()
    assert other.take_over()
    store.listed.clear()
    assert other.read_next() is None
    assert not any("log_start" in prefix for prefix in store.listed)
    topic.clock.sleep(2 * HEAD_PROOF_S)
    topic.append(RowToWrite(b"x"))
    log.catch_up()
    assert other.take_over()
    store.listed.clear()
    assert other.read_next() is None
    assert not any("log_start" in prefix for prefix in store.listed), "as far as it was loaded"


def test_a_shared_file_does_not_keep_its_writer_from_entries_read_since_one_by_one(
    store: Counted, topic: WrittenTopic
) -> None:
    writer, other = of_process(store, topic), of_process(store, topic)
    topic.append(RowToWrite(b"x"))
    write_checkpoint(store, LOG, topic.fresh_log().state)
    writer.load()
    other.load()
    assert writer.view.history.followed == writer.version == 1
    shared = replace(topic.upload(RowToWrite(b"on its way")), as_of=writer.version)
    writer.pending_shared.expect(shared.path, shared.as_of)
    topic.append(RowToWrite(b"y"))
    other.catch_up()
    assert writer.take_over()


def test_entries_that_were_taken_over_do_not_vouch_for_those_before_them(tmp_path: Path) -> None:
    """`rm -rf` removes what it has listed; an entry that was created meanwhile survives."""
    clock = ManualClock(auto_advance=True)
    topic = WrittenTopic(LocalStore(str(tmp_path)), clock)
    store = Counted(topic.store)
    writer, reader = of_process(store, topic), of_process(store, topic)
    writer.load()
    reader.load()
    append(writer, topic)
    listed = list((tmp_path / "topics/t/_delta_log").glob("*.json"))
    topic.append(RowToWrite(b"of another process"))
    for path in listed:
        path.unlink()
    reader.catch_up()
    with pytest.raises(KafkaException, match="removed or replaced"):
        append(writer, topic)


def test_all_positions_load_a_log_that_one_of_them_found_replaced(
    store: Counted, topic: WrittenTopic
) -> None:
    writer, reader, idle = (of_process(store, topic) for _ in range(3))
    for _ in range(4):
        topic.append(RowToWrite(b"x"))
    writer.load()
    reader.load()
    segments = [topic.upload(RowToWrite(b"y"))]
    for version in range(2, 5):  # an older copy of the log takes its place
        topic.store.delete(log_entry(LOG, version))
    with pytest.raises(Corrupt):
        writer.append(segments.copy, writer.live_head.topic_id, FOREVER)
    writer.load()
    topic.log.load()
    for _ in range(4):
        topic.append(RowToWrite(b"z"))
    reader.catch_up()
    writer.catch_up()
    assert reader.index.files == writer.index.files == topic.fresh_log().index.files
    idle.load()
    append(idle, topic)  # it has lost nothing
    with pytest.raises(Corrupt, match="removed or replaced"):  # what it has written is lost, too
        append(reader, topic)
    append(reader, topic)
    append(writer, topic)


def test_a_position_that_reads_while_the_log_is_found_replaced_publishes_nothing(
    store: Counted, topic: WrittenTopic
) -> None:
    reader, other = of_process(store, topic), of_process(store, topic)
    reader.load()
    other.load()
    topic.append(RowToWrite(b"x"))
    read = store.get

    def late(key: str, size_max: int | None = None) -> bytes:
        found = read(key, size_max)
        reader.known.was_replaced()  # by another thread, between the read and its use
        return found

    store.get = late  # type: ignore[method-assign]
    assert reader.read_next() is not None
    assert reader.known.newest is None
    store.get = read  # type: ignore[method-assign]
    with pytest.raises(LogCleaned):
        reader.read_next()


def test_a_state_does_not_keep_those_before_it_alive(store: Counted, topic: WrittenTopic) -> None:
    def count() -> int:
        gc.collect()
        return sum(isinstance(found, TableState) for found in gc.get_objects())

    log = of_process(store, topic)
    log.load()
    before = count()
    for _ in range(50):
        append(log, topic)
    assert count() - before < 20


def test_maintenance_commits_only_in_its_turn(topic: WrittenTopic) -> None:
    known = topic.log.known
    turn: Any = known.turn
    in_turn: list[bool] = []

    class Noting(FaultyStore):
        def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
            if key.startswith(LOG):
                in_turn.append(turn.locked())
            super().create(key, data, after)

    log = MaintenanceLog(Noting(topic.store), "t", topic.clock, beside=known)
    log.catch_up()
    log.raise_min_upload_version(0, FOREVER)
    assert in_turn == [True]
    assert not turn.locked()


@pytest.mark.parametrize("interrupted", ["check", "after"])
def test_an_interrupt_between_two_steps_leaves_the_position_whole(
    store: Counted,
    topic: WrittenTopic,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: str,
) -> None:
    log = of_process(store, topic)
    log.load()
    topic.append(RowToWrite(b"x"))
    before = log.version, log.state.version

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"deltaq.delta.table_state.TableState.{interrupted}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.catch_up()
    assert (log.version, log.state.version) == before
    log.catch_up()
    assert (log.version, log.state.version) == (before[0] + 1, before[1] + 1)
    assert log.index.files == topic.fresh_log().index.files
