"""The producer against the facts of confluent-kafka 2.16 (observed on a real cluster), and what
deltaq does better.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import pyarrow as pa
import pydantic
import pytest

from deltaq import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    InvalidConfig,
    InvalidValue,
    KafkaError,
    KafkaException,
    Message,
    MessageTooLarge,
    Producer,
    QueueFull,
    Topic,
    TopicPartition,
    UnknownTopic,
)
from deltaq.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions
from deltaq.store import MemoryStore
from deltaq.testing import messages_of
from tests.doubles.reading import drain, eventually

NOW_MS = 1_700_000_000_000
LONG_MS = 600_000


def topic(root: str, name: str = "t", partitions: int = 1, schema=None, **config) -> Topic:
    config = {key.replace("_", "."): value for key, value in config.items()}
    return Topic(
        name, schema, partitions=partitions, config=config, conf={"bootstrap.servers": root}
    ).create()


def lingering(root: str, **config) -> Producer:
    """A producer that sends nothing before it is flushed."""
    return Producer(
        {"bootstrap.servers": root, "linger.ms": LONG_MS, "message.timeout.ms": 2 * LONG_MS}
        | config
    )


def read(root: str, count: int, name: str = "t", partitions: int = 1, **components) -> list[Any]:
    with Consumer({"bootstrap.servers": root, "group.id": "reader"}, **components) as consumer:
        consumer.assign([TopicPartition(name, partition, 0) for partition in range(partitions)])
        return drain(consumer, count)


def errors_of(reports: list[Any]) -> list[str | None]:
    return [None if error is None else error.name() for error, _ in reports]


# --- produce and its report ---


def test_a_report_says_where_and_when_the_message_is(root):
    topic(root, partitions=2)
    reports = []
    with lingering(root) as producer:
        producer.produce(
            "t",
            "v",
            "k",
            1,
            timestamp=NOW_MS,
            headers=[("a", b"1")],
            on_delivery=lambda *r: reports.append(r),
        )
        assert len(producer) == 1
        assert reports == []
        assert producer.flush(20) == 0
        assert len(producer) == 0
        assert producer.poll(0) == 0
    ((error, message),) = reports
    assert error is None
    assert (message.topic(), message.partition(), message.offset()) == ("t", 1, 0)
    assert (message.key(), message.value(), message.timestamp()) == (b"k", b"v", (1, NOW_MS))
    assert message.headers() == [("a", b"1")], "None in the real client, which is a known gap"
    assert message.error() is None
    assert message.latency() >= 0
    assert type(message.latency()) is float


def test_reports_of_later_batches_count_on_from_the_earlier_ones(root):
    topic(root)
    found: list[tuple[Any, Any]] = []
    with Producer(
        bootstrap_servers=root, on_delivery=lambda _, m: found.append((m.value(), m.offset()))
    ) as producer:
        for number in range(6):
            producer.produce("t", b"%d" % number)
            if number % 3 == 2:
                producer.flush(20)
    assert found == [(b"%d" % number, number) for number in range(6)]
    assert [(m.value(), m.offset()) for m in read(root, 6)] == found


def test_a_report_can_be_copied_compared_changed_and_pickled_like_any_message(root):
    topic(root)
    reports: list[Any] = []
    with Producer(bootstrap_servers=root) as producer:
        producer.produce(
            "t",
            "v",
            "k",
            timestamp=NOW_MS,
            headers=[("a", b"1")],
            on_delivery=lambda _, m: reports.append(m),
        )
    (message,) = reports
    plain = Message("t", 0, 0, b"k", b"v", [("a", b"1")], None, (1, NOW_MS), message.latency())
    assert message == plain
    assert pickle.loads(pickle.dumps(message)) == plain
    message.set_value("other")
    plain.set_value("other")
    assert message == plain
    message.set_topic("u")
    message.set_error(KafkaError(KafkaError._FAIL))
    assert (message.topic(), message.error(), message.latency()) == (
        "u",
        KafkaError._FAIL,
        plain.latency(),
    )


class Like:
    """A callback with an idea of its own of what it is equal to."""

    def __init__(self, answer: object, delivered: list[object]) -> None:
        self._answer, self._delivered = answer, delivered

    def __call__(self, error: object, message: Message) -> None:
        self._delivered.append(message.value())

    def __eq__(self, other: object) -> bool:
        if isinstance(self._answer, Exception):
            raise self._answer
        return bool(self._answer)

    __hash__ = None  # type: ignore[assignment]  # as of any class that says what it is equal to


@pytest.mark.parametrize("answer", [True, False, AttributeError("n")], ids=str)
def test_a_callback_with_custom_equality_is_called(root, answer):
    topic(root)
    delivered: list[object] = []
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("t", b"a", on_delivery=Like(answer, delivered))
        producer.produce("t", b"b")
        producer.produce("t", b"c", on_delivery=Like(answer, delivered))
        assert producer.flush(20) == 0
    assert delivered == [b"a", b"c"]


def _nothing(*_: object) -> None:
    pass


def test_a_waiting_message_with_a_callback_is_not_tracked_by_the_collector(root):
    """It would be looked at again and again while it waits, and cost more than all else that
    `produce` does.
    """
    topic(root)
    with lingering(root) as producer:
        before = len(gc.get_objects())
        for number in range(5000):
            producer.produce("t", b"%d" % number, on_delivery=_nothing)
        gc.collect()
        assert len(producer) == 5000
        assert len(gc.get_objects()) - before < 500
        producer.purge()


@pytest.mark.fault("X2")
def test_null_and_empty_values_are_distinct(root):
    pairs = [(None, None), (b"", b""), (None, b"v"), (b"k", None), ("é", "ü")]
    with Producer(bootstrap_servers=root) as producer:
        for key, value in pairs:
            producer.produce("t", key=key, value=value)
    read_back = [(m.key(), m.value()) for m in read(root, 5)]
    assert read_back == [
        (None, None),
        (b"", b""),
        (None, b"v"),
        (b"k", None),
        ("é".encode(), "ü".encode()),
    ]


@pytest.mark.fault("X3")
def test_headers_come_back_in_order_with_repeats(root):
    cases = [
        (None, None),
        ([], None),
        ({}, None),
        ([("a", b"1")], [("a", b"1")]),
        ({"a": "1", "b": None}, [("a", b"1"), ("b", None)]),
        ([("d", b"1"), ("c", b"2"), ("d", b"3")], [("d", b"1"), ("c", b"2"), ("d", b"3")]),
        ([("ü", "é")], [("ü", "é".encode())]),
        ([("e", b""), ("", b"x"), ("n", None)], [("e", b""), ("", b"x"), ("n", None)]),
    ]
    with Producer(bootstrap_servers=root) as producer:
        for headers, _ in cases:
            producer.produce("t", "v", headers=headers)
    assert [m.headers() for m in read(root, len(cases))] == [expected for _, expected in cases]


@pytest.mark.fault("K1")
@pytest.mark.parametrize(
    "arguments",
    [
        {"topic": None, "value": "v"},
        {"topic": 5, "value": "v"},
        {"topic": ["t"], "value": "v"},
        {"topic": "t", "value": 5},
        {"topic": "t", "value": "v", "key": 5},
        {"topic": "t", "value": bytearray(b"v")},
        {"topic": "t", "value": memoryview(b"v")},
        {"topic": "t", "value": "v", "partition": None},
        {"topic": "t", "value": "v", "partition": 1.5},
        {"topic": "t", "value": "v", "timestamp": None},
        {"topic": "t", "value": "v", "headers": "abc"},
        {"topic": "t", "value": "v", "headers": (("a", b"1"),)},
        {"topic": "t", "value": "v", "headers": [("a", 1)]},
        {"topic": "t", "value": "v", "headers": [(b"a", b"1")]},
        {"topic": "t", "value": "v", "headers": [("a", b"1", b"2")]},
        {"topic": "t", "value": "v", "headers": [["a", b"1"]]},
        {"topic": "t", "value": "v", "on_delivery": 5},
    ],
    # An address would differ between processes.
    ids=lambda arguments: str(arguments).split(" at 0x")[0],
)
def test_wrong_types_are_refused_at_once(root, arguments):
    with Producer(bootstrap_servers=root) as producer:
        with pytest.raises(TypeError):
            producer.produce(**arguments)
        assert len(producer) == 0
        producer.produce("t", "fine")
        assert producer.flush(20) == 0


def test_produce_needs_a_topic(root):
    with Producer(bootstrap_servers=root) as producer, pytest.raises(TypeError):
        producer.produce()  # type: ignore[call-arg]  # the refusal is under test


@pytest.mark.fault("K2")
@pytest.mark.parametrize("name", ["", "bad/name", "..", "a" * 250])
def test_a_name_that_no_topic_can_have_is_refused_at_once(root, name):
    # The real client accepts them and reports later; the empty one not even that.
    with Producer(bootstrap_servers=root) as producer, pytest.raises(KafkaException) as caught:
        producer.produce(name, "v")
    assert caught.value.args[0] == KafkaError.TOPIC_EXCEPTION


def test_an_unknown_partition_of_a_known_topic_is_refused_at_once(root):
    topic(root, partitions=2)
    with Producer(bootstrap_servers=root) as producer:
        for partition in (2, 9, -2):
            with pytest.raises(UnknownTopic, match=f"partition {partition} of topic 't'") as caught:
                producer.produce("t", "v", partition=partition)
            assert caught.value.args[0] == KafkaError._UNKNOWN_PARTITION
        assert producer.flush(20) == 0


def test_partitions_that_were_added_can_be_produced_to_at_once(root):
    topic(root)
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("t", "v")
        producer.flush(20)
        AdminClient({"bootstrap.servers": root}).create_partitions([NewPartitions("t", 4)])[
            "t"
        ].result(20)
        reports = []
        producer.produce("t", "v", partition=3, on_delivery=lambda *r: reports.append(r))
        producer.flush(20)
        keyed = []
        for number in range(40):
            producer.produce(
                "t", "v", key=f"{number}", on_delivery=lambda e, m: keyed.append(m.partition())
            )
        producer.flush(20)
    assert [(error, message.partition()) for error, message in reports] == [(None, 3)]
    assert set(keyed) == {0, 1, 2, 3}


@pytest.mark.parametrize("timestamp", [-5, 9_223_372_036_855])
def test_a_time_that_cannot_be_stored_is_refused_at_once(root, timestamp):
    with (
        Producer(bootstrap_servers=root) as producer,
        pytest.raises(InvalidValue, match="timestamp"),
    ):
        producer.produce("t", "v", timestamp=timestamp)


def test_create_time_is_the_producers_and_zero_is_now(root):
    reports = []
    with Producer(
        bootstrap_servers=root, on_delivery=lambda e, m: reports.append(m.timestamp())
    ) as producer:
        producer.produce("t", "given", timestamp=NOW_MS)
        producer.produce("t", "now")
    found = [m.timestamp() for m in read(root, 2)]
    assert reports == found
    assert found[0] == (1, NOW_MS)
    assert found[1][0] == 1
    assert found[1][1] > NOW_MS


@pytest.mark.fault("C1")
def test_log_append_time_is_that_of_the_commit_and_never_goes_back(root):
    topic(root, message_timestamp_type="LogAppendTime")
    reports = []
    with Producer(
        bootstrap_servers=root, on_delivery=lambda e, m: reports.append(m.timestamp())
    ) as producer:
        for _ in range(3):
            producer.produce("t", "v", timestamp=NOW_MS)
            producer.flush(20)
    assert [m.timestamp() for m in read(root, 3)] == reports
    assert {kind for kind, _ in reports} == {2}
    assert NOW_MS < reports[0][1] <= reports[1][1] <= reports[2][1]


# --- too large ---


@pytest.mark.fault("X2")
def test_too_large_a_message_is_refused_at_produce(root):
    topic(root, max_message_bytes=5000)
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("other", b"x" * 1_000_000)
        for name, size in (("other", 1_000_001), ("t", 5001)):
            with pytest.raises(MessageTooLarge, match=f"{size} bytes") as caught:
                producer.produce(name, b"x" * size)
            assert caught.value.args[0] == KafkaError.MSG_SIZE_TOO_LARGE
        with pytest.raises(MessageTooLarge):
            producer.produce("t", b"x" * 4000, key=b"k" * 1001)
        with pytest.raises(MessageTooLarge):
            producer.produce("t", b"x" * 4000, headers=[("h", b"v" * 1000)])
        producer.produce("t", b"x" * 4000, key=b"k" * 1000)
    with (
        Producer(bootstrap_servers=root, message_max_bytes=2000) as producer,
        pytest.raises(MessageTooLarge),
    ):
        producer.produce("t", b"x" * 2001)


# --- the queue ---


@pytest.mark.fault("D2")
def test_a_full_queue_is_a_buffer_error_and_empties_by_polling(root):
    producer = lingering(root, **{"queue.buffering.max.messages": 3})
    reports = []
    for _ in range(3):
        producer.produce("t", "v", on_delivery=lambda *r: reports.append(r))
    for _ in range(2):
        with pytest.raises(BufferError, match=r"^Local: Queue full$") as caught:
            producer.produce("t", "v")
        assert isinstance(caught.value, QueueFull)
        assert caught.value.args[0] == KafkaError._QUEUE_FULL
    assert len(producer) == 3
    assert producer.flush(20) == 0
    assert errors_of(reports) == [None] * 3
    producer.produce("t", "v")
    assert producer.close()


@pytest.mark.fault("D2")
def test_unpolled_delivery_reports_fill_the_queue(root):
    with Producer(
        {"bootstrap.servers": root, "linger.ms": 0, "queue.buffering.max.messages": 2}
    ) as producer:
        for _ in range(2):
            producer.produce("t", "v", on_delivery=lambda *r: None)
        eventually(lambda: len(producer) == 2 and producer._callbacks.due)
        with pytest.raises(QueueFull):
            producer.produce("t", "v")
        while producer.poll(20) == 0:
            pass
        producer.produce("t", "v")


@pytest.mark.fault("D2")
def test_the_bytes_of_all_topics_together_are_limited(root):
    with lingering(root, **{"queue.buffering.max.kbytes": 100, "batch.size": 10**9}) as producer:
        taken = 0
        with contextlib.suppress(QueueFull):
            while True:
                producer.produce(f"t{taken % 3}", b"x" * 1024)
                taken += 1
        assert 75 <= taken <= 125
        assert producer.flush(20) == 0
        producer.produce("t0", b"x" * 1024)


@pytest.mark.fault("P14")
def test_purge_drops_waiting_messages_and_reports_them(root):
    producer = lingering(root)
    reports = []
    for number in range(3):
        producer.produce("t", f"{number}", on_delivery=lambda *r: reports.append(r))
    producer.purge()
    assert reports == [], "callbacks run in poll and flush only"
    assert producer.flush(20) == 0
    assert errors_of(reports) == ["_PURGE_QUEUE"] * 3
    assert [message.offset() for _, message in reports] == [None] * 3
    producer.produce("t", "kept")
    producer.close()
    assert [m.value() for m in read(root, 1)] == [b"kept"]


def test_purge_reports_messages_in_the_order_of_their_topics(root):
    reports = []
    with lingering(root) as producer:
        topics = [f"t{number}" for number in range(8)]
        for topic in topics:
            producer.produce(topic, "v", on_delivery=lambda *r: reports.append(r))
        producer.purge()
    assert [message.topic() for _, message in reports] == topics


def test_purge_with_nothing_selected_drops_nothing(root):
    with lingering(root) as producer:
        producer.produce("t", "v")
        producer.purge(in_queue=False, in_flight=False)
        assert len(producer) == 1


# --- callbacks ---


def test_callbacks_run_only_on_a_thread_that_is_inside_poll_flush_or_close(root):
    threads = []
    with Producer({"bootstrap.servers": root, "linger.ms": 0}) as producer:
        for _ in range(50):
            producer.produce("t", "v", on_delivery=lambda *r: threads.append(threading.get_ident()))
        eventually(lambda: producer._callbacks.due)
        producer.list_topics()
        producer.produce("t", "v")
        assert threads == []
        while len(threads) < 50:
            producer.poll(20)
    assert threads == [threading.get_ident()] * 50


def test_callback_wins_over_on_delivery_and_both_over_the_configured_one(root):
    delivered = []
    with Producer(
        bootstrap_servers=root, on_delivery=lambda e, m: delivered.append("configured")
    ) as producer:
        producer.produce("t", "v")
        producer.produce("t", "v", on_delivery=lambda e, m: delivered.append("on_delivery"))
        producer.produce(
            "t",
            "v",
            callback=lambda e, m: delivered.append("callback"),
            on_delivery=lambda e, m: delivered.append("on_delivery"),
        )
    assert delivered == ["configured", "on_delivery", "callback"]


def test_only_failures_are_reported_if_that_is_wanted(root):
    delivered = []
    conf = {"bootstrap.servers": root, "delivery.report.only.error": True, "linger.ms": LONG_MS}
    conf |= {
        "message.timeout.ms": 2 * LONG_MS,
        "on_delivery": lambda e, m: delivered.append((e.name(), m.value())),
    }
    with Producer(conf) as producer:
        producer.produce("t", "fine")
        assert producer.flush(20) == 0
        producer.produce("t", "purged")
        producer.purge()
        assert producer.flush(20) == 0
    assert delivered == [("_PURGE_QUEUE", b"purged")]


def test_a_callback_exception_is_raised_and_all_callbacks_run(root):
    delivered = []

    def fail(error, message):
        delivered.append(message.value())
        raise ValueError(f"about {message.value()}")

    producer = lingering(root)
    for number in range(3):
        producer.produce("t", f"{number}", on_delivery=fail)
    with pytest.raises(ValueError, match="about b'0'"):
        producer.flush(20)
    assert delivered == [b"0", b"1", b"2"]
    assert producer.flush(20) == 0
    producer.produce("t", "last", on_delivery=fail)
    with pytest.raises(ValueError, match="about b'last'"):
        producer.close()
    with pytest.raises(RuntimeError, match="Producer has been closed"):
        producer.poll(0)


def test_a_callback_may_produce_and_poll(root):
    delivered = []

    def again(error, message):
        delivered.append(message.value())
        if len(delivered) < 5:
            producer.produce("t", f"{len(delivered)}", on_delivery=again)
            producer.poll(0)

    with Producer(bootstrap_servers=root) as producer:
        producer.produce("t", "0", on_delivery=again)
        assert producer.flush(20) == 0
    assert delivered == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("end", ["flush", "close"])
def test_flush_and_close_wait_for_callbacks_of_another_thread(root, end):
    begun, go_on, delivered = threading.Event(), threading.Event(), []

    def slow(error, message):
        begun.set()
        assert go_on.wait(20)
        delivered.append(message.value())

    producer = lingering(root, **{"batch.num.messages": 3})
    for number in range(3):
        producer.produce("t", f"{number}", on_delivery=slow)
    poller = threading.Thread(target=producer.poll, args=(20,))
    poller.start()
    assert begun.wait(20)
    assert (len(producer), producer.flush(0)) == (3, 3)
    threading.Timer(0.05, go_on.set).start()
    assert producer.flush() == 0 if end == "flush" else producer.close()
    assert delivered == [b"0", b"1", b"2"]
    poller.join()
    producer.close()


def test_callbacks_on_two_threads_that_flush_do_not_wait_for_each_other(root):
    both, left, called = threading.Barrier(2, timeout=20), [], threading.Semaphore(0)

    def flushing(error, message):
        called.release()
        both.wait()
        left.append(producer.flush())
        both.wait()

    with lingering(root, **{"batch.num.messages": 1}) as producer:
        pollers = [threading.Thread(target=producer.poll, args=(20,)) for _ in range(2)]
        for topic, poller in zip("ab", pollers, strict=True):
            poller.start()
            producer.produce(topic, "v", on_delivery=flushing)
            assert called.acquire(timeout=20)  # or one poller could take both reports
        for poller in pollers:
            poller.join(60)
    assert left == [0, 0]


@pytest.mark.fault("P14")
def test_after_an_interruption_the_remaining_callbacks_run_in_the_next_call(root):
    delivered = []

    def interrupted(error, message):
        delivered.append(message.value())
        if len(delivered) == 2:
            raise KeyboardInterrupt

    producer = lingering(root)
    for number in range(5):
        producer.produce("t", f"{number}", on_delivery=interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.flush(20)
    assert delivered == [b"0", b"1"]
    assert producer.flush(20) == 0
    assert delivered == [b"0", b"1", b"2", b"3", b"4"]
    producer.close()


@pytest.mark.fault("P14")
def test_after_an_interruption_before_the_first_callback_all_of_them_run_in_the_next_call_of_any_thread(  # noqa: E501
    root,
):
    class InterruptedOnce(threading.Condition):
        def __exit__(self, *outcome: Any) -> None:
            super().__exit__(*outcome)
            if producer._callbacks.running and not interrupted:
                interrupted.append(True)
                raise KeyboardInterrupt

    delivered: list[bytes | None] = []
    interrupted: list[bool] = []
    producer = lingering(root, **{"batch.num.messages": 3})
    for number in range(3):
        producer.produce(
            "t", f"{number}", on_delivery=lambda error, message: delivered.append(message.value())
        )
    eventually(lambda: producer._callbacks.due)
    producer._callbacks.changed = InterruptedOnce()
    with pytest.raises(KeyboardInterrupt):
        producer.poll(20)
    assert (interrupted, delivered) == ([True], [])
    left: list[int] = []
    other = threading.Thread(target=lambda: left.append(producer.flush(20)))
    other.start()
    other.join(60)
    assert (left, delivered) == ([0], [b"0", b"1", b"2"])
    producer.close()


@pytest.mark.timeout(20)  # a signal that does not come must not take the minutes of other tests
@pytest.mark.fault("P14")
def test_control_c_ends_a_blocking_poll_and_leaves_the_producer_usable(root):
    producer = lingering(root)
    reports = []
    producer.produce("t", "v", on_delivery=lambda *r: reports.append(r))
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - on a busy machine the signal comes first
        timer.start()
        producer.poll()
    assert len(producer) == 1
    assert producer.flush(20) == 0
    assert errors_of(reports) == [None]
    assert producer.close()


# --- time limits and the end ---


def test_flush_says_how_many_messages_are_left_and_takes_none_for_ever(root):
    producer = lingering(root)
    assert producer.flush() == 0
    assert producer.flush(None) == 0
    assert producer.poll(0) == 0
    producer.produce("t", "v")
    assert producer.flush(None) == 0
    producer.close()


@pytest.mark.fault("P14")
def test_close_flushes_ends_all_threads_and_is_idempotent(root):
    reports = []
    producer = lingering(root)
    producer.produce("t", "v", on_delivery=lambda *r: reports.append(r))
    assert producer.close() is True
    assert errors_of(reports) == [None]
    assert producer.close() is True
    assert len(producer) == 0
    assert bool(producer)
    for call in (
        lambda: producer.produce("t", "v"),
        lambda: producer.produce_arrow("t", pa.table({"value": [b"x"]})),
        lambda: producer.poll(0),
        lambda: producer.flush(),
        lambda: producer.purge(),
        lambda: producer.list_topics(),
        lambda: producer.cluster_id(),
        lambda: producer.set_sasl_credentials("u", "p"),
    ):
        with pytest.raises(RuntimeError, match="Producer has been closed"):
            call()


@pytest.mark.fault("P14")
def test_a_dropped_producer_with_messages_warns_and_writes_them(root, caplog):
    producer = lingering(root)
    producer.produce("t", "v")
    with caplog.at_level(logging.WARNING, logger="deltaq"):
        del producer
        gc.collect()
    assert "dropped with 1 messages" in caplog.text
    assert [m.value() for m in read(root, 1)] == [b"v"]


def test_a_producer_that_is_dropped_after_a_flush_is_gone_with_its_threads(root):
    producer = Producer(bootstrap_servers=root)
    producer.produce("t", "v")
    producer.flush(20)
    threads = list(producer._handles["t"].sender._threads.threads)
    assert any(thread.is_alive() for thread in threads)
    del producer
    gc.collect()
    eventually(lambda: not any(thread.is_alive() for thread in threads))


@pytest.mark.fault("P14")
def test_a_forked_child_is_refused_and_can_make_its_own_producer(tmp_path):
    # In a process of its own: forking this one, with its threads, would be a risk for other tests.
    program = f"""
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from deltaq import Consumer, Producer, TopicPartition
conf = {{"bootstrap.servers": {str(tmp_path / "root")!r}}}
producer = Producer(conf)
producer.produce("t", "parent")
producer.flush()
producer.produce("t", "queued in the parent")
consumer = Consumer(conf, group_id="g")
consumer.assign([TopicPartition("t", 0, 0)])
consumer.poll(10)
child = os.fork()
if child == 0:
    calls = (lambda: producer.produce("t", "v"), producer.flush, lambda: producer.poll(0), lambda: consumer.poll(0))
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            assert "before the process forked" in str(error), error
        else:
            raise AssertionError("used in the child")
    assert len(producer) == 0
    producer.close(), consumer.close()
    with Producer(conf) as mine:
        mine.produce("t", "child")
    sys.stdout.flush()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
producer.close(), consumer.close()
with Consumer(conf, group_id="h") as reader:
    reader.assign([TopicPartition("t", 0, 0)])
    values = sorted(reader.poll(20).value().decode() for _ in range(3))
    assert values == ["child", "parent", "queued in the parent"], values
    assert reader.poll(0.2) is None
"""  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


# --- configuration ---


@pytest.mark.fault("K1")
@pytest.mark.parametrize(
    ("conf", "error", "text"),
    [
        ({"no.such": 1}, KafkaException, 'No such configuration property: "no.such"'),
        ({"acks": "7777"}, KafkaException, "outside allowed range -1..1000"),
        ({"enable.idempotence": True, "acks": 1}, KafkaException, "`acks` must be set to `all`"),
        ({"on_delivery": 5}, KafkaException, "on_delivery requires a callable object"),
        ({"error_cb": 5}, TypeError, "expected error_cb property as a callable function"),
    ],
    ids=str,
)
def test_a_wrong_configuration_is_refused_at_construction(root, conf, error, text):
    with pytest.raises(error, match=text):
        Producer({"bootstrap.servers": root} | conf)


def test_a_producer_needs_a_configuration():
    with pytest.raises(TypeError, match="expected configuration dict"):
        Producer()


@pytest.mark.fault("K1")
def test_construction_does_no_io():
    Producer(bootstrap_servers="/nowhere/at/all").close()
    Producer(
        bootstrap_servers="s3://no-such-bucket/prefix", store_endpoint="http://127.0.0.1:1"
    ).close()


# --- topics that do not exist ---


def test_a_new_producer_writes_to_the_recreated_topic_beside_a_stale_one(root):
    handle = Topic("t", conf={"bootstrap.servers": root}).create()
    with Producer(bootstrap_servers=root) as first:
        first.produce("t", "old")
        assert first.flush(20) == 0
        batches = first._handles["t"].sender._batches
        # While the sender has something to do, it does not look for another topic.
        eventually(
            lambda: not (batches.open or batches.is_committing),
            "the end of the commit, after its report",
        )
        handle.delete()
        Topic("t", conf={"bootstrap.servers": root}).create()
        delivered: list[KafkaError | None] = []
        with Producer(bootstrap_servers=root) as second:
            second.produce("t", "new", on_delivery=lambda error, message: delivered.append(error))
    assert delivered == [None]
    assert [message.value() for message in read(root, 1)] == [b"new"]


def test_a_topic_is_created_when_it_is_first_produced_to(root):
    with Producer({"bootstrap.servers": root, "num.partitions": 3}) as producer:
        producer.produce("auto", "v")
        producer.flush(20)
        assert len(producer.list_topics("auto").topics["auto"].partitions) == 3
    assert Topic("auto", conf={"bootstrap.servers": root}).describe().schema is None


@pytest.mark.parametrize("key", ["auto.create.topics.enable", "allow.auto.create.topics"])
def test_no_topic_is_created_if_creation_is_disabled(root, key):
    reports = []
    with Producer({"bootstrap.servers": root, key: False}) as producer:
        for name in ("t", Topic("t", partitions=2)):
            producer.produce(name, "v", partition=1, on_delivery=lambda *r: reports.append(r))
        assert producer.flush(20) == 0
        assert errors_of(reports) == ["UNKNOWN_TOPIC_OR_PART"] * 2
        assert producer.list_topics("t").topics["t"].error == KafkaError.UNKNOWN_TOPIC_OR_PART
        # Another client creates it: later messages are delivered, and the settings of the topic are
        # known.
        topic(root, partitions=2, max_message_bytes=100)
        producer.produce("t", "v", partition=1, on_delivery=lambda *r: reports.append(r))
        producer.flush(20)
        assert errors_of(reports)[2:] == [None]
        with pytest.raises(MessageTooLarge):
            producer.produce("t", "v" * 101)


def test_errors_found_after_produce_are_reported(root):
    conf = {"bootstrap.servers": root, "auto.create.topics.enable": False, "linger.ms": LONG_MS}
    with Producer(conf | {"message.timeout.ms": 2 * LONG_MS}) as producer:
        reports: dict[tuple[Any, Any], Any] = {}
        messages: dict[tuple[Any, Any], Message] = {}

        def tell(produced: tuple[Any, Any], error: Any, message: Message) -> None:
            assert produced not in reports
            reports[produced], messages[produced] = error, message

        for key, value, partition in (
            (b"k", b"fine", 0),
            (b"k", b"v" * 101, 0),
            (None, b"v", 0),
            (b"k", b"v", 7),
        ):
            producer.produce("t", value, key, partition, on_delivery=partial(tell, (key, value)))
        topic(root, max_message_bytes=100, cleanup_policy="compact")
        assert producer.flush(20) == 0
        assert [buffer.pending_bytes for buffer in producer._buffers()] == [0], (
            "each byte comes back, and only once"
        )
    names = {what: None if error is None else error.name() for what, error in reports.items()}
    assert names == {
        (b"k", b"fine"): None,
        (b"k", b"v" * 101): "MSG_SIZE_TOO_LARGE",
        (None, b"v"): "INVALID_RECORD",
        (b"k", b"v"): "_UNKNOWN_PARTITION",
    }
    assert [m.value() for m in read(root, 1)] == [b"fine"]
    assert all(
        (message.key(), message.value()) == produced for produced, message in messages.items()
    )
    times = {produced: message.timestamp() for produced, message in messages.items()}
    assert times.pop((b"k", b"fine"))[0] == TIMESTAMP_CREATE_TIME
    assert set(times.values()) == {(TIMESTAMP_NOT_AVAILABLE, 0)}, (
        "of what was refused before it got a time"
    )


def test_messages_refused_for_several_reasons_release_their_memory(root):
    conf = {"bootstrap.servers": root, "auto.create.topics.enable": False, "linger.ms": LONG_MS}
    with Producer(conf | {"message.timeout.ms": 2 * LONG_MS}) as producer:
        for key, value, partition in ((b"k", b"v" * 101, 0), (None, b"v", 0), (b"k", b"v", 7)):
            producer.produce("t", value, key, partition)
        topic(root, max_message_bytes=100, cleanup_policy="compact")
        assert producer.flush(20) == 0
        # Their bytes are given back once the last of them is told of.
        eventually(lambda: [buffer.pending_bytes for buffer in producer._buffers()] == [0])


def test_a_topic_that_is_deleted_is_created_again(root):
    handle = topic(root)
    reports = []
    with Producer(bootstrap_servers=root, on_delivery=lambda *r: reports.append(r)) as producer:
        for _ in range(2):
            producer.produce("t", "old")
        producer.flush(20)
        handle.delete()
        producer.produce("t", "lost with the old topic, or first of the new one")
        producer.flush(20)
        producer.produce("t", "new")
        producer.flush(20)
    error, message = reports[-1]
    assert error is None
    assert message.offset() <= 1


def test_a_topic_recreated_with_other_settings_is_used_as_it_is(root):
    class Order(pydantic.BaseModel):
        id: int

    handle = topic(root)
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("t", "bytes")
        producer.flush(20)
        handle.delete()
        topic(root, schema=Order)
        reports = []
        producer.produce("t", "bytes still", on_delivery=lambda *r: reports.append(r))
        producer.flush(20)
        producer.produce("t", {"id": 5}, on_delivery=lambda *r: reports.append(r))
        producer.flush(20)
        with pytest.raises(InvalidValue):
            producer.produce("t", "bytes")
    assert errors_of(reports)[-1] is None
    assert reports[0][0] is not None


# --- compacted topics ---


def test_a_compacted_topic_refuses_messages_without_a_key(root):
    topic(root, cleanup_policy="compact")
    with Producer(bootstrap_servers=root) as producer:
        with pytest.raises(InvalidValue, match="'t' is compacted: every message needs a key"):
            producer.produce("t", "v")
        with pytest.raises(InvalidValue, match="key"):
            producer.produce_arrow("t", pa.table({"value": [b"x"]}))
        for key, value in ((b"", b"emptykey"), (b"a", b"1"), (b"a", None)):
            producer.produce("t", value, key)
    found = [(m.offset(), m.key(), m.value()) for m in read(root, 3)]
    assert found == [(0, b"", b"emptykey"), (1, b"a", b"1"), (2, b"a", None)]


def test_a_topic_that_becomes_compacted_is_noticed(root):
    topic(root)
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("t", "v")
        producer.flush(20)
        compacted = ConfigEntry(
            "cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[compacted])
        AdminClient({"bootstrap.servers": root}).incremental_alter_configs([resource])[
            resource
        ].result(20)
        producer.produce("t", "noticed when it is committed", key="k")
        producer.flush(20)
        with pytest.raises(InvalidValue):
            producer.produce("t", "v")


# --- partitions ---


def placed(root: str, keys: list[Any], **config) -> list[int]:
    """The partition of each message, in the order of production."""
    found: list[int] = []
    with lingering(
        root, on_delivery=lambda e, m: found.append(m.partition()), **config
    ) as producer:
        for key in keys:
            producer.produce("t", "v", key=key)
    return found


def test_keys_go_where_the_real_client_sends_them(root):
    topic(root, partitions=7)
    # crc32(key) % 7, as observed.
    assert placed(root, [f"key-{n}" for n in range(10)]) == [6, 0, 3, 5, 1, 4, 3, 0, 3, 3]
    assert placed(root, [f"key-{n}" for n in range(10)], partitioner="murmur2") == [
        0,
        5,
        4,
        4,
        5,
        4,
        5,
        3,
        4,
        2,
    ]
    assert placed(root, [f"key-{n}" for n in range(10)], partitioner="fnv1a") == [
        6,
        1,
        3,
        5,
        5,
        0,
        2,
        4,
        4,
        6,
    ]


@pytest.mark.parametrize("partitioner", ["consistent_random", "murmur2_random", "random"])
def test_messages_without_a_key_stick_together_or_are_spread_as_configured(root, partitioner):
    topic(root, partitions=4)
    assert len(set(placed(root, [None] * 100, partitioner=partitioner))) == 1
    spread = placed(
        root, [None] * 100, partitioner=partitioner, **{"sticky.partitioning.linger.ms": 0}
    )
    assert {spread.count(partition) for partition in range(4)} == {25}


@pytest.mark.parametrize("partitioner", ["consistent", "murmur2"])
def test_a_partitioner_without_chance_sends_all_messages_without_a_key_to_one_partition(
    root, partitioner
):
    topic(root, partitions=4)
    for linger_ms in (0, 10):
        config = {"partitioner": partitioner, "sticky.partitioning.linger.ms": linger_ms}
        assert len(set(placed(root, [None] * 20, **config))) == 1


def test_tables_are_partitioned_like_messages(root):
    topic(root, partitions=4)
    named = [f"k{n}" for n in range(50)]
    table = pa.table(
        {"key": pa.array([*named, *[None] * 50], pa.string()), "value": pa.array([b"v"] * 100)}
    )
    with lingering(root, **{"sticky.partitioning.linger.ms": 0}) as producer:
        producer.produce_arrow("t", table)
    found = read(root, 100, partitions=4)
    by_table = {m.key(): m.partition() for m in found if m.key()}
    by_message = dict(zip((key.encode() for key in named), placed(root, named), strict=True))
    assert by_table == by_message
    keyless = [m.partition() for m in found if m.key() is None]
    assert {keyless.count(partition) for partition in range(4)} <= {12, 13}


# --- batches of messages ---


def test_a_batch_with_resubmitted_refusals_is_written_once(root):
    handle = topic(root)
    left: list[dict[str, Any]] = [{"value": str(number)} for number in range(10)]
    calls = 0
    with Producer(
        bootstrap_servers=root, queue_buffering_max_messages=4, linger_ms=60_000
    ) as producer:
        while left and calls < 10:
            calls += 1
            assert producer.produce_batch("t", left) > 0
            left = [message for message in left if "_error" in message]
            producer.flush()
    assert calls == 3
    assert handle.to_arrow().column("value").to_pylist() == [b"%d" % number for number in range(10)]


def test_text_that_utf_8_cannot_hold_is_refused_alone_wherever_it_stands(root):
    topic(root)
    unfit = "\ud800"  # half of a character, as Python reads file names that are no text
    wrong: list[dict[str, Any]] = [
        {"value": unfit},
        {"key": unfit},
        {"headers": [(unfit, b"")]},
        {"headers": {"h": unfit}},
    ]
    delivered: list[Any] = []
    with lingering(root) as producer:
        for _ in range(2):  # before the topic is known, and after
            for arguments in wrong:
                with pytest.raises(UnicodeEncodeError):
                    producer.produce("t", **arguments)
            producer.produce(
                "t", "a neighbour", on_delivery=lambda error, _: delivered.append(error)
            )
        messages = [*wrong, {"value": "last"}]
        assert producer.produce_batch("t", messages) == 1
    assert delivered == [None, None]
    refusals = [message.get("_error") for message in messages]
    assert [error and error.name() for error in refusals] == ["_INVALID_ARG"] * len(wrong) + [None]
    assert [message.value() for message in read(root, 3)] == [
        b"a neighbour",
        b"a neighbour",
        b"last",
    ]


def test_the_length_of_a_header_is_that_of_its_bytes(root):
    topic(root, max_message_bytes=6)
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("t", headers={"äöü": b""})
        with pytest.raises(MessageTooLarge):
            producer.produce("t", headers={"äöüx": b""})


def test_a_batch_of_messages_is_queued_with_headers_and_times_and_reports_refusals_in_place(root):
    topic(root, partitions=2)
    delivered = []
    messages: list[dict[str, Any]] = [
        {"value": "a", "key": "k", "headers": [("h", b"1")], "timestamp": NOW_MS},
        {"value": "x" * 2_000_000},
        {"value": "b", "partition": 1, "callback": lambda e, m: delivered.append("own")},
        {"value": "c", "partition": 9},
    ]
    with Producer(bootstrap_servers=root) as producer:
        queued = producer.produce_batch(
            "t", messages, partition=0, on_delivery=lambda e, m: delivered.append("all")
        )
        assert queued == 2
        with pytest.raises(TypeError, match="index 1"):
            producer.produce_batch("t", [{"value": "d"}, 5])  # type: ignore[list-item]  # as above
    assert [message.get("_error") and message["_error"].name() for message in messages] == [
        None,
        "MSG_SIZE_TOO_LARGE",
        None,
        "_UNKNOWN_PARTITION",
    ]
    assert sorted(delivered) == ["all", "own"]
    found = {m.value(): m for m in read(root, 2, partitions=2)}
    assert found[b"a"].headers() == [("h", b"1")]
    assert found[b"a"].timestamp() == (1, NOW_MS)
    assert found[b"b"].partition() == 1


def test_the_order_of_messages_and_tables_is_kept(root):
    with lingering(root) as producer:
        for number in range(0, 60, 3):
            producer.produce("t", f"{number}")
            producer.produce_arrow("t", pa.table({"value": [f"{number + 1}"]}))
            producer.produce(Topic("t"), f"{number + 2}")
    assert [m.value() for m in read(root, 60)] == [f"{number}".encode() for number in range(60)]


def test_a_table_is_reported_once_with_its_first_offset_per_partition(root):
    topic(root, partitions=3)
    reports = []
    table = pa.table({"value": ["a", "b", "c"], "partition": [2, 0, 2]})
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("t", "before", partition=2)
        producer.flush(20)
        assert producer.produce_arrow("t", table, on_delivery=lambda *r: reports.append(r)) == 3
        assert producer.produce_arrow("t", table.slice(0, 0)) == 0
        with pytest.raises(TypeError, match="on_delivery must be callable, not int"):
            producer.produce_arrow("t", table, on_delivery=1)  # type: ignore[arg-type]
    ((error, places),) = reports
    assert error is None
    assert [(tp.topic, tp.partition, tp.offset) for tp in places] == [("t", 0, 0), ("t", 2, 1)]


# --- typed topics ---


class Order(pydantic.BaseModel):
    id: int
    item: str
    tags: list[str] = []


ORDERS = Topic("orders", schema=Order, partitions=1)
ARROW = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("item", pa.string())])


def test_a_typed_topic_takes_models_and_dicts_and_returns_the_requested_type(root):
    with Producer(bootstrap_servers=root) as producer:
        producer.produce(ORDERS, Order(id=1, item="tea"), key="a")
        producer.produce(ORDERS, {"id": 2, "item": "cup", "tags": ["x"]})
        producer.produce(ORDERS, None, key="a")
        producer.flush(20)
        producer.produce("orders", {"id": 3, "item": "pot", "tags": []})
    assert [m.value() for m in read(root, 4, "orders", topics=[ORDERS])] == [
        Order(id=1, item="tea"),
        Order(id=2, item="cup", tags=["x"]),
        None,
        Order(id=3, item="pot"),
    ]
    assert [m.value() for m in read(root, 2, "orders")] == [
        {"id": 1, "item": "tea", "tags": []},
        {"id": 2, "item": "cup", "tags": ["x"]},
    ]


def test_a_wrong_value_is_refused_at_produce_with_the_name_of_the_field(root):
    with Producer(bootstrap_servers=root) as producer:
        for value, field in (
            ({"id": "5", "item": "x"}, "id"),
            ({"id": 5}, "item"),
            ({"id": 5, "item": "x", "y": 1}, "y"),
        ):
            with pytest.raises(InvalidValue, match=f"field '{field}'") as caught:
                producer.produce(ORDERS, value)
            assert caught.value.args[0] == KafkaError._VALUE_SERIALIZATION
        assert len(producer) == 0


def test_bytes_for_a_typed_topic_are_refused_with_the_name_of_the_topic(root):
    of_model = "topic 'orders' has a model: expected Order or dict, got bytes"
    of_schema = "topic 'orders' has a schema: expected dict, got bytes"
    with Producer(bootstrap_servers=root) as producer:
        with pytest.raises(InvalidValue, match=of_model) as caught:
            producer.produce(ORDERS, b"bytes")
        assert caught.value.topic == "orders"
        producer.produce(ORDERS, {"id": 5, "item": "x"})
        with pytest.raises(InvalidValue, match=of_model):
            producer.produce(ORDERS, b"bytes")
        with pytest.raises(InvalidValue, match=of_schema):
            producer.produce("orders", b"bytes")
    assert len(read(root, 1, "orders")) == 1


def test_a_topic_with_an_arrow_schema_takes_dicts(root):
    handle = Topic("rows", schema=ARROW)
    with Producer(bootstrap_servers=root) as producer:
        producer.produce(handle, {"id": 1, "item": "tea"})
        producer.produce(handle, {"id": 2})
        producer.produce_arrow(handle, pa.table({"id": [3], "item": ["cup"]}))
        with pytest.raises(InvalidValue, match="id"):
            producer.produce(handle, {"item": "x"})
    values = [m.value() for m in read(root, 3, "rows")]
    assert values == [{"id": 1, "item": "tea"}, {"id": 2, "item": None}, {"id": 3, "item": "cup"}]


def test_values_of_a_typed_topic_have_a_size_too(root):
    with Producer(bootstrap_servers=root) as producer:
        producer.produce(ORDERS, {"id": 1, "item": "x" * 999_000})
        with pytest.raises(MessageTooLarge):
            producer.produce(ORDERS, {"id": 1, "item": "x" * 1_000_000})
        with pytest.raises(MessageTooLarge):
            producer.produce(ORDERS, {"id": 1, "item": "ü" * 500_000})
        with pytest.raises(MessageTooLarge):
            producer.produce(ORDERS, {"id": 1, "item": "", "tags": ["x" * 600_000] * 2})


def test_a_handle_with_another_schema_than_the_topic_has_is_refused(root):
    topic(root, "orders")
    with Producer(bootstrap_servers=root) as producer:
        for _ in range(2):
            with pytest.raises(
                InvalidConfig, match=r"the schema does not fit topic 'orders': it holds bytes"
            ):
                producer.produce(ORDERS, {"id": 1, "item": "x"})
        producer.produce("orders", "bytes")
    assert [m.value() for m in read(root, 1, "orders")] == [b"bytes"]


def test_reading_an_untyped_topic_as_a_model_raises(root):
    topic(root, "orders")
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("orders", "bytes")
    (message,) = read(root, 1, "orders", topics=[ORDERS])
    with pytest.raises(KafkaException) as caught:
        message.value()
    assert caught.value.args[0] == KafkaError._VALUE_DESERIALIZATION


# --- the rest ---


def test_a_cluster_is_described_without_a_broker(root):
    topic(root, partitions=2)
    with Producer(bootstrap_servers=root) as producer:
        metadata = producer.list_topics()
        assert list(metadata.topics) == ["t"]
        assert sorted(metadata.topics["t"].partitions) == [0, 1]
        assert metadata.cluster_id == producer.cluster_id()
        producer.set_sasl_credentials("user", "PLANTED")
        assert "PLANTED" not in repr(producer)


def test_empty_messages_count_when_a_batch_is_cut_into_files(monkeypatch):
    """Headers of empty names and values: many of them take much, and a file that decodes to too
    much is never read.
    """
    monkeypatch.setattr("deltaq.producer.batch_upload.SEGMENT_BYTES_MAX", 64 * 1024)
    store = MemoryStore("test")
    with Producer(bootstrap_servers="memory://test", store=store, linger_ms=60_000) as producer:
        for number in range(60):
            producer.produce("t", b"%d" % number, headers=[("", b"")] * 1000)
        assert producer.flush(30) == 0
    sizes = [entry.size for entry in store.list("topics/t/") if entry.key.endswith(".parquet")]
    assert len(sizes) > 5
    assert [message.value() for message in messages_of(store, "t")] == [
        b"%d" % number for number in range(60)
    ]
