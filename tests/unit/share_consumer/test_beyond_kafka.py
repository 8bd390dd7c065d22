"""What share consumers do that Kafka's do not: loops, delays, and locks that begin anew."""

from __future__ import annotations

from typing import Any

import pytest

from deltaq import (
    IllegalStateException,
    KafkaError,
    KafkaException,
    Message,
    OutcomeUnknown,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from deltaq.serde.json_text import strict_json
from deltaq.testing import Fault, FaultyStore, Rule
from tests.doubles.sharing import ACCEPT, LOCK_S, REJECT, RENEW, ShareWorld, places

T = TopicPartition("t", 0)
WRITTEN = Fault.error_after()


@pytest.fixture
def shared() -> ShareWorld:
    return ShareWorld()


# --- loops ---


@pytest.mark.parametrize("explicit", [False, True])
def test_a_message_is_accepted_when_the_body_ends(shared: ShareWorld, explicit: bool) -> None:
    shared.fill(3)
    found = []
    with shared.consumer(explicit=explicit) as consumer:
        for message in consumer:
            found.append(message.value())
            if len(found) == 3:
                consumer.commit_sync()
                consumer.acknowledge(message) if explicit else None
                break
    assert found == [b"v0", b"v1", b"v2"]
    with shared.consumer() as consumer:
        assert places(consumer.poll(0)) == []


def test_a_message_whose_body_raises_is_released_with_those_behind_it(shared: ShareWorld) -> None:
    shared.fill(4)
    with shared.consumer() as consumer:
        with pytest.raises(ZeroDivisionError):
            divide_by_the_offset(consumer)
        assert places(consumer.poll(0)) == [(2, 1), (3, 1)]
        shared.clock.advance(1)
        assert places(consumer.poll(0)) == [(1, 2)]


def test_a_message_whose_body_raises_again_and_again_waits_longer_each_time(
    shared: ShareWorld,
) -> None:
    shared.fill(2)
    shared.set(share_delivery_count_limit=20)
    with shared.consumer() as consumer:
        for wait_s in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600):
            with pytest.raises(ZeroDivisionError):
                divide_by_the_offset(consumer)
            assert consumer.poll(0).is_empty()
            shared.clock.advance(wait_s - 0.1)
            assert consumer.poll(0).is_empty()
            shared.clock.advance(0.1)


def divide_by_the_offset(consumer: ShareConsumer) -> None:
    for message in consumer:
        _ = 1 // (1 - (message.offset() or 0))


def test_the_body_may_decide_itself(shared: ShareWorld) -> None:
    shared.fill(3)
    with shared.consumer(explicit=True) as consumer:
        for message in consumer:
            if message.offset() == 0:
                consumer.acknowledge(message, REJECT)
            elif message.offset() == 1:
                consumer.release(message)
            else:
                consumer.acknowledge(message, ACCEPT)
                break
        assert places(consumer.poll(0)) == [(1, 2)]


def test_a_message_whose_lock_is_over_before_its_turn_is_not_yielded(shared: ShareWorld) -> None:
    shared.fill(3)
    found = []
    with shared.consumer() as consumer:
        for message in consumer:
            found.append((message.offset(), message.delivery_count()))
            shared.clock.advance(LOCK_S)
            if len(found) == 3:
                break
    assert found == [(0, 1), (1, 1), (2, 1)]


def test_a_loop_takes_what_its_body_is_done_with_in_time(shared: ShareWorld) -> None:
    """No message of a slow loop waits for so long that its lock ends."""
    shared.fill(40)
    found = []
    with shared.consumer() as consumer:
        for message in consumer:
            found.append((message.offset(), message.delivery_count()))
            assert consumer._returned.undecided <= 2
            shared.clock.advance(LOCK_S / 4)
            if len(found) == 40:
                break
    assert found == [(offset, 1) for offset in range(40)]


def test_what_waits_for_half_of_its_lock_is_given_back(shared: ShareWorld) -> None:
    shared.fill(4)
    found = []
    with shared.consumer() as consumer:
        consumer._pace.records = 4
        for message in consumer:
            found.append((message.offset(), message.delivery_count()))
            shared.clock.advance(LOCK_S / 4 + 1)
            if len(found) == 2:
                with shared.consumer() as other:
                    assert other.poll(0).is_empty()
            if len(found) == 4:
                break
    assert found == [(offset, 1) for offset in range(4)]


def test_a_loop_takes_more_each_time_and_one_at_first(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.fill(60)
    taken: list[int] = []
    with shared.consumer(max_poll_records=10) as consumer:
        receive = consumer.poll

        def poll(timeout: float) -> Any:
            messages = receive(timeout)
            taken.append(len(messages))
            return messages

        monkeypatch.setattr(consumer, "poll", poll)
        for message in consumer:
            if message.offset() == 34:
                shared.clock.advance(LOCK_S / 2)
            if message.offset() == 40:
                break
        assert taken == [1, 2, 4, 8, 10, 10, 6]
        # Other calls take as many as ever.
        assert len(receive(0)) == 10


def test_what_close_in_a_body_finds_waiting_was_not_delivered(shared: ShareWorld) -> None:
    shared.fill(3)
    with shared.consumer() as consumer:
        consumer._pace.records = 3
        for message in consumer:
            assert message.offset() == 0
            consumer.close()
    with shared.consumer() as other:
        assert places(other.poll(0)) == [(0, 2), (1, 1), (2, 1)]


def test_the_callback_hears_of_what_was_yielded_only(shared: ShareWorld) -> None:
    shared.fill(3)
    heard: list[Any] = []
    with shared.consumer() as consumer:
        consumer.set_acknowledgement_commit_callback(lambda offsets, error: heard.append(offsets))
        consumer._pace.records = 3
        for _ in consumer:
            break
        assert consumer.commit_sync() == {T: None}
        assert heard == [{T: {0}}]


def test_statistics_count_what_was_yielded_and_decided(shared: ShareWorld) -> None:
    shared.fill(5)
    texts: list[str] = []
    with shared.consumer(stats_cb=texts.append, statistics_interval_ms=1000) as consumer:
        consumer._pace.records = 4
        for message in consumer:
            if message.offset() == 1:
                break
        consumer.commit_sync()
        shared.clock.advance(1)
        consumer.poll(0)
        stats: Any = strict_json(texts[-1])
    assert stats["rxmsgs"] == 2
    assert stats["acknowledgements"] == {"accept": 1, "release": 1}


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_message_in_its_last_delivery_is_alone_in_a_loop(partitions: int) -> None:
    """Else one that ends its worker each time would take those with it that are taken with it."""
    shared = ShareWorld(partitions=partitions)
    shared.set(share_delivery_count_limit=2)
    for number in range(3):
        shared.fill(1, partition=number % partitions)
    with shared.consumer(explicit=True) as consumer:
        messages = consumer.poll(0)
        for message in messages:
            consumer.release(message)
        consumer.commit_sync()
        shared.fill(1)
        consumer._pace.records = 8
        found = []
        for message in consumer:
            found.append((message.delivery_count(), consumer._returned.undecided))
            if len(found) == 4:
                break
    assert found == [(2, 1), (2, 1), (2, 1), (1, 1)]


def test_messages_for_later_and_gaps_are_passed_at_a_growing_pace(shared: ShareWorld) -> None:
    producer = Producer(
        bootstrap_servers="memory://shared", store=shared.store, maintenance_enable=False
    )
    with producer:
        for _ in range(500):
            producer.produce("t", b"later", deliver_at=shared.clock.time_ms() / 1000 + 3600)
        producer.produce("t", b"now")
    before = shared.log().read().table.version
    with shared.consumer() as consumer:
        assert next(iter(consumer)).offset() == 500
        assert shared.log().read().table.version - before < 15


def test_a_damaged_file_ends_a_loop_as_often_as_a_poll(shared: ShareWorld) -> None:
    shared.fill(100)
    (key,) = [entry.key for entry in shared.store.list("topics/t/") if "parquet" in entry.key]
    shared.store.put(key, shared.store.get(key)[:-9] + b"x" * 9)
    shared.fill(1, start=100)
    errors = 0
    with shared.consumer() as consumer:
        while True:
            try:
                message = next(iter(consumer))
                break
            except KafkaException:
                errors += 1
    assert (message.offset(), errors) == (100, 1)


def test_a_loop_in_a_forked_child_raises(shared: ShareWorld) -> None:
    consumer = shared.consumer()
    consumer._calls.close("this ShareConsumer was created before the process forked")
    with pytest.raises(IllegalStateException, match="forked"):
        next(iter(consumer))


def test_a_poll_in_the_body_gives_back_what_waits(shared: ShareWorld) -> None:
    shared.fill(3)
    found = []
    with shared.consumer() as consumer:
        consumer._pace.records = 2
        for message in consumer:
            found.append(message.offset())
            if len(found) == 1:
                found += [each.offset() for each in consumer.poll(0)]
            if len(found) > 2:
                break
        consumer.commit_sync()
    assert found == [0, 1, 2]


def test_a_body_that_renews_a_lock_has_decided_nothing(shared: ShareWorld) -> None:
    shared.fill(2)
    with shared.consumer(explicit=True) as consumer:
        for message in consumer:
            consumer.acknowledge(message, RENEW)
            if message.offset() == 1:
                break
        assert consumer.poll(0).is_empty()
        shared.clock.advance(1)
        (message,) = consumer.poll(0)
        assert places([message]) == [(1, 2)]
        consumer.acknowledge(message)


def test_a_loop_raises_events_and_ends_with_its_consumer(shared: ShareWorld) -> None:
    shared.fill(1)
    (key,) = [entry.key for entry in shared.store.list("topics/t/") if "parquet" in entry.key]
    content = shared.store.get(key)
    shared.store.put(key, content[:-9] + b"x" * 9)
    with shared.consumer() as consumer:
        with pytest.raises(KafkaException):
            next(iter(consumer))
        shared.store.put(key, content)
        shared.clock.advance(1)
        for message in consumer:
            assert message.delivery_count() == 2
            consumer.close()


# --- delays ---


@pytest.mark.parametrize("explicit", [False, True])
def test_a_released_message_comes_again_after_its_delay(shared: ShareWorld, explicit: bool) -> None:
    shared.fill(3)
    with shared.consumer(explicit=explicit) as consumer:
        first, second, third = consumer.poll(0)
        consumer.release(first, delay=60)
        consumer.release(second)
        if explicit:
            consumer.acknowledge(third)
        assert places(consumer.poll(0)) == [(1, 2)]
        consumer.release(Message("t", 0, 1), delay=30)
        assert consumer.poll(0).is_empty()
        shared.clock.advance(30)
        assert places(consumer.poll(0)) == [(1, 3)]
        if explicit:
            consumer.acknowledge_offset("t", 0, 1)
        shared.clock.advance(30)
        assert places(consumer.poll(0)) == [(0, 2)]


def test_a_later_decision_takes_the_delay_back(shared: ShareWorld) -> None:
    shared.fill(1)
    with shared.consumer(explicit=True) as consumer:
        (message,) = consumer.poll(0)
        consumer.release(message, delay=60)
        consumer.acknowledge(message, ACCEPT)
        consumer.commit_sync()
    assert [state.start for state in shared.states()] == [1]


def test_a_delayed_message_holds_up_no_other(shared: ShareWorld) -> None:
    shared.set(share_partition_max_record_locks=2)
    shared.fill(6)
    with shared.consumer(max_poll_records=2) as consumer:
        consumer.release(consumer.poll(0)[0], delay=3600)
        found = [places(consumer.poll(0)) for _ in range(4)]
    assert found == [[(2, 1)], [(3, 1)], [(4, 1)], [(5, 1)]]


@pytest.mark.parametrize("delay", [-1, float("inf"), float("nan"), None])
def test_a_bad_delay_is_refused(shared: ShareWorld, delay: Any) -> None:
    shared.fill(1)
    with shared.consumer() as consumer:
        (message,) = consumer.poll(0)
        with pytest.raises(ValueError, match="seconds"):
            consumer.release(message, delay)


# --- renewals ---


def test_a_renewed_lock_lasts_as_long_again(shared: ShareWorld) -> None:
    shared.fill(2)
    with shared.consumer(explicit=True) as slow, shared.consumer() as watcher:
        first, second = slow.poll(0)
        watcher.poll(0)
        shared.clock.advance(LOCK_S - 1)
        slow.renew(first)
        watcher.poll(0)
        shared.clock.advance(1)
        assert places(watcher.poll(0)) == [(1, 2)]
        shared.clock.advance(LOCK_S - 2)
        assert watcher.poll(0).is_empty()
        slow.acknowledge(first)
        slow.acknowledge(second)
        (result,) = slow.commit_sync().values()
        assert isinstance(result, KafkaException)
    assert [state.start for state in shared.states()] == [2]


def test_a_lock_that_was_over_cannot_be_renewed(shared: ShareWorld) -> None:
    shared.fill(1)
    with shared.consumer() as slow, shared.consumer() as watcher:
        (message,) = slow.poll(0)
        watcher.poll(0)
        shared.clock.advance(LOCK_S)
        assert len(watcher.poll(0)) == 1
        with pytest.raises(KafkaException, match="lock was over") as refused:
            slow.renew(message)
        assert refused.value.error == KafkaError.INVALID_RECORD_STATE


def test_only_a_message_that_is_not_acknowledged_is_renewed_or_released(
    shared: ShareWorld,
) -> None:
    shared.fill(1)
    with shared.consumer() as consumer:
        (message,) = consumer.poll(0)
        consumer.commit_sync()
        with pytest.raises(IllegalStateException, match="acknowledged already"):
            consumer.renew(message)
        with pytest.raises(IllegalStateException, match="acknowledged already"):
            consumer.release(message)


def renew_in_doubt(
    shared: ShareWorld, fault: Fault = WRITTEN, mode: str = "implicit"
) -> tuple[ShareConsumer, Message]:
    """A consumer that has taken a message, and does not know whether it has renewed its lock."""
    shared.fill(1)
    failing = FaultyStore(shared.store)
    consumer = ShareConsumer(
        {
            "bootstrap.servers": "memory://shared",
            "group.id": "g",
            "share.acknowledgement.mode": mode,
        },
        store=failing,
        clock=shared.clock,
    )
    consumer.subscribe(["t"])
    (message,) = consumer.poll(0)
    failing.add(
        Rule("create", "groups/*", fault, times=None),
        Rule("get", "groups/*", Fault.error_before(), nth=2, times=None),
    )
    with pytest.raises(OutcomeUnknown):
        consumer.renew(message, timeout=0.1)
    failing.clear()
    return consumer, message


@pytest.mark.parametrize("fault", [Fault.error_before(), WRITTEN], ids=["no", "yes"])
def test_a_renewal_of_unknown_outcome_is_resolved_by_the_next_call(
    shared: ShareWorld, fault: Fault
) -> None:
    consumer, message = renew_in_doubt(shared, fault)
    with consumer:
        assert consumer.poll(0).is_empty()  # it renews the lock, or finds that it was
        assert len(renewals(shared)) == 1
        consumer.renew(message)
        assert len(renewals(shared)) == 2
        assert list(consumer.commit_sync().values()) == [None]
    assert [state.start for state in shared.states()] == [1]


def test_a_renewal_after_one_in_doubt_begins_the_lock_anew(shared: ShareWorld) -> None:
    consumer, message = renew_in_doubt(shared)
    with consumer:
        consumer.renew(message)
        assert len(renewals(shared)) == 2


def renewals(shared: ShareWorld) -> set[int]:
    """The entries after the first one by which the record was locked, as far as they are kept."""
    found = set()
    for entry in shared.store.list("groups/g/_delta_log/"):
        for line in shared.store.get(entry.key).splitlines():
            action: Any = strict_json(line.decode())
            body = action.get("domainMetadata", {})
            if body.get("domain", "").startswith("deltaq.share."):
                partition: Any = strict_json(body["configuration"])
                found |= {numbers[4] for numbers in partition["spans"] if numbers[1] == 1}
    return found - {min(found)}


def test_a_renewed_message_is_still_to_be_acknowledged(shared: ShareWorld) -> None:
    shared.fill(3)
    heard: list[tuple[list[int], bool]] = []
    with shared.consumer(explicit=True, max_poll_records=2) as consumer:
        consumer.set_acknowledgement_commit_callback(
            lambda offsets, error: heard.append((sorted(offsets[T]), error is None))
        )
        done, slow = consumer.poll(0)
        consumer.acknowledge(done)
        consumer.acknowledge(slow, RENEW)
        assert places(consumer.poll(0)) == [(2, 1)]
        assert heard == [([0, 1], True)]
        with pytest.raises(IllegalStateException, match="2 records"):
            consumer.poll(0)
        consumer.acknowledge(slow, RENEW)
        consumer.acknowledge(slow)  # decided again before it was written
        consumer.commit_sync()
        with pytest.raises(IllegalStateException, match="acknowledged already"):
            consumer.acknowledge(slow)
    assert [(state.start, state.undecided) for state in shared.states()] == [(2, 1)]


def test_a_decision_that_follows_a_renewal_in_doubt_stays(shared: ShareWorld) -> None:
    consumer, message = renew_in_doubt(shared, mode="explicit")
    with consumer:
        consumer.acknowledge(message)
        consumer.commit_sync()
    assert [(state.start, state.end) for state in shared.states()] == [(1, 1)]
