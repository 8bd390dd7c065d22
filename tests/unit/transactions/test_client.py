"""Transactions as a program sees them: what is visible when, which calls are valid, who is
fenced.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from deltaq import (
    OFFSET_BEGINNING,
    OFFSET_STORED,
    Consumer,
    Fenced,
    InvalidConfig,
    KafkaError,
    KafkaException,
    OutcomeUnknown,
    Producer,
    Topic,
    TopicPartition,
)
from deltaq.clock import SYSTEM_CLOCK
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.state import GroupHead, MemberIdentity
from deltaq.groups.transaction_offsets import TransactionOffsets
from deltaq.names import TransactionKey, staged_file
from deltaq.producer.sender import FRESH_S, staging_sender
from deltaq.producer.staging import Staging
from deltaq.producer.transactions import Transactions
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, Rule
from deltaq.topics.log import TopicLog
from deltaq.topics.state import PendingSegment
from deltaq.transactions.log import TransactionLog
from deltaq.transactions.resolution import resolve_offsets
from tests.doubles.reading import drain, eventually

EVER = None
DECISION = "transactions/*_delta_log/*"
TOPIC_ENTRY = "topics/*_delta_log/*"
GROUP_ENTRY = "groups/*_delta_log/*"


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore("test"))


class Clients:
    """Makes clients of one store, and closes them."""

    def __init__(self, store: FaultyStore) -> None:
        self.store = store
        self.made: list[Any] = []

    def producer(self, transactional_id: str | None = "t", **settings: Any) -> Producer:
        conf = {"bootstrap.servers": "memory://unused", "linger.ms": 0}
        found = Producer(conf, transactional_id=transactional_id, store=self.store, **settings)
        self.made.append(found)
        return found

    def ready(self, transactional_id: str = "t", **settings: Any) -> Producer:
        found = self.producer(transactional_id, **settings)
        found.init_transactions()
        return found

    def consumer(self, group: str = "g", **settings: Any) -> Consumer:
        conf = {"bootstrap.servers": "memory://unused", "group.id": group}
        settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
        found = Consumer(conf, store=self.store, **settings)
        self.made.append(found)
        return found

    def values(self, topic: str) -> list[bytes]:
        column = Topic(topic, store=self.store.inner).to_arrow()["value"]
        return [bytes(value) for value in column.to_pylist()]

    def epoch(self) -> int:
        """That of the newest producer with the id `t`."""
        head = TransactionLog(self.store, "t", SYSTEM_CLOCK).head()
        assert head is not None
        return head.epoch

    def staged(self) -> list[str]:
        return [entry.key for entry in self.store.inner.list("topics/") if "/staged/" in entry.key]


@pytest.fixture
def clients(store: FaultyStore) -> Iterator[Clients]:
    made = Clients(store)
    yield made
    store.clear()
    for client in made.made:
        client.close()


def raised_by(call: Any, *arguments: Any) -> KafkaException:
    with pytest.raises(KafkaException) as raised:
        call(*arguments)
    return raised.value


def refused(call: Any, *arguments: Any) -> KafkaError:
    return raised_by(call, *arguments).error


# --- what is visible ---


def test_messages_of_several_topics_are_visible_after_the_commit_and_not_before(clients: Clients):
    producer = clients.ready()
    reports: list[tuple[KafkaError | None, int | None]] = []
    Topic("a", store=clients.store).create()
    Topic("b", store=clients.store).create()
    producer.begin_transaction()
    producer.produce("a", b"1", on_delivery=lambda e, m: reports.append((e, m.offset())))
    producer.produce("b", b"2")
    assert producer.flush(10) == 0
    assert reports == [(None, None)], "its offset is not known before the commit"
    assert clients.values("a") == clients.values("b") == []
    producer.commit_transaction()
    assert (clients.values("a"), clients.values("b")) == ([b"1"], [b"2"])


@pytest.mark.fault("T2")
def test_an_abort_leaves_neither_messages_nor_files(clients: Clients):
    producer = clients.ready(linger_ms=30_000)
    reports: list[KafkaError | None] = []
    producer.begin_transaction()
    producer.produce("a", b"written")
    producer.flush(10)
    assert len(clients.staged()) == 1
    producer.produce("a", b"queued", on_delivery=lambda e, _: reports.append(e))
    producer.abort_transaction()
    assert [error.code() for error in reports if error is not None] == [KafkaError._PURGE_QUEUE]
    assert clients.values("a") == []
    assert clients.staged() == []
    with producer.transaction():
        producer.produce("a", b"next")
    assert clients.values("a") == [b"next"]


@pytest.mark.fault("T2")
def test_a_file_whose_upload_ends_after_the_abort_is_removed(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
):
    producer = clients.ready()
    Topic("a", store=clients.store).create()
    begun, may_end, ended = Event(), Event(), Event()
    put, delete = clients.store.inner.put, clients.store.inner.delete

    def slow(key: str, data: bytes | memoryview) -> None:
        begun.set()
        assert may_end.wait(10)
        put(key, data)

    def noted(key: str) -> None:
        delete(key)
        ended.set()

    monkeypatch.setattr(clients.store.inner, "put", slow)
    monkeypatch.setattr(clients.store.inner, "delete", noted)
    producer.begin_transaction()
    producer.produce("a", b"1")
    assert begun.wait(10)
    producer.abort_transaction()
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(10)
    assert clients.staged() == []


def test_the_order_of_a_partition_is_kept_across_batches(clients: Clients):
    producer = clients.ready(batch_num_messages=3)
    with producer.transaction():
        for number in range(20):
            producer.produce("a", b"%d" % number)
            if number % 7 == 0:
                producer.flush(10)
    assert clients.values("a") == [b"%d" % number for number in range(20)]


def test_a_plain_producer_and_a_transaction_write_the_same_topic(clients: Clients):
    producer, plain = clients.ready(), clients.producer(None)
    producer.begin_transaction()
    producer.produce("a", b"in it")
    producer.flush(10)
    plain.produce("a", b"plain")
    plain.flush(10)
    producer.commit_transaction()
    assert clients.values("a") == [b"plain", b"in it"]


def test_records_of_a_topic_that_was_deleted_are_lost_and_the_rest_is_committed(clients: Clients):
    producer = clients.ready()
    producer.begin_transaction()
    producer.produce("a", b"1")
    producer.produce("b", b"2")
    producer.flush(10)
    Topic("a", store=clients.store).delete()
    producer.commit_transaction()
    assert clients.values("b") == [b"2"]
    with producer.transaction():
        producer.produce("a", b"of a new topic")
    assert clients.values("a") == [b"of a new topic"]


def test_a_topic_that_is_created_again_inside_a_transaction_makes_it_abort(clients: Clients):
    producer = clients.ready()
    producer.begin_transaction()
    for value in (b"1", b"2"):
        producer.produce("a", value)
        producer.flush(10)
        if value == b"1":
            Topic("a", store=clients.store).delete()
            Topic("a", store=clients.store).create()
            time.sleep(FRESH_S)
    assert refused(producer.commit_transaction).txn_requires_abort()
    producer.abort_transaction()
    assert clients.values("a") == []


@pytest.mark.fault("R8")
@pytest.mark.parametrize("is_recreated", [True, False])
def test_a_message_after_the_deletion_of_its_topic_is_not_reported_as_written(
    clients: Clients, is_recreated: bool
):
    """The topic was read shortly before, and the decision would not find out."""
    producer = clients.ready()
    with producer.transaction():
        producer.produce("a", b"1")
    Topic("a", store=clients.store).delete()
    if is_recreated:
        Topic("a", store=clients.store).create()
    reports: list[KafkaError | None] = []
    producer.begin_transaction()
    producer.produce("a", b"2", on_delivery=lambda error, _: reports.append(error))
    error = refused(producer.commit_transaction)
    assert error.txn_requires_abort()
    what = "was deleted and created again" if is_recreated else "does not exist"
    assert f"topic 'a' {what}" in error.str()
    assert [of and of.code() for of in reports] == [KafkaError.UNKNOWN_TOPIC_OR_PART]
    producer.abort_transaction()
    with producer.transaction():
        producer.produce("a", b"3")
    assert clients.values("a") == [b"3"]


def test_a_topic_counts_as_read_from_the_time_at_which_the_read_began(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
):
    """It may have been deleted during the read, in another thread, and before messages came."""
    Topic("a", store=clients.store).create()
    topic = staging_sender(
        clients.store, "a", SYSTEM_CLOCK, "", Staging(clients.store, SYSTEM_CLOCK)
    ).topic
    catch_up, during = TopicLog.catch_up, []

    def slow(self: TopicLog, **named: Any) -> bool:
        during.append(SYSTEM_CLOCK.monotonic())
        return catch_up(self, **named)

    topic.read()
    monkeypatch.setattr(TopicLog, "catch_up", slow)
    before = SYSTEM_CLOCK.monotonic()
    topic.read()
    assert topic.was_read_since(before)
    assert not topic.was_read_since(during[0])


def test_a_message_is_written_though_its_topic_can_be_read_only_later(clients: Clients):
    producer = clients.ready()
    with producer.transaction():
        producer.produce("a", b"1")
    clients.store.add(Rule("read", TOPIC_ENTRY, Fault.error_before(), 3))
    with producer.transaction():
        producer.produce("a", b"2")
    assert clients.store.struck.total() == 3
    assert clients.values("a") == [b"1", b"2"]


def test_what_another_thread_produced_in_an_aborted_transaction_is_not_in_the_next(
    clients: Clients,
):
    producer = clients.ready()
    with producer.transaction():
        producer.produce("a", b"1")
    reports: list[tuple[bytes, KafkaError | None]] = []

    def note(error: KafkaError | None, message: Any) -> None:
        reports.append((message.value(), error))

    producer.begin_transaction()
    admitted = producer._producible
    producer.abort_transaction()
    # The other thread has asked whether it may produce before the abort, and queues after it.
    producer._producible = admitted
    producer.produce("a", b"late", on_delivery=note)
    producer._producible = {}
    with producer.transaction():
        producer.produce("a", b"2", on_delivery=note)
    found = dict(reports)
    assert found.keys() == {b"late", b"2"}
    assert found[b"2"] is None
    assert found[b"late"] is not None
    assert clients.values("a") == [b"1", b"2"]


def test_no_file_is_added_to_a_transaction_that_is_being_decided(clients: Clients):
    staging = Staging(clients.store, SYSTEM_CLOCK)
    staging.begin(TransactionKey("t", 0, 1))
    assert staging.add("a", "id", [])
    assert [staged.topic for staged in staging.sealed()] == ["a"]
    assert not staging.add("b", "id", [])
    assert [staged.topic for staged in staging.records()] == ["a"]


def test_a_file_of_the_transaction_before_is_not_added_to_the_next(clients: Clients):
    staging = Staging(clients.store, SYSTEM_CLOCK)
    before, following = TransactionKey("t", 0, 1), TransactionKey("t", 0, 2)
    for transaction in (before, following):
        staging.begin(transaction)
        assert staging.add("a", "id", [segment_of(transaction)])
    assert not staging.add("a", "id", [segment_of(before)])
    assert staging.sealed()[0].segments == (segment_of(following),)


def segment_of(transaction: TransactionKey) -> PendingSegment:
    path = staged_file(transaction, "0" * 32)
    return PendingSegment(path, 9, 1, 0, 9, 0, ((0, 1),), 0, 0, 0, timed=True, as_of=0)


# --- states ---


def test_calls_in_a_wrong_state_are_refused_and_change_nothing(clients: Clients):
    producer = clients.producer()

    def state_error(call: Any, *arguments: Any) -> str:
        error = refused(call, *arguments)
        assert error.code() == KafkaError._STATE
        return error.str()

    assert state_error(producer.begin_transaction) == "Operation not valid in state Init"
    assert state_error(producer.produce, "a", b"1").startswith("Unable to produce message")
    producer.init_transactions()
    for call in (
        producer.init_transactions,
        producer.commit_transaction,
        producer.abort_transaction,
    ):
        assert state_error(call) == "Operation not valid in state Ready"
    assert state_error(producer.produce, "a", b"1").startswith("Unable to produce message")
    producer.begin_transaction()
    producer.produce("a", b"1")
    assert state_error(producer.begin_transaction) == "Operation not valid in state InTransaction"
    assert state_error(producer.init_transactions) == "Operation not valid in state InTransaction"
    producer.commit_transaction()
    # The topic is known by now.
    assert state_error(producer.produce, "a", b"2").startswith("Unable to produce message")
    assert clients.values("a") == [b"1"]


def test_without_a_transactional_id_the_methods_say_so(clients: Clients):
    plain = clients.producer(None)
    calls = (
        plain.init_transactions,
        plain.begin_transaction,
        plain.commit_transaction,
        plain.abort_transaction,
        plain.transaction,
        lambda: plain.send_offsets_to_transaction([], b""),
    )
    for call in calls:
        assert refused(call).code() == KafkaError._NOT_CONFIGURED


def test_a_time_out_above_that_of_kafka_is_refused(clients: Clients):
    producer = clients.producer(transaction_timeout_ms=900_001)
    error = refused(producer.init_transactions)
    assert error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT
    assert error.fatal()


def test_a_message_that_fails_makes_the_transaction_abort(clients: Clients):
    producer = clients.ready(message_timeout_ms=200)
    producer.begin_transaction()
    producer.produce("a", b"1")
    producer.flush(10)
    clients.store.add(Rule("put", "topics/*.parquet", Fault.error_before(), EVER))
    producer.produce("a", b"2")
    error = refused(producer.commit_transaction)
    assert error.txn_requires_abort()
    assert error.code() == KafkaError._MSG_TIMED_OUT
    assert refused(producer.commit_transaction).txn_requires_abort()
    clients.store.clear()
    producer.abort_transaction()
    with producer.transaction():
        producer.produce("a", b"3")
    assert clients.values("a") == [b"3"]


def test_a_transaction_that_lasted_too_long_is_not_committed(clients: Clients):
    producer = clients.ready(transaction_timeout_ms=1000)
    producer.begin_transaction()
    producer.produce("a", b"1")
    assert producer._transactions is not None
    producer._transactions._begun_at -= 2
    assert refused(producer.commit_transaction).txn_requires_abort()
    producer.abort_transaction()
    assert clients.values("a") == []


# --- fencing ---


@pytest.mark.fault("P12", "T3")
def test_a_newer_producer_fences_the_older_one(clients: Clients):
    old = clients.ready()
    old.begin_transaction()
    old.produce("a", b"old")
    old.flush(10)
    new = clients.ready()
    error = refused(old.commit_transaction)
    assert error.code() == KafkaError._FENCED
    assert error.fatal()
    assert refused(old.begin_transaction).fatal()
    assert refused(old.produce, "a", b"more").code() == KafkaError._FATAL
    with new.transaction():
        new.produce("a", b"new")
    assert clients.values("a") == [b"new"]


def test_a_fenced_producer_learns_of_it_when_it_aborts(clients: Clients):
    old = clients.ready()
    old.begin_transaction()
    clients.ready()
    assert refused(old.abort_transaction).fatal()


@pytest.mark.fault("T3")
def test_a_fenced_producer_learns_of_it_when_its_successor_has_sent_offsets(clients: Clients):
    filled(clients, 1)
    arguments = [TopicPartition("in", 0, 1)], clients.consumer().consumer_group_metadata()
    old, new = clients.ready(), clients.ready()
    for producer in (old, new):
        producer.begin_transaction()
    new.send_offsets_to_transaction(*arguments)
    error = refused(old.send_offsets_to_transaction, *arguments)
    assert (error.code(), error.fatal()) == (KafkaError._FENCED, True)
    assert error.str().startswith("a newer producer with transactional.id 't'")
    new.commit_transaction()


@pytest.mark.fault("T5", "P13")
def test_a_commit_that_was_decided_is_published_by_the_next_producer(clients: Clients):
    old = clients.ready()
    Topic("a", store=clients.store).create()
    old.begin_transaction()
    old.produce("a", b"1")
    old.flush(10)
    clients.store.add(Rule("create", TOPIC_ENTRY, Fault.error_before(), EVER))
    error = refused(old.commit_transaction, 0.3)
    assert error.retriable()
    assert clients.values("a") == []
    clients.store.clear()
    clients.ready()
    assert clients.values("a") == [b"1"]
    old.commit_transaction()
    assert clients.values("a") == [b"1"]


# --- commits that are repeated ---


@pytest.mark.fault("T4", "P13")
@pytest.mark.parametrize("where", [DECISION, TOPIC_ENTRY])
def test_a_commit_whose_answer_is_lost_is_repeated_and_tells_the_truth(
    clients: Clients, where: str
):
    producer = clients.ready()
    Topic("a", store=clients.store).create()
    producer.begin_transaction()
    producer.produce("a", b"1")
    producer.flush(10)
    clients.store.add(
        Rule("create", where, Fault.error_after(), EVER),
        Rule("get", where, Fault.error_before(), EVER),
    )
    clients.store.add(Rule("get_range", where, Fault.error_before(), EVER))
    assert refused(producer.commit_transaction, 0.3).retriable()
    assert refused(producer.begin_transaction).code() == KafkaError._STATE
    clients.store.clear()
    producer.commit_transaction()
    assert clients.values("a") == [b"1"]


def test_a_fenced_producer_learns_of_a_commit_that_was_decided(clients: Clients):
    """A newer producer has published it: the head of the id's log does not show it any more."""
    old = clients.ready()
    Topic("a", store=clients.store).create()
    old.begin_transaction()
    old.produce("a", b"1")
    old.flush(10)
    clients.store.add(
        Rule("create", DECISION, Fault.error_after(), EVER),
        Rule("get", DECISION, Fault.error_before(), EVER),
    )
    clients.store.add(Rule("get_range", DECISION, Fault.error_before(), EVER))
    assert refused(old.commit_transaction, 0.3).retriable()
    clients.store.clear()
    clients.ready()
    old.commit_transaction()
    assert clients.values("a") == [b"1"]
    old.begin_transaction()
    old.produce("a", b"2")
    assert refused(old.commit_transaction).fatal()
    assert clients.values("a") == [b"1"]


@pytest.mark.fault("T4")
def test_a_decision_that_was_never_sent_is_sent_by_the_next_call(clients: Clients):
    producer = clients.ready()
    producer.begin_transaction()
    producer.produce("a", b"1")
    clients.store.add(Rule("create", DECISION, Fault.error_before(), EVER))
    assert refused(producer.commit_transaction, 0.3).retriable()
    clients.store.clear()
    producer.commit_transaction()
    assert clients.values("a") == [b"1"]


def test_a_block_repeats_a_commit_whose_time_is_over_and_no_other(clients: Clients, monkeypatch):
    producer = clients.ready()
    commit, codes = Transactions.commit, [KafkaError._TIMED_OUT, KafkaError._CONFLICT]

    def fails_first(self, timeout):
        if codes:
            raise KafkaException(KafkaError(codes.pop(0), retriable=True))
        commit(self, timeout)

    monkeypatch.setattr(Transactions, "commit", fails_first)
    with pytest.raises(KafkaException) as raised:
        produces(producer, b"1")
    assert raised.value.error.code() == KafkaError._CONFLICT
    assert codes == []
    produces(producer, b"2")
    assert clients.values("a") == [b"2"]


def produces(producer: Producer, value: bytes) -> None:
    with producer.transaction():
        producer.produce("a", value)


# --- offsets of groups ---


def copy_all(clients: Clients, producer: Producer, consumer: Consumer, count: int) -> None:
    done = 0
    while done < count:
        messages = consumer.consume(3, 1.0)
        if messages:
            with producer.transaction(consumer=consumer):
                for message in messages:
                    producer.produce("out", message.value())
            done += len(messages)


def filled(clients: Clients, count: int, topic: str = "in") -> None:
    plain = clients.producer(None)
    for number in range(count):
        plain.produce(topic, b"%d" % number)
    plain.flush(10)


def test_output_and_offsets_are_committed_together(clients: Clients):
    filled(clients, 10)
    producer, consumer = clients.ready(), clients.consumer()
    consumer.subscribe(["in"])
    copy_all(clients, producer, consumer, 10)
    assert clients.values("out") == [b"%d" % number for number in range(10)]
    (committed,) = consumer.committed([TopicPartition("in", 0)])
    assert committed.offset == 10


def fails_inside(producer: Producer, consumer: Consumer) -> None:
    with producer.transaction(consumer=consumer):
        producer.produce("out", b"lost")
        raise ZeroDivisionError


def test_after_an_exception_the_consumer_goes_on_at_its_committed_offsets(clients: Clients):
    filled(clients, 4)
    producer, consumer = clients.ready(), clients.consumer()
    consumer.subscribe(["in"])
    copy_all(clients, producer, consumer, 3)
    assert drain(consumer, 1)
    with pytest.raises(ZeroDivisionError):
        fails_inside(producer, consumer)
    assert [message.value() for message in drain(consumer, 1)] == [b"3"]
    assert clients.values("out") == [b"0", b"1", b"2"]


def test_a_block_sends_the_offset_to_which_the_consumer_was_moved(clients: Clients):
    """After a message that fails, for instance. The output of those before it is committed."""
    filled(clients, 5)
    producer, consumer = clients.ready(), clients.consumer()
    consumer.assign([TopicPartition("in", 0)])
    messages = drain(consumer, 3)
    with producer.transaction(consumer=consumer):
        producer.produce("out", messages[0].value())
        consumer.seek(TopicPartition("in", 0, 1))
    assert consumer.committed([TopicPartition("in", 0)])[0].offset == 1
    assert [message.value() for message in drain(consumer, 1)] == [b"1"]
    with (
        pytest.raises(KafkaException, match="moved by seek") as raised,
        producer.transaction(consumer=consumer),
    ):
        consumer.seek(TopicPartition("in", 0, OFFSET_BEGINNING))
    assert raised.value.error.txn_requires_abort()
    assert [message.value() for message in drain(consumer, 1)] == [b"1"]
    consumer.seek(TopicPartition("in", 0, OFFSET_BEGINNING))
    with producer.transaction(consumer=consumer):
        producer.produce("out", b"1")
    assert clients.values("out") == [b"0", b"1"]
    assert [message.value() for message in drain(consumer, 1)] == [b"0"]


def test_a_consumer_that_commits_by_itself_is_refused(clients: Clients):
    producer, consumer = clients.ready(), clients.consumer(enable_auto_commit=True)
    with pytest.raises(InvalidConfig, match=r"enable\.auto\.commit=False"):
        producer.transaction(consumer=consumer)
    with producer.transaction():  # nothing was begun
        producer.produce("a", b"1")


def test_offsets_sent_to_a_transaction_do_not_count_before_its_commit(clients: Clients):
    filled(clients, 2)
    producer, consumer = clients.ready(), clients.consumer()
    at = [TopicPartition("in", 0, 1)]
    consumer.assign([TopicPartition("in", 0, 0)])
    for end, expected in ((producer.abort_transaction, -1001), (producer.commit_transaction, 1)):
        producer.begin_transaction()
        producer.send_offsets_to_transaction(at, consumer.consumer_group_metadata())
        assert consumer.committed([TopicPartition("in", 0)])[0].offset == -1001
        end()
        assert consumer.committed([TopicPartition("in", 0)])[0].offset == expected


def test_a_member_that_left_cannot_send_offsets(clients: Clients):
    filled(clients, 2)
    producer, consumer = clients.ready(), clients.consumer()
    consumer.subscribe(["in"])
    drain(consumer, 1)
    metadata = consumer.consumer_group_metadata()
    consumer.close()
    producer.begin_transaction()
    send = producer.send_offsets_to_transaction
    error = refused(send, [TopicPartition("in", 0, 1)], metadata)
    assert error.code() == KafkaError.UNKNOWN_MEMBER_ID
    assert error.txn_requires_abort()
    assert refused(producer.commit_transaction).code() == KafkaError.UNKNOWN_MEMBER_ID
    producer.abort_transaction()


def test_offsets_with_metadata_that_is_too_long_make_the_transaction_abort(clients: Clients):
    filled(clients, 1)
    producer, metadata = clients.ready(), clients.consumer().consumer_group_metadata()
    producer.begin_transaction()
    sent = [TopicPartition("in", 0, 1), TopicPartition("in", 0, 1, "x" * 4097)]
    error = refused(producer.send_offsets_to_transaction, sent, metadata)
    assert error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert error.txn_requires_abort()
    assert GroupLog(clients.store, "g").pending() == []
    assert refused(producer.commit_transaction).code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    producer.abort_transaction()
    with producer.transaction():
        sent[1].metadata = "x" * 4096
        producer.send_offsets_to_transaction(sent[1:], metadata)
    assert clients.consumer().committed([TopicPartition("in", 0)])[0].metadata == "x" * 4096


@pytest.mark.fault("T6", "T2")
def test_the_next_owner_of_a_partition_aborts_an_undecided_transaction(clients: Clients):
    filled(clients, 2)
    producer, first = clients.ready(), clients.consumer(enable_auto_commit=False)
    first.subscribe(["in"])
    assert [message.value() for message in drain(first, 1)] == [b"0"]
    producer.begin_transaction()
    producer.produce("out", b"0")
    producer.send_offsets_to_transaction(
        [TopicPartition("in", 0, 1)], first.consumer_group_metadata()
    )
    first.close()
    second = clients.consumer()
    second.subscribe(["in"])
    assert [message.value() for message in drain(second, 1)] == [b"0"]
    error = refused(producer.commit_transaction)
    assert error.txn_requires_abort()
    needed = "a consumer of the group needed the outcome of its offsets"
    assert error.str().endswith(f"{needed}: current transaction must be aborted")
    producer.abort_transaction()
    assert clients.values("out") == []


@pytest.mark.fault("T5", "T6")
def test_the_next_owner_tries_again_after_an_unknown_outcome(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
):
    answers = iter([OutcomeUnknown("no answer", token="t")])

    def unknown_at_first(*arguments: Any) -> None:
        if (error := next(answers, None)) is not None:
            raise error
        resolve_offsets(*arguments)

    monkeypatch.setattr("deltaq.consumer.reader.resolve_offsets", unknown_at_first)
    filled(clients, 1)
    producer, first = clients.ready(), clients.consumer(enable_auto_commit=False)
    first.subscribe(["in"])
    drain(first, 1)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [TopicPartition("in", 0, 1)], first.consumer_group_metadata()
    )
    first.close()
    second = clients.consumer()
    second.subscribe(["in"])
    assert [message.value() for message in drain(second, 1)] == [b"0"]


def test_the_next_owner_of_a_partition_publishes_a_decided_transaction(clients: Clients):
    filled(clients, 2)
    Topic("out", store=clients.store).create()
    producer, first = clients.ready(), clients.consumer(enable_auto_commit=False)
    first.subscribe(["in"])
    drain(first, 1)
    producer.begin_transaction()
    producer.produce("out", b"0")
    producer.flush(10)
    producer.send_offsets_to_transaction(
        [TopicPartition("in", 0, 1)], first.consumer_group_metadata()
    )
    clients.store.add(Rule("create", TOPIC_ENTRY, Fault.error_before(), EVER))
    assert refused(producer.commit_transaction, 0.3).retriable()
    clients.store.clear()
    first.close()
    second = clients.consumer()
    second.subscribe(["in"])
    assert [message.value() for message in drain(second, 1)] == [b"1"]
    assert clients.values("out") == [b"0"]


def test_a_block_whose_offsets_cannot_be_sent_is_aborted(clients: Clients):
    """The program can only repeat the commit, which would leave them out."""
    filled(clients, 1)
    producer, consumer = clients.ready(transaction_timeout_ms=1000), clients.consumer()
    consumer.assign([TopicPartition("in", 0)])
    copying = copy_all, clients, producer, consumer, 1
    clients.store.add(Rule("create", GROUP_ENTRY, Fault.error_before(), EVER))
    assert refused(*copying).txn_requires_abort()
    assert clients.values("out") == []
    clients.store.clear()
    copy_all(clients, producer, consumer, 1)
    assert clients.values("out") == [b"0"]
    assert consumer.committed([TopicPartition("in", 0)])[0].offset == 1


def test_a_commit_waits_for_offsets_whose_sending_has_not_ended(clients: Clients):
    filled(clients, 1)
    producer, consumer = clients.ready(), clients.consumer()
    send = producer.send_offsets_to_transaction
    arguments = [TopicPartition("in", 0, 1)], consumer.consumer_group_metadata()
    producer.begin_transaction()
    producer.produce("out", b"0")
    clients.store.add(Rule("create", GROUP_ENTRY, Fault.error_before(), EVER))
    assert refused(send, *arguments, 0.2).retriable()
    clients.store.clear()
    assert refused(producer.commit_transaction).code() == KafkaError._STATE
    send(*arguments)
    producer.commit_transaction()
    assert clients.values("out") == [b"0"]
    assert consumer.committed([TopicPartition("in", 0)])[0].offset == 1


def test_a_consumer_whose_producer_was_fenced_goes_on_at_its_committed_offsets(clients: Clients):
    filled(clients, 1)
    old, consumer = clients.ready(), clients.consumer()
    consumer.assign([TopicPartition("in", 0)])
    new = clients.ready()
    assert refused(copy_all, clients, old, consumer, 1).fatal()
    copy_all(clients, new, consumer, 1)
    assert clients.values("out") == [b"0"]


def test_a_member_that_was_removed_cannot_send_offsets(clients: Clients):
    """Neither as a consumer that is no member, nor as the member that has joined since."""
    filled(clients, 1)
    producer, consumer = clients.ready(), clients.consumer()
    consumer.subscribe(["in"])
    drain(consumer, 1)
    member_id = consumer.memberid()
    log = GroupLog(clients.store, "g", SYSTEM_CLOCK)
    log.change(
        "LEAVE",
        MemberIdentity(member_id or "", 1),
        lambda head: GroupHead(head.generation + 1),
        SYSTEM_CLOCK.monotonic() + 10,
    )
    eventually(lambda: consumer.memberid() != member_id, "the consumer has noticed")
    producer.begin_transaction()
    send = producer.send_offsets_to_transaction
    error = refused(send, [TopicPartition("in", 0, 1)], consumer.consumer_group_metadata())
    assert error.code() == KafkaError.UNKNOWN_MEMBER_ID
    producer.abort_transaction()


def test_records_that_are_read_again_are_not_in_two_transactions(clients: Clients):
    filled(clients, 1)
    producer, consumer = clients.ready(), clients.consumer()
    consumer.subscribe(["in"])
    drain(consumer, 1)
    producer.begin_transaction()
    producer.produce("out", b"0")
    metadata = consumer.consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition("in", 0, 1)], metadata)
    consumer.seek(TopicPartition("in", 0, OFFSET_STORED))
    assert [message.value() for message in drain(consumer, 1)] == [b"0"]
    assert refused(producer.commit_transaction).txn_requires_abort()
    producer.abort_transaction()


@pytest.mark.fault("R8")
def test_an_offset_of_a_topic_that_was_created_again_does_not_count_for_it(clients: Clients):
    """The records of the later topic would be skipped."""
    filled(clients, 3)
    producer, consumer = clients.ready(), clients.consumer()
    consumer.assign([TopicPartition("in", 0)])
    drain(consumer, 2)
    Topic("in", store=clients.store).delete()
    filled(clients, 3)
    with producer.transaction(consumer=consumer):
        producer.produce("out", b"0")
    assert clients.values("out") == [b"0"]
    assert consumer.committed([TopicPartition("in", 0)])[0].offset == -1001


def remove_log(clients: Clients) -> None:
    """As an operator does who removes a damaged one."""
    for entry in list(clients.store.inner.list("transactions/")):
        clients.store.inner.delete(entry.key)


@pytest.mark.fault("T2")
def test_offsets_of_an_id_whose_log_was_removed_are_not_committed(clients: Clients):
    """An operator may remove a damaged one."""
    Topic("in", partitions=3, store=clients.store).create()
    metadata = clients.consumer().consumer_group_metadata()
    killed = clients.ready()
    killed.begin_transaction()
    killed.send_offsets_to_transaction([TopicPartition("in", 0, 5)], metadata)
    remove_log(clients)
    producer = clients.ready()
    with producer.transaction():
        for partition in (1, 2):
            producer.send_offsets_to_transaction([TopicPartition("in", partition, 1)], metadata)
    found = clients.consumer().committed([TopicPartition("in", number) for number in range(3)])
    assert [place.offset for place in found] == [-1001, 1, 1]


@pytest.mark.fault("T3")
@pytest.mark.parametrize("transactions", [0, 1, 3])
def test_a_producer_of_a_removed_log_is_fenced_by_that_of_the_new_one(
    clients: Clients, transactions: int
):
    zombie = clients.ready()
    for number in range(transactions):
        with zombie.transaction():
            zombie.produce("out", b"%d" % number)
    zombie.begin_transaction()
    zombie.produce("out", b"zombie")
    remove_log(clients)
    producer = clients.ready()
    with producer.transaction():
        producer.produce("out", b"new")
    assert isinstance(raised_by(zombie.commit_transaction), Fenced)
    with producer.transaction():
        producer.produce("out", b"newer")
    written = [b"%d" % number for number in range(transactions)]
    assert clients.values("out") == [*written, b"new", b"newer"]


@pytest.mark.fault("T3")
def test_a_producer_learns_that_the_log_of_its_id_was_removed(clients: Clients):
    producer = clients.ready()
    producer.begin_transaction()
    producer.produce("out", b"1")
    producer.flush(10)
    remove_log(clients)
    error = refused(producer.commit_transaction)
    assert (error.code(), error.fatal()) == (KafkaError._FENCED, True)
    assert error.str().startswith("the log of transactional.id 't' was removed")
    assert clients.values("out") == []


@pytest.mark.parametrize(("epochs", "number"), [(1, 3), (3, 1)])
def test_later_offsets_of_an_id_whose_log_was_removed_are_dropped(
    clients: Clients, epochs: int, number: int
):
    """No newer producer has sent them: there is none."""
    Topic("in", partitions=2, store=clients.store).create()
    metadata = clients.consumer().consumer_group_metadata()
    killed = [clients.ready() for _ in range(epochs)][-1]
    for last in range(number):
        if last:
            killed.commit_transaction()
        killed.begin_transaction()
        killed.send_offsets_to_transaction([TopicPartition("in", 0, 5)], metadata)
    remove_log(clients)
    producer = clients.ready()
    with producer.transaction():
        producer.send_offsets_to_transaction([TopicPartition("in", 1, 1)], metadata)
    assert GroupLog(clients.store, "g").pending() == []
    found = clients.consumer().committed([TopicPartition("in", 0), TopicPartition("in", 1)])
    assert [place.offset for place in found] == [5 if number > 1 else -1001, 1]


@pytest.mark.fault("T3")
def test_offsets_of_a_newer_producer_stay_while_the_log_of_the_id_does_not_answer(
    clients: Clients,
):
    filled(clients, 1)
    arguments = [TopicPartition("in", 0, 1)], clients.consumer().consumer_group_metadata()
    old, new = clients.ready(), clients.ready()
    for producer in (old, new):
        producer.begin_transaction()
    new.send_offsets_to_transaction(*arguments)
    for operation in ("get", "get_range"):
        clients.store.add(Rule(operation, DECISION, Fault.error_before(), EVER))
    assert refused(old.send_offsets_to_transaction, *arguments, 0.2).retriable()
    clients.store.clear()
    (pending,) = GroupLog(clients.store, "g").pending()
    assert pending.transaction.epoch == clients.epoch()
    assert refused(old.send_offsets_to_transaction, *arguments).fatal()
    new.commit_transaction()
    assert clients.consumer().committed([TopicPartition("in", 0)])[0].offset == 1


def test_offsets_of_a_removed_log_whose_clock_was_ahead_are_dropped(clients: Clients):
    filled(clients, 1)
    producer, consumer = clients.ready(), clients.consumer()
    later = TransactionKey("t", clients.epoch() + 10**9, 1)
    place = CommittedOffset("in", Topic("in", store=clients.store).describe().topic_id, 0, 5)
    log = GroupLog(clients.store, "g")
    log.send_offsets(TransactionOffsets(later, None, (place,)), float("inf"))
    with producer.transaction():
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition("in", 0, 1)], metadata)
    assert log.pending() == []
    assert consumer.committed([TopicPartition("in", 0)])[0].offset == 1


def test_bytes_that_are_no_group_metadata_are_refused(clients: Clients):
    producer = clients.ready()
    producer.begin_transaction()
    send = producer.send_offsets_to_transaction
    assert refused(send, [TopicPartition("in", 0, 1)], b"x").code() == KafkaError._BAD_MSG
    with pytest.raises(TypeError):
        send([TopicPartition("in", 0, 1)], None)
    with pytest.raises(TypeError):
        send("in", b"")  # type: ignore[arg-type]
