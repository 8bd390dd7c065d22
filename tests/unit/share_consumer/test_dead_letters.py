"""Dead letters: what they say, when they are written, and that each is written once."""

from __future__ import annotations

from typing import Any

import pytest

from deltaq import (
    InvalidConfig,
    Message,
    Producer,
    ShareConsumer,
)
from deltaq.admin import NewTopic
from deltaq.share_groups import dead_letters
from deltaq.share_groups.dead_letters import HEADER
from deltaq.topics.upload import upload_segment
from tests.doubles.groups import FOREVER
from tests.doubles.killed_store import Killed, KilledStore, kills
from tests.doubles.sharing import LOCK_S, REJECT, ShareWorld, places

DEAD = "dlq.t"


@pytest.fixture
def shared() -> ShareWorld:
    shared = ShareWorld()
    shared.set(errors_deadletterqueue_topic_name=DEAD, share_delivery_count_limit=2)
    return shared


def letters(shared: ShareWorld) -> list[Message]:
    """All dead letters, in their order."""
    return shared.read_all(DEAD)


def about(letter: Message) -> dict[str, str]:
    """The headers of a dead letter that say what it is."""
    return {
        name.removeprefix(HEADER): (value or b"").decode()
        for name, value in letter.headers() or ()
        if name.startswith(HEADER)
    }


def reject(shared: ShareWorld, error: Any = None) -> None:
    """Reject all that can be taken."""
    with shared.consumer() as consumer:
        for message in consumer.poll(0):
            consumer.reject(message, error)


def test_a_rejected_message_is_written_to_the_dead_letter_topic(shared: ShareWorld) -> None:
    shared.fill(2)
    with shared.consumer(explicit=True) as consumer:
        first, second = consumer.poll(0)
        consumer.acknowledge(first)
        consumer.acknowledge(second, REJECT)
        consumer.poll(0)
        assert places(consumer.poll(0)) == []
        (letter,) = letters(shared)
        topic_id = str(second.topic_id)  # type: ignore[attr-defined] # a SharedMessage
        assert about(letter) == {
            "topic": "t",
            "topic.id": topic_id,
            "partition": "0",
            "offset": "1",
            "group": "g",
            "delivery.count": "1",
            "message": "Offset rejected by client.",
        }
        assert (letter.key(), letter.value()) == (None, None)
        assert [(state.start, state.end) for state in shared.states()] == [(2, 2)]


def test_a_message_that_was_delivered_too_often_is_written_with_the_last_error(
    shared: ShareWorld,
) -> None:
    shared.fill(1)
    with shared.consumer() as consumer:
        for number in range(2):
            (message,) = consumer.poll(0)
            consumer.release(message, error=OSError(f"full {number}\n"))
    (letter,) = letters(shared)
    assert about(letter)["message"] == "Offset delivery count exceeded the threshold."
    assert about(letter)["exception"] == "OSError: full 1\\n"
    assert about(letter)["delivery.count"] == "2"


def fail_at_the_first(shared: ShareWorld) -> None:
    with shared.consumer() as consumer:
        for message in consumer:
            assert message.offset() == 0
            raise OSError("mailbox full")


def test_the_exception_that_leaves_a_loop_and_the_consumer_is_in_the_dead_letter(
    shared: ShareWorld,
) -> None:
    shared.fill(1)
    for _ in range(2):
        with pytest.raises(OSError, match="mailbox full"):
            fail_at_the_first(shared)
        shared.clock.advance(1)
    assert [about(letter)["exception"] for letter in letters(shared)] == ["OSError: mailbox full"]


def test_messages_behind_one_that_fails_do_not_become_dead_letters(shared: ShareWorld) -> None:
    shared.fill(3)
    for _ in range(2):
        with pytest.raises(OSError, match="mailbox full"):
            fail_at_the_first(shared)
        shared.clock.advance(1)
    assert [about(letter)["offset"] for letter in letters(shared)] == ["0"]
    with shared.consumer() as consumer:
        assert places(consumer.poll(0)) == [(1, 1), (2, 1)]


def test_what_the_lock_of_a_dead_worker_leaves_is_written_by_another(shared: ShareWorld) -> None:
    shared.fill(1)
    with shared.consumer() as one, shared.consumer() as two:
        assert places(one.poll(0)) == [(0, 1)]
        two.poll(0)
        shared.clock.advance(LOCK_S)
        assert places(two.poll(0)) == [(0, 2)]
        with shared.consumer() as three:
            three.poll(0)
            shared.clock.advance(LOCK_S)
            three.poll(0)
            three.poll(0)
        assert [about(letter)["delivery.count"] for letter in letters(shared)] == ["2"]


def test_a_dead_letter_has_the_record_if_the_group_says_so(shared: ShareWorld) -> None:
    shared.set(errors_deadletterqueue_copy_record_enable="true")
    with Producer(bootstrap_servers="memory://shared", store=shared.store) as producer:
        producer.produce("t", "value", key="key", headers={"trace": b"7"})
    reject(shared)
    (letter,) = letters(shared)
    assert (letter.key(), letter.value()) == (b"key", b"value")
    assert (letter.headers() or [])[0] == ("trace", b"7")


def test_a_record_that_cannot_be_read_leaves_a_dead_letter_without_it(shared: ShareWorld) -> None:
    shared.set(errors_deadletterqueue_copy_record_enable="true")
    shared.fill(1)
    with shared.consumer() as consumer:
        (message,) = consumer.poll(0)
        consumer.reject(message)
        consumer.commit_sync()
        (key,) = [entry.key for entry in shared.store.list("topics/t/") if "parquet" in entry.key]
        shared.store.put(key, b"damaged")
        with shared.consumer("other") as other:
            other.poll(0)
            other.poll(0)
    assert [letter.value() for letter in letters(shared)] == [None]


def test_dead_letters_go_to_the_partition_of_their_record(shared: ShareWorld) -> None:
    shared.partitions = 3
    with shared.admin() as admin:
        admin.create_topics([NewTopic("many", 5), NewTopic(DEAD, 2)])[DEAD].result(20)
    shared.fill(1, partition=3, topic="many")
    with shared.consumer("many") as consumer:
        for message in consumer.poll(0):
            consumer.reject(message)
    assert [letter.partition() for letter in letters(shared)] == [1]


def test_dead_letters_of_dead_letters_are_not_written(shared: ShareWorld) -> None:
    shared.fill(1)
    reject(shared)
    with shared.consumer(DEAD) as consumer:
        (letter,) = consumer.poll(0)
        consumer.reject(letter)
    assert len(letters(shared)) == 1
    assert [(state.start, state.end) for state in shared.states()] == [(1, 1), (1, 1)]


def test_without_its_topic_a_group_archives_what_awaits_it(shared: ShareWorld) -> None:
    shared.fill(1)
    with shared.consumer() as consumer:
        (message,) = consumer.poll(0)
        consumer.reject(message)
        consumer.commit_sync()
        assert shared.states()[0].start == 0
        shared.set(errors_deadletterqueue_topic_name="")
        with shared.consumer() as other:
            other.poll(0)
            other.poll(0)
        assert shared.states()[0].start == 1
    assert letters(shared) == []


def test_a_topic_that_cannot_hold_dead_letters_is_named(shared: ShareWorld) -> None:
    with shared.admin() as admin:
        compacted = NewTopic(DEAD, 1, config={"cleanup.policy": "compact"})
        admin.create_topics([compacted])[DEAD].result(20)
    shared.fill(1)
    with pytest.raises(InvalidConfig, match=r"dlq\.t.*needs a key"):
        reject(shared)


# --- once ---


def test_a_worker_that_is_killed_at_any_write_neither_loses_nor_doubles_dead_letters() -> None:
    worlds: list[ShareWorld] = []

    def run(number: int, is_done: bool) -> bool:
        shared = ShareWorld()
        shared.set(errors_deadletterqueue_topic_name=DEAD, share_delivery_count_limit=2)
        shared.fill(3)
        worlds.append(shared)
        killed = KilledStore(shared.store, shared.clock, number, is_done=is_done)
        worker = ShareConsumer(
            {"bootstrap.servers": "memory://shared", "group.id": "g", "maintenance.enable": False},
            store=killed,
            clock=shared.clock,
        )
        worker.subscribe(["t"])
        try:
            for _ in range(4):
                for message in worker.poll(0):
                    worker.reject(message)
            worker.close()
        except Killed:
            return True
        return False

    count = 0
    for _ in kills(run):
        count += 1
        shared = worlds.pop()
        with shared.consumer() as other:
            for wait_s in (0, LOCK_S, 0, 0):
                shared.clock.advance(wait_s)
                for message in other.poll(0):
                    other.reject(message)
        assert [about(letter)["offset"] for letter in letters(shared)] == ["0", "1", "2"]
        assert [(state.start, state.end) for state in shared.states()] == [(3, 3)]
    assert count == 2 * 6, "three entries of the group, the topic, its records and their entry"


def test_a_worker_that_has_read_less_writes_nothing_again(shared: ShareWorld) -> None:
    shared.fill(2)
    with shared.consumer(max_poll_records=1) as one, shared.consumer() as two:
        (message,) = one.poll(0)
        one.reject(message)
        one.commit_sync()
        stale = two._log.read()
        (message,) = one.poll(0)
        one.reject(message)
        one.commit_sync()
        newest = one._dead_letters.publish(one._log.read(), FOREVER)
        assert two._dead_letters.publish(stale, FOREVER) == newest
    assert [about(letter)["offset"] for letter in letters(shared)] == ["0", "1"]


def test_a_worker_that_loses_the_race_writes_only_what_is_left(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.fill(2)
    with shared.consumer(max_poll_records=1) as one, shared.consumer() as two:
        (message,) = one.poll(0)
        one.reject(message)
        one.commit_sync()
        first, others = two._log.read(), [1]
        monkeypatch.setattr(one._dead_letters, "publish", lambda *_: -1)
        (message,) = one.poll(0)
        one.reject(message)
        one.commit_sync()

        def after_another(*arguments: Any, **keywords: Any) -> Any:
            if others:
                others.clear()
                two._dead_letters.publish(first, FOREVER)
            return upload_segment(*arguments, **keywords)

        monkeypatch.setattr("deltaq.topics.append_once.upload_segment", after_another)
        two._dead_letters.publish(two._log.read(), FOREVER)
    assert [about(letter)["offset"] for letter in letters(shared)] == ["0", "1"]


def test_many_dead_letters_are_written_by_several_entries(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_AT_ONCE", 3)
    shared.fill(8)
    with shared.consumer(explicit=True) as consumer:
        counts = []
        messages = consumer.poll(0)
        for first in range(0, 8, 2):
            for message in messages[first : first + 2]:
                consumer.reject(message)
            consumer.commit_sync()
        for _ in range(3):
            consumer._dead_letters.publish(consumer._log.read(), FOREVER)
            counts.append(len(letters(shared)))
    assert counts == [4, 8, 8]


def test_a_topic_that_was_created_again_gets_what_is_not_archived(shared: ShareWorld) -> None:
    shared.fill(1)
    reject(shared)
    with shared.admin() as admin:
        admin.delete_topics([DEAD])[DEAD].result(20)
    shared.fill(1, start=1)
    reject(shared)
    assert [about(letter)["offset"] for letter in letters(shared)] == ["1"]


# --- floods ---


def test_a_flood_of_dead_letters_stops_the_taking_for_the_rest_of_the_minute(
    shared: ShareWorld,
) -> None:
    shared.fill(10)
    shared.set(errors_deadletterqueue_max_per_minute=3)
    with shared.consumer(max_poll_records=2) as consumer:
        taken = []
        for _ in range(6):
            messages = consumer.poll(0)
            taken.append(len(messages))
            for message in messages:
                consumer.reject(message)
        assert taken == [2, 2, 0, 0, 0, 0]
        shared.clock.advance(60)
        assert len(consumer.poll(0)) == 2
    assert len(letters(shared)) == 4
