"""The producer when the store is slow, away, full or silent: every message is reported, truly, and
exactly once.
"""

from __future__ import annotations

import re
import threading
import time
import tracemalloc
import uuid
from collections import Counter
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from deltaq import Consumer, KafkaError, KafkaException, Producer, QueueFull, Topic, TopicPartition
from deltaq.admin import AdminClient, NewPartitions
from deltaq.clock import SYSTEM_CLOCK, SystemClock
from deltaq.delta.actions import Add, Entry, parse_entry
from deltaq.errors import OutcomeUnknown
from deltaq.producer import batch_upload
from deltaq.producer.encoding import row_refusals
from deltaq.producer.sender import THREADS, Sender, topic_sender
from deltaq.producer.uploader import UPLOADS_MAX
from deltaq.store import MemoryStore, StoreRefused
from deltaq.testing import Effect, Fault, FaultyStore, Rule
from deltaq.topics.log import TopicLog
from tests.doubles.reading import drain, eventually

DATA = "topics/*.parquet"
ENTRY = "topics/*_delta_log/*"
EVER = None
LONG_MS = 600_000
SHORT_MS = 1000
"""A `message.timeout.ms` within which even a busy machine makes the first try."""


class GatedStore(FaultyStore):
    """Lets commits through only while `open_gate` is set; `at_gate` counts those that have
    arrived.
    """

    def __init__(self) -> None:
        super().__init__(MemoryStore("test"))
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.at_gate = 0
        self.uploads = 0

    def put(self, key, data):
        super().put(key, data)
        self.uploads += key.endswith(".parquet")

    def create(self, key, data, after=""):
        if "_delta_log" in key and key.startswith("topics/"):
            self.at_gate += 1
            assert self.open_gate.wait(60)
        super().create(key, data, after)


def make(store: FaultyStore, **config) -> Producer:
    return Producer({"bootstrap.servers": "memory://unused", "linger.ms": 0}, store=store, **config)


def create(store: FaultyStore, name: str = "t", partitions: int = 1, **config) -> None:
    Topic(name, partitions=partitions, config=config, store=store.inner).create()


def stored(store: FaultyStore, count: int, partitions: int = 1) -> list[Any]:
    conf = {
        "bootstrap.servers": "memory://unused",
        "group.id": "reader",
        "enable.partition.eof": True,
    }
    with Consumer(conf, store=store.inner) as consumer:
        consumer.assign([TopicPartition("t", partition, 0) for partition in range(partitions)])
        messages = drain(consumer, count + partitions)
    return [message.value() for message in messages if message.error() is None]


def entries(store: FaultyStore) -> list[Entry]:
    keys = [entry.key for entry in store.inner.list("topics/t/_delta_log/")]
    return [parse_entry(store.inner.get(key), version, key) for version, key in enumerate(keys)]


def uploaded(store: GatedStore, count: int) -> bool:
    return store.uploads == count


class Reports(list[tuple[Any, Any]]):
    """Collects (error, message)."""

    def __call__(self, error, message) -> None:
        self.append((error, message))

    @property
    def names(self) -> list[str | None]:
        return [None if error is None else error.name() for error, _ in self]


# --- the store is away ---


@pytest.mark.fault("S1")
def test_a_short_store_outage_delays_messages_and_loses_none():
    for rule in (
        Rule("put", DATA, Fault.error_before(), 3),
        Rule("create", ENTRY, Fault.error_before(), 3),
    ):
        store = FaultyStore(MemoryStore("test"))
        create(store)
        store.add(rule)
        reports = Reports()
        with make(store, on_delivery=reports) as producer:
            for number in range(5):
                producer.produce("t", f"{number}")
        assert reports.names == [None] * 5
        assert store.effects[Effect.ERROR_BEFORE] == 3
        assert stored(store, 5) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_store_outage_at_the_first_produce_is_retried():
    store = FaultyStore(MemoryStore("test"), Rule("get", ENTRY, Fault.error_before(), 4))
    reports = Reports()
    with make(store, on_delivery=reports) as producer:
        producer.produce("t", "v", partition=0)
        producer.produce("t", "w")
    assert reports.names == [None, None]
    assert stored(store, 2) == [b"v", b"w"]


@pytest.mark.parametrize("as_table", [False, True])
def test_a_store_outage_during_a_partition_lookup_is_retried(as_table):
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    create(store)
    with (
        make(store, on_delivery=reports) as producer,
        AdminClient({"bootstrap.servers": "x"}, store=store.inner) as admin,
    ):
        producer.produce("t", "old", partition=0)
        assert producer.flush(20) == 0
        admin.create_partitions([NewPartitions("t", 2)])["t"].result()
        assert producer._lookup.head("t").partitions == 2
        producer._handles["t"].partitions = 2
        store.add(Rule("get", ENTRY, Fault.error_before(), 3))
        if as_table:
            producer.produce_arrow(
                "t", pa.table({"value": [b"new"], "partition": [1]}), on_delivery=reports
            )
        else:
            producer.produce("t", "new", partition=1)
        assert producer.flush(20) == 0
    assert store.effects[Effect.ERROR_BEFORE] == 3
    assert reports.names == [None, None]
    assert stored(store, 2, partitions=2) == [b"old", b"new"]


@pytest.mark.fault("P9")
def test_messages_fail_definitely_if_only_the_topics_creation_is_unknown(monkeypatch):
    def no_answer(self, *arguments):
        raise OutcomeUnknown("no answer", token="0:creation")

    monkeypatch.setattr(TopicLog, "create", no_answer)
    reports = Reports()
    with make(
        FaultyStore(MemoryStore("test")), message_timeout_ms=SHORT_MS, on_delivery=reports
    ) as producer:
        producer.produce("t", "lost")
    assert reports.names == ["_MSG_TIMED_OUT"]
    (error, _) = reports[0]
    assert "whether the topic was created" in error.str()
    assert "token" not in error.str()


@pytest.mark.fault("P5", "P6")
def test_the_answer_of_a_commit_that_was_lost_changes_nothing():
    store = FaultyStore(MemoryStore("test"))
    create(store)
    store.add(Rule("create", ENTRY, Fault.error_after()), Rule("put", DATA, Fault.error_after()))
    reports = Reports()
    with make(store, on_delivery=reports) as producer:
        producer.produce("t", "v")
    assert reports.names == [None]
    assert store.effects[Effect.ANSWER_LOST] == 2
    assert stored(store, 1) == [b"v"]


@pytest.mark.fault("P14", "S6")
@pytest.mark.parametrize(("operation", "pattern"), [("put", DATA), ("get", ENTRY)])
def test_messages_that_cannot_be_written_in_time_are_reported_as_timed_out(operation, pattern):
    store = FaultyStore(MemoryStore("test"))
    create(store)
    store.add(Rule(operation, pattern, Fault.error_before(), EVER))
    reports = Reports()
    errors: list[KafkaError] = []
    with make(
        store, message_timeout_ms=SHORT_MS, on_delivery=reports, error_cb=errors.append
    ) as producer:
        producer.produce("t", "lost")
        assert producer.flush(20) == 0
        error, message = reports[0]
        assert error.code() == KafkaError._MSG_TIMED_OUT
        assert "connection refused" in error.str()
        assert message.offset() is None
        assert message.latency() >= 0.9 * SHORT_MS / 1000
        assert errors[:2] == [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN]
        assert errors[-1] == KafkaError._MSG_TIMED_OUT
        store.clear()
        producer.produce("t", "kept")
    assert reports.names == ["_MSG_TIMED_OUT", None]
    assert stored(store, 1) == [b"kept"]


def test_a_short_message_timeout_does_not_shorten_that_of_other_producers():
    class SlowUploads(FaultyStore):
        gate = threading.Event()

        def put(self, key, data):
            assert self.gate.wait(60)
            super().put(key, data)

    store = SlowUploads(MemoryStore("test"), Rule("put", DATA, Fault.error_before(), EVER))
    create(store)
    impatient, patient = Reports(), Reports()
    with make(store, message_timeout_ms=300) as short, make(store) as long:
        # Both wait for the same upload, and so could be taken together after it.
        short.produce("t", "first", on_delivery=impatient)
        eventually(lambda: len(short._handles["t"].buffer) == 0)
        short.produce("t", "short", on_delivery=impatient)
        long.produce("t", "long", on_delivery=patient)
        store.gate.set()
        assert short.flush(20) == 0
        store.clear()
        long.flush(20)
    assert impatient.names == ["_MSG_TIMED_OUT"] * 2
    assert patient.names == [None]


@pytest.mark.fault("D1")
def test_a_full_disk_is_reported_at_once_and_writes_resume_when_there_is_room():
    class Full(FaultyStore):
        full = True

        def put(self, key, data):
            if self.full and key.endswith(".parquet"):
                raise StoreRefused("put", key, "the disk is full; free space or enlarge it")
            super().put(key, data)

    store = Full(MemoryStore("test"))
    reports = Reports()
    with make(store, on_delivery=reports) as producer:
        producer.produce("t", "lost")
        assert producer.flush(20) == 0
        error, _ = reports[0]
        assert error.code() == KafkaError._TRANSPORT
        assert not error.retriable()
        assert "the disk is full" in error.str()
        store.full = False
        producer.produce("t", "kept")
    assert reports.names == ["_TRANSPORT", None]
    assert stored(store, 1) == [b"kept"]


@pytest.mark.fault("P14")
def test_an_unexpected_store_error_is_reported():
    class Broken(FaultyStore):
        def put(self, key, data):
            if key.endswith(".parquet"):
                raise ZeroDivisionError("a defect")
            super().put(key, data)

    reports = Reports()
    with make(Broken(MemoryStore("test")), on_delivery=reports) as producer:
        producer.produce("t", "v")
        assert producer.flush(20) == 0
    assert reports.names == ["_FAIL"]
    assert "ZeroDivisionError: a defect" in reports[0][0].str()


def test_an_error_callbacks_exception_is_raised_and_reports_are_made():
    store = FaultyStore(MemoryStore("test"), Rule("put", DATA, Fault.refused()))
    reports = Reports()

    def fail(error):
        raise ValueError(error.name())

    with make(store, on_delivery=reports, error_cb=fail) as producer:
        producer.produce("t", "v")
        with pytest.raises(ValueError, match="_TRANSPORT"):
            producer.flush(20)
    assert reports.names == ["_TRANSPORT"]


# --- unknown outcomes ---


def token_of(error: KafkaError) -> str:
    found = re.search(r"\(token (\d+:\w+:\w+)\)", error.str())
    assert found, error.str()
    return found[1]


@pytest.mark.fault("P9")
def test_an_unknown_outcome_has_a_token_and_is_resolved_as_not_done():
    store = FaultyStore(MemoryStore("test"))
    create(store)
    store.add(Rule("create", ENTRY, Fault.late_apply(), EVER))
    reports = Reports()
    with make(store, message_timeout_ms=SHORT_MS, on_delivery=reports) as producer:
        producer.produce("t", "unknown")
        assert producer.flush(20) == 0
        error, message = reports[0]
        assert (error.code(), message.offset()) == (KafkaError._MSG_TIMED_OUT, None)
        store.clear()
        assert producer.resolve("t", token_of(error)) is False
        assert set(store.land_late()) == {False}, "a resolved outcome cannot change"
        producer.produce("t", "kept")
    assert stored(store, 1) == [b"kept"]


@pytest.mark.fault("P9", "P10")
def test_an_unknown_outcome_that_was_committed_is_resolved_as_done():
    store = FaultyStore(MemoryStore("test"))
    create(store)
    reports = Reports()
    with make(store, message_timeout_ms=SHORT_MS, on_delivery=reports) as producer:
        producer.produce("t", "first")
        producer.flush(20)
        store.add(
            Rule("create", ENTRY, Fault.error_after()),
            Rule("get", ENTRY, Fault.error_before(), EVER),
        )
        producer.produce("t", "unknown")
        producer.flush(20)
        store.clear()
        error, _ = reports[1]
        assert producer.resolve("t", token_of(error)) is True
        with pytest.raises(ValueError, match="not the token"):
            producer.resolve("t", "nonsense")
    assert stored(store, 2) == [b"first", b"unknown"]


# --- one commit for many ---


def test_producers_of_one_process_share_commits():
    store = GatedStore()
    create(store)
    first, second = make(store), make(store)
    store.open_gate.clear()
    first.produce("t", "0")
    eventually(lambda: store.at_gate == 1, "the first commit")
    flushes = []
    for producer in (first, second):
        for number in range(3):
            producer.produce("t", f"{number}")
            flushes.append(threading.Thread(target=producer.flush, args=(60,)))
            flushes[-1].start()
    store.open_gate.set()
    for flush in flushes:
        flush.join()
    commits = len(entries(store)) - 1
    assert commits < len(flushes)
    assert Counter(stored(store, 7)) == {b"0": 3, b"1": 2, b"2": 2}
    first.close()
    second.close()


def test_records_of_the_time_of_a_commit_become_one_file_on_a_local_store():
    store = GatedStore()
    create(store)
    with make(store) as producer:
        store.open_gate.clear()
        producer.produce("t", "1")
        eventually(lambda: store.at_gate == 1)
        for batch in range(2, 5):
            producer.produce("t", f"{batch}")
        store.open_gate.set()
        producer.flush(20)
    assert stored(store, 4) == [b"1", b"2", b"3", b"4"]
    assert store.uploads == 2


def test_on_a_local_store_the_thread_that_uploads_commits_as_well():
    """To hand a batch over would take as long as its commit."""

    class Threads(FaultyStore):
        def __init__(self) -> None:
            super().__init__(MemoryStore("test"))
            self.of: dict[str, set[int]] = {"data": set(), "entry": set()}

        def put(self, key, data):
            if key.endswith(".parquet"):
                self.of["data"].add(threading.get_ident())
            super().put(key, data)

        def create(self, key, data, after=""):
            if key.startswith("topics/t/_delta_log/"):
                self.of["entry"].add(threading.get_ident())
            super().create(key, data, after)

    store = Threads()
    create(store)
    with make(store, **{"maintenance.enable": False}) as producer:
        for number in range(20):
            producer.produce("t", b"%d" % number)
            assert producer.flush(30) == 0
            # When a producer begins, the thread that commits looks for batches once.
            if not number:
                store.of = {"data": set(), "entry": set()}
    assert store.of["entry"]
    assert store.of["entry"] <= store.of["data"]


def test_the_next_batch_is_uploaded_while_the_previous_commit_waits(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(GatedStore, "is_remote", True)
    store = GatedStore()
    create(store)
    reports = Reports()
    with make(store, on_delivery=reports) as producer:
        store.open_gate.clear()
        for batch in range(1, 4):
            producer.produce("t", f"{batch}")
            eventually(partial(uploaded, store, batch), f"upload {batch}")
        eventually(lambda: store.at_gate == 1)
        assert len(entries(store)) == 1, "nothing is committed yet, and three batches are uploaded"
        store.open_gate.set()
        producer.flush(20)
    assert reports.names == [None] * 3
    assert stored(store, 3) == [b"1", b"2", b"3"]
    assert len(entries(store)) <= 3, "what was uploaded meanwhile went into one commit"


def batches_of_ten(store: FaultyStore, **config) -> Producer:
    """A producer of topic `t` that sends ten messages at once."""
    create(store)
    return make(store, batch_num_messages=10, **config)


def send(producer: Producer, *numbers: int) -> None:
    for number in numbers:
        producer.produce("t", b"%d" % number)


def fill(producer: Producer, store: FaultyStore) -> int:
    """Send batches, of which none comes back from the store, until no more are uploaded; how many
    messages.
    """
    sent = 0
    while (under_way := store.blocked) < UPLOADS_MAX:
        send(producer, *range(sent, sent + 20))
        sent += 20
        eventually(lambda: store.blocked > under_way)
    return sent


def test_whole_batches_are_uploaded_beside_a_slow_one_and_committed_after_it():
    store = FaultyStore(MemoryStore("test"), Rule("put", DATA, Fault.slow(), times=1))
    with batches_of_ten(store) as producer:
        send(producer, 0)
        eventually(lambda: store.blocked == 1)
        send(producer, *range(1, 12))
        eventually(lambda: store.operations["put"] == 2)
        send(producer, *range(12, 30))
        eventually(lambda: store.operations["put"] == 3)
        assert not [
            action
            for entry in entries(store)
            for action in entry.actions
            if isinstance(action, Add)
        ]
        store.release()
        assert producer.flush(60) == 0
    assert stored(store, 30) == [b"%d" % number for number in range(30)]


def test_a_partial_batch_waits_for_the_upload_in_flight():
    store = FaultyStore(MemoryStore("test"), Rule("put", DATA, Fault.slow(), times=EVER))
    with batches_of_ten(store) as producer:
        send(producer, 0)
        eventually(lambda: store.blocked == 1)
        send(producer, *range(1, 10))
        writer = producer._handles["t"].sender
        writer.wake()
        extra = writer._uploads.extra_workers  # one that is there now would still be in the store
        store.clear()
        store.release()
        assert producer.flush(60) == 0
    assert extra == 0
    assert store.operations["put"] == 2
    assert stored(store, 10) == [b"%d" % number for number in range(10)]


def test_no_more_than_a_few_batches_are_uploaded_at_once():
    store = FaultyStore(MemoryStore("test"), Rule("put", DATA, Fault.slow(), times=EVER))
    with batches_of_ten(store) as producer:
        sent = fill(producer, store)
        send(producer, *range(sent, sent + 100))
        writer = producer._handles["t"].sender
        found = writer._uploads.extra_workers, writer._uploads.uploads
        store.clear()
        store.release()
        assert producer.flush(60) == 0
    assert found == (UPLOADS_MAX - 1, UPLOADS_MAX)
    assert stored(store, sent + 100) == [b"%d" % number for number in range(sent + 100)]


def test_a_batch_that_cannot_be_uploaded_takes_no_other_one_with_it():
    store = FaultyStore(
        MemoryStore("test"),
        Rule("put", DATA, Fault.slow(), times=1),
        Rule("put", DATA, Fault.refused(), times=1),
    )
    reports = Reports()
    with batches_of_ten(store, on_delivery=reports) as producer:
        send(producer, 0)
        eventually(lambda: store.blocked == 1)
        send(producer, *range(1, 11))
        eventually(lambda: producer.poll(0) or len(reports) == 10)
        store.release()
        send(producer, *range(11, 30))
        assert producer.flush(60) == 0
    assert sorted(int(message.value()) for error, message in reports if error is not None) == list(
        range(1, 11)
    )
    assert stored(store, 20) == [b"%d" % number for number in (0, *range(11, 30))]


def test_contended_batches_are_committed_in_order():
    store = FaultyStore(MemoryStore("test"), Rule("put", DATA, Fault.slow(), times=1))
    with batches_of_ten(store) as producer:
        send(producer, 0)
        eventually(lambda: store.blocked == 1)
        writer = producer._handles["t"].sender
        writer._uploads.linger.adaptive.extra_s = 0.01
        send(producer, *range(1, 100))
        extra = writer._uploads.extra_workers
        store.release()
        assert producer.flush(60) == 0
    assert extra == 0
    assert stored(store, 100) == [b"%d" % number for number in range(100)]


class HeldStore(FaultyStore):
    """Keeps the first data file until `first` is set, and the second until `second` is."""

    def __init__(self) -> None:
        super().__init__(MemoryStore("test"))
        self.first, self.second = threading.Event(), threading.Event()
        self.uploads = 0

    def put(self, key, data):
        if key.endswith(".parquet"):
            self.uploads += 1
            gate = {1: self.first, 2: self.second}.get(self.uploads)
            assert gate is None or gate.wait(60)
        super().put(key, data)


def test_a_new_producer_does_not_wait_for_batches_of_a_closed_one():
    store = HeldStore()
    gone = batches_of_ten(store)
    send(gone, 0)
    eventually(lambda: store.uploads == 1)
    send(gone, *range(1, 11))
    eventually(lambda: store.uploads == 2)
    gone.purge()
    gone.close()
    store.first.set()
    eventually(lambda: gone_writer(store)._uploads.uploads == 1)
    begun = threading.Event()

    def go_on() -> None:
        with make(store) as producer:
            send(producer, 100)
            begun.set()
            assert producer.flush(60) == 0

    going_on = threading.Thread(target=go_on)
    going_on.start()
    found = begun.wait(20)
    store.second.set()
    going_on.join(60)
    assert found
    assert stored(store, 1) == [b"100"]


def gone_writer(store: FaultyStore) -> Sender:
    """The writer of topic `t`, which is there as long as a thread of it is."""
    return topic_sender(store, "t", SYSTEM_CLOCK)


def test_a_refusal_without_messages_does_not_fail_a_batch_being_uploaded():
    store = FaultyStore(MemoryStore("test"), Rule("put", DATA, Fault.slow(), times=1))
    with batches_of_ten(store) as producer:
        send(producer, 0)
        eventually(lambda: store.blocked == 1)
        committer: Any = producer._handles["t"].sender._commits
        committer.not_appended([], KafkaException(KafkaError(KafkaError._FAIL)))
        store.release()
        assert producer.flush(60) == 0
    assert stored(store, 1) == [b"0"]


def test_batches_are_uploaded_sequentially_if_no_thread_can_start():
    class Scarce(SystemClock):
        started, refused = False, 0

        def start_thread(self, target, name):
            if name == "deltaq-sender" and self.started:
                self.refused += 1
                raise RuntimeError("can't start new thread")
            self.started = self.started or name == "deltaq-sender"
            return super().start_thread(target, name)

    store, clock = (
        FaultyStore(MemoryStore("test"), Rule("put", DATA, Fault.slow(), times=1)),
        Scarce(),
    )
    with batches_of_ten(store, clock=clock) as producer:
        send(producer, 0)
        eventually(lambda: store.blocked == 1)
        send(producer, *range(1, 30))
        assert clock.refused > 0
        store.release()
        assert producer.flush(60) == 0
    assert stored(store, 30) == [b"%d" % number for number in range(30)]


def test_a_topic_for_which_there_was_no_thread_is_written_once_there_is_one():
    class Scarce(SystemClock):
        has_room = False

        def start_thread(self, target, name):
            if not self.has_room:
                raise RuntimeError("can't start new thread")
            return super().start_thread(target, name)

    store, clock = FaultyStore(MemoryStore("test")), Scarce()
    with make(store, clock=clock) as producer:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                producer.produce("t", b"refused")
        clock.has_room = True
        send(producer, 0)
        assert producer.flush(60) == 0
    assert stored(store, 1) == [b"0"]


def test_topics_whose_uploads_hang_hold_up_no_other_topic():
    hanging = [f"hanging-{number}" for number in range(THREADS + 2)]
    store = FaultyStore(
        MemoryStore("test"), Rule("put", "topics/hanging-*.parquet", Fault.slow(), EVER)
    )
    with make(store) as producer:
        for topic in hanging:
            producer.produce(topic, b"v")
        eventually(lambda: store.blocked == len(hanging))
        send(producer, 0)
        eventually(lambda: len(producer) == len(hanging))
        store.clear()
        store.release()
        assert producer.flush(60) == 0
    assert stored(store, 1) == [b"0"]


def test_a_producer_of_hundreds_of_topics_has_few_threads_and_delivers_to_all():
    store = FaultyStore(MemoryStore("test"))
    topics = [f"t{number}" for number in range(200)]
    with make(store) as producer:
        for round_ in range(3):
            for topic in topics:
                producer.produce(topic, b"%d" % round_)
        assert producer.flush(60) == 0
        threads = producer._handles["t0"].sender._threads.threads
        assert sum(thread.is_alive() for thread in threads) < len(topics) / 4
    for topic in topics:
        assert Topic(topic, store=store.inner).to_arrow()["value"].to_pylist() == [b"0", b"1", b"2"]


def test_a_producer_that_purges_does_not_wait_for_batches_that_are_being_uploaded():
    store = FaultyStore(MemoryStore("test"), Rule("put", DATA, Fault.slow(), times=EVER))
    reports = Reports()
    with batches_of_ten(store, on_delivery=reports) as producer:
        sent = fill(producer, store)
        producer.purge()
        left = producer.flush(60)
        store.clear()
        store.release()
        send(producer, 100)
        assert producer.flush(60) == 0
    assert left == 0
    assert len(reports) == sent + 1
    assert set(reports.names[:-1]) <= {"_PURGE_INFLIGHT", "_PURGE_QUEUE"}
    assert reports.names.count("_PURGE_INFLIGHT") >= 10 * (UPLOADS_MAX - 1)
    assert reports.names[-1] is None
    assert stored(store, 1) == [b"100"]


def test_clients_with_different_compression_get_two_files_in_one_commit():
    store = GatedStore()
    create(store)
    store.open_gate.clear()
    reports = Reports()
    with (
        make(store, compression_type="zstd") as zstd,
        make(store, compression_type="none") as plain,
    ):
        zstd.produce("t", "gate")
        eventually(lambda: store.at_gate == 1)
        for number in range(3):
            zstd.produce("t", f"z{number}", on_delivery=reports)
            plain.produce("t", f"p{number}", on_delivery=reports)
        store.open_gate.set()
        zstd.flush(20)
        plain.flush(20)
    files = [sum(isinstance(action, Add) for action in entry.actions) for entry in entries(store)]
    assert max(files) >= 2
    found = stored(store, 7)
    assert sorted(found) == sorted([b"gate", b"z0", b"z1", b"z2", b"p0", b"p1", b"p2"])
    for message in (message for _, message in reports):
        assert found[message.offset()] == message.value(), (
            "each report names the offset of its own message"
        )


def test_producers_of_one_root_share_one_writer():
    root = f"memory://{uuid.uuid4().hex}"
    with Producer(bootstrap_servers=root) as one, Producer(bootstrap_servers=root) as two:
        for producer in (one, two):
            producer.produce("t", "v")
        (first,), (second,) = one._handles.values(), two._handles.values()
        assert first.sender is second.sender


# --- limits and purge while the store hangs ---


@pytest.mark.fault("D2")
def test_messages_in_flight_count_for_the_limits():
    store = GatedStore()
    create(store)
    with (
        make(store, queue_buffering_max_messages=5) as rows,
        make(store, queue_buffering_max_kbytes=8) as size,
    ):
        store.open_gate.clear()
        for _ in range(2):
            rows.produce("t", "v")
        eventually(lambda: store.uploads >= 1)
        for _ in range(3):
            rows.produce("t", "v")
        with pytest.raises(QueueFull):
            rows.produce("t", "v")
        for _ in range(8):
            size.produce("t", b"x" * 1024)
        with pytest.raises(QueueFull):
            size.produce("t", b"x" * 1024)
        store.open_gate.set()
        assert rows.flush(20) == size.flush(20) == 0
        rows.produce("t", "v")
        size.produce("t", b"x" * 1024)


@pytest.mark.fault("D2", "S6")
def test_memory_does_not_grow_while_a_store_does_not_answer():
    store = FaultyStore(MemoryStore("test"))
    create(store)
    store.add(Rule("put", DATA, Fault.slow(), EVER))
    with make(store, queue_buffering_max_kbytes=1000) as producer:
        sent = 0
        tracemalloc.start()
        try:
            in_use = [0, 0]
            for at in range(len(in_use)):
                refused = 0
                while refused < 5_000:
                    try:
                        producer.produce("t", b"x" * 1024)
                        sent += 1
                    except QueueFull:
                        refused += 1
                eventually(lambda: store.blocked)
                in_use[at] = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert sent <= 1000
        assert in_use[0] < 5_000_000
        assert in_use[1] < in_use[0] + 100_000
        store.clear()
        store.release()
        assert producer.flush(20) == 0
    assert len(stored(store, sent)) == sent


@pytest.mark.fault("D2")
def test_a_table_waits_for_room_too_unless_nothing_else_waits():
    store = GatedStore()
    create(store)
    table = pa.table({"value": [b"x" * 1024] * 200})
    with make(store, queue_buffering_max_kbytes=100) as producer:
        store.open_gate.clear()
        assert producer.produce_arrow("t", table) == 200, "it could never be produced else"
        with pytest.raises(QueueFull):
            producer.produce_arrow("t", table)
        store.open_gate.set()
        assert producer.flush(20) == 0
        assert producer.produce_arrow("t", table) == 200


@pytest.mark.fault("P14")
def test_purge_reports_messages_in_flight_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(GatedStore, "is_remote", True)
    store = GatedStore()
    create(store)
    reports = Reports()
    with make(store) as producer:
        store.open_gate.clear()
        producer.produce("t", "flying", on_delivery=reports)
        eventually(lambda: store.at_gate == 1)
        producer.produce("t", "uploaded", on_delivery=reports)
        eventually(lambda: store.uploads == 2)
        producer.purge(in_queue=False)
        assert producer.flush(20) == 0
        assert reports.names == ["_PURGE_INFLIGHT"] * 2
        store.open_gate.set()
        producer.produce("t", "next", on_delivery=reports)
        assert producer.flush(20) == 0
    assert reports.names == ["_PURGE_INFLIGHT"] * 2 + [None]
    assert [message.value() for _, message in reports] == [b"flying", b"uploaded", b"next"]
    found = stored(store, 2)
    assert found == [b"flying", b"next"], (
        "as in Kafka, what was in batch may be there; what only waited is not"
    )


@pytest.mark.fault("P14")
def test_messages_purged_before_their_topic_is_known_are_reported_once():
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    create(store, "t", 1, **{"cleanup.policy": "compact"})
    store.add(Rule("get", ENTRY, Fault.error_before(), EVER))
    with make(
        store, linger_ms=LONG_MS / 2, message_timeout_ms=LONG_MS, batch_num_messages=4
    ) as producer:
        for number, key in enumerate(("k", None, "k", None)):
            producer.produce("t", str(number), key=key, on_delivery=reports)
        eventually(lambda: len(producer._handles["t"].sender._batches.under_way) == 1)
        producer.purge()
        assert producer.flush(20) == 0
        store.clear()
        producer.produce("t", "next", key="k", on_delivery=reports)
        assert producer.flush(20) == 0
        assert len(producer) == 0
    assert reports.names == ["_PURGE_INFLIGHT"] * 4 + [None]
    assert stored(store, 1) == [b"next"]


@pytest.mark.fault("P14")
@pytest.mark.parametrize("keys", [("k", None, "k", None), (None, None)], ids=["some", "all"])
def test_messages_purged_just_before_a_refusal_are_reported_once(monkeypatch, keys):
    store, reports, refusals = FaultyStore(MemoryStore("test")), Reports(), row_refusals
    create(store, "t", 1, **{"cleanup.policy": "compact"})

    def refusals_late(*arguments):
        found = refusals(*arguments)
        producer.purge()
        return found

    # So that `produce` does not know what the topic demands.
    store.add(Rule("get", ENTRY, Fault.error_before(), 3))
    with make(store, linger_ms=LONG_MS / 2, message_timeout_ms=LONG_MS) as producer:
        monkeypatch.setattr(batch_upload, "row_refusals", refusals_late)
        for key in keys:
            producer.produce("t", "v", key=key, on_delivery=reports)
        assert producer.flush(20) == 0
        monkeypatch.undo()
        producer.produce("t", "next", key="k", on_delivery=reports)
        assert producer.flush(20) == 0
    assert reports.names == ["_PURGE_INFLIGHT"] * len(keys) + [None]


@pytest.mark.fault("P14")
def test_purge_lets_a_producer_close_at_once_during_an_outage():
    store = FaultyStore(MemoryStore("test"), Rule("put", DATA, Fault.error_before(), EVER))
    create(store)
    reports = Reports()
    producer = make(store, on_delivery=reports)
    for _ in range(3):
        producer.produce("t", "v")
    assert producer.flush(0.05) == 3
    producer.purge()
    assert producer.flush(5) == 0
    assert set(reports.names) <= {"_PURGE_QUEUE", "_PURGE_INFLIGHT"}
    assert len(reports) == 3
    assert producer.close()


def test_values_that_do_not_fit_fail_alone():
    store = FaultyStore(MemoryStore("test"))
    Topic("t", schema=pa.schema([pa.field("id", pa.int64())]), store=store.inner).create()
    store.add(Rule("get", ENTRY, Fault.error_before(), EVER))
    reports, others = Reports(), Reports()
    with (
        make(store, linger_ms=LONG_MS / 2, message_timeout_ms=LONG_MS) as blind,
        make(store, linger_ms=LONG_MS / 2, message_timeout_ms=LONG_MS) as seeing,
    ):
        blind.produce("t", b"bytes, for all that is known", on_delivery=reports)
        store.clear()
        seeing.produce("t", {"id": 5}, on_delivery=others)
        assert blind.flush(20) == seeing.flush(20) == 0
    assert reports.names == ["_VALUE_SERIALIZATION"]
    assert others.names == [None]
    assert stored(store, 1) == [{"id": 5}]


ID = pa.schema([pa.field("id", pa.int64())])
TABLE = pa.table({"value": [b"much too long", b"b"]})


@pytest.mark.parametrize(
    ("schema", "config", "table", "error"),
    [
        (None, {}, TABLE.append_column("partition", [[0, 1]]), "_UNKNOWN_PARTITION"),
        (ID, {}, TABLE, "_VALUE_SERIALIZATION"),
        (None, {"cleanup.policy": "compact"}, TABLE, "INVALID_RECORD"),
        (None, {"max.message.bytes": 12}, TABLE, "MSG_SIZE_TOO_LARGE"),
        (None, {"max.message.bytes": 13}, TABLE, None),
    ],
    ids=["partition", "schema", "key", "size", "fits"],
)
def test_a_table_for_a_topic_that_was_not_known_yet_is_refused_whole_and_alone(
    schema, config, table, error
):
    store = FaultyStore(MemoryStore("test"))
    Topic("t", schema, config=config, store=store.inner).create()
    store.add(Rule("get", ENTRY, Fault.error_before(), EVER))
    reports, others = [], Reports()
    settings = {"linger_ms": LONG_MS / 2, "message_timeout_ms": LONG_MS}
    with make(store, **settings) as blind, make(store, **settings) as seeing:
        blind.produce_arrow("t", table, on_delivery=lambda *report: reports.append(report))
        store.clear()
        value = b"own" if schema is None else {"id": 5}
        seeing.produce("t", value, key="k", on_delivery=others)
        assert blind.flush(20) == seeing.flush(20) == 0
    ((failure, places),) = reports
    assert (None if failure is None else failure.name()) == error
    assert others.names == [None]
    assert bool(places) == (error is None)
    values = table["value"].to_pylist() if error is None else []
    assert stored(store, len(values) + 1) == [*values, value]


def test_values_of_other_columns_than_those_of_a_topic_that_was_not_known_yet_fail_alone():
    store = FaultyStore(MemoryStore("test"))
    Topic("t", ID, store=store.inner).create()
    for columns, value in (
        ({"id": pa.string()}, {"id": "1"}),
        ({"other": pa.int64()}, {"other": 1}),
    ):
        handle = Topic("t", pa.schema(list(columns.items())), store=store)
        store.add(Rule("get", ENTRY, Fault.error_before(), EVER))
        reports, others = Reports(), Reports()
        settings = {"linger_ms": LONG_MS / 2, "message_timeout_ms": LONG_MS}
        with make(store, **settings) as blind, make(store, **settings) as seeing:
            blind.produce(handle, value, on_delivery=reports)
            store.clear()
            seeing.produce("t", {"id": 5}, on_delivery=others)
            assert blind.flush(20) == seeing.flush(20) == 0
        assert reports.names == ["_VALUE_SERIALIZATION"]
        assert others.names == [None]
    assert stored(store, 2) == [{"id": 5}, {"id": 5}], "no field was left out in silence"


@pytest.mark.parametrize("operation", ["put", "create"])
def test_a_message_that_could_not_be_written_keeps_the_time_at_which_it_was_produced(operation):
    store = FaultyStore(MemoryStore("test"))
    create(store)
    store.add(
        Rule(
            operation, DATA if operation == "put" else "topics/*_delta_log/*", Fault.refused(), EVER
        )
    )
    reports = Reports()
    before_ms = int(time.time() * 1000)
    with make(store, on_delivery=reports) as producer:
        producer.produce("t", b"x")
        producer.produce("t", b"y", timestamp=12345)
        assert producer.flush(20) == 0
    stamps = [message.timestamp() for _, message in reports]
    assert [error is None for error, _ in reports] == [False, False]
    assert stamps[1] == (1, 12345)
    assert stamps[0][0] == 1
    assert before_ms - 1 <= stamps[0][1] <= time.time() * 1000 + 1
