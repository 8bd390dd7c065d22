"""The consumer against the facts of confluent-kafka 2.16 (observed on a real cluster), and what
deltaq does better.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import confluent_kafka
import pytest

from deltaq import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    Consumer,
    InvalidConfig,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    Topic,
    TopicPartition,
    WrongState,
)
from deltaq.admin import AdminClient, NewPartitions
from deltaq.store import MemoryStore, ObjectMissing, Store, open_store
from deltaq.testing import Effect, Fault, FaultyStore, Rule
from tests.doubles.consuming import consumer, fill, topic, tp
from tests.doubles.reading import drain, eventually, next_message, taken

T0 = 1_700_000_000_000
EVER = None


def offsets(messages: list[Message]) -> list[object]:
    """Offsets of records and names of events."""
    return [
        message.offset() if (error := message.error()) is None else error.name()
        for message in messages
    ]


def nothing_comes(reader: Consumer) -> bool:
    return reader.poll(0.05) is None


def end_of(reader: Consumer) -> int:
    """Read to the end of the partition and return its offset."""
    while (error := (message := next_message(reader)).error()) is None:
        pass
    assert error == KafkaError._PARTITION_EOF
    return int(message.offset())


# --- construction and the end ---


def test_a_consumer_needs_a_group(root):
    with pytest.raises(ValueError, match=r"^Failed to create consumer: group\.id must be set$"):
        Consumer({"bootstrap.servers": root})


@pytest.mark.fault("K1")
def test_construction_does_no_io():
    Consumer(bootstrap_servers="/nowhere/at/all", group_id="g").close()


def test_every_method_of_the_real_client_is_there():
    theirs = {name for name in dir(confluent_kafka.Consumer) if not name.startswith("_")}
    assert theirs <= set(dir(Consumer))


def test_calls_on_a_closed_consumer_raise(root):
    topic(root)
    reader = consumer(root)
    reader.close()
    reader.close()
    for call in (
        lambda: reader.poll(0),
        lambda: reader.consume(1, 0),
        lambda: reader.consume_arrow(1, 0),
        lambda: reader.assign([tp()]),
        lambda: reader.unassign(),
        lambda: reader.incremental_assign([tp()]),
        lambda: reader.incremental_unassign([tp()]),
        lambda: reader.assignment(),
        lambda: reader.subscribe(["t"]),
        lambda: reader.unsubscribe(),
        lambda: reader.commit(),
        lambda: reader.committed([tp()]),
        lambda: reader.position([tp()]),
        lambda: reader.seek(tp(0, 0)),
        lambda: reader.pause([tp()]),
        lambda: reader.resume([tp()]),
        lambda: reader.store_offsets(offsets=[tp(0, 0)]),
        lambda: reader.get_watermark_offsets(tp()),
        lambda: reader.offsets_for_times([tp(0, 0)]),
        lambda: reader.list_topics(),
        lambda: reader.cluster_id(),
        lambda: reader.memberid(),
        lambda: reader.consumer_group_metadata(),
        lambda: reader.set_sasl_credentials("u", "p"),
    ):
        with pytest.raises(RuntimeError, match="Consumer closed"):
            call()


def test_polling_without_a_subscription_returns_none(root):
    with consumer(root) as reader:
        assert reader.poll(0.01) is None
        assert reader.consume(5, 0.01) == []
        assert reader.assignment() == []
        assert reader.memberid() is None
        reader.unsubscribe()


def test_a_consumer_is_a_context_manager_that_closes_it(root):
    with consumer(root) as reader:
        pass
    with pytest.raises(RuntimeError):
        reader.poll(0)


WRONG_CALLS: list[tuple[str, str, type[Exception]]] = [
    ("subscribe", "'t'", TypeError),
    ("subscribe", "('t',)", TypeError),
    ("subscribe", "[5]", TypeError),
    ("subscribe", "['t'], on_assign=None", TypeError),
    ("subscribe", "['t'], on_revoke=5", TypeError),
    ("subscribe", "[]", KafkaException),
    ("subscribe", "['^[bad']", KafkaException),
    ("subscribe", "['^t-[[:digit:]]+']", InvalidConfig),
    ("assign", "'t'", TypeError),
    ("assign", "[5]", TypeError),
    ("assign", "(tp(),)", TypeError),
    ("assign", "[tp(), tp()]", KafkaException),
    ("assign", "[tp(-1)]", KafkaException),
    ("assign", "[tp(0, -7)]", KafkaException),
    ("seek", "5", TypeError),
    ("pause", "5", TypeError),
    ("position", "5", TypeError),
    ("committed", "5", TypeError),
    ("commit", "message=5", TypeError),
    ("commit", "offsets=5", TypeError),
    ("commit", "foo=1", TypeError),
    ("commit", "message=Message('t', 0, 1), offsets=[tp(0, 1)]", ValueError),
    ("commit", "message=Message('t', 0, 1, error=KafkaError(3))", KafkaException),
    ("store_offsets", "offsets=[tp(0, 1)]", KafkaException),
    ("consume", "-1, 0", ValueError),
    ("consume", "1_000_001, 0", ValueError),
    ("consume_arrow", "0, 0", ValueError),
    ("get_watermark_offsets", "5", TypeError),
]


@pytest.mark.fault("K1")
@pytest.mark.parametrize(
    ("method", "arguments", "error"), WRONG_CALLS, ids=[f"{m}({a})" for m, a, _ in WRONG_CALLS]
)
def test_wrong_arguments_are_refused(root, method, arguments, error):
    topic(root)
    with consumer(root) as reader, pytest.raises(error):
        eval(f"reader.{method}({arguments})", globals() | {"reader": reader})


def test_a_failed_call_of_subscribe_changes_nothing(root):
    topic(root)
    fill(root, 1)
    with consumer(root) as reader:
        reader.subscribe(["t"])
        with pytest.raises(InvalidConfig):
            reader.subscribe(["bad/name"])
        assert next_message(reader).offset() == 0


# --- poll and consume ---


def test_a_consumed_message_has_all_produced_fields(root):
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("t", b"v", b"k", timestamp=T0, headers=[("a", b"1"), ("a", None)])
    with consumer(root) as reader:
        reader.assign([tp()])
        message = next_message(reader)
    assert (message.topic(), message.partition(), message.offset()) == ("t", 0, 0)
    assert (message.key(), message.value(), message.timestamp()) == (b"k", b"v", (1, T0))
    assert message.headers() == [("a", b"1"), ("a", None)]
    assert (message.error(), message.latency(), message.leader_epoch()) == (None, None, 0)


def test_consume_waits_until_its_timeout_for_the_requested_number(root):
    topic(root)
    fill(root, 7)
    with consumer(root) as reader:
        reader.assign([tp()])
        assert offsets(drain(reader, 1)) == [0]
        assert reader.consume(0, 5.0) == []
        started_at = time.monotonic()
        found = reader.consume(100, 0.3)
        assert time.monotonic() - started_at >= 0.3
        assert offsets(found) == [1, 2, 3, 4, 5, 6]
        reader.seek(tp(0, 0))
        assert offsets(reader.consume(3, 60.0)) == [0, 1, 2]
        assert isinstance(reader.consume(4, None), list)


def test_messages_come_as_they_are_produced(root):
    topic(root)
    with consumer(root) as reader:
        reader.assign([tp()])
        for number in range(3):
            fill(root, 1, start=number)
            assert offsets(drain(reader, 1)) == [number]
        assert nothing_comes(reader)


def test_iterating_gives_messages_until_the_consumer_is_closed(root):
    topic(root)
    fill(root, 3)
    found = []
    with consumer(root, enable__partition__eof=True) as reader:
        reader.assign([tp()])
        for message in reader:
            found.append(message.offset())
            if len(found) == 3:
                reader.close()
    assert found == [0, 1, 2]


def test_iterating_raises_what_poll_would_return_as_an_error(root):
    with consumer(root) as reader:
        reader.assign([tp(0, name="nope")])
        with pytest.raises(KafkaException) as caught:
            next(iter(reader))
    assert caught.value.args[0] == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_consume_arrow_returns_the_records_as_a_table(root):
    topic(root, partitions=2)
    fill(root, 3, partition=1)
    with consumer(root, enable__partition__eof=True) as reader:
        reader.assign([tp(1)])
        batch: Any = reader.consume_arrow(2, 20)
        assert batch.schema.names == [
            "_topic",
            "_partition",
            "_offset",
            "_timestamp",
            "_key",
            "_headers",
            "value",
        ]
        assert batch.column("_topic").to_pylist() == ["t", "t"]
        assert batch.column("_partition").to_pylist() == [1, 1]
        assert batch.column("_offset").to_pylist() == [0, 1]
        assert batch.column("value").to_pylist() == [b"v0", b"v1"]
        assert [int(at.timestamp() * 1000) for at in batch.column("_timestamp").to_pylist()] == [
            T0,
            T0 + 1000,
        ]
        assert reader.position([tp(1)])[0].offset == 2
        rest: Any = reader.consume_arrow(100, 20)
        assert rest.num_rows == 1
        with pytest.raises(KafkaException) as caught:
            reader.consume_arrow(100, 20)
        assert caught.value.args[0] == KafkaError._PARTITION_EOF
        assert reader.consume_arrow(100, 0.01) is None
        assert reader.commit(asynchronous=False)[0].offset == 3


@pytest.mark.fault("P14", "R6")
def test_records_of_an_interrupted_consume_are_redelivered_and_not_committed(root):
    topic(root)
    fill(root, 3)
    with consumer(root, "g", enable__auto__commit=True) as reader:
        reader.assign([tp()])
        assert offsets(drain(reader, 1)) == [0]
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - on a busy machine the signal comes first
            timer.start()
            reader.consume(100, 10)
        assert reader.position([tp()])[0].offset == 1
    with consumer(root, "g") as reader:
        assert reader.committed([tp()])[0].offset == 1
        reader.assign([tp()])
        assert offsets(drain(reader, 2)) == [1, 2]


# --- assignment ---


def test_consume_returns_nothing_that_a_callback_has_moved_away_from(root):
    topic(root)
    fill(root, 3)
    store = FaultyStore(open_store(root))
    readers: list[Consumer] = []

    def go_back(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        readers[0].seek(tp(offset=1))
        fill(root, 1, start=3)

    conf = {
        "bootstrap.servers": root,
        "group.id": "g",
        "enable.auto.commit": False,
        "on_commit": go_back,
    }
    with Consumer(conf, store=store) as reader:
        readers.append(reader)
        reader.assign([tp(offset=OFFSET_BEGINNING)])
        assert offsets(reader.consume(1, 20)) == [0]
        # So that the callback comes after two more were taken.
        store.add(Rule("create", "groups/*", Fault.slow()))

        def let_it_come() -> None:
            eventually(lambda: store.blocked and taken(reader) == 3)
            store.release()

        releasing = threading.Thread(target=let_it_come)
        releasing.start()
        reader.commit(asynchronous=True)
        assert offsets(reader.consume(3, 20)) == [1, 2, 3]
        releasing.join()


def test_records_taken_before_a_callback_seeks_are_not_committed(root):
    topic(root, partitions=2)
    fill(root, 3)
    store = FaultyStore(open_store(root))
    readers: list[Consumer] = []

    def go_elsewhere(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        readers[0].seek(tp(0, 3))
        fill(root, 3, partition=1)

    conf = {
        "bootstrap.servers": root,
        "group.id": "g",
        "enable.auto.commit": False,
        "on_commit": go_elsewhere,
    }
    with Consumer(conf, store=store) as reader:
        readers.append(reader)
        reader.assign([tp(0, OFFSET_BEGINNING), tp(1, OFFSET_BEGINNING)])
        assert offsets(reader.consume(1, 20)) == [0]
        # So that the callback comes after two more were taken.
        store.add(Rule("create", "groups/*", Fault.slow()))

        def let_it_come() -> None:
            eventually(lambda: store.blocked and taken(reader) == 3)
            store.release()

        releasing = threading.Thread(target=let_it_come)
        releasing.start()
        reader.commit(asynchronous=True)
        assert [message.partition() for message in reader.consume(3, 20)] == [1, 1, 1]
        releasing.join()
        results = reader.commit(asynchronous=False)
        assert [(entry.partition, entry.offset) for entry in results] == [
            (0, OFFSET_INVALID),
            (1, 3),
        ]
        assert reader.committed([tp(0)])[0].offset == 1


def test_assignment_shows_what_is_assigned(root):
    topic(root, partitions=2)
    with consumer(root) as reader:
        assert reader.assignment() == []
        reader.assign([tp(1), tp(0, 3)])
        assert [(p.partition, p.offset) for p in reader.assignment()] == [
            (0, 3),
            (1, OFFSET_STORED),
        ]
        reader.seek(tp(0, 1))
        assert reader.assignment()[0].offset == 3
        reader.unassign()
        assert reader.assignment() == []


def test_partitions_are_assigned_one_by_one(root):
    topic(root, partitions=3)
    for partition in range(3):
        fill(root, 1, partition=partition)
    with consumer(root) as reader:
        reader.incremental_assign([tp(0, 0)])
        with pytest.raises(
            KafkaException, match=r"t \[0\] is already part of the current assignment"
        ) as caught:
            reader.incremental_assign([tp(0, 0)])
        assert caught.value.args[0] == KafkaError._CONFLICT
        reader.incremental_assign([tp(1, 0)])
        assert [p.partition for p in reader.assignment()] == [0, 1]
        assert sorted(m.partition() for m in drain(reader, 2)) == [0, 1]
        with pytest.raises(KafkaException, match=r"t \[2\] can't be unassigned") as caught:
            reader.incremental_unassign([tp(2)])
        assert caught.value.args[0] == KafkaError._INVALID_ARG
        reader.incremental_unassign([tp(0)])
        assert [p.partition for p in reader.assignment()] == [1]
        fill(root, 1, partition=0)
        fill(root, 1, partition=1)
        assert [m.partition() for m in drain(reader, 1)] == [1]
        assert nothing_comes(reader)


def test_assigning_other_topics_ends_reading_the_first(root):
    for name in ("t", "u"):
        topic(root, name)
        fill(root, 2, name)
    with consumer(root) as reader:
        reader.assign([tp()])
        assert next_message(reader).topic() == "t"
        reader.assign([tp(name="u")])
        assert [m.topic() for m in drain(reader, 2)] == ["u", "u"]
        reader.assign([tp(), tp(name="u")])
        assert sorted(m.topic() for m in drain(reader, 4)) == ["t", "t", "u", "u"]


def test_reading_starts_at_the_assigned_offset(root):
    topic(root)
    fill(root, 5)
    for offset, expected in (
        (OFFSET_BEGINNING, [0, 1, 2, 3, 4]),
        (OFFSET_STORED, [0, 1, 2, 3, 4]),
        (OFFSET_INVALID, [0, 1, 2, 3, 4]),
        (-2000 - 2, [3, 4]),
        (-2000 - 99, [0, 1, 2, 3, 4]),
        (3, [3, 4]),
        (5, []),
        (OFFSET_END, []),
    ):
        with consumer(root, enable__partition__eof=True) as reader:
            reader.assign([tp(0, offset)])
            assert offsets(drain(reader, len(expected) + 1)) == [*expected, "_PARTITION_EOF"], (
                offset
            )


@pytest.mark.parametrize(
    ("reset", "first", "then"),
    [("earliest", [0, 1, 2, 3, 4], [5]), ("latest", [], [5]), ("error", None, None)],
)
@pytest.mark.parametrize("offset", [OFFSET_INVALID, 100])
def test_without_a_valid_offset_auto_offset_reset_decides(root, reset, first, then, offset):
    topic(root)
    fill(root, 5)
    with consumer(root, auto__offset__reset=reset, enable__partition__eof=True) as reader:
        reader.assign([tp(0, offset)])
        if first is None:
            message = next_message(reader)
            error = message.error()
            assert error is not None
            assert error.code() == KafkaError._AUTO_OFFSET_RESET
            assert (message.topic(), message.partition()) == ("t", 0)
            assert message.offset() == (None if offset < 0 else offset)
            fill(root, 1, start=5)
            assert nothing_comes(reader), "the partition is stopped"
            reader.seek(tp(0, 4))
            assert offsets(drain(reader, 3)) == [4, 5, "_PARTITION_EOF"]
        else:
            assert offsets(drain(reader, len(first) + 1)) == [*first, "_PARTITION_EOF"]
            fill(root, 1, start=5)
            assert offsets(drain(reader, 1)) == then


def test_an_unknown_partition_is_reported_once_and_read_once_it_exists(root):
    topic(root)
    with consumer(root) as reader:
        reader.assign([tp(2)])
        message = next_message(reader)
        assert message.error() == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert (message.topic(), message.partition()) == ("t", 2)
        assert nothing_comes(reader)
        AdminClient({"bootstrap.servers": root}).create_partitions([NewPartitions("t", 3)])[
            "t"
        ].result(20)
        fill(root, 1, partition=2)
        assert offsets(drain(reader, 1)) == [0]


def test_an_unknown_topic_is_reported_once_and_read_from_its_start_later(root):
    with consumer(root, auto__offset__reset="latest") as reader:
        reader.assign([tp()])
        message = next_message(reader)
        assert (message.error(), message.topic()) == (KafkaError.UNKNOWN_TOPIC_OR_PART, "t")
        assert nothing_comes(reader)
        topic(root)
        fill(root, 2)
        assert offsets(drain(reader, 2)) == [0, 1]


def test_a_topic_is_created_by_reading_only_if_enabled(root):
    with consumer(root, allow__auto__create__topics=True, num__partitions=2) as reader:
        reader.assign([tp(1)])
        eventually(lambda: reader.list_topics("t").topics["t"].error is None)
        assert len(reader.list_topics("t").topics["t"].partitions) == 2
        assert nothing_comes(reader)


# --- positions ---


def test_position_is_the_offset_after_the_last_message(root):
    topic(root)
    fill(root, 5)

    def position() -> int:
        return reader.position([tp()])[0].offset

    with consumer(root) as reader:
        assert position() == OFFSET_INVALID
        reader.assign([tp(0, 0)])
        assert position() == OFFSET_INVALID
        drain(reader, 3)
        assert position() == 3
        reader.seek(tp(0, 1))
        assert position() == OFFSET_INVALID
        drain(reader, 1)
        assert position() == 2
        assert reader.position([tp(7)])[0].offset == OFFSET_INVALID


def test_seek_moves_to_any_offset(root):
    topic(root, partitions=2)
    fill(root, 8)
    with consumer(root, enable__partition__eof=True) as reader:
        with pytest.raises(WrongState, match=r"t\[0\] is not assigned"):
            reader.seek(tp(0, 3))
        reader.assign([tp(0, 0)])
        reader.seek(tp(0, 5))
        assert offsets(drain(reader, 2)) == [5, 6]
        with pytest.raises(KafkaException) as caught:
            reader.seek(tp(1, 0))
        assert caught.value.args[0] == KafkaError._STATE
        reader.seek(tp(0, 1))
        assert offsets(drain(reader, 2)) == [1, 2]
        reader.seek(tp(0, OFFSET_BEGINNING))
        assert offsets(drain(reader, 1)) == [0]
        reader.seek(tp(0, OFFSET_END))
        assert offsets(drain(reader, 1)) == ["_PARTITION_EOF"]
        fill(root, 1, start=8)
        assert offsets(drain(reader, 2)) == [8, "_PARTITION_EOF"]
        reader.seek(tp(0, 999))
        assert offsets(drain(reader, 1)) == [0], "auto.offset.reset is earliest"
        with pytest.raises(InvalidConfig, match="-77"):
            reader.seek(tp(0, -77))


class SlowNews(FaultyStore):
    """While `held` is set, the answer that there is no further entry takes until it is not."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.held = threading.Event()
        self.asked = threading.Event()
        self.go_on = threading.Event()

    def get(self, key: str, size_max: int | None = None) -> bytes:
        try:
            return super().get(key, size_max)
        except ObjectMissing:
            if self.held.is_set() and "topics/t/_delta_log/" in key:
                self.asked.set()
                self.go_on.wait(20)
            raise


@pytest.mark.parametrize("reset", ["earliest", "latest", "error"])
def test_an_offset_acknowledged_during_a_log_read_is_not_out_of_range(reset, local_root):
    topic(local_root)
    fill(local_root, 5)
    store = SlowNews(open_store(local_root))
    conf = {
        "bootstrap.servers": local_root,
        "group.id": "g",
        "auto.offset.reset": reset,
        "enable.auto.commit": False,
    }
    with Consumer(conf, store=store) as reader:
        reader.assign([tp(offset=0)])
        assert offsets(reader.consume(5, 20)) == [0, 1, 2, 3, 4]
        store.held.set()
        assert store.asked.wait(20)
        fill(local_root, 5, start=5)
        reader.seek(tp(offset=9))
        store.held.clear()
        store.go_on.set()
        assert offsets(reader.consume(1, 20)) == [9]


def test_a_paused_partition_returns_nothing_not_even_what_is_ready(root):
    topic(root, partitions=2)
    for partition in (0, 1):
        fill(root, 6, partition=partition)
    with consumer(root) as reader:
        reader.assign([tp(0, 0), tp(1, 0)])
        found = drain(reader, 4)
        reader.pause([tp(0)])
        rest = drain(reader, 6 - sum(m.partition() == 1 for m in found))
        assert {m.partition() for m in rest} <= {1}
        assert nothing_comes(reader)
        before = reader.position([tp(0)])[0].offset
        fill(root, 2, partition=0, start=6)
        assert nothing_comes(reader)
        assert reader.position([tp(0)])[0].offset == before
        reader.resume([tp(0)])
        expected = range(max(0, before), 8)
        assert offsets(drain(reader, len(expected))) == list(expected)
        reader.pause([tp(0)])
        reader.seek(tp(0, 0))
        assert nothing_comes(reader), "a seek does not resume"
        reader.resume([tp(0)])
        assert offsets(drain(reader, 1)) == [0]
        reader.pause([tp(5)])
        reader.resume([tp(1), tp(5)])


def test_a_partition_stays_paused_when_it_is_assigned_again(root):
    topic(root, partitions=2)
    for partition in (0, 1):
        fill(root, 2, partition=partition)

    def read(reader):
        return sorted({message.partition() for message in drain(reader, 2)}), nothing_comes(reader)

    # As confluent-kafka with a broker.
    with consumer(root) as reader:
        reader.assign([tp(0, 0), tp(1, 0)])
        reader.pause([tp(0)])
        assert read(reader) == ([1], True)
        reader.assign([tp(0, 0), tp(1, 0)])
        assert read(reader) == ([1], True)
        reader.unassign()
        reader.incremental_assign([tp(1, 0)])
        reader.incremental_assign([tp(0, 0)])
        assert read(reader) == ([1], True)
        reader.resume([tp(0)])
        assert read(reader) == ([0], True)
        reader.pause([tp(0)])
        reader.unassign()
        reader.resume([tp(0)])
        reader.assign([tp(0, 0)])
        assert read(reader) == ([0], True), "resumed while it was not assigned"


def test_records_that_were_ready_when_the_partition_was_paused_come_after_it_is_resumed(root):
    topic(root, partitions=2)
    with Producer({"bootstrap.servers": root, "linger.ms": 60_000}) as producer:
        for _ in range(5):
            for partition in (0, 1):
                producer.produce("t", "v", partition=partition)
            producer.flush(20)
    with consumer(root) as reader:
        reader.assign([tp(0, 0), tp(1, 0)])
        fetcher = reader._running().fetcher
        eventually(lambda: len(fetcher.queue._items) == 10, "everything is prefetched")
        reader.pause([tp(0)])
        assert [(m.partition(), m.offset()) for m in drain(reader, 5)] == [
            (1, offset) for offset in range(5)
        ]
        assert nothing_comes(reader)
        reader.resume([tp(0)])
        assert [(m.partition(), m.offset()) for m in drain(reader, 5)] == [
            (0, offset) for offset in range(5)
        ]
        assert nothing_comes(reader)


# --- the end of a partition ---


def test_partition_eof_is_reported_once_per_catch_up(root):
    topic(root)
    fill(root, 2)
    with consumer(root, enable__partition__eof=True) as reader:
        reader.assign([tp(0, 0)])
        assert offsets(drain(reader, 3)) == [0, 1, "_PARTITION_EOF"]
        assert nothing_comes(reader)
        fill(root, 1, start=2)
        found = drain(reader, 2)
        assert offsets(found) == [2, "_PARTITION_EOF"]
        end = found[1]
        error = end.error()
        assert error is not None
        assert (end.topic(), end.partition(), end.offset()) == ("t", 0, 3)
        assert (end.key(), end.headers(), end.timestamp()) == (None, None, (0, -1))
        assert end.value() == error.str().encode()
        assert nothing_comes(reader)
        reader.seek(tp(0, 2))
        assert offsets(drain(reader, 2)) == [2, "_PARTITION_EOF"]


def test_partition_eof_is_reported_for_an_empty_partition(root):
    topic(root)
    with consumer(root, enable__partition__eof=True) as reader:
        reader.assign([tp()])
        assert end_of(reader) == 0


def test_partition_eof_is_not_reported_unless_enabled(root):
    topic(root)
    fill(root, 1)
    with consumer(root) as reader:
        reader.assign([tp()])
        assert offsets(drain(reader, 1)) == [0]
        assert nothing_comes(reader)


# --- the store is away ---


def flaky(*rules: Rule) -> FaultyStore:
    store = FaultyStore(MemoryStore("test"))
    Topic("t", store=store).create()
    with Producer(bootstrap_servers="memory://unused", store=store) as producer:
        for number in range(3):
            producer.produce("t", f"v{number}")
            producer.flush(20)
    store.add(*rules)
    return store


@pytest.mark.parametrize("pattern", ["topics/*_delta_log/*", "topics/*.parquet"])
def test_a_store_outage_is_reported_to_error_cb_and_reading_goes_on(pattern):
    store = flaky(Rule("get", pattern, Fault.error_before(), 4))
    errors: list[KafkaError] = []
    conf = {
        "bootstrap.servers": "memory://unused",
        "group.id": "g",
        "auto.offset.reset": "earliest",
    }
    with Consumer(conf, store=store, error_cb=errors.append) as reader:
        reader.assign([tp()])
        assert offsets(drain(reader, 3)) == [0, 1, 2]
        assert store.effects[Effect.ERROR_BEFORE] == 4
        assert errors[:2] == [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN]
        assert errors[0].retriable()


def test_a_store_refusal_is_reported_as_a_message():
    store = flaky(Rule("get", "topics/*.parquet", Fault.refused(), EVER))
    conf = {
        "bootstrap.servers": "memory://unused",
        "group.id": "g",
        "auto.offset.reset": "earliest",
    }
    with Consumer(conf, store=store) as reader:
        reader.assign([tp()])
        error = next_message(reader).error()
        assert error is not None
        assert error.code() == KafkaError._TRANSPORT
        assert "access denied" in error.str()
        store.clear()
        while (message := next_message(reader)).error() is not None:
            pass
        assert message.offset() == 0


def test_an_unexpected_error_while_reading_is_reported():
    class Broken(FaultyStore):
        broken = False

        def get(self, key, size_max=None):
            if self.broken and key.endswith(".parquet"):
                raise ZeroDivisionError("a defect")
            return super().get(key, size_max)

    store = Broken(flaky().inner)
    store.broken = True
    conf = {
        "bootstrap.servers": "memory://unused",
        "group.id": "g",
        "auto.offset.reset": "earliest",
    }
    with Consumer(conf, store=store) as reader:
        reader.assign([tp()])
        error = next_message(reader).error()
        assert error is not None
        assert "ZeroDivisionError: a defect" in error.str()
        store.broken = False
        while (message := next_message(reader)).error() is not None:
            pass
        assert message.offset() == 0
