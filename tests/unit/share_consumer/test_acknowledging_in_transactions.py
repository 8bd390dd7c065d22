"""Messages of a share group that are acknowledged by a transaction of a producer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from deltaq import (
    Consumer,
    InvalidConfig,
    KafkaError,
    KafkaException,
    Message,
    OutcomeUnknown,
    Producer,
    ShareAcknowledgements,
    ShareConsumer,
    ShareGroupMetadata,
    Topic,
    metrics,
)
from deltaq.delta.log import DeltaLog
from deltaq.errors import GroupInUse
from deltaq.maintenance.run import Maintenance
from deltaq.metrics import Event
from deltaq.names import TransactionKey
from deltaq.producer.transactions import Transactions
from deltaq.share_groups.state import RecordState
from deltaq.testing import Fault, FaultyStore, Rule
from deltaq.tools.transactions import abort, survey
from deltaq.transactions.log import TransactionLog
from tests.doubles.sharing import (
    ACCEPT,
    LOCK_S,
    REJECT,
    RELEASE,
    RENEW,
    ShareWorld,
    places,
    set_group,
)

ROOT = "memory://shared"


class Workshop(ShareWorld):
    """Share consumers of the group, and transactional producers."""

    def producer(self, id_: str = "worker", store: Any = None, **conf: Any) -> Producer:
        """A producer that has its id."""
        made = Producer(
            {"bootstrap.servers": ROOT, "transactional.id": id_, "maintenance.enable": False},
            store=store or self.store,
            clock=self.clock,
            **conf,
        )
        made.init_transactions()
        return made

    def output(self) -> list[bytes]:
        """The values of the topic `out`, of which nothing need exist."""
        with self.admin() as admin:
            if "out" not in admin.list_topics(timeout=10).topics:
                return []
        table = Topic("out", conf={"bootstrap.servers": ROOT}, store=self.store).to_arrow()
        return sorted(bytes(value) for value in table["value"].to_pylist())

    def kinds(self) -> list[tuple[int, RecordState]]:
        """The numbers of offsets of each state, from the first one that is not finished on."""
        (state,) = self.states()
        return [(span.end - span.first, span.status.state) for span in state.spans]


@pytest.fixture
def shop() -> Workshop:
    made = Workshop()
    made.fill(3)
    return made


def copy(producer: Producer, messages: Any) -> None:
    """Produce each message to `out`."""
    for message in messages:
        producer.produce("out", message.value())


def send(producer: Producer, consumer: ShareConsumer) -> None:
    """Acknowledge with the transaction what is decided."""
    producer.send_share_acknowledgements_to_transaction(
        consumer.acknowledgements_for_transaction(), consumer.share_group_metadata()
    )


def fail(producer: Producer, consumer: ShareConsumer) -> None:
    with producer.transaction(consumer=consumer):
        producer.produce("out", b"x")
        _ = 1 // 0


def fail_in_loop(producer: Producer, consumer: ShareConsumer) -> None:
    for _ in consumer:
        fail(producer, consumer)


# --- a transaction as a block ---


def test_a_block_accepts_the_messages_and_publishes_the_output(shop: Workshop) -> None:
    with shop.producer() as producer, shop.consumer() as consumer:
        messages = consumer.poll(0)
        with producer.transaction(consumer=consumer):
            copy(producer, messages)
        assert shop.output() == [b"v0", b"v1", b"v2"]
        (state,) = shop.states()
        assert (state.start, state.spans) == (3, ())
        assert consumer.commit_sync() == {}


def test_a_block_sends_what_is_decided_in_explicit_mode_only(shop: Workshop) -> None:
    with shop.producer() as producer, shop.consumer(explicit=True) as consumer:
        first, second, third = consumer.poll(0)
        with producer.transaction(consumer=consumer):
            consumer.acknowledge(first, ACCEPT)
            consumer.acknowledge(second, REJECT)
        assert shop.kinds() == [(1, RecordState.ACQUIRED)]
        consumer.acknowledge(third, RELEASE)
        assert places(consumer.poll(0)) == [(2, 2)]
        consumer.acknowledge_offset("t", 0, 2)


def test_a_block_releases_messages_later_in_both_modes(shop: Workshop) -> None:
    with shop.producer() as producer, shop.consumer() as consumer:
        messages = consumer.poll(0)
        with producer.transaction(consumer=consumer):
            consumer.release(messages[0], delay=5)
        assert consumer.poll(0).is_empty()
        shop.clock.advance(5)
        assert places(consumer.poll(0)) == [(0, 2)]


def test_a_message_that_is_rejected_in_a_transaction_has_one_dead_letter(shop: Workshop) -> None:
    shop.set(errors_deadletterqueue_topic_name="dlq.t")
    with shop.producer() as producer, shop.consumer() as consumer:
        message = consumer.poll(0)[1]
        with producer.transaction(consumer=consumer):
            consumer.reject(message, error=ValueError("torn"))
        assert shop.kinds() == [(1, RecordState.ARCHIVING), (1, RecordState.ACKNOWLEDGED)]
        consumer.poll(0)
    letters = Topic("dlq.t", conf={"bootstrap.servers": ROOT}, store=shop.store).to_arrow()
    (headers,) = letters["_headers"].to_pylist()
    about = {each["key"]: each["value"] for each in headers}
    assert about["__dlq.errors.exception"] == b"ValueError: torn"
    assert about["__dlq.errors.offset"] == b"1"
    assert shop.kinds() == []


def test_a_lock_that_is_to_be_renewed_is_no_matter_of_the_transaction(shop: Workshop) -> None:
    with shop.producer() as producer, shop.consumer(explicit=True) as consumer:
        first, second, third = consumer.poll(0)
        consumer.acknowledge(first, RENEW)
        consumer.acknowledge(second)
        consumer.acknowledge(third)
        with producer.transaction(consumer=consumer):
            pass
        assert shop.kinds() == [(1, RecordState.ACQUIRED), (2, RecordState.ACKNOWLEDGED)]
        consumer.commit_sync()
        consumer.acknowledge(first)
    assert shop.kinds() == []


@pytest.mark.parametrize("explicit", [False, True])
def test_an_exception_delivers_the_messages_again_with_growing_delays(
    shop: Workshop, explicit: bool
) -> None:
    with shop.producer() as producer, shop.consumer(explicit=explicit) as consumer:
        for delivery, wait_s in ((1, 1), (2, 2)):
            messages = consumer.poll(0)
            assert places(messages) == [(number, delivery) for number in range(3)]
            if explicit:
                consumer.acknowledge(messages[0])
            with pytest.raises(ZeroDivisionError):
                fail(producer, consumer)
            assert consumer.poll(0).is_empty()
            shop.clock.advance(wait_s)
        assert places(consumer.poll(0)) == [(number, 3) for number in range(3)]
        consumer.close()
    assert shop.output() == []


def commit_each(producer: Producer, consumer: ShareConsumer, messages: Any, got: Any) -> None:
    for message in messages:
        got.append(message)
        with producer.transaction(consumer=consumer):
            pass


class Late(BaseException):
    """Raised in the commit of a block, as a signal handler may do."""


@contextmanager
def failing(step: str) -> Iterator[None]:
    """Within it this step of a commit fails."""

    def fail(*_: object) -> None:
        raise Late("at the end")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transactions, step, fail)
        yield


@pytest.mark.parametrize("step", ["serve", "send_acknowledgements", "_flush_all"])
@pytest.mark.parametrize("in_loop", [False, True])
def test_a_commit_that_fails_delivers_the_messages_again_with_growing_delays(
    shop: Workshop, step: str, in_loop: bool
) -> None:
    shop.set(errors_deadletterqueue_topic_name="dlq.t", share_delivery_count_limit=3)
    with shop.producer() as producer, shop.consumer(max_poll_records=1) as consumer:
        for delivery, wait_s in ((1, 1), (2, 2), (3, 0)):
            messages = consumer if in_loop else consumer.poll(0)
            found: list[Any] = []
            with failing(step), pytest.raises(Late):
                commit_each(producer, consumer, messages, found)
            assert places(found) == [(0, delivery)]
            assert 0 not in [message.offset() for message in consumer.poll(0)]
            shop.clock.advance(wait_s)
        consumer.poll(0)
    letters = Topic("dlq.t", conf={"bootstrap.servers": ROOT}, store=shop.store).to_arrow()
    (headers,) = letters["_headers"].to_pylist()
    about = {each["key"]: each["value"] for each in headers}
    assert about["__dlq.errors.exception"] == b"Late: at the end"


def test_a_loop_has_a_transaction_for_each_message(shop: Workshop) -> None:
    with shop.producer() as producer, shop.consumer() as consumer:
        for message in consumer:
            with producer.transaction(consumer=consumer):
                copy(producer, [message])
            # The others wait for their turn.
            (state,) = shop.states()
            assert state.start == (message.offset() or 0) + 1
            if message.offset() == 1:
                break
        assert places(consumer.poll(0)) == [(2, 1)]
    assert shop.output() == [b"v0", b"v1"]


def test_a_commit_in_a_loop_accepts_no_message_that_waits_for_its_turn(shop: Workshop) -> None:
    with shop.consumer() as consumer:
        for _ in consumer:
            consumer.commit_sync()
            break
        assert places(consumer.poll(0)) == [(1, 1), (2, 1)]


def test_the_message_of_a_loop_whose_transaction_fails_comes_again_later(shop: Workshop) -> None:
    with shop.producer() as producer, shop.consumer() as consumer:
        with pytest.raises(ZeroDivisionError):
            fail_in_loop(producer, consumer)
        assert places(consumer.poll(0)) == [(1, 1), (2, 1)]
        shop.clock.advance(1)
        assert places(consumer.poll(0)) == [(0, 2)]


def fail_at_once(producer: Producer, consumer: ShareConsumer) -> None:
    with pytest.raises(ZeroDivisionError):
        fail(producer, consumer)


def commit_nothing(producer: Producer, consumer: ShareConsumer) -> None:
    with producer.transaction(consumer=consumer):
        pass


@pytest.mark.parametrize("then", [fail_at_once, commit_nothing])
def test_what_a_loop_has_given_back_is_no_matter_of_the_next_transaction(
    shop: Workshop, then: Any
) -> None:
    with shop.producer() as producer, shop.consumer() as consumer:
        for _ in consumer:
            break
        then(producer, consumer)
        assert places(consumer.poll(0)) == [(1, 1), (2, 1)]


def test_a_message_that_a_callback_kept_away_is_no_matter_of_the_next_transaction(
    shop: Workshop,
) -> None:
    with shop.producer() as producer, shop.consumer(max_poll_records=1) as consumer:
        consumer.poll(0)
        consumer.set_acknowledgement_commit_callback(lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            consumer.poll(0)
        consumer.set_acknowledgement_commit_callback(None)
        fail_at_once(producer, consumer)
        assert places(consumer.poll(0)) == [(1, 1)]


def test_a_block_that_cannot_begin_gives_the_messages_back(shop: Workshop) -> None:
    producer = Producer(
        {"bootstrap.servers": ROOT, "transactional.id": "w"}, store=shop.store, clock=shop.clock
    )
    with producer, shop.consumer() as consumer:
        consumer.poll(0)
        with pytest.raises(KafkaException), producer.transaction(consumer=consumer):
            pass
        assert consumer.poll(0).is_empty()
        shop.clock.advance(1)
        assert places(consumer.poll(0)) == [(0, 2), (1, 2), (2, 2)]


def test_a_consumer_with_positions_is_still_refused_if_it_commits_by_itself(shop: Workshop) -> None:
    with (
        shop.producer() as producer,
        Consumer({"bootstrap.servers": ROOT, "group.id": "c"}, store=shop.store) as consumer,
        pytest.raises(InvalidConfig, match=r"enable\.auto\.commit"),
    ):
        producer.transaction(consumer=consumer)


# --- step by step ---


def test_acknowledgements_are_pending_until_the_decision(shop: Workshop) -> None:
    with shop.producer() as producer, shop.consumer() as consumer, shop.consumer() as other:
        messages = consumer.poll(0)
        producer.begin_transaction()
        copy(producer, messages[:2])
        acknowledgements = consumer.acknowledgements_for_transaction()
        assert len(acknowledgements) == 3
        producer.send_share_acknowledgements_to_transaction(
            acknowledgements, consumer.share_group_metadata()
        )
        assert shop.kinds() == [(3, RecordState.PENDING)]
        assert shop.output() == []
        assert other.poll(0).is_empty()
        assert consumer.poll(0).is_empty()
        producer.commit_transaction()
        assert shop.kinds() == []
        assert shop.output() == [b"v0", b"v1"]


def test_an_abort_has_the_messages_delivered_again(shop: Workshop) -> None:
    with shop.producer() as producer, shop.consumer() as consumer:
        copied = consumer.poll(0)
        producer.begin_transaction()
        copy(producer, copied)
        send(producer, consumer)
        producer.abort_transaction()
        assert shop.kinds() == [(3, RecordState.AVAILABLE)]
        assert places(consumer.poll(0)) == [(0, 2), (1, 2), (2, 2)]
    assert shop.output() == []


def test_an_abort_after_the_last_delivery_ends_it(shop: Workshop) -> None:
    shop.set(share_delivery_count_limit=2)
    with shop.producer() as producer, shop.consumer() as consumer:
        for _ in range(2):
            assert len(consumer.poll(0)) == 3
            producer.begin_transaction()
            send(producer, consumer)
            producer.abort_transaction()
        assert consumer.poll(0).is_empty()
    assert shop.kinds() == []


def test_a_transaction_may_acknowledge_several_polls_and_groups(shop: Workshop) -> None:
    with shop.admin() as admin:
        set_group(admin, "h", share_auto_offset_reset="earliest")
    with (
        shop.producer() as producer,
        shop.consumer(max_poll_records=2) as consumer,
        ShareConsumer(
            {"bootstrap.servers": ROOT, "group.id": "h"}, store=shop.store, clock=shop.clock
        ) as other,
    ):
        other.subscribe(["t"])
        producer.begin_transaction()
        for of in (consumer, consumer, other):
            of.poll(0)
            send(producer, of)
        producer.commit_transaction()
        assert consumer.poll(0).is_empty()
        assert other.poll(0).is_empty()
    head = TransactionLog(shop.store, "worker", shop.clock).head()
    assert head is not None
    assert head.decision is not None
    assert (head.decision.groups, head.decision.share_groups) == ((), ("g", "h"))


def test_a_transaction_names_no_share_group_of_the_one_before(shop: Workshop) -> None:
    with shop.producer() as producer, shop.consumer() as consumer:
        consumer.poll(0)
        with producer.transaction(consumer=consumer):
            pass
        with producer.transaction():
            producer.produce("out", b"x")
    head = TransactionLog(shop.store, "worker", shop.clock).head()
    assert head is not None
    assert head.decision is not None
    assert head.decision.share_groups == ()


def test_the_decision_names_no_share_group_without_acknowledgements(shop: Workshop) -> None:
    with shop.producer() as producer, shop.consumer() as consumer:
        producer.begin_transaction()
        send(producer, consumer)
        producer.produce("out", b"x")
        producer.commit_transaction()
    (key,) = [
        entry.key
        for entry in shop.store.list("transactions/worker/_delta_log/")
        if entry.key.endswith("1.json")
    ]
    assert b"shareGroups" not in shop.store.get(key)


def test_only_what_the_clients_made_is_accepted_as_arguments(shop: Workshop) -> None:
    metadata = ShareGroupMetadata("g", "m")
    with shop.producer() as producer:
        producer.begin_transaction()
        wrong: Any = [metadata]
        with pytest.raises(TypeError, match="acknowledgements_for_transaction"):
            producer.send_share_acknowledgements_to_transaction(wrong, metadata)
        wrong = b"g"
        with pytest.raises(TypeError, match="share_group_metadata"):
            producer.send_share_acknowledgements_to_transaction(ShareAcknowledgements(), wrong)


# --- locks ---


def test_a_lock_that_was_over_before_the_acknowledgements_requires_an_abort(
    shop: Workshop,
) -> None:
    with shop.producer() as producer, shop.consumer() as consumer, shop.consumer() as other:
        copied = consumer.poll(0)
        other.poll(0)
        shop.clock.advance(LOCK_S)
        assert places(other.poll(0)) == [(0, 2), (1, 2), (2, 2)]
        producer.begin_transaction()
        copy(producer, copied)
        with pytest.raises(KafkaException, match="does not hold the messages") as refused:
            send(producer, consumer)
        assert refused.value.error.code() == KafkaError.INVALID_RECORD_STATE
        assert refused.value.error.txn_requires_abort()
        producer.abort_transaction()
        assert shop.kinds() == [(3, RecordState.ACQUIRED)]
    assert shop.output() == []


def test_all_messages_of_a_call_are_acknowledged_or_none(shop: Workshop) -> None:
    with (
        shop.producer() as producer,
        shop.consumer(explicit=True) as consumer,
        shop.consumer() as other,
    ):
        first, *copied = consumer.poll(0)
        other.poll(0)
        for message in copied:
            consumer.renew(message)
        shop.clock.advance(LOCK_S)
        assert places(other.poll(0)) == [(0, 2)]
        for message in (first, *copied):
            consumer.acknowledge(message)
        producer.begin_transaction()
        with pytest.raises(KafkaException, match="does not hold the messages"):
            send(producer, consumer)
        assert {state for _, state in shop.kinds()} == {RecordState.ACQUIRED}


def test_a_block_gives_back_what_it_still_holds_if_a_lock_was_over(shop: Workshop) -> None:
    with shop.producer() as producer, shop.consumer() as consumer, shop.consumer() as other:
        first, *rest = consumer.poll(0)
        other.poll(0)
        for message in rest:
            consumer.renew(message)
        shop.clock.advance(LOCK_S)
        assert places(other.poll(0)) == [(0, 2)]
        with (
            pytest.raises(KafkaException, match="does not hold"),
            producer.transaction(consumer=consumer),
        ):
            copy(producer, [first, *rest])
        assert consumer.poll(0).is_empty()
        shop.clock.advance(1)
        assert places(consumer.poll(0)) == [(1, 2), (2, 2)]


def test_the_end_of_a_lock_aborts_the_transaction_that_is_not_decided(shop: Workshop) -> None:
    with shop.producer() as producer, shop.consumer() as consumer, shop.consumer() as other:
        copied = consumer.poll(0)
        producer.begin_transaction()
        copy(producer, copied)
        send(producer, consumer)
        other.poll(0)
        shop.clock.advance(LOCK_S - 0.1)
        assert other.poll(0).is_empty()
        shop.clock.advance(0.1)
        assert places(other.poll(0)) == [(0, 2), (1, 2), (2, 2)]
        with pytest.raises(KafkaException, match="the lock of messages") as refused:
            producer.commit_transaction()
        assert refused.value.error.txn_requires_abort()
        producer.abort_transaction()
        assert shop.kinds() == [(3, RecordState.ACQUIRED)]
    assert shop.output() == []


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_transaction_that_is_decided_is_finished_by_another_worker(
    shop: Workshop, is_dead: bool
) -> None:
    """Its messages are not delivered again, although the lock of their dead worker is over."""
    store = FaultyStore(shop.store)
    producer, consumer = shop.producer(store=store), shop.consumer()
    copied = consumer.poll(0)
    producer.begin_transaction()
    copy(producer, copied)
    send(producer, consumer)
    store.add(Rule("create", "groups/g/*", Fault.error_before(), times=None))
    store.add(Rule("create", "topics/out/*", Fault.error_before(), times=None))
    with pytest.raises(KafkaException) as unfinished:
        producer.commit_transaction(1)
    assert unfinished.value.error.retriable()
    store.clear()
    assert shop.kinds() == [(3, RecordState.PENDING)]
    with shop.consumer() as other:
        assert other.poll(0).is_empty()
        if is_dead:
            shop.clock.advance(LOCK_S)
            assert other.poll(0).is_empty()
        else:
            producer.commit_transaction()
    assert shop.kinds() == []
    assert shop.output() == [b"v0", b"v1", b"v2"]
    consumer.close()
    producer.close()


def test_the_next_producer_of_the_id_finishes_what_is_decided(shop: Workshop) -> None:
    store = FaultyStore(shop.store)
    with shop.producer(store=store) as producer, shop.consumer() as consumer:
        consumer.poll(0)
        producer.begin_transaction()
        send(producer, consumer)
        store.add(Rule("create", "groups/g/*", Fault.error_before(), times=None))
        with pytest.raises(KafkaException):
            producer.commit_transaction(1)
        assert shop.kinds() == [(3, RecordState.PENDING)]
        shop.producer().close()
        assert shop.kinds() == []
        store.clear()


def test_acknowledgements_of_a_fenced_producer_are_given_back(shop: Workshop) -> None:
    with shop.producer() as producer, shop.consumer() as consumer:
        consumer.poll(0)
        producer.begin_transaction()
        send(producer, consumer)
        shop.producer().close()
        with pytest.raises(KafkaException) as fenced:
            producer.commit_transaction()
        assert fenced.value.error.fatal()
        assert consumer.poll(0).is_empty()
        shop.clock.advance(LOCK_S)
        assert places(consumer.poll(0)) == [(0, 2), (1, 2), (2, 2)]


def test_a_transaction_whose_log_is_damaged_stops_no_other_work(
    shop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    with shop.consumer(max_poll_records=1) as consumer, shop.consumer() as other:
        producer = shop.producer()
        consumer.poll(0)
        producer.begin_transaction()
        send(producer, consumer)
        assert len(other.poll(0)) == 2
        for entry in [*shop.store.list("transactions/worker/_delta_log/")]:
            shop.store.put(entry.key, b"{}")
        shop.clock.advance(LOCK_S)
        shop.fill(1, start=3)
        assert places(other.poll(0)) == [(3, 1)]
        for _ in range(3):
            other.poll(0)
        assert shop.kinds()[0] == (1, RecordState.PENDING)
        assert caplog.text.count("messages of a transaction stay locked: ") == 1
        producer.close()


# --- faults ---


def test_acknowledgements_that_may_be_written_are_sent_again(shop: Workshop) -> None:
    store = FaultyStore(shop.store)
    with shop.producer(store=store) as producer, shop.consumer() as consumer:
        consumer.poll(0)
        producer.begin_transaction()
        store.add(Rule("create", "groups/g/*", Fault.error_after(), times=1))
        send(producer, consumer)
        producer.commit_transaction()
    assert shop.kinds() == []


def test_a_commit_is_refused_while_acknowledgements_may_be_missing(shop: Workshop) -> None:
    store = FaultyStore(shop.store)
    with shop.producer(store=store) as producer, shop.consumer() as consumer:
        consumer.poll(0)
        producer.begin_transaction()
        about = consumer.acknowledgements_for_transaction(), consumer.share_group_metadata()
        store.add(Rule("create", "groups/g/*", Fault.error_before(), times=None))
        with pytest.raises(KafkaException) as unsent:
            producer.send_share_acknowledgements_to_transaction(*about, 1)
        assert unsent.value.error.retriable()
        with pytest.raises(KafkaException, match="send_share_acknowledgements_to_transaction"):
            producer.commit_transaction()
        store.clear()
        producer.send_share_acknowledgements_to_transaction(*about)
        producer.commit_transaction()
    assert shop.kinds() == []


def test_messages_whose_acknowledgement_may_be_written_are_not_handed_over(
    shop: Workshop,
) -> None:
    """The consumer finds out first."""
    store = FaultyStore(shop.store)
    consumer = ShareConsumer(
        {"bootstrap.servers": ROOT, "group.id": "g"}, store=store, clock=shop.clock
    )
    with consumer:
        consumer.subscribe(["t"])
        consumer.poll(0)
        store.add(
            Rule("create", "groups/*", Fault.error_after(), times=None),
            Rule("get", "groups/*", Fault.error_before(), nth=2, times=None),
        )
        (error,) = consumer.commit_sync(0.1).values()
        assert isinstance(error, OutcomeUnknown)
        with pytest.raises(OutcomeUnknown):
            consumer.acknowledgements_for_transaction(0.1)
        store.clear()
        assert len(consumer.acknowledgements_for_transaction()) == 0


# --- what the consumer hears ---


class Hearing:
    """What the callback of a consumer gets: the offsets with the code of the error, and what its
    statistics have counted.
    """

    def __init__(self, shop: Workshop) -> None:
        self.calls: list[tuple[list[int], int | None]] = []
        self.counted: dict[str, int] = {}
        self._clock = shop.clock
        self.consumer = shop.consumer(statistics_interval_ms=1, stats_cb=self._count)
        self.consumer.set_acknowledgement_commit_callback(self._hear)

    def _hear(self, offsets: Any, error: KafkaException | None) -> None:
        ((partition, found),) = offsets.items()
        assert (partition.topic, partition.partition) == ("t", 0)
        self.calls.append((sorted(found), None if error is None else error.error.code()))

    def _count(self, text: str) -> None:
        self.counted = json.loads(text)["acknowledgements"]

    def after_a_call(self) -> tuple[list[tuple[list[int], int | None]], dict[str, int]]:
        """What it has got after the next call."""
        self._clock.advance(0.001)
        self.consumer.poll(0)
        return self.calls, self.counted


def test_a_consumer_hears_of_a_committed_transaction_in_its_next_call(shop: Workshop) -> None:
    hearing = Hearing(shop)
    with shop.producer() as producer, hearing.consumer as consumer:
        messages = consumer.poll(0)
        producer.begin_transaction()
        consumer.reject(messages[0])
        send(producer, consumer)
        assert hearing.after_a_call() == ([], {})
        producer.commit_transaction()
        assert hearing.after_a_call() == ([([0, 1, 2], None)], {"accept": 2, "reject": 1})
        assert hearing.after_a_call() == ([([0, 1, 2], None)], {"accept": 2, "reject": 1})


def test_a_consumer_hears_of_a_decision_before_it_is_published(shop: Workshop) -> None:
    store, hearing = FaultyStore(shop.store), Hearing(shop)
    with shop.producer(store=store) as producer, hearing.consumer as consumer:
        consumer.poll(0)
        producer.begin_transaction()
        send(producer, consumer)
        store.add(Rule("create", "groups/g/*", Fault.error_before(), times=None))
        with pytest.raises(KafkaException):
            producer.commit_transaction(1)
        assert hearing.after_a_call() == ([([0, 1, 2], None)], {"accept": 3})
        store.clear()
        producer.commit_transaction()
        assert hearing.after_a_call() == ([([0, 1, 2], None)], {"accept": 3})


def test_a_consumer_hears_of_an_abort(shop: Workshop) -> None:
    hearing = Hearing(shop)
    with shop.producer() as producer, hearing.consumer as consumer:
        consumer.poll(0)
        producer.begin_transaction()
        send(producer, consumer)
        producer.abort_transaction()
        expected = [([0, 1, 2], KafkaError.INVALID_TXN_STATE)], {"refused": 3}
        assert hearing.after_a_call() == expected


def test_a_consumer_hears_that_a_block_was_aborted(shop: Workshop) -> None:
    hearing = Hearing(shop)
    with shop.producer() as producer, hearing.consumer as consumer:
        consumer.poll(0)
        with failing("_flush_all"), pytest.raises(Late):
            commit_each(producer, consumer, [None], [])
        expected = [([0, 1, 2], KafkaError.INVALID_TXN_STATE)], {"refused": 3}
        assert hearing.after_a_call() == expected
        assert hearing.after_a_call() == expected


@pytest.mark.parametrize("was_sent", [False, True])
def test_a_consumer_hears_that_its_lock_was_over(shop: Workshop, was_sent: bool) -> None:
    hearing = Hearing(shop)
    with shop.producer() as producer, hearing.consumer as consumer, shop.consumer() as other:
        consumer.poll(0)
        producer.begin_transaction()
        if was_sent:
            send(producer, consumer)
        other.poll(0)
        shop.clock.advance(LOCK_S)
        assert len(other.poll(0)) == 3
        end = producer.commit_transaction if was_sent else partial(send, producer, consumer)
        with pytest.raises(KafkaException) as refused:
            end()
        assert refused.value.error.code() == KafkaError.INVALID_RECORD_STATE
        producer.abort_transaction()
        expected = [([0, 1, 2], KafkaError.INVALID_RECORD_STATE)], {"refused": 3}
        assert hearing.after_a_call() == expected


def test_a_consumer_hears_that_its_producer_was_fenced(shop: Workshop) -> None:
    hearing = Hearing(shop)
    with shop.producer() as producer, hearing.consumer as consumer:
        consumer.poll(0)
        producer.begin_transaction()
        send(producer, consumer)
        shop.producer().close()
        with pytest.raises(KafkaException):
            producer.commit_transaction()
        assert hearing.after_a_call()[0] == [([0, 1, 2], KafkaError._FENCED)]


def test_a_consumer_hears_that_the_outcome_is_not_known(shop: Workshop) -> None:
    store, hearing = FaultyStore(shop.store), Hearing(shop)
    with shop.producer(store=store) as producer, hearing.consumer as consumer:
        consumer.poll(0)
        producer.begin_transaction()
        send(producer, consumer)
        store.add(Rule("*", "transactions/*", Fault.error_before(), times=None))
        with pytest.raises(KafkaException):
            producer.commit_transaction(1)
        assert hearing.after_a_call()[0] == []
        producer.close()
        assert hearing.after_a_call() == ([([0, 1, 2], KafkaError._TIMED_OUT)], {})


def test_a_consumer_hears_once_of_acknowledgements_that_were_sent_twice(shop: Workshop) -> None:
    hearing = Hearing(shop)
    with shop.producer() as producer, hearing.consumer as consumer:
        consumer.poll(0)
        producer.begin_transaction()
        about = consumer.acknowledgements_for_transaction(), consumer.share_group_metadata()
        producer.send_share_acknowledgements_to_transaction(*about)
        producer.send_share_acknowledgements_to_transaction(*about)
        producer.commit_transaction()
        assert hearing.after_a_call() == ([([0, 1, 2], None)], {"accept": 3})


# --- administration ---


def pending(shop: Workshop) -> tuple[Producer, ShareConsumer, list[Message[Any, Any]]]:
    """A transaction that has acknowledged all messages and is not decided."""
    producer, consumer = shop.producer(), shop.consumer()
    messages = consumer.poll(0)
    producer.begin_transaction()
    send(producer, consumer)
    return producer, consumer, list(messages)


def test_a_group_with_pending_acknowledgements_is_not_deleted(shop: Workshop) -> None:
    producer, consumer, _ = pending(shop)
    log = shop.log()
    with pytest.raises(GroupInUse, match="hold records"):
        log.delete(shop.clock.monotonic())
    with pytest.raises(GroupInUse, match=r"of transactional\.id 'worker'"):
        log.delete(shop.clock.monotonic() + 2 * LOCK_S)
    producer.abort_transaction()
    shop.log().delete(shop.clock.monotonic())
    consumer.close()
    producer.close()


def test_pending_acknowledgements_are_held_in_the_description(shop: Workshop) -> None:
    producer, consumer, _ = pending(shop)
    with shop.admin() as admin:
        about = admin.describe_share_groups(["g"])["g"].result(20)
    (part,) = about.partitions
    assert (part.acquired, part.lag) == (3, 3)
    assert [member.records for member in about.members] == [3]
    consumer.close()
    assert shop.kinds() == [(3, RecordState.PENDING)]
    producer.commit_transaction()
    assert shop.kinds() == []
    producer.close()


def test_the_log_says_which_transaction_has_acknowledged_what(shop: Workshop) -> None:
    producer, consumer, _ = pending(shop)
    (domain,) = [
        json.loads(text)
        for name, text in shop.log().read().table.domains.items()
        if name.startswith("deltaq.share.")
    ]
    (key,) = shop.log().pending()
    assert isinstance(key, TransactionKey)
    ((id_, epoch, number, _),) = domain["transactions"]
    assert (id_, epoch, number) == key
    assert domain["spans"] == [[3, 5, 1, 0, 1, 0, 1, 0]]
    producer.close()
    consumer.close()


# --- maintenance and operators ---


def test_maintenance_gives_back_the_messages_of_a_transaction_that_timed_out(
    shop: Workshop,
) -> None:
    producer, consumer, _ = pending(shop)
    lines: list[str] = []
    maintenance = Maintenance(shop.store, shop.clock, notify=lines.append)
    assert not maintenance.round()["pending acknowledgements resolved"]
    shop.clock.advance(61)
    maintenance.plan()
    assert "group g: end 1 transactions that have acknowledgements" in lines
    assert shop.kinds() == [(3, RecordState.PENDING)]
    assert maintenance.round()["pending acknowledgements resolved"] == 1
    assert shop.kinds() == [(3, RecordState.AVAILABLE)]
    with pytest.raises(KafkaException, match="lasted longer"):
        producer.commit_transaction()
    producer.close()
    consumer.close()


def test_maintenance_publishes_what_is_decided(shop: Workshop) -> None:
    store = FaultyStore(shop.store)
    producer, consumer = shop.producer(store=store), shop.consumer()
    consumer.poll(0)
    producer.begin_transaction()
    send(producer, consumer)
    store.add(Rule("create", "groups/g/*", Fault.error_before(), times=None))
    with pytest.raises(KafkaException):
        producer.commit_transaction(1)
    lines: list[str] = []
    maintenance = Maintenance(shop.store, shop.clock, notify=lines.append)
    maintenance.round()
    assert any("publish a transaction to group g" in line for line in lines)
    assert shop.kinds() == []
    store.clear()
    producer.close()
    consumer.close()


def test_an_operator_gives_back_the_messages_of_an_open_transaction(shop: Workshop) -> None:
    producer, consumer, _ = pending(shop)
    with shop.producer("other") as other, shop.consumer():
        (found, idle) = sorted(survey(shop.store, shop.clock).ids, key=lambda of: -len(of.groups))
        assert (found.name, found.state, found.groups) == ("worker", "open", ["g"])
        assert (idle.name, idle.state, idle.groups) == ("other", "idle", [])
        other.begin_transaction()
        other.abort_transaction()
    abort(shop.store, shop.clock, "worker", shop.clock.monotonic() + 10)
    assert shop.kinds() == [(3, RecordState.AVAILABLE)]
    with pytest.raises(KafkaException, match="an operator has aborted"):
        producer.commit_transaction()
    producer.close()
    consumer.close()


def test_acknowledgements_of_an_ended_transaction_are_listed(shop: Workshop) -> None:
    producer, consumer, _ = pending(shop)
    shop.producer().close()
    (found,) = survey(shop.store, shop.clock).ids
    assert found.state == "pending acknowledgements"
    producer.close()
    consumer.close()


def test_the_process_that_publishes_counts_acknowledgements(shop: Workshop) -> None:
    counted: Counter[str] = Counter()

    def count(event: Event) -> None:
        if event.metric is metrics.SHARE_ACKNOWLEDGEMENTS:
            counted[event.labels["type"]] += int(event.amount)

    with shop.producer() as producer, shop.consumer() as consumer:
        messages = consumer.poll(0)
        consumer.reject(messages[0])
        producer.begin_transaction()
        send(producer, consumer)
        with metrics.listening(count):
            producer.commit_transaction()
            assert counted == {"accept": 2, "reject": 1}
            shop.fill(1, start=3)
            assert len(consumer.poll(0)) == 1
            producer.begin_transaction()
            send(producer, consumer)
            producer.abort_transaction()
    assert counted == {"accept": 2, "reject": 1}


def test_a_process_that_finds_a_decision_published_makes_that_durable(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that has published it may have been killed before the entry was durable."""
    producer, consumer, _ = pending(shop)
    (key,) = shop.log().pending()
    producer.commit_transaction()
    synced: list[object] = []
    monkeypatch.setattr(DeltaLog, "sync", lambda self: synced.append(self))
    shop.log().resolve_transaction(key, shop.clock.monotonic() + 10, is_committed=True)
    assert len(synced) == 1
    shop.log().resolve_transaction(key, shop.clock.monotonic() + 10, is_committed=False)
    assert len(synced) == 1
    producer.close()
    consumer.close()
