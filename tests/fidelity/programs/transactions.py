"""Transactions: what is visible when, which calls are valid, who is fenced."""

from __future__ import annotations

import time
from typing import Any

from tests.fidelity.programs.messages import offsets
from tests.fidelity.programs.producing import Reports
from tests.fidelity.session import READ_S, ProgramRun, attempt

_LEVELS = ("read_uncommitted", "read_committed")


def ready(session: ProgramRun, transactional_id: str | None = None, **settings: Any) -> Any:
    """A producer that may begin its first transaction."""
    name = transactional_id or session.name("tx")
    producer = session.producer(transactional_id=name, **settings)
    producer.init_transactions(READ_S)
    return producer


def wrote(session: ProgramRun, producer: Any, topic: str, *values: str) -> None:
    """Write these values in the open transaction, and wait until they are written."""
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(READ_S) == 0


def commit(session: ProgramRun, producer: Any) -> None:
    """Commit, and wait until all clients see what is committed."""
    producer.commit_transaction(READ_S)
    time.sleep(session.target.propagation_s)


def abort(session: ProgramRun, producer: Any) -> None:
    """Abort, and wait until all clients know of it."""
    producer.abort_transaction(READ_S)
    time.sleep(session.target.propagation_s)


def _seen(session: ProgramRun, topic: str) -> Any:
    """What consumers of both isolation levels find in a topic."""
    found = {}
    for level in _LEVELS:
        consumer = session.consumer(isolation_level=level, enable_partition_eof=True)
        consumer.assign([session.place(topic, 0, 0)])
        messages = session.read_all(consumer, 1)
        found[level] = {
            "seen": [
                (message.error().name(), message.offset())
                if message.error()
                else (message.offset(), message.value())
                for message in messages
            ],
            "position": consumer.position([session.place(topic)])[0].offset,
            "watermarks": consumer.get_watermark_offsets(session.place(topic), timeout=READ_S),
        }
        consumer.close()
    return found


def _watermarks(session: ProgramRun, topic: str, partition: int = 0) -> Any:
    place = session.place(topic, partition)
    return session.consumer().get_watermark_offsets(place, timeout=READ_S)


def txn_visibility(session: ProgramRun) -> Any:
    topic, producer = session.topic(), ready(session)
    producer.begin_transaction()
    wrote(session, producer, topic, "c0", "c1", "c2")
    found = {"open": _seen(session, topic)}
    commit(session, producer)
    found["committed"] = _seen(session, topic)
    producer.begin_transaction()
    wrote(session, producer, topic, "a0", "a1")
    abort(session, producer)
    found["aborted"] = _seen(session, topic)
    producer.begin_transaction()
    producer.produce(topic, "d0")
    commit(session, producer)
    found["final"] = _seen(session, topic)
    producer.begin_transaction()
    commit(session, producer)
    return found | {"empty_commit_watermarks": _watermarks(session, topic)}


def txn_interleaved_with_plain(session: ProgramRun) -> Any:
    topic, producer, plain = session.topic(), ready(session), session.producer()
    producer.begin_transaction()
    wrote(session, plain, topic, "plain0")
    wrote(session, producer, topic, "tx0")
    wrote(session, plain, topic, "plain1")
    found = {"open": _seen(session, topic)}
    commit(session, producer)
    return found | {"done": _seen(session, topic)}


def txn_two_partitions_and_topics(session: ProgramRun) -> Any:
    first, second, producer = session.topic(partitions=3), session.topic(), ready(session)
    producer.begin_transaction()
    producer.produce(first, "x", partition=0)
    producer.produce(first, "x", partition=1)
    producer.produce(second, "x")
    commit(session, producer)
    found = {f"t{number}": _watermarks(session, first, number) for number in range(3)}
    return found | {"u0": _watermarks(session, second)}


def txn_abort_purges_unsent(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(), ready(session, linger_ms=5000), Reports()
    producer.begin_transaction()
    for number in range(3):
        producer.produce(topic, str(number), on_delivery=reports)
    abort(session, producer)
    producer.poll(0)
    return {
        "reports": [error and error.name() for error in reports.errors],
        "watermarks": _watermarks(session, topic),
    }


def txn_state_errors(session: ProgramRun) -> Any:
    topic, plain = session.topic(), session.producer()
    producer = session.producer(transactional_id=session.name("tx"))
    found = {
        "begin_before_init": attempt(producer.begin_transaction),
        "produce_before_init": attempt(producer.produce, topic, "x"),
    }
    producer.init_transactions(READ_S)
    found |= {
        "produce_outside": attempt(producer.produce, topic, "x"),
        "commit_outside": attempt(producer.commit_transaction, READ_S),
        "abort_outside": attempt(producer.abort_transaction, READ_S),
    }
    producer.begin_transaction()
    return found | {
        "begin_twice": attempt(producer.begin_transaction),
        "init_in_txn": attempt(producer.init_transactions, READ_S),
        "abort": attempt(producer.abort_transaction, READ_S),
        "init_again": attempt(producer.init_transactions, READ_S),
        "plain_init": attempt(plain.init_transactions, READ_S),
        "plain_begin": attempt(plain.begin_transaction),
    }


def txn_fencing(session: ProgramRun) -> Any:
    topic, name, reports = session.topic(), session.name("tx"), list[Any]()
    old = ready(session, name)
    old.begin_transaction()
    wrote(session, old, topic, "old")
    new = ready(session, name)
    found = {
        "after_new_init": _seen(session, topic),
        "old_produce": attempt(
            old.produce, topic, "zombie", on_delivery=lambda error, _: reports.append(error)
        ),
        "old_flush": attempt(old.flush, READ_S),
        "old_reports": reports,
        "old_commit": attempt(old.commit_transaction, READ_S),
        "old_abort": attempt(old.abort_transaction, READ_S),
        "old_begin": attempt(old.begin_transaction),
    }
    new.begin_transaction()
    new.produce(topic, "new")
    found["new_commit"] = attempt(commit, session, new)
    return found | {"end": _seen(session, topic)}


def txn_fencing_idle_old(session: ProgramRun) -> Any:
    topic, name, reports = session.topic(), session.name("tx"), Reports()
    old = ready(session, name)
    old.begin_transaction()
    old.produce(topic, "1")
    commit(session, old)
    ready(session, name)
    return {
        "old_begin": attempt(old.begin_transaction),
        "old_produce": attempt(old.produce, topic, "z", on_delivery=reports),
        "old_commit": attempt(old.commit_transaction, READ_S),
        "reports": reports.errors,
    }


def txn_send_offsets(session: ProgramRun) -> Any:
    topic, output, group = session.topic(), session.topic(), session.name("g")
    request = session.kafka.ConsumerGroupTopicPartitions
    session.fill(topic, 5)
    consumer = session.consumer(group)
    consumer.subscribe([topic])
    session.read(consumer, 3)
    producer = ready(session)

    def committed(**settings: Any) -> Any:
        other = session.consumer(group, **settings)
        found = attempt(other.committed, [session.place(topic)], timeout=3)
        return found[0] if isinstance(found, list) else found

    def listed(**keywords: Any) -> Any:
        asked = session.admin.list_consumer_group_offsets([request(group)], **keywords)
        found = session.result(asked)
        return found if isinstance(found, Exception) else found.topic_partitions

    def send(offset: int, metadata: Any) -> Any:
        places = [session.place(topic, 0, offset)]
        return attempt(producer.send_offsets_to_transaction, places, metadata, READ_S)

    producer.begin_transaction()
    producer.produce(output, "o")
    position = consumer.position([session.place(topic)])[0].offset
    found = {
        "send": send(position, consumer.consumer_group_metadata()),
        "open_read_uncommitted": committed(isolation_level="read_uncommitted"),
        "open_read_committed": committed(isolation_level="read_committed"),
    }
    commit(session, producer)
    found["committed"] = committed()
    producer.begin_transaction()
    send(5, consumer.consumer_group_metadata())
    abort(session, producer)
    found["aborted"] = committed()
    producer.begin_transaction()
    send(5, consumer.consumer_group_metadata())
    found |= {
        "admin_list_while_open": listed(),
        "admin_list_require_stable": listed(require_stable=True, request_timeout=2),
    }
    abort(session, producer)
    producer.begin_transaction()
    metadata = consumer.consumer_group_metadata()
    consumer.close()
    return found | {
        "after_member_left": send(4, metadata),
        "then_commit": attempt(producer.commit_transaction, READ_S),
        "then_abort": attempt(producer.abort_transaction, READ_S),
    }


def txn_list_offsets_isolation(session: ProgramRun) -> Any:
    topic, producer = session.topic(), ready(session)
    session.fill(topic, 2)
    levels, latest = session.kafka.IsolationLevel, session.admin_names.OffsetSpec.latest()
    producer.begin_transaction()
    wrote(session, producer, topic, "x")

    def found(level: Any) -> Any:
        asked = session.admin.list_offsets({session.place(topic): latest}, isolation_level=level)
        return session.result(asked).offset

    open_offsets = {
        "uncommitted": found(levels.READ_UNCOMMITTED),
        "committed": found(levels.READ_COMMITTED),
    }
    abort(session, producer)
    both = [found(levels.READ_UNCOMMITTED), found(levels.READ_COMMITTED)]
    return open_offsets | {"after_abort": both}


def txn_produce_error_then_abort(session: ProgramRun) -> Any:
    topic, producer, reports = session.topic(max_message_bytes=2000), ready(session), Reports()
    producer.begin_transaction()
    producer.produce(topic, b"x" * 5000, on_delivery=reports)
    producer.flush(READ_S)
    found = {
        "report": reports.errors,
        "commit": attempt(producer.commit_transaction, READ_S),
        "abort": attempt(abort, session, producer),
    }
    producer.begin_transaction()
    producer.produce(topic, "ok")
    found["next_commit"] = attempt(commit, session, producer)
    return found | {"read": _seen(session, topic)}


def txn_config(session: ProgramRun) -> Any:
    refused = attempt(session.producer, transactional_id="x", enable_idempotence=False)
    name = session.name("tx")
    patient = session.producer(
        transactional_id=name, transaction_timeout_ms=10_000_000, message_timeout_ms=300_000
    )
    return {
        "idempotence_false": refused,
        "timeout_over_max": attempt(patient.init_transactions, READ_S),
    }


def txn_default_isolation(session: ProgramRun) -> Any:
    topic, producer, consumer = session.topic(), ready(session), session.consumer()
    producer.begin_transaction()
    wrote(session, producer, topic, "x")
    consumer.assign([session.place(topic, 0, 0)])
    seen = offsets(session.read_all(consumer))
    abort(session, producer)
    return {"open_seen_by_default": seen}


def txn_timeout(session: ProgramRun) -> Any:
    topic, producer = session.topic(), ready(session, transaction_timeout_ms=2000)
    producer.begin_transaction()
    wrote(session, producer, topic, "x")
    time.sleep(2 + session.target.expiry_s)
    return {
        "read": _seen(session, topic),
        "commit": attempt(producer.commit_transaction, READ_S),
        "abort": attempt(producer.abort_transaction, READ_S),
        "begin": attempt(producer.begin_transaction),
    }


PROGRAMS = (
    txn_visibility,
    txn_interleaved_with_plain,
    txn_two_partitions_and_topics,
    txn_abort_purges_unsent,
    txn_state_errors,
    txn_fencing,
    txn_fencing_idle_old,
    txn_send_offsets,
    txn_list_offsets_isolation,
    txn_produce_error_then_abort,
    txn_config,
    txn_default_isolation,
    txn_timeout,
)
