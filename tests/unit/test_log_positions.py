"""How one position in a topic's log follows another, and a log that others write on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deltaq.log.actions import Add
from deltaq.log.table import TableState
from deltaq.log.topic_log import TopicLog
from deltaq.log.topic_state import DataFile, data_file
from deltaq.store import MemoryStore
from deltaq.testing import ManualClock
from tests.doubles.written_topic import Row, WrittenTopic


@pytest.fixture
def topic() -> WrittenTopic:
    return WrittenTopic(MemoryStore("test"), ManualClock(auto_advance=True))


def position(topic: WrittenTopic) -> TopicLog:
    return TopicLog(topic.store, "t", topic.clock, indexed=True)


def state_of(topic: WrittenTopic) -> TableState:
    topic.log.catch_up()
    return topic.log.copied_state()


def test_a_position_that_is_taken_over_again_and_again_is_as_if_it_were_loaded(topic: WrittenTopic) -> None:
    follower = position(topic)
    for number in range(12):
        topic.append(Row(b"%d" % number), Row(b"x"))
        if number % 5 == 4:
            topic.maintain(merge_files=3)
        follower.adopt(state_of(topic))
        loaded = position(topic)
        loaded.load()
        assert (follower.version, follower.head) == (loaded.version, loaded.head)
        assert follower.index.files == loaded.index.files
        assert list(follower.index.batches(0)) == list(loaded.index.batches(0))


def test_of_a_position_that_is_taken_over_only_what_is_new_has_to_be_understood(
    topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    understood = []

    def counted(add: Add, folder: str) -> DataFile:
        understood.append(add.path)
        return data_file(add, folder)

    follower = position(topic)
    for number in range(3):
        topic.append(Row(b"%d" % number))
        state = state_of(topic)
        monkeypatch.setattr("deltaq.log.topic_log.data_file", counted)
        follower.adopt(state)
        monkeypatch.undo()
    assert len(understood) == 3
    assert len(follower.index.files) == 3


def test_a_file_that_is_described_anew_is_understood_anew(topic: WrittenTopic) -> None:
    topic.append(Row(b"x"))
    follower = position(topic)
    state = state_of(topic)
    follower.adopt(state.copy())
    ((path, add),) = state.files.items()
    state.files[path] = replace(add, modification_time=add.modification_time + 1)
    follower.adopt(state)
    assert follower.index.files[path].modified_ms == add.modification_time + 1


def test_who_catches_up_may_pause_after_each_entry_and_stop_there(topic: WrittenTopic) -> None:
    follower = position(topic)
    follower.load()
    for number in range(5):
        topic.append(Row(b"%d" % number))
    seen: list[int] = []

    def between() -> None:
        seen.append(follower.version)
        if len(seen) == 3:
            raise TimeoutError

    start = follower.version
    with pytest.raises(TimeoutError):
        follower.catch_up(between)
    assert seen == [start + 1, start + 2, start + 3]
    assert follower.catch_up(between)
    assert seen == list(range(start + 1, topic.log.version + 1))
