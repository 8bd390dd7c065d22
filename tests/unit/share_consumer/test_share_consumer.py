"""Share consumers: what is delivered, how often, and what acknowledgements change. The expected
results are those of confluent-kafka 2.16.1 with Apache Kafka 4.4, unless a test says otherwise.
"""

from __future__ import annotations

from typing import Any

import pytest

from deltaq import (
    Consumer,
    IllegalStateException,
    InvalidConfig,
    KafkaError,
    KafkaException,
    Message,
    OutcomeUnknown,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from deltaq.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from deltaq.config.group import duration_ms
from deltaq.testing import Fault, FaultyStore, Rule
from tests.doubles.sharing import ACCEPT, LOCK_S, REJECT, RELEASE, ShareWorld, places

T = TopicPartition("t", 0)
OUTAGE = Rule("create", "groups/*", Fault.error_before(), times=None)


@pytest.fixture
def shared() -> ShareWorld:
    return ShareWorld()


# --- implicit mode ---


def test_messages_are_accepted_by_the_next_poll(shared: ShareWorld) -> None:
    shared.fill(5)
    with shared.consumer() as consumer:
        assert [message.value() for message in consumer.poll(0)] == [b"v%d" % n for n in range(5)]
        assert consumer.poll(0).is_empty()
    with shared.consumer() as consumer:
        assert consumer.poll(0).is_empty()


def test_messages_are_accepted_by_a_commit(shared: ShareWorld) -> None:
    shared.fill(2)
    with shared.consumer() as consumer:
        assert consumer.commit_sync() == {}
        assert places(consumer.poll(0)) == [(0, 1), (1, 1)]
        assert consumer.commit_sync() == {T: None}
        assert consumer.commit_sync() == {}
    with shared.consumer() as consumer:
        assert consumer.poll(0).is_empty()


def test_close_gives_back_what_no_later_call_has_accepted(shared: ShareWorld) -> None:
    shared.fill(2)
    with shared.consumer() as consumer:
        consumer.poll(0)
    with shared.consumer() as consumer:
        assert places(consumer.poll(0)) == [(0, 2), (1, 2)]


def test_acknowledging_one_message_needs_explicit_mode(shared: ShareWorld) -> None:
    shared.fill(1)
    with shared.consumer() as consumer:
        (message,) = consumer.poll(0)
        with pytest.raises(IllegalStateException, match="explicit"):
            consumer.acknowledge(message)


# --- explicit mode ---


def test_each_message_is_decided_by_itself(shared: ShareWorld) -> None:
    shared.fill(4)
    with shared.consumer(explicit=True) as consumer:
        messages = consumer.poll(0)
        consumer.acknowledge(messages[0])
        consumer.acknowledge(messages[1], RELEASE)
        consumer.acknowledge(messages[2], REJECT)
        consumer.acknowledge_offset("t", 0, 3, ACCEPT)
        assert consumer.commit_sync() == {T: None}
        assert places(consumer.poll(0)) == [(1, 2)]


def test_all_messages_must_be_acknowledged_before_the_next_poll(shared: ShareWorld) -> None:
    shared.fill(3)
    with shared.consumer(explicit=True) as consumer:
        messages = consumer.poll(0)
        consumer.acknowledge(messages[0])
        consumer.commit_sync()
        with pytest.raises(IllegalStateException, match=r"^2 records from previous poll have not"):
            consumer.poll(0)


def test_the_last_of_several_acknowledgements_counts_until_it_is_written(
    shared: ShareWorld,
) -> None:
    shared.fill(1)
    with shared.consumer(explicit=True) as consumer:
        (message,) = consumer.poll(0)
        consumer.acknowledge(message, ACCEPT)
        consumer.acknowledge(message, RELEASE)
        consumer.commit_sync()
        with pytest.raises(IllegalStateException, match="acknowledged already"):
            consumer.acknowledge(message)
        assert places(consumer.poll(0)) == [(0, 2)]


def test_close_writes_what_is_decided_and_gives_back_the_rest(shared: ShareWorld) -> None:
    shared.fill(3)
    with shared.consumer(explicit=True) as consumer:
        messages = consumer.poll(0)
        consumer.acknowledge(messages[1])
    with shared.consumer() as consumer:
        assert places(consumer.poll(0)) == [(0, 2), (2, 2)]


def test_unsubscribing_keeps_what_was_returned(shared: ShareWorld) -> None:
    shared.fill(2)
    with shared.consumer(explicit=True) as consumer:
        messages = consumer.poll(0)
        consumer.unsubscribe()
        assert consumer.subscription() == []
        with pytest.raises(IllegalStateException, match="not subscribed"):
            consumer.poll(0)
        for message in messages:
            consumer.acknowledge(message)
        assert consumer.commit_sync() == {T: None}


# --- several consumers, and time ---


def test_two_consumers_share_one_partition(shared: ShareWorld) -> None:
    shared.fill(4)
    with shared.consumer(max_poll_records=2) as one, shared.consumer() as two:
        assert places(one.poll(0)) == [(0, 1), (1, 1)]
        assert places(two.poll(0)) == [(2, 1), (3, 1)]


def test_a_lock_ends_when_another_consumer_has_seen_it_for_its_duration(shared: ShareWorld) -> None:
    shared.fill(2)
    with shared.consumer(explicit=True) as slow, shared.consumer() as watcher:
        late = slow.poll(0)
        shared.clock.advance(1_000)  # no one has watched
        assert watcher.poll(0).is_empty()
        shared.clock.advance(LOCK_S - 0.1)
        assert watcher.poll(0).is_empty()
        shared.clock.advance(0.1)
        assert places(watcher.poll(0)) == [(0, 2), (1, 2)]
        for message in late:
            slow.acknowledge(message)
        (result,) = slow.commit_sync().items()
        assert result[0].error == KafkaError.INVALID_RECORD_STATE
        assert isinstance(result[1], KafkaException)
        assert watcher.commit_sync() == {T: None}


def test_an_acknowledgement_counts_as_long_as_no_one_else_has_taken_the_message(
    shared: ShareWorld,
) -> None:
    """Kafka's broker ends the lock by its own clock. Here the log decides."""
    shared.fill(1)
    with shared.consumer() as consumer:
        consumer.poll(0)
        shared.clock.advance(10 * LOCK_S)
        assert consumer.commit_sync() == {T: None}


def test_a_consumer_drops_what_it_took_if_it_was_suspended_for_a_whole_lock(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.fill(1)
    with shared.consumer() as consumer:
        exchange = consumer._log.exchange

        def suspended(*about: Any) -> Any:
            found = exchange(*about)
            shared.clock.suspend(LOCK_S)
            return found

        monkeypatch.setattr(consumer._log, "exchange", suspended)
        assert consumer.poll(0).is_empty()


def test_a_message_is_delivered_as_often_as_the_limit_says(shared: ShareWorld) -> None:
    shared.fill(1)
    with shared.consumer(explicit=True) as consumer:
        for number in range(1, 6):
            (message,) = consumer.poll(0)
            assert message.delivery_count() == number
            consumer.acknowledge(message, RELEASE)
        assert consumer.poll(0).is_empty()
    assert [state.start for state in shared.states()] == [1]


# --- settings of the group ---


def test_a_group_begins_with_new_records_by_default() -> None:
    shared = ShareWorld()
    shared.set(share_auto_offset_reset="latest")
    shared.fill(3)
    with shared.consumer() as consumer:
        assert consumer.poll(0).is_empty()
        shared.fill(1, start=3)
        assert places(consumer.poll(0)) == [(3, 1)]


@pytest.mark.parametrize(("ago", "expected"), [("PT1S", []), ("P50000D", [0, 1])])
def test_a_group_begins_by_duration(ago: str, expected: list[int]) -> None:
    shared = ShareWorld()
    shared.set(share_auto_offset_reset=f"by_duration:{ago}")
    with Producer(bootstrap_servers="memory://shared", store=shared.store) as producer:
        for _ in range(2):
            producer.produce("t", b"old", timestamp=1_600_000_000_000)
    with shared.consumer() as consumer:
        assert [message.offset() for message in consumer.poll(0)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("PT1H", 3_600_000), ("P1DT2H3M4.5S", 93_784_500), ("P2D", 172_800_000), ("PT0.001S", 1)],
)
def test_durations_are_those_of_iso_8601(text: str, expected: int) -> None:
    assert duration_ms(f"by_duration:{text}") == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.auto.offset.reset", "other"),
        ("share.auto.offset.reset", "by_duration:x"),
        ("share.auto.offset.reset", "by_duration:P"),
        ("share.auto.offset.reset", "by_duration:PT"),
        ("share.record.lock.duration.ms", "10"),
        ("share.delivery.count.limit", "0"),
        ("share.partition.max.record.locks", "0"),
        ("share.isolation.level", "foo"),
        ("share.foo", "1"),
        ("retention.ms", "1"),
    ],
)
def test_a_bad_setting_of_a_group_is_refused(shared: ShareWorld, name: str, value: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        shared.set(**{name: value})
    assert refused.value.error == KafkaError.INVALID_CONFIG


def test_the_number_of_undecided_records_is_limited(
    shared: ShareWorld, caplog: pytest.LogCaptureFixture
) -> None:
    shared.set(share_partition_max_record_locks=3)
    shared.fill(5)
    with shared.consumer(explicit=True) as one, shared.consumer() as two:
        messages = one.poll(0)
        assert places(messages) == [(0, 1), (1, 1), (2, 1)]
        assert two.poll(0).is_empty()
        assert "share.partition.max.record.locks" in caplog.text
        one.acknowledge(messages[1])
        one.commit_sync()
        assert places(two.poll(0)) == [(3, 1)]


# --- topics that change ---


def test_new_partitions_are_read_from_their_beginning(shared: ShareWorld) -> None:
    shared.set(share_auto_offset_reset="latest")
    with shared.consumer() as consumer:
        consumer.poll(0)
        with shared.admin() as admin:
            admin.create_partitions([NewPartitions("t", 2)])["t"].result(20)
        shared.fill(1, partition=1)
        assert [message.partition() for message in consumer.poll(0)] == [1]


def test_a_topic_that_is_created_later_is_read_from_its_beginning(shared: ShareWorld) -> None:
    shared.set(share_auto_offset_reset="latest")
    with shared.consumer("u") as consumer:
        assert consumer.poll(0).is_empty()
        with shared.admin() as admin:
            admin.create_topics([NewTopic("u", 1)])["u"].result(20)
        shared.fill(1, topic="u")
        assert places(consumer.poll(0)) == [(0, 1)]


def test_a_topic_that_is_created_again_is_read_from_its_beginning(shared: ShareWorld) -> None:
    shared.set(share_auto_offset_reset="latest")
    with shared.consumer() as consumer:
        consumer.poll(0)
        shared.fill(3)
        assert len(consumer.poll(0)) == 3
        with shared.admin() as admin:
            admin.delete_topics(["t"])["t"].result(20)
            admin.create_topics([NewTopic("t", 1)])["t"].result(20)
        shared.fill(2)
        assert places(consumer.poll(0)) == [(0, 1), (1, 1)]


def test_records_that_were_removed_are_passed(shared: ShareWorld) -> None:
    shared.fill(6)
    with shared.consumer(explicit=True, max_poll_records=2) as consumer:
        for message in consumer.poll(0):
            consumer.acknowledge(message, RELEASE)
        with shared.admin() as admin:
            admin.delete_records([TopicPartition("t", 0, 5)])[T].result(20)
        assert places(consumer.poll(0)) == [(5, 1)]
    assert [state.start for state in shared.states()] == [5]


def test_values_of_other_topics_wait_for_no_one() -> None:
    shared = ShareWorld(partitions=3)
    for partition in range(3):
        shared.fill(10, partition=partition)
    with shared.consumer(max_poll_records=4) as consumer:
        first = {consumer.poll(0)[0].partition() for _ in range(3)}
    assert first == {0, 1, 2}


# --- callbacks ---


def test_the_callback_hears_of_each_acknowledgement(shared: ShareWorld) -> None:
    shared.fill(3)
    heard: list[tuple[dict[TopicPartition, set[int]], KafkaException | None]] = []
    with shared.consumer(explicit=True) as consumer:
        consumer.set_acknowledgement_commit_callback(lambda *about: heard.append(about))
        messages = consumer.poll(0)
        consumer.acknowledge(messages[0])
        consumer.acknowledge(messages[2], RELEASE)
        consumer.commit_sync()
        assert heard == [({T: {0, 2}}, None)]
        consumer.acknowledge(messages[1])
        consumer.commit_async()
        assert len(heard) == 1
        (message,) = consumer.poll(0)
        assert heard[1:] == [({T: {1}}, None)]
        consumer.acknowledge(message)
    assert heard[2:] == [({T: {2}}, None)]


def test_the_callback_is_called_for_each_partition() -> None:
    shared = ShareWorld(partitions=2)
    shared.fill(2)
    shared.fill(1, partition=1)
    heard: list[Any] = []
    with shared.consumer() as consumer:
        consumer.set_acknowledgement_commit_callback(lambda *about: heard.append(about))
        consumer.poll(0)
        consumer.commit_sync()
    expected = [({T: {0, 1}}, None), ({TopicPartition("t", 1): {0}}, None)]
    assert sorted(heard, key=str) == sorted(expected, key=str)


def test_the_callback_of_the_time_of_the_call_hears_of_a_commit(shared: ShareWorld) -> None:
    shared.fill(1)
    before: list[Any] = []
    after: list[Any] = []
    with shared.consumer() as consumer:
        consumer.set_acknowledgement_commit_callback(lambda *about: before.append(about))
        consumer.poll(0)
        consumer.commit_async()
        consumer.set_acknowledgement_commit_callback(lambda *about: after.append(about))
        consumer.poll(0)
    assert (before, after) == ([], [({T: {0}}, None)])


def test_the_callback_hears_what_was_refused(shared: ShareWorld) -> None:
    shared.fill(1)
    heard: list[Any] = []
    with shared.consumer() as slow, shared.consumer() as watcher:
        slow.set_acknowledgement_commit_callback(lambda *about: heard.append(about))
        slow.poll(0)
        watcher.poll(0)
        shared.clock.advance(LOCK_S)
        assert len(watcher.poll(0)) == 1
        slow.poll(0)
    ((offsets, error),) = heard
    assert offsets == {T: {0}}
    assert error.error == KafkaError.INVALID_RECORD_STATE


def test_an_exception_of_the_callback_comes_out_of_the_call(shared: ShareWorld) -> None:
    shared.fill(1)

    def fails(*_: object) -> None:
        raise KeyError("boom")

    with shared.consumer() as consumer:
        consumer.poll(0)
        consumer.set_acknowledgement_commit_callback(fails)
        with pytest.raises(KeyError):
            consumer.commit_sync()
        assert consumer.poll(0).is_empty()


def test_messages_that_a_callback_keeps_from_being_returned_come_again(
    shared: ShareWorld,
) -> None:
    shared.fill(2)

    def fails(*_: object) -> None:
        raise KeyError("boom")

    with shared.consumer(explicit=True, max_poll_records=1) as consumer:
        (message,) = consumer.poll(0)
        consumer.acknowledge(message)
        consumer.set_acknowledgement_commit_callback(fails)
        with pytest.raises(KeyError):
            consumer.poll(0)
        consumer.set_acknowledgement_commit_callback(None)
        assert places(consumer.poll(0)) == [(1, 1)]


# --- groups of one name ---


def test_a_share_consumer_refuses_a_consumer_group(shared: ShareWorld) -> None:
    conf = {
        "bootstrap.servers": "memory://shared",
        "group.id": "c",
        "auto.offset.reset": "earliest",
    }
    with (
        Consumer(conf, store=shared.store) as consumer,
        ShareConsumer(
            bootstrap_servers="memory://shared", group_id="c", store=shared.store
        ) as worker,
    ):
        consumer.assign([TopicPartition("t", 0, 0)])
        consumer.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
        worker.subscribe(["t"])
        with pytest.raises(KafkaException, match="is a consumer group") as refused:
            worker.poll(0)
        assert refused.value.error == KafkaError.GROUP_ID_NOT_FOUND


def test_a_consumer_refuses_a_share_group(shared: ShareWorld) -> None:
    shared.fill(1)
    with shared.consumer() as worker:
        worker.poll(0)
    conf = {"bootstrap.servers": "memory://shared", "group.id": "g"}
    with Consumer(conf, store=shared.store) as consumer:
        consumer.subscribe(["t"])
        message = consumer.poll(20)
        assert message is not None
        assert message.error() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
        with pytest.raises(KafkaException, match="share group"):
            consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)


# --- failures ---


def test_a_damaged_file_is_reported_and_its_records_come_again(shared: ShareWorld) -> None:
    shared.fill(2)
    (key,) = [entry.key for entry in shared.store.list("topics/t/") if "parquet" in entry.key]
    content = shared.store.get(key)
    shared.store.put(key, content[:-9] + b"x" * 9)
    with shared.consumer(explicit=True) as consumer:
        (message,) = consumer.poll(0)
        assert (message.topic(), message.partition(), message.offset()) == ("t", 0, 0)
        for seconds in (1, 2):
            assert message.error() is not None
            assert consumer.poll(0).is_empty()
            shared.clock.advance(seconds - 0.5)
            assert consumer.poll(0).is_empty()
            shared.clock.advance(0.5)
            if seconds == 1:
                (message,) = consumer.poll(0)
        shared.store.put(key, content)
        assert places(consumer.poll(0)) == [(0, 3), (1, 3)]


def test_a_damaged_file_keeps_no_record_of_other_files_back(shared: ShareWorld) -> None:
    for number in range(3):
        shared.fill(1, start=number)
    keys = sorted(each.key for each in shared.store.list("topics/t/") if "parquet" in each.key)
    contents = {key: shared.store.get(key) for key in keys}
    (damaged,) = [key for key in keys if b"v1" in contents[key]]
    shared.store.put(damaged, b"damaged")
    with shared.consumer(explicit=True) as consumer:
        *messages, event = consumer.poll(0)
        assert places(messages) == [(0, 1), (2, 1)]
        assert event.offset() == 1
        assert damaged in str(event.error())
        for message in messages:
            consumer.acknowledge(message)
        shared.store.put(damaged, contents[damaged])
        shared.clock.advance(1)
        assert places(consumer.poll(0)) == [(1, 2)]


def test_an_outage_delays_messages_and_loses_no_acknowledgement(shared: ShareWorld) -> None:
    shared.fill(1)
    heard: list[KafkaError] = []
    failing = FaultyStore(shared.store)
    with shared.consumer(store=failing, error_cb=heard.append) as consumer:
        assert len(consumer.poll(0)) == 1
        failing.add(OUTAGE)
        assert consumer.poll(5).is_empty()
        assert heard[0] == KafkaError._TRANSPORT
        failing.clear()
        assert consumer.poll(0).is_empty()
    assert [(state.start, state.end) for state in shared.states()] == [(1, 1)]


def test_messages_that_an_outage_keeps_from_being_read_are_delivered_after_it(
    shared: ShareWorld,
) -> None:
    shared.fill(1)
    failing = FaultyStore(shared.store)
    with shared.consumer(store=failing) as consumer:
        failing.add(Rule("read", "topics/t/*.parquet", Fault.error_before(), times=None))
        for _ in range(10):
            assert consumer.poll(0).is_empty()
        failing.clear()
        assert places(consumer.poll(0)) == [(0, 1)]


@pytest.mark.parametrize("method", ["release", "reject"])
def test_an_error_that_is_no_text_is_refused_and_decides_nothing(
    shared: ShareWorld, method: str
) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    shared.fill(1)
    with shared.consumer(explicit=True) as consumer:
        (message,) = consumer.poll(0)
        with pytest.raises(TypeError, match="error must be an exception or str, not int"):
            getattr(consumer, method)(message, error=5)
        with pytest.raises(IllegalStateException, match="1 records from previous poll"):
            consumer.poll(0)
        getattr(consumer, method)(message, error=Silent())
        assert consumer.commit_sync() == {T: None}


def test_a_found_message_makes_the_next_wait_a_short_one(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an object store, idle consumers ask less and less often."""
    waits: list[bool] = []
    with shared.consumer() as consumer:
        monkeypatch.setattr(consumer._timer, "wait", lambda found, **_: waits.append(found))
        shared.fill(1)
        assert len(consumer.poll(1)) == 1
    assert waits == [True]


@pytest.mark.parametrize("fault", [Fault.error_before(), Fault.error_after()], ids=["no", "yes"])
def test_a_commit_with_an_unknown_outcome_is_resolved_by_the_next_one(
    shared: ShareWorld, fault: Fault
) -> None:
    shared.fill(1)
    failing = FaultyStore(shared.store)
    with shared.consumer(store=failing) as consumer:
        consumer.poll(0)
        failing.add(
            Rule("create", "groups/*", fault, times=None),
            Rule("get", "groups/*", Fault.error_before(), nth=2, times=None),
        )
        assert isinstance(consumer.commit_sync(0.1)[T], OutcomeUnknown)
        assert isinstance(consumer.commit_sync(0.1)[T], OutcomeUnknown)
        failing.clear()
        assert consumer.commit_sync() == {T: None}
        assert consumer.commit_sync() == {}
    assert [(state.start, state.end) for state in shared.states()] == [(1, 1)]


def test_records_of_an_entry_with_an_unknown_outcome_come_again(shared: ShareWorld) -> None:
    failing = FaultyStore(shared.store)
    with shared.consumer(store=failing) as consumer:
        consumer.poll(0)
        shared.fill(1)
        failing.add(
            Rule("create", "groups/*", Fault.error_after(), times=None),
            Rule("get", "groups/*", Fault.error_before(), nth=2, times=None),
        )
        assert consumer.poll(0).is_empty()
        failing.clear()
        assert places(consumer.poll(5)) == [(0, 1)]


# --- calls that are refused ---


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.auto.commit", True),
        ("auto.offset.reset", "earliest"),
        ("group.instance.id", "x"),
        ("isolation.level", "read_committed"),
        ("partition.assignment.strategy", "range"),
        ("session.timeout.ms", 6000),
    ],
)
def test_settings_of_consumers_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is not applicable for share consumer"):
        ShareConsumer({"bootstrap.servers": "memory://none", "group.id": "g", name: value})


def test_a_callback_for_offset_commits_is_refused_before_all_else() -> None:
    with pytest.raises(ValueError, match="on_commit is not supported on ShareConsumer"):
        ShareConsumer(on_commit=print)


def test_a_configuration_and_a_group_id_are_required() -> None:
    with pytest.raises(TypeError, match="expected configuration dict"):
        ShareConsumer()
    with pytest.raises(ValueError, match=r"group\.id must be set"):
        ShareConsumer({})


@pytest.mark.parametrize(("name", "password"), [(1, "p"), ("u", None)])
def test_credentials_that_are_no_text_are_refused(
    shared: ShareWorld, name: Any, password: Any
) -> None:
    with shared.consumer() as consumer, pytest.raises(TypeError, match="must be str"):
        consumer.set_sasl_credentials(name, password)


@pytest.mark.parametrize(
    ("topics", "error"),
    [("x", TypeError), (("a",), TypeError), ([""], ValueError), (["a", "a"], ValueError)],
)
def test_a_bad_subscription_is_refused(shared: ShareWorld, topics: Any, error: type) -> None:
    with shared.consumer() as consumer:
        with pytest.raises(error):
            consumer.subscribe(topics)
        assert consumer.subscription() == ["t"]


def test_no_topics_end_a_subscription(shared: ShareWorld) -> None:
    with shared.consumer() as consumer:
        consumer.subscribe([])
        assert consumer.subscription() == []


@pytest.mark.parametrize("wanted", [0, 5, 9])
def test_an_unknown_kind_of_acknowledgement_is_refused(shared: ShareWorld, wanted: Any) -> None:
    with shared.consumer(explicit=True) as consumer, pytest.raises(ValueError, match=str(wanted)):
        consumer.acknowledge(Message("t", 0, 0), wanted)


@pytest.mark.parametrize(
    "message", [Message(None, 0, 0), Message("t", -1, 0), Message("t", 0, -1)], ids=repr
)
def test_a_message_without_a_place_is_refused(shared: ShareWorld, message: Message) -> None:
    with shared.consumer(explicit=True) as consumer, pytest.raises(ValueError, match="no topic"):
        consumer.acknowledge(message)


def test_a_message_that_was_not_returned_is_refused(shared: ShareWorld) -> None:
    with (
        shared.consumer(explicit=True) as consumer,
        pytest.raises(IllegalStateException, match=r"t\[0\]@0 was not returned"),
    ):
        consumer.acknowledge(Message("t", 0, 0))


def test_arguments_of_other_types_are_refused(shared: ShareWorld) -> None:
    consumer: Any
    with shared.consumer(explicit=True) as consumer:
        calls: list[Any] = [
            lambda: consumer.acknowledge("x"),
            lambda: consumer.acknowledge_offset(1, 0, 0),
            lambda: consumer.acknowledge_offset("t", "x", 0),
            lambda: consumer.acknowledge(Message("t", 0, 0), "x"),
            lambda: consumer.poll(None),
            lambda: consumer.poll("x"),
            lambda: consumer.commit_sync("x"),
            lambda: consumer.set_acknowledgement_commit_callback(1),
        ]
        for call in calls:
            with pytest.raises(TypeError):
                call()
        with pytest.raises(ValueError, match="negative"):
            consumer.acknowledge_offset("t", -1, 0)


CALLS: dict[str, tuple[Any, ...]] = {
    "poll": (0,),
    "subscribe": (["t"],),
    "unsubscribe": (),
    "subscription": (),
    "commit_sync": (),
    "commit_async": (),
    "acknowledge": (Message("t", 0, 0),),
    "acknowledge_offset": ("t", 0, 0),
    "set_acknowledgement_commit_callback": (None,),
    "set_sasl_credentials": ("a", "b"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_consumer_refuses_calls(shared: ShareWorld, name: str) -> None:
    consumer = shared.consumer()
    consumer.close()
    consumer.close()
    with pytest.raises(IllegalStateException, match="Share consumer closed"):
        getattr(consumer, name)(*CALLS[name])


def test_calls_inside_the_callback_are_refused(shared: ShareWorld) -> None:
    shared.fill(1)
    refused: list[str] = []
    with shared.consumer() as consumer:

        def calls_back(*_: object) -> None:
            for name in (*CALLS.keys() - {"set_sasl_credentials"}, "close"):
                with pytest.raises(IllegalStateException, match="not accessible from user-defined"):
                    getattr(consumer, name)(*CALLS.get(name, ()))
                refused.append(name)

        consumer.set_acknowledgement_commit_callback(calls_back)
        consumer.poll(0)
        consumer.commit_sync()
    assert len(refused) == len(CALLS)


def test_an_admin_client_refuses_a_setting_that_is_changed_twice(shared: ShareWorld) -> None:
    entry = ConfigEntry(
        "share.delivery.count.limit", "3", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource("group", "g", incremental_configs=[entry, entry])
    with shared.admin() as admin:
        error = admin.incremental_alter_configs([resource])[resource].exception(20)
    assert isinstance(error, InvalidConfig)
    assert error.error == KafkaError.INVALID_REQUEST


def test_the_settings_of_a_group_can_be_read(shared: ShareWorld) -> None:
    with shared.admin() as admin:
        resource = ConfigResource("group", "g")
        found = admin.describe_configs([resource])[resource].result(20)
    assert {name: entry.value for name, entry in found.items()} == {
        "share.auto.offset.reset": "earliest",
        "share.record.lock.duration.ms": "30000",
        "share.delivery.count.limit": "5",
        "errors.deadletterqueue.topic.name": "",
        "errors.deadletterqueue.copy.record.enable": "false",
        "errors.deadletterqueue.max.per.minute": "1000",
        "share.partition.max.record.locks": "2000",
        "share.isolation.level": "read_uncommitted",
    }
    assert [name for name, entry in found.items() if not entry.is_default] == [
        "share.auto.offset.reset"
    ]
