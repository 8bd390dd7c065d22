"""Producers of one process with different `message.timeout.ms`: each limit is kept, whatever the
others wait for.
"""

from __future__ import annotations

import re
import threading
from functools import partial
from typing import Any, cast

import pytest

from deltaq import KafkaError, Producer, Topic
from deltaq.producer.accumulator import RowBlock
from deltaq.producer.batches import (
    BatchPart,
    ProduceBatch,
    Shared,
    SharedFilePlace,
    Taken,
    Uploaded,
)
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from deltaq.topics.state import PendingSegment
from tests.doubles.reading import eventually

DATA = "topics/*.parquet"
ENTRY = "topics/*_delta_log/*"
EVER = None
SHORT_MS = 500
LONG_MS = 300_000


def is_uploaded(batch: ProduceBatch) -> bool:
    return isinstance(batch.state, Uploaded)


def is_in_commit(batch: ProduceBatch) -> bool:
    return batch.attempt is not None and batch.attempt.token is not None


class Stage:
    """A patient and an impatient producer of one topic, on a store in which something fails for
    ever.
    """

    def __init__(self, *rules: Rule, store: FaultyStore | None = None) -> None:
        self.clock = ManualClock()
        self.store = FaultyStore(MemoryStore("test")) if store is None else store
        Topic("t", partitions=1, store=self.store.inner).create()
        self.reports: dict[bytes, KafkaError | None] = {}
        self.blocked = 0
        self.short = self._producer(SHORT_MS)
        self.long = self._producer(LONG_MS)
        for producer in self.short, self.long:
            self.produce(producer, "first")
            self.flush(producer)
            self.reports.clear()
        self.writer = self.short._handles["t"].sender
        eventually(
            lambda: not self.writer._batches.open,
            "the end of the first batches, right after their reports",
        )
        self.store.add(*rules)

    def _producer(self, limit_ms: int) -> Producer:
        conf = {
            "bootstrap.servers": "memory://unused",
            "linger.ms": 0,
            "message.timeout.ms": limit_ms,
        }
        return Producer(conf, store=self.store, clock=self.clock, maintenance_enable=False)

    def produce(self, producer: Producer, value: str) -> None:
        producer.produce("t", value, on_delivery=self._tell)

    def _tell(self, error: KafkaError | None, message: Any) -> None:
        assert message.value() not in self.reports
        self.reports[message.value()] = error

    def flush(self, producer: Producer) -> None:
        eventually(lambda: (producer.poll(0), len(producer) == 0)[1])

    def taken(self, producer: Producer) -> bool:
        return len(producer._handles["t"].buffer) == 0

    def pass_limit(self) -> None:
        """Let the limit of the impatient one pass, step by step."""
        for _ in range(5):
            assert self.short.poll(0) == 0
            self.advance(SHORT_MS / 1000 / 5)

    def advance(self, seconds: float) -> None:
        """Move the clock once each thread of the sender waits for it, except `blocked` ones: a wait
        that began while the clock moves would end late.
        """
        threads = self.writer._threads.threads

        def all_wait() -> bool:
            return self.clock.waiting >= sum(thread.is_alive() for thread in threads) - self.blocked

        eventually(all_wait, "the threads wait")
        self.clock.advance(seconds)

    def recover(self, producer: Producer | None = None) -> None:
        """The store is well again; what is left, of the patient one unless another is named, is
        delivered.
        """
        self.store.clear()
        waiting = producer or self.long

        def done() -> bool:
            self.clock.advance(1)
            waiting.poll(0)
            return len(waiting) == 0

        eventually(done)

    def close(self) -> None:
        for producer in self.short, self.long:
            self.recover(producer)
            producer.close()
        eventually(
            lambda: (
                self.writer not in self.writer._threads.users
                and not self.writer._batches.is_expiring
            )
        )

    def values(self) -> list[bytes]:
        table = Topic("t", store=self.store.inner).to_arrow()
        return [value for value in table["value"].to_pylist() if value != b"first"]


def name_of(error: KafkaError | None) -> str | None:
    return None if error is None else error.name()


def token_of(error: KafkaError | None) -> str:
    assert error is not None
    found = re.search(r"\(token (\S+)\)", error.str())
    assert found, error.str()
    return found[1]


@pytest.mark.fault("S1", "S6")
@pytest.mark.parametrize("purged", [False, True])
def test_a_short_limit_is_kept_while_a_patient_producer_waits_for_its_upload(purged):
    stage = Stage(Rule("put", DATA, Fault.error_before(), EVER))
    stage.produce(stage.long, "long")
    eventually(lambda: stage.taken(stage.long))
    stage.produce(stage.short, "short")
    if purged:
        stage.long.purge()
        stage.long.poll(0)
        assert name_of(stage.reports.pop(b"long")) == "_PURGE_INFLIGHT"
    stage.pass_limit()
    stage.flush(stage.short)
    error = stage.reports.pop(b"short")
    assert name_of(error) == "_MSG_TIMED_OUT"
    assert "token" not in str(error), "nothing was sent: that it failed is certain"
    assert stage.reports == {}
    stage.recover()
    assert stage.reports == ({} if purged else {b"long": None})
    assert b"short" not in stage.values()
    stage.close()


@pytest.mark.fault("S1", "S6")
def test_a_short_limit_is_kept_while_a_patient_producer_waits_for_its_commit():
    stage = Stage(Rule("create", ENTRY, Fault.error_before(), EVER))
    stage.produce(stage.long, "long")
    eventually(lambda: stage.writer._batches.open and not stage.writer._batches.waiting)
    stage.produce(stage.short, "short")
    eventually(
        lambda: stage.writer._batches.waiting and is_uploaded(stage.writer._batches.waiting[0])
    )
    stage.pass_limit()
    stage.flush(stage.short)
    error = stage.reports.pop(b"short")
    assert name_of(error) == "_MSG_TIMED_OUT"
    assert "token" not in str(error)
    stage.recover()
    assert stage.reports == {b"long": None}
    assert stage.values() == [b"long"], "what was reported as failed is not committed later"
    stage.close()


@pytest.mark.fault("S1", "S6")
def test_the_first_message_of_a_producer_does_not_wait_for_a_commit_that_was_purged():
    stage = Stage(Rule("create", ENTRY, Fault.error_before(), EVER))
    stage.produce(stage.long, "long")
    eventually(lambda: all(is_in_commit(batch) for batch in stage.writer._batches.open))
    stage.long.purge()
    stage.flush(stage.long)
    late = stage._producer(SHORT_MS)
    produced = threading.Thread(target=stage.produce, args=(late, "late"), daemon=True)
    produced.start()
    produced.join(20)
    assert not produced.is_alive(), "produce() waits for the commit"
    stage.pass_limit()
    stage.flush(late)
    assert name_of(stage.reports[b"late"]) == "_MSG_TIMED_OUT"
    stage.recover()
    late.close()
    stage.close()


@pytest.mark.fault("P9", "P10")
@pytest.mark.parametrize("landed", [False, True])
def test_a_message_in_a_commit_with_a_longer_limit_is_unknown_at_its_own(landed):
    answer = Fault.error_after() if landed else Fault.error_before()
    stage = Stage(
        Rule("create", ENTRY, answer, EVER), Rule("get", ENTRY, Fault.error_before(), EVER)
    )
    batches = stage.writer._batches
    with stage.writer.log.known.turn:
        for producer, value in (stage.long, "long"), (stage.short, "short"):
            stage.produce(producer, value)
            eventually(partial(stage.taken, producer))
        eventually(lambda: [is_uploaded(batch) for batch in batches.open] == [True, True])
    eventually(lambda: all(is_in_commit(batch) for batch in batches.open))
    stage.pass_limit()
    stage.flush(stage.short)
    error = stage.reports.pop(b"short")
    assert name_of(error) == "_MSG_TIMED_OUT"
    assert stage.reports == {}, "the patient one has time left"
    stage.recover()
    assert stage.reports == {b"long": None}
    assert stage.short.resolve("t", token_of(error)) is (b"short" in stage.values())
    stage.close()


@pytest.mark.fault("S1", "S6")
def test_a_short_limit_is_kept_while_a_call_of_the_store_hangs():
    gate = threading.Event()

    gate.set()

    class Hanging(FaultyStore):
        def put(self, key, data):
            assert gate.wait(60)
            super().put(key, data)

    stage = Stage(store=Hanging(MemoryStore("test")))
    gate.clear()
    stage.produce(stage.long, "long")
    eventually(lambda: stage.taken(stage.long))
    stage.blocked = 1
    stage.produce(stage.short, "short")
    stage.pass_limit()
    stage.flush(stage.short)
    assert {value: name_of(error) for value, error in stage.reports.items()} == {
        b"short": "_MSG_TIMED_OUT"
    }
    gate.set()
    stage.recover()
    assert stage.values() == [b"long"]
    stage.close()


def test_a_file_reported_as_failed_is_no_longer_shared():
    stage = Stage()
    batches, segment = stage.writer._batches, cast(PendingSegment, object())
    part = BatchPart(stage.short._handles["t"].buffer, RowBlock.of([], 0), 0)
    place = SharedFilePlace(0, follows=False, as_of=0)
    batch = ProduceBatch([part], 0.0, 1.0, Taken(place))
    assert batches.share(batch, segment)
    assert batch.state == Shared(place, segment)
    part.is_reported, batch.state = True, Taken(place)
    assert not batches.share(batch, segment)
    assert batch.state == Taken(place)
    stage.close()


def test_messages_that_were_not_taken_time_out_in_the_order_in_which_they_were_produced():
    stage = Stage(Rule("put", DATA, Fault.error_before(), EVER))
    stage.produce(stage.long, "long")
    eventually(lambda: stage.taken(stage.long))
    stage.produce(stage.short, "a")
    stage.advance(0.3)
    stage.produce(stage.short, "b")
    stage.advance(0.2)
    eventually(lambda: (stage.short.poll(0), b"a" in stage.reports)[1])
    assert len(stage.short) == 1
    eventually(
        lambda: stage.writer._expiry in stage.writer._threads._due
    )  # its wait for "b" begins before the clock moves
    stage.advance(0.3)
    stage.flush(stage.short)
    assert list(stage.reports) == [b"a", b"b"]
    stage.recover()
    stage.close()
