"""Transactions in unusual situations, statement by statement."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from typing import Any

from tests.fidelity.programs.producing import Reports
from tests.fidelity.programs.transactions import abort, commit, ready, wrote
from tests.fidelity.session import READ_S, ProgramRun, attempt


def _values(session: ProgramRun, topic: str, expected: int = 0) -> list[Any]:
    """The values of all committed messages of a topic."""
    consumer = session.consumer()
    consumer.assign([session.place(topic, 0, 0)])
    found = [message.value() for message in session.read_all(consumer, expected)]
    consumer.close()
    return found


def _member(session: ProgramRun, topic: str, group: str, number: int) -> Any:
    """A consumer that has joined its group and read some messages."""
    consumer = session.consumer(group)
    consumer.subscribe([topic])
    session.read(consumer, number)
    return consumer


def _committed(session: ProgramRun, group: str, topic: str) -> Any:
    """The committed offset of partition 0, for a consumer that does not wait for transactions."""
    consumer = session.consumer(group, isolation_level="read_uncommitted")
    return consumer.committed([session.place(topic)], timeout=READ_S)[0].offset


def transactions_of_committed_and_aborted_calls(session: ProgramRun) -> Any:
    topic, producer = session.topic(), ready(session)
    producer.begin_transaction()
    wrote(session, producer, topic, "x")
    found = {
        "commit": attempt(commit, session, producer),
        "commit_again": attempt(producer.commit_transaction, READ_S),
        "abort_after_it": attempt(producer.abort_transaction, READ_S),
        "produce_after_it": attempt(producer.produce, topic, "y"),
        "send_after_it": attempt(
            producer.send_offsets_to_transaction,
            [session.place(topic, 0, 1)],
            session.consumer().consumer_group_metadata(),
            READ_S,
        ),
    }
    producer.begin_transaction()
    wrote(session, producer, topic, "z")
    return found | {
        "abort": attempt(abort, session, producer),
        "abort_again": attempt(producer.abort_transaction, READ_S),
        "commit_after_it": attempt(producer.commit_transaction, READ_S),
        "read": _values(session, topic, 1),
    }


def transactions_of_nothing(session: ProgramRun) -> Any:
    producer = ready(session)
    producer.begin_transaction()
    found = {"commit": attempt(producer.commit_transaction, READ_S)}
    producer.begin_transaction()
    found["abort"] = attempt(producer.abort_transaction, READ_S)
    producer.begin_transaction()
    return found | {"flush": producer.flush(READ_S), "after": attempt(producer.commit_transaction)}


def transactions_arguments(session: ProgramRun) -> Any:
    topic, producer = session.topic(), session.producer(transactional_id=session.name("tx"))
    metadata = session.consumer().consumer_group_metadata()
    places = [session.place(topic, 0, 1)]
    send = producer.send_offsets_to_transaction
    found = {
        "init_keyword": attempt(producer.init_transactions, timeout=READ_S),
        "init_text": attempt(producer.init_transactions, "1"),
        "init": attempt(producer.init_transactions, READ_S),
        "begin_argument": attempt(producer.begin_transaction, 1),
        "begin": attempt(producer.begin_transaction),
        "send_keywords": attempt(send, positions=places, group_metadata=metadata),
        "send_nothing": attempt(send),
        "send_no_metadata": attempt(send, places),
        "send_metadata_none": attempt(send, places, None, READ_S),
        "send_metadata_text": attempt(send, places, "text", READ_S),
        "send_metadata_bytes": attempt(send, places, b"bytes", READ_S),
        "send_metadata_empty": attempt(send, places, b"", READ_S),
        "send_tuple": attempt(send, tuple(places), metadata, READ_S),
        "send_none": attempt(send, None, metadata, READ_S),
        "send_texts": attempt(send, [topic], metadata, READ_S),
        "commit_keyword": attempt(producer.commit_transaction, timeout=READ_S),
        "commit_text": attempt(producer.commit_transaction, "1"),
        "abort_keyword": attempt(producer.abort_transaction, timeout=READ_S),
        "abort_text": attempt(producer.abort_transaction, "1"),
    }
    return found | {"abort": attempt(producer.abort_transaction, READ_S)}


def transactions_settings(session: ProgramRun) -> Any:
    def made(**settings: Any) -> Any:
        found = attempt(session.producer, transactional_id=session.name("tx"), **settings)
        return found if isinstance(found, Exception) else "made"

    return {
        "acks_1": made(acks=1),
        "acks_all": made(acks="all"),
        "in_flight_6": made(max_in_flight_requests_per_connection=6),
        "retries_0": made(retries=0),
        "idempotence": made(enable_idempotence=True),
        "message_timeout_above": made(message_timeout_ms=70_000),
        "message_timeout_equal": made(message_timeout_ms=60_000),
        "timeout_below_message_timeout": made(transaction_timeout_ms=1000, message_timeout_ms=1001),
        "timeout_999": made(transaction_timeout_ms=999),
        "timeout_1000": made(transaction_timeout_ms=1000, message_timeout_ms=1000),
        "message_timeout_0": made(message_timeout_ms=0),
    }


def transactions_ids(session: ProgramRun) -> Any:
    def init(transactional_id: str) -> Any:
        producer = attempt(session.producer, transactional_id=transactional_id)
        if isinstance(producer, Exception):
            return producer
        return attempt(producer.init_transactions, READ_S)

    return {
        "dots": init(session.name("a.b_c-D9")),
        "space": init(session.name("a b")),
        "slash": init(session.name("a/b")),
        "colon": init(session.name("a:b")),
        "umlaut": init(session.name("ä")),
        "long": init(session.name("x" * 300)),
        "empty": init(""),
    }


def transactions_without_an_id(session: ProgramRun) -> Any:
    producer, metadata = session.producer(), session.consumer().consumer_group_metadata()
    return {
        "send": attempt(producer.send_offsets_to_transaction, [], metadata),
        "commit": attempt(producer.commit_transaction),
        "abort": attempt(producer.abort_transaction),
    }


def transactions_of_a_closed_producer(session: ProgramRun) -> Any:
    topic, producer = session.topic(), ready(session)
    metadata = session.consumer().consumer_group_metadata()
    producer.begin_transaction()
    reports = Reports()
    producer.produce(topic, "x", on_delivery=reports)
    found = {"flush": producer.flush(READ_S), "close": attempt(producer.close)}
    return found | {
        "reports": reports.errors,
        "init": attempt(producer.init_transactions),
        "begin": attempt(producer.begin_transaction),
        "send": attempt(producer.send_offsets_to_transaction, [], metadata),
        "commit": attempt(producer.commit_transaction),
        "abort": attempt(producer.abort_transaction),
        "read": _values(session, topic),
    }


def transactions_closed_with_messages_in_the_queue(session: ProgramRun) -> Any:
    topic, name, reports = session.topic(), session.name("tx"), Reports()
    producer = ready(session, name, linger_ms=3000)
    producer.begin_transaction()
    producer.produce(topic, "x", on_delivery=reports)
    found = {"close": attempt(producer.close), "reports": reports.errors}
    after = ready(session, name)
    after.begin_transaction()
    after.produce(topic, "y")
    found["next_commit"] = attempt(commit, session, after)
    return found | {"read": _values(session, topic, 1)}


def transactions_left_by_a_with_block(session: ProgramRun) -> Any:
    topic, name = session.topic(), session.name("tx")
    with ready(session, name) as producer:
        producer.begin_transaction()
        wrote(session, producer, topic, "left")
    time.sleep(session.target.propagation_s)
    found = {"read": _values(session, topic)}
    after = ready(session, name)
    after.begin_transaction()
    wrote(session, after, topic, "y")
    commit(session, after)
    return found | {"then": _values(session, topic, 1)}


def transactions_init_again_and_without_waiting(session: ProgramRun) -> Any:
    producer = session.producer(transactional_id=session.name("tx"))
    found = {"at_once": attempt(producer.init_transactions, 0)}
    return found | {
        "begin": attempt(producer.begin_transaction),
        "again": attempt(producer.init_transactions, READ_S),
        "third": attempt(producer.init_transactions, READ_S),
    }


def transactions_commit_without_waiting(session: ProgramRun) -> Any:
    topic, producer = session.topic(), ready(session, linger_ms=5000)
    producer.begin_transaction()
    producer.produce(topic, "x")
    found = {
        "at_once": attempt(producer.commit_transaction, 0),
        "again": attempt(commit, session, producer),
        "third": attempt(producer.commit_transaction, READ_S),
    }
    return found | {"read": _values(session, topic, 1)}


def transactions_flush_and_reports(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(), ready(session), Reports()
    producer.begin_transaction()
    for value in ("a", "b"):
        producer.produce(topic, value, "k", on_delivery=reports)
    found = {
        "flush": producer.flush(READ_S),
        "before": [
            (error, message.partition(), message.key(), message.value(), message.offset())
            for error, message in reports
        ],
        "left": len(producer),
        "read_before": _values(session, topic),
    }
    reports.clear()
    producer.produce(topic, "c", on_delivery=reports)
    producer.commit_transaction(READ_S)
    return found | {
        "by_commit": [(error, message.value()) for error, message in reports],
        "after": [message.value() for _, message in reports],
        "poll": producer.poll(0),
        "read": _values(session, topic, 3),
    }


def transactions_aborted_with_messages_in_the_queue(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(), ready(session, linger_ms=20_000), Reports()
    producer.begin_transaction()
    producer.produce(topic, "written", on_delivery=reports)
    found = {"flush": producer.flush(READ_S)}
    for value in ("b", "c"):
        producer.produce(topic, value, on_delivery=reports)
    found |= {
        "before": len(producer),
        "abort": attempt(abort, session, producer),
        # Kafka's client reports what is purged in any order.
        "by_abort": sorted((message.value(), error and error.name()) for error, message in reports),
        "left": len(producer),
    }
    producer.begin_transaction()
    producer.produce(topic, "next")
    commit(session, producer)
    return found | {"read": _values(session, topic, 1)}


def transactions_purged(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(), ready(session, linger_ms=20_000), Reports()
    producer.begin_transaction()
    producer.produce(topic, "kept")
    producer.flush(READ_S)
    producer.produce(topic, "purged", on_delivery=reports)
    producer.purge()
    found: dict[str, Any] = {
        "flush": producer.flush(READ_S),
        "report": reports.errors,
        "commit": attempt(commit, session, producer),
        "commit_again": attempt(producer.commit_transaction, READ_S),
        "abort": attempt(abort, session, producer),
    }
    producer.begin_transaction()
    producer.produce(topic, "next")
    found["next_commit"] = attempt(commit, session, producer)
    return found | {"read": _values(session, topic, 1)}


def transactions_with_messages_that_the_client_refuses(session: ProgramRun) -> Any:
    topic, producer = session.topic(), ready(session, message_max_bytes=2000)
    producer.begin_transaction()
    wrote(session, producer, topic, "first")
    found = {
        "large": attempt(producer.produce, topic, b"x" * 3000),
        "partition": attempt(producer.produce, topic, "x", partition=5),
        "value": attempt(producer.produce, topic, 1),
        "commit": attempt(commit, session, producer),
    }
    return found | {"read": _values(session, topic, 1)}


def transactions_with_messages_that_the_broker_refuses(session: ProgramRun) -> Any:
    compacted = session.topic("compacted", cleanup_policy="compact")

    def refused(topic: str, **settings: Any) -> Any:
        producer, reports = ready(session, **settings), Reports()
        producer.begin_transaction()
        produced = attempt(producer.produce, topic, "x", on_delivery=reports)
        flushed = producer.flush(READ_S)
        return {
            "produce": produced,
            "flush": flushed,
            "report": reports.errors,
            "begin": attempt(producer.begin_transaction),
            "produce_more": attempt(producer.produce, compacted, "x", "key"),
            "commit": attempt(producer.commit_transaction, READ_S),
            "commit_again": attempt(producer.commit_transaction, READ_S),
            "abort": attempt(abort, session, producer),
            "begin_after": attempt(producer.begin_transaction),
            "abort_after": attempt(abort, session, producer),
        }

    return {
        "no_key": refused(compacted),
        "name": refused("bad/name"),
        "unknown": refused(
            session.name("nope"),
            allow_auto_create_topics=False,
            topic_metadata_propagation_max_ms=1000,
        ),
    }


def transactions_time_out_before_anything_was_written(session: ProgramRun) -> Any:
    producer = ready(session, transaction_timeout_ms=1500)
    producer.begin_transaction()
    time.sleep(1.5 + session.target.expiry_s)
    found = {"commit": attempt(producer.commit_transaction, READ_S)}
    producer.begin_transaction()
    return found | {"abort": attempt(producer.abort_transaction, READ_S)}


def transactions_aborted_after_the_time_out(session: ProgramRun) -> Any:
    topic, producer = session.topic(), ready(session, transaction_timeout_ms=1500)
    producer.begin_transaction()
    wrote(session, producer, topic, "x")
    time.sleep(1.5 + session.target.expiry_s)
    return {
        "abort": attempt(abort, session, producer),
        "begin": attempt(producer.begin_transaction),
        "read": _values(session, topic),
    }


def transactions_after_a_fatal_error(session: ProgramRun) -> Any:
    topic = session.topic()
    producer = session.producer(
        transactional_id=session.name("tx"),
        transaction_timeout_ms=10_000_000,
        message_timeout_ms=300_000,
    )
    metadata = session.consumer().consumer_group_metadata()
    places = [session.place(topic, 0, 1)]
    return {
        "init": attempt(producer.init_transactions, READ_S),
        "init_again": attempt(producer.init_transactions, READ_S),
        "begin": attempt(producer.begin_transaction),
        "produce": attempt(producer.produce, topic, "x"),
        "send": attempt(producer.send_offsets_to_transaction, places, metadata, READ_S),
        "commit": attempt(producer.commit_transaction, READ_S),
        "abort": attempt(producer.abort_transaction, READ_S),
    }


def transactions_fenced_without_messages(session: ProgramRun) -> Any:
    topic, group = session.topic(), session.name("g")
    metadata = session.consumer(group).consumer_group_metadata()
    places = [session.place(topic, 0, 1)]

    def fenced() -> Any:
        name = session.name("tx")
        old = ready(session, name)
        old.begin_transaction()
        ready(session, name)
        return old

    aborting, committing, sending = fenced(), fenced(), fenced()
    return {
        "abort": attempt(aborting.abort_transaction, READ_S),
        "commit": attempt(committing.commit_transaction, READ_S),
        "send": attempt(sending.send_offsets_to_transaction, places, metadata, READ_S),
        "commit_after_send": attempt(sending.commit_transaction, READ_S),
        "abort_after_send": attempt(sending.abort_transaction, READ_S),
        "begin_after_send": attempt(sending.begin_transaction),
        "committed": _committed(session, group, topic),
    }


def transactions_fenced_with_messages(session: ProgramRun) -> Any:
    topic = session.topic()

    def fenced() -> tuple[Any, Any]:
        name = session.name("tx")
        old = ready(session, name)
        old.begin_transaction()
        wrote(session, old, topic, "old")
        return old, ready(session, name)

    (committing, after), (aborting, _) = fenced(), fenced()
    found = {
        "commit": attempt(committing.commit_transaction, READ_S),
        "commit_again": attempt(committing.commit_transaction, READ_S),
        "abort_after_it": attempt(committing.abort_transaction, READ_S),
        "begin_after_it": attempt(committing.begin_transaction),
        "init_after_it": attempt(committing.init_transactions, READ_S),
        "produce_after_it": attempt(committing.produce, topic, "more"),
        "abort": attempt(aborting.abort_transaction, READ_S),
        "begin_after_abort": attempt(aborting.begin_transaction),
    }
    after.begin_transaction()
    wrote(session, after, topic, "new")
    commit(session, after)
    return found | {"read": _values(session, topic, 1)}


def transactions_take_their_id_in_turns(session: ProgramRun) -> Any:
    topic, name = session.topic(), session.name("tx")
    first = ready(session, name)
    first.begin_transaction()
    wrote(session, first, topic, "1")
    commit(session, first)
    second = ready(session, name)
    second.begin_transaction()
    wrote(session, second, topic, "2")
    commit(session, second)
    third = ready(session, name)
    third.begin_transaction()
    wrote(session, third, topic, "3")
    commit(session, third)
    return {
        "first_begin": attempt(first.begin_transaction),
        "first_abort": attempt(first.abort_transaction, READ_S),
        "second_begin": attempt(second.begin_transaction),
        "read": _values(session, topic, 3),
    }


def transactions_offsets_of_a_group_that_is_new(session: ProgramRun) -> Any:
    topic, group, producer = session.topic(), session.name("g"), ready(session)
    session.fill(topic, 3)
    metadata = session.consumer(group).consumer_group_metadata()
    producer.begin_transaction()
    send = producer.send_offsets_to_transaction

    def state() -> Any:
        found = session.admin.describe_consumer_groups([group])[group].result(READ_S)
        return found.state, found.is_simple_consumer_group, found.members

    found: dict[str, Any] = {
        "send": attempt(send, [session.place(topic, 0, 2)], metadata, READ_S),
        "state_before": state(),
        "commit": attempt(commit, session, producer),
        "committed": _committed(session, group, topic),
        "state": state(),
    }
    producer.begin_transaction()
    return found | {
        "alone": attempt(send, [session.place(topic, 0, 3, "note")], metadata, READ_S),
        "abort": attempt(abort, session, producer),
        "after": _committed(session, group, topic),
    }


def transactions_offsets_that_are_none(session: ProgramRun) -> Any:
    topic, group, producer = session.topic(partitions=2), session.name("g"), ready(session)
    kafka, metadata = session.kafka, session.consumer(group).consumer_group_metadata()

    def sent(*places: Any) -> Any:
        producer.begin_transaction()
        send = producer.send_offsets_to_transaction
        answers = [attempt(send, list(places), metadata, READ_S)]
        answers.append(attempt(commit, session, producer))
        if answers[-1] is not None:
            answers.append(attempt(abort, session, producer))
        return answers

    return {
        "nothing": sent(),
        "invalid": sent(session.place(topic, 0, kafka.OFFSET_INVALID)),
        "beginning": sent(session.place(topic, 0, kafka.OFFSET_BEGINNING)),
        "end": sent(session.place(topic, 0, kafka.OFFSET_END)),
        "minus_5": sent(session.place(topic, 0, -5)),
        "none_yet": _committed(session, group, topic),
        "mixed": sent(session.place(topic, 0, 4), session.place(topic, 1)),
        "twice": sent(session.place(topic, 0, 6), session.place(topic, 0, 5)),
        "committed": _committed(session, group, topic),
        "beyond": sent(session.place(topic, 0, 1_000_000)),
        "then": _committed(session, group, topic),
    }


def transactions_offsets_of_places_that_do_not_exist(session: ProgramRun) -> Any:
    topic, group, producer = session.topic(), session.name("g"), ready(session)
    metadata = session.consumer(group).consumer_group_metadata()

    def sent(*places: Any) -> Any:
        producer.begin_transaction()
        send = producer.send_offsets_to_transaction
        answers = [
            attempt(send, list(places), metadata, READ_S),
            attempt(producer.commit_transaction, READ_S),
        ]
        if answers[-1] is not None:
            answers.append(attempt(abort, session, producer))
        return answers

    return {
        "partition": sent(session.place(topic, 7, 1)),
        "topic": sent(session.place(session.name("nope"), 0, 1)),
        "name": sent(session.place("bad/name", 0, 1)),
        "negative": sent(session.place(topic, -1, 1)),
        "with_one_that_does": sent(session.place(topic, 0, 1), session.place(topic, 7, 1)),
        "committed": _committed(session, group, topic),
    }


def transactions_offsets_sent_again(session: ProgramRun) -> Any:
    first, second, producer = session.topic(), session.topic(), ready(session)
    group, other = session.name("g"), session.name("g2")
    one = session.consumer(group).consumer_group_metadata()
    two = session.consumer(other).consumer_group_metadata()
    producer.begin_transaction()
    send = producer.send_offsets_to_transaction
    found = [
        attempt(send, [session.place(topic, 0, offset)], metadata, READ_S)
        for topic, offset, metadata in (
            (first, 5, one),
            (first, 3, one),
            (second, 2, one),
            (first, 9, two),
        )
    ]
    commit(session, producer)
    return {
        "sent": found,
        "first": _committed(session, group, first),
        "second": _committed(session, group, second),
        "other": _committed(session, other, first),
    }


def transactions_offsets_of_a_consumer_that_assigns(session: ProgramRun) -> Any:
    topic, output, group = session.topic(), session.topic(), session.name("g")
    session.fill(topic, 4)
    consumer = session.consumer(group, isolation_level="read_uncommitted")
    consumer.assign([session.place(topic, 0, 0)])
    session.read(consumer, 3)
    producer = ready(session)
    producer.begin_transaction()
    producer.produce(output, "o")
    places = consumer.position(consumer.assignment())
    found = {
        "send": attempt(
            producer.send_offsets_to_transaction,
            places,
            consumer.consumer_group_metadata(),
            READ_S,
        ),
        "position": [place.offset for place in consumer.position([session.place(topic)])],
        "committed_before": consumer.committed([session.place(topic)], timeout=READ_S)[0].offset,
    }
    commit(session, producer)
    found["committed"] = consumer.committed([session.place(topic)], timeout=READ_S)[0].offset
    member = _member(session, topic, group, 1)
    producer.begin_transaction()
    found["beside_a_member"] = attempt(
        producer.send_offsets_to_transaction,
        [session.place(topic, 0, 2)],
        consumer.consumer_group_metadata(),
        READ_S,
    )
    found["abort"] = attempt(abort, session, producer)
    member.close()
    return found


def transactions_offsets_of_a_consumer_that_waits(session: ProgramRun) -> Any:
    topic, group, producer = session.topic(), session.name("g"), ready(session)
    session.fill(topic, 3)
    consumer = _member(session, topic, group, 2)
    consumer.commit(offsets=[session.place(topic, 0, 1)], asynchronous=False)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [session.place(topic, 0, 2)], consumer.consumer_group_metadata(), READ_S
    )

    def read(**settings: Any) -> Any:
        other = session.consumer(group, **settings)
        found = attempt(other.committed, [session.place(topic)], timeout=2)
        return found[0].offset if isinstance(found, list) else found

    found = {
        "position": consumer.position([session.place(topic)])[0].offset,
        "committed": read(isolation_level="read_uncommitted"),
        "stable": read(isolation_level="read_committed"),
        "read_on": [message.value() for message in session.read(consumer, 1)],
        "commit_of_the_consumer": attempt(
            consumer.commit, offsets=[session.place(topic, 0, 3)], asynchronous=False
        ),
        "then": read(isolation_level="read_uncommitted"),
    }
    commit(session, producer)
    return found | {"after": read()}


def transactions_offsets_after_a_rebalance(session: ProgramRun) -> Any:
    topic, output, group = session.topic(partitions=2), session.topic(), session.name("g")
    for partition in (0, 1):
        session.fill(topic, 2, partition)
    first = _member(session, topic, group, 4)
    before = first.consumer_group_metadata()
    second = session.consumer(group)
    second.subscribe([topic])
    deadline = time.monotonic() + READ_S
    while len(first.assignment()) + len(second.assignment()) != 2 or not second.assignment():
        assert time.monotonic() < deadline
        first.poll(0.05)
        second.poll(0.05)
    moved, kept = second.assignment()[0].partition, first.assignment()[0].partition
    producer = ready(session)

    def sent(partition: int, metadata: Any) -> Any:
        producer.begin_transaction()
        producer.produce(output, "o")
        places = [session.place(topic, partition, 1)]
        return {
            "send": attempt(producer.send_offsets_to_transaction, places, metadata, READ_S),
            "produce": attempt(producer.produce, output, "p"),
            "commit": attempt(producer.commit_transaction, READ_S),
            "abort": attempt(producer.abort_transaction, READ_S),
        }

    found = {
        "moved_partition_old_generation": sent(moved, before),
        "moved_partition": sent(moved, first.consumer_group_metadata()),
        "kept_partition_old_generation": sent(kept, before),
        "kept_partition": sent(kept, first.consumer_group_metadata()),
        "new_owner": sent(moved, second.consumer_group_metadata()),
    }
    time.sleep(session.target.propagation_s)
    return found


def transactions_whose_consumer_is_replaced(session: ProgramRun) -> Any:
    topic, output, group = session.topic(), session.topic(), session.name("g")
    session.fill(topic, 3)
    old, producer = _member(session, topic, group, 2), ready(session)
    producer.begin_transaction()
    producer.produce(output, "o")
    producer.send_offsets_to_transaction(
        [session.place(topic, 0, 2)], old.consumer_group_metadata(), READ_S
    )
    old.close()
    new = session.consumer(group)
    new.subscribe([topic])
    waits = attempt(new.poll, session.target.quiet_s * 2)
    found = {
        "reads_while_open": None if waits is None else waits.value(),
        "commit": attempt(commit, session, producer),
    }
    rest = session.read_all(new, 1 if waits is None else 0)
    return found | {"then_reads": [message.value() for message in rest]}


def transactions_and_administrators_of_offsets(session: ProgramRun) -> Any:
    topic, group, producer = session.topic(partitions=2), session.name("g"), ready(session)
    admin, request = session.admin, session.kafka.ConsumerGroupTopicPartitions
    metadata = session.consumer(group).consumer_group_metadata()

    def alter(partition: int, offset: int) -> Any:
        places = [session.place(topic, partition, offset)]
        return session.result(
            admin.alter_consumer_group_offsets([request(group, places)])
        ).topic_partitions

    def listed(*partitions: int) -> Any:
        places = [session.place(topic, number) for number in partitions] or None
        found = session.result(admin.list_consumer_group_offsets([request(group, places)]))
        return sorted(found.topic_partitions, key=lambda place: place.partition)

    def send(offset: int) -> Any:
        places = [session.place(topic, 0, offset)]
        return attempt(producer.send_offsets_to_transaction, places, metadata, READ_S)

    found: dict[str, Any] = {"alter_first": (alter(0, 1), alter(1, 1))}
    producer.begin_transaction()
    found |= {
        "send": send(5),
        "list": listed(),
        "list_asked": listed(0, 1),
        "alter": alter(0, 2),
        "list_after": listed(),
        "commit": attempt(commit, session, producer),
        "list_committed": listed(),
    }
    producer.begin_transaction()
    found |= {
        "send_again": send(7),
        "alter_again": alter(0, 3),
        "abort": attempt(abort, session, producer),
        "list_aborted": listed(),
    }
    return found


def transactions_and_administrators_of_groups(session: ProgramRun) -> Any:
    topic, producer, admin = session.topic(), ready(session), session.admin

    def deleted(is_committed: bool, *, is_new: bool) -> Any:
        group = session.name("g")
        metadata = session.consumer(group).consumer_group_metadata()
        if not is_new:
            request = session.kafka.ConsumerGroupTopicPartitions
            places = [session.place(topic, 0, 1)]
            session.result(admin.alter_consumer_group_offsets([request(group, places)]))
        producer.begin_transaction()
        places = [session.place(topic, 0, 2)]
        found = {
            "send": attempt(producer.send_offsets_to_transaction, places, metadata, READ_S),
            "delete": session.result(admin.delete_consumer_groups([group])),
            "offset": _committed(session, group, topic),
        }
        end = commit if is_committed else abort
        found["end"] = attempt(end, session, producer)
        if found["end"] is not None:
            found["abort"] = attempt(abort, session, producer)
        found["offset_after"] = _committed(session, group, topic)
        found["delete_after"] = session.result(admin.delete_consumer_groups([group]))
        return found

    return {
        "commit": deleted(True, is_new=False),
        "abort": deleted(False, is_new=False),
        "commit_new": deleted(True, is_new=True),
        "abort_new": deleted(False, is_new=True),
    }


def transactions_and_the_end_of_a_topic(session: ProgramRun) -> Any:
    topic, other, producer = session.topic(), session.topic(), ready(session)
    producer.begin_transaction()
    wrote(session, producer, topic, "x")
    wrote(session, producer, other, "y")
    deleted = session.result(session.admin.delete_topics([topic]))
    time.sleep(session.target.propagation_s)
    return {
        "deleted": deleted,
        "commit": attempt(commit, session, producer),
        "read": _values(session, other, 1),
    }


def transactions_of_serialized_messages(session: ProgramRun) -> Any:
    topic, reports = session.topic(), Reports()
    producer = session.kafka.SerializingProducer(
        {
            "bootstrap.servers": session.target.address,
            "transactional.id": session.name("tx"),
            "key.serializer": lambda value, _: str(value).encode(),
            "value.serializer": lambda value, _: f"<{value}>".encode(),
        }
    )
    producer.init_transactions(READ_S)
    producer.begin_transaction()
    producer.produce(topic, 1, "a", on_delivery=reports)
    producer.commit_transaction(READ_S)
    producer.begin_transaction()
    producer.produce(topic, 2, "b", on_delivery=reports)
    abort(session, producer)
    return {
        "keywords": attempt(producer.commit_transaction, timeout=1),
        "outside": attempt(producer.produce, topic, 3, "c"),
        "errors": [error and "an error" for error in reports.errors[:1]],
        "read": _values(session, topic, 1),
    }


def transactions_that_copy_a_topic(session: ProgramRun) -> Any:
    source, output, group = session.topic(), session.topic(), session.name("g")
    session.fill(source, 7)
    consumer, producer = session.consumer(group), ready(session)
    consumer.subscribe([source])
    copied, aborted = 0, 0
    while copied < 7:
        batch = consumer.consume(3, READ_S) if copied < 6 else session.read(consumer, 1)
        producer.begin_transaction()
        for message in batch:
            producer.produce(output, message.value().upper(), message.key())
        # The first batch fails once: the program goes back, and reads it again.
        if not aborted:
            aborted += 1
            abort(session, producer)
            for place in consumer.committed(consumer.assignment(), timeout=READ_S):
                offset = place.offset if place.offset >= 0 else 0
                consumer.seek(session.place(source, place.partition, offset))
            continue
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), READ_S
        )
        commit(session, producer)
        copied += len(batch)
    consumer.close()
    return {
        "committed": _committed(session, group, source),
        "copied": copied,
        "read": _values(session, output, 7),
    }


def transactions_offsets_of_a_static_member_that_is_replaced(session: ProgramRun) -> Any:
    topic, group, producer = session.topic(), session.name("g"), ready(session)
    session.fill(topic, 3)

    def joined() -> Any:
        consumer = session.consumer(group, group_instance_id="one")
        consumer.subscribe([topic])
        session.read(consumer, 1)
        return consumer

    def sent(metadata: Any) -> Any:
        producer.begin_transaction()
        places = [session.place(topic, 0, 1)]
        return {
            "send": attempt(producer.send_offsets_to_transaction, places, metadata, READ_S),
            "abort": attempt(abort, session, producer),
        }

    old = joined().consumer_group_metadata()
    before = sent(old)
    new = joined().consumer_group_metadata()
    return {"before": before, "old": sent(old), "new": sent(new)}


def transactions_whose_callbacks_raise(session: ProgramRun) -> Any:
    topic, producer = session.topic(), ready(session, linger_ms=5000)

    def raising(error: Any, message: Any) -> None:
        raise LookupError("of the program")

    producer.begin_transaction()
    producer.produce(topic, "x", on_delivery=raising)
    found = {
        "commit": attempt(producer.commit_transaction, READ_S),
        "commit_again": attempt(producer.commit_transaction, READ_S),
        "begin": attempt(producer.begin_transaction),
    }
    time.sleep(session.target.propagation_s)
    found["read"] = _values(session, topic, 1)
    producer.produce(topic, "y", on_delivery=raising)
    return found | {
        "abort": attempt(producer.abort_transaction, READ_S),
        "abort_again": attempt(producer.abort_transaction, READ_S),
        "begin_after": attempt(producer.begin_transaction),
    }


def transactions_called_by_callbacks(session: ProgramRun) -> Any:
    topic, producer, answers = session.topic(), ready(session, linger_ms=5000), list[Any]()

    def calling(error: Any, message: Any) -> None:
        answers.append(attempt(producer.produce, topic, "more"))
        answers.append(attempt(producer.begin_transaction))

    producer.begin_transaction()
    producer.produce(topic, "x", on_delivery=calling)
    found = {"flush": producer.flush(READ_S), "by_flush": list(answers)}
    answers.clear()
    producer.produce(topic, "y", on_delivery=calling)
    found |= {"commit": attempt(commit, session, producer), "by_commit": list(answers)}
    answers.clear()
    producer.begin_transaction()
    producer.produce(topic, "z", on_delivery=calling)
    found |= {"abort": attempt(abort, session, producer), "by_abort": list(answers)}
    return found | {"read": _values(session, topic, 2)}


def transactions_called_by_two_threads(session: ProgramRun) -> Any:
    topic, producer = session.topic(), ready(session, linger_ms=500)
    metadata = session.consumer().consumer_group_metadata()
    has_begun, may_end, answers = threading.Event(), threading.Event(), list[Any]()

    def waits(error: Any, message: Any) -> None:
        has_begun.set()
        may_end.wait(READ_S)

    producer.begin_transaction()
    producer.produce(topic, "x", on_delivery=waits)
    committing = threading.Thread(
        target=lambda: answers.append(attempt(producer.commit_transaction, READ_S))
    )
    committing.start()
    has_begun.wait(READ_S)
    places = [session.place(topic, 0, 1)]
    found = {
        "begin": attempt(producer.begin_transaction),
        "produce": attempt(producer.produce, topic, "y"),
        "send": attempt(producer.send_offsets_to_transaction, places, metadata, READ_S),
        "abort": attempt(producer.abort_transaction, READ_S),
        "commit": attempt(producer.commit_transaction, READ_S),
        "init": attempt(producer.init_transactions, READ_S),
    }
    may_end.set()
    committing.join()
    return found | {"first": answers, "read": _values(session, topic, 1)}


def transactions_of_batches(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(), ready(session), Reports()

    def batch() -> Any:
        messages: list[dict[str, Any]] = [{"value": b"1"}, {"value": b"2", "key": b"k"}]
        queued = attempt(producer.produce_batch, topic, messages, on_delivery=reports)
        return queued, [message.get("_error") for message in messages]

    found: dict[str, Any] = {"outside": batch()}
    producer.begin_transaction()
    found |= {"inside": batch(), "commit": attempt(commit, session, producer)}
    found["reports"] = [(error, message.value()) for error, message in reports]
    producer.begin_transaction()
    found |= {"again": batch()[0], "abort": attempt(abort, session, producer)}
    return found | {"after": batch(), "read": _values(session, topic, 2)}


def transactions_that_create_a_topic(session: ProgramRun) -> Any:
    topic, other, producer = session.name("auto"), session.name("auto2"), ready(session)
    producer.begin_transaction()
    wrote(session, producer, topic, "x")
    found = {"exists": session.exists(topic), "abort": attempt(abort, session, producer)}
    producer.begin_transaction()
    producer.produce(other, "y")
    found["commit"] = attempt(commit, session, producer)
    return found | {
        "exists_after": session.exists(topic),
        "read": (_values(session, topic), _values(session, other, 1)),
    }


def transactions_whose_errors_error_cb_hears(session: ProgramRun) -> Any:
    topic, name, heard = session.topic(), session.name("tx"), list[Any]()

    def note(error: Any) -> None:
        heard.append((error.name(), error.fatal(), error.txn_requires_abort()))

    old = ready(session, name, error_cb=note)
    old.begin_transaction()
    wrote(session, old, topic, "x")
    ready(session, name)
    found: dict[str, Any] = {"commit": attempt(old.commit_transaction, READ_S)}
    found["poll"] = attempt(old.poll, 0.5)
    return found | {"heard": heard}


def transactions_of_an_asynchronous_producer(session: ProgramRun) -> Any:
    topic, output, name = session.topic(), session.name("out"), session.name("tx")
    session.create(output)
    aio = importlib.import_module(f"{session.kafka.__name__}.aio")
    metadata = session.consumer(session.name("g")).consumer_group_metadata()

    async def answer(call: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return await call(*arguments, **keywords)
        except Exception as raised:  # noqa: BLE001 - it is the answer
            return raised

    async def played() -> Any:
        producer = aio.AIOProducer(
            {"bootstrap.servers": session.target.address, "transactional.id": name}
        )
        found = {
            "begin_before": await answer(producer.begin_transaction),
            "init": await answer(producer.init_transactions, READ_S),
            "keyword": await answer(producer.commit_transaction, timeout=READ_S),
            "commit_outside": await answer(producer.commit_transaction, READ_S),
            "begin": await answer(producer.begin_transaction),
            "begin_again": await answer(producer.begin_transaction),
        }
        delivered = await producer.produce(output, value=b"x")
        found["send"] = await answer(
            producer.send_offsets_to_transaction, [session.place(topic, 0, 1)], metadata, READ_S
        )
        found["commit"] = await answer(producer.commit_transaction, READ_S)
        found["delivered"] = (await delivered).value()
        found["begin_next"] = await answer(producer.begin_transaction)
        aborted = await producer.produce(output, value=b"y")
        found["abort"] = await answer(producer.abort_transaction, READ_S)
        # It may be written before the abort.
        await asyncio.wait([aborted], timeout=READ_S)
        found["done"] = aborted.done() and bool(aborted.exception() or True)
        found["begin_last"] = await answer(producer.begin_transaction)
        await producer.close()
        return found

    found = asyncio.run(played())
    time.sleep(session.target.propagation_s)
    return found | {"read": _values(session, output, 1)}


PROGRAMS = (
    transactions_of_committed_and_aborted_calls,
    transactions_of_nothing,
    transactions_arguments,
    transactions_settings,
    transactions_ids,
    transactions_without_an_id,
    transactions_of_a_closed_producer,
    transactions_closed_with_messages_in_the_queue,
    transactions_left_by_a_with_block,
    transactions_init_again_and_without_waiting,
    transactions_commit_without_waiting,
    transactions_flush_and_reports,
    transactions_aborted_with_messages_in_the_queue,
    transactions_purged,
    transactions_with_messages_that_the_client_refuses,
    transactions_with_messages_that_the_broker_refuses,
    transactions_time_out_before_anything_was_written,
    transactions_aborted_after_the_time_out,
    transactions_after_a_fatal_error,
    transactions_fenced_without_messages,
    transactions_fenced_with_messages,
    transactions_take_their_id_in_turns,
    transactions_offsets_of_a_group_that_is_new,
    transactions_offsets_that_are_none,
    transactions_offsets_of_places_that_do_not_exist,
    transactions_offsets_sent_again,
    transactions_offsets_of_a_consumer_that_assigns,
    transactions_offsets_of_a_consumer_that_waits,
    transactions_offsets_after_a_rebalance,
    transactions_whose_consumer_is_replaced,
    transactions_and_administrators_of_offsets,
    transactions_and_administrators_of_groups,
    transactions_and_the_end_of_a_topic,
    transactions_of_serialized_messages,
    transactions_that_copy_a_topic,
    transactions_offsets_of_a_static_member_that_is_replaced,
    transactions_whose_callbacks_raise,
    transactions_called_by_callbacks,
    transactions_called_by_two_threads,
    transactions_of_batches,
    transactions_that_create_a_topic,
    transactions_whose_errors_error_cb_hears,
    transactions_of_an_asynchronous_producer,
)
