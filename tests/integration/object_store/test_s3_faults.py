"""Producers, consumers and admin clients on a bucket whose server misbehaves: nothing lost, doubled
or made up.

The clients are the real ones down to the HTTP library; the server is a process of its own that
fails by rules, lists in pages of three keys, and tells what its faults did.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from deltaq import (
    KafkaError,
    Message,
    OutcomeUnknown,
    Producer,
    QueueFull,
    Topic,
    TopicPartition,
    UnsafeStore,
)
from deltaq.admin import AdminClient, NewTopic
from deltaq.tools import copy
from tests.checker import check_history, report
from tests.checker.history import History
from tests.doubles.reading import eventually, next_message
from tests.doubles.s3_root import ENTRY, IMPATIENT_MS, Reports, S3Root, produce, values_read
from tests.servers.s3_stub import Effect, HttpRule, S3Stub

pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def stub() -> Iterator[S3Stub]:
    with S3Stub(page_keys=3) as stub:
        yield stub


@pytest.fixture
def root(stub: S3Stub) -> Iterator[S3Root]:
    yield S3Root(stub)
    stub.set_rules()


# --- one commit ---


@pytest.mark.fault("P5", "P6")
@pytest.mark.parametrize(
    "rule",
    [
        HttpRule(fault="error_after", status=500, times=1, operation="create", key=ENTRY),
        HttpRule(
            fault="error_after", status=503, code="SlowDown", times=1, operation="create", key=ENTRY
        ),
        HttpRule(fault="reset_after", times=1, operation="create", key=ENTRY),
        HttpRule(fault="hang_after", times=1, operation="create", key=ENTRY),
    ],
    ids=lambda rule: f"{rule.fault} {rule.status}",
)
def test_a_commit_that_was_stored_without_an_answer_is_acknowledged_and_stands_once(
    root: S3Root, rule: HttpRule
) -> None:
    root.timeout_ms = IMPATIENT_MS if rule.fault == "hang_after" else root.timeout_ms
    with root.producer() as producer:
        produce(producer, "first")
        root.stub.set_rules(rule)
        assert produce(producer, "second").values(acknowledged=True) == ["second"]
        assert root.stub.effects() == {Effect.ANSWER_LOST: 1}
        assert produce(producer, "third").values(acknowledged=True) == ["third"]
    assert sorted(root.entries()) == [0, 1, 2, 3]
    assert root.stored() == {0: ["first", "second", "third"], 1: []}


@pytest.mark.fault("P5", "P6", "P10")
def test_a_commit_is_not_reported_as_failed_while_the_log_is_unreadable(root: S3Root) -> None:
    with root.producer(message_timeout_ms=1000) as producer:
        produce(producer, "first")
        root.stub.set_rules(
            HttpRule(fault="reset_after", times=1, operation="create", key=ENTRY),
            HttpRule(fault="error_before", status=503, key=ENTRY),
        )
        ((error, _),) = produce(producer, "second")
        assert error == KafkaError._MSG_TIMED_OUT
        token = re.search(r"token (\S+)\)", error.str())
        assert token is not None, "the outcome is reported as unknown"
        with pytest.raises(OutcomeUnknown):
            producer.resolve("t", token[1], 0.5)
        root.stub.set_rules()
        assert producer.resolve("t", token[1], 20) is True
    assert root.stored() == {0: ["first", "second"], 1: []}


@pytest.mark.fault("P7")
def test_exactly_one_of_a_late_commit_and_its_retry_stands(root: S3Root) -> None:
    expected: list[str] = []
    effects: Counter[Effect] = Counter()
    with root.producer() as producer:
        for round_ in range(40):
            root.stub.set_rules(
                HttpRule(
                    fault="late_apply",
                    status=(0, 500)[round_ % 2],
                    delay_ms=(1, 40),
                    seed=round_,
                    times=1,
                    operation="create",
                    key=ENTRY,
                )
            )
            expected.append(f"{round_}")
            assert produce(producer, f"{round_}").values(acknowledged=True) == [f"{round_}"]
            effects = root.stub.effects()
            if min(effects[Effect.LATE_WRITE_LANDED], effects[Effect.LATE_WRITE_REFUSED]) >= 3:
                break
    assert effects[Effect.LATE_WRITE_LANDED] >= 3, "late writes that were the commit"
    assert effects[Effect.LATE_WRITE_REFUSED] >= 3, (
        "late writes that found the repetition in their place"
    )
    assert sorted(root.entries()) == list(range(len(expected) + 1))
    assert root.stored() == {0: expected, 1: []}


def creates(root: S3Root) -> list[int]:
    """The slots of the log that were tried, in order."""
    asked = [
        request
        for request in root.stub.requests()
        if request.operation == "create" and "_delta_log" in request.key
    ]
    return [int(request.key.rpartition("/")[2].removesuffix(".json")) for request in asked]


@pytest.mark.fault("P8")
@pytest.mark.parametrize("status", [409, 412])
def test_a_refusal_of_a_free_slot_is_retried_in_the_same_slot(root: S3Root, status: int) -> None:
    with root.producer() as producer:
        produce(producer, "first")
        root.stub.set_rules(
            HttpRule(fault="error_before", status=status, times=2, operation="create", key=ENTRY)
        )
        root.stub.requests(clear=True)
        assert produce(producer, "second").values(acknowledged=True) == ["second"]
    assert creates(root) == [2, 2, 2]
    assert root.stub.effects() == {Effect.ERROR_BEFORE: 2}
    assert root.stored() == {0: ["first", "second"], 1: []}


@pytest.mark.fault("P8")
@pytest.mark.parametrize("fault", ["slow", "error_after", "reset_after"])
def test_a_slot_taken_by_another_writer_moves_the_commit_to_the_next(
    root: S3Root, fault: Any
) -> None:
    with root.producer("one") as one, root.producer("other") as other:
        produce(one, "first")
        produce(other, "second")
        # `one` has not heard of slot 2 yet; where the answer is lost, what it does not hear is the
        # refusal.
        root.stub.set_rules(
            HttpRule(fault=fault, delay_ms=(0, 0), times=1, operation="create", key=ENTRY)
        )
        root.stub.requests(clear=True)
        assert produce(one, "third").values(acknowledged=True) == ["third"]
    assert creates(root) == [2, 3]
    assert root.stub.effects() == {Effect.DELAYED if fault == "slow" else Effect.REFUSAL_LOST: 1}
    assert root.stored() == {0: ["first", "second", "third"], 1: []}


# --- many commits ---

WRITERS, RECORDS = 4, 8
COMMIT_FAULTS: dict[Any, dict[str, Any]] = {
    "error_after": {"status": 500},
    "reset_after": {},
    "error_before": {"status": 503},
    "reset_before": {},
    "late_apply": {"status": 500, "delay_ms": (1, 20)},
}
STORM = [
    Effect.ANSWER_LOST,
    Effect.ERROR_BEFORE,
    Effect.LATE_WRITE_LANDED,
    Effect.LATE_WRITE_REFUSED,
]


def under_fire(seed: int) -> list[HttpRule]:
    """About 35 % of the commits are hit; each kind of fault with its own dice."""
    faults = [
        HttpRule(
            fault=fault,
            operation="create",
            key=ENTRY,
            probability=0.07,
            seed=seed * 10 + number,
            **more,
        )
        for number, (fault, more) in enumerate(COMMIT_FAULTS.items())
    ]
    return [
        *faults,
        HttpRule(
            fault="error_before",
            status=409,
            operation="create",
            key=ENTRY,
            probability=0.03,
            seed=seed,
        ),
    ]


def write(root: S3Root, history: History, name: str) -> None:
    """Produce one record a commit, as a service that sends failed messages again."""
    with root.producer(name) as producer:
        for number in range(RECORDS):
            value = f"{name}:{number}"
            sending = history.send(name, "t", value, number % 2)

            def reported(
                error: KafkaError | None, message: Message, sending: Any = sending
            ) -> None:
                if error is None:
                    sending.ok(partition=message.partition(), offset=message.offset())
                else:
                    sending.info(error)

            producer.produce("t", value, partition=number % 2, on_delivery=reported)
            assert producer.flush(60) == 0


@pytest.mark.fault("P5", "P6", "P7", "P8", "P11")
def test_several_writers_with_faults_write_every_record_once_and_in_order(stub: S3Stub) -> None:
    effects: Counter[Effect] = Counter()
    for seed in range(60):
        root, history = S3Root(stub), History()
        stub.set_rules(*under_fire(seed))
        threads = [
            threading.Thread(target=write, args=(root, history, f"{seed}-{writer}"))
            for writer in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        effects += stub.effects()
        polling = history.poll("reader")
        stored = root.stored()
        polling.ok(
            ("t", partition, offset, value)
            for partition in stored
            for offset, value in enumerate(stored[partition])
        )
        outcomes = Counter(
            operation.outcome for operation in history.operations if operation.kind == "send"
        )
        assert outcomes == {"ok": WRITERS * RECORDS}, f"seed {seed}"
        anomalies = check_history(history.operations, drained=True)
        assert not anomalies, f"seed {seed}:\n{report(anomalies)}"
        assert sum(map(len, stored.values())) == WRITERS * RECORDS
        if seed >= 5 and all(effects[effect] for effect in STORM):
            break
    assert [effect for effect in STORM if not effects[effect]] == [], effects


@pytest.mark.fault("S6")
def test_a_throttling_storm_delays_records_and_loses_none(root: S3Root) -> None:
    root.stub.set_rules(
        HttpRule(fault="error_before", status=503, code="SlowDown", probability=0.6, times=25),
        HttpRule(fault="error_before", status=429, probability=0.5, times=10, seed=1),
    )
    values = [f"{number}" for number in range(40)]
    with root.producer() as producer, root.consumer() as consumer:
        consumer.subscribe(["t"])
        reports = Reports()
        for value in values:
            producer.produce("t", value, partition=0, on_delivery=reports)
            producer.poll(0)
        assert producer.flush(60) == 0
        read: list[str] = []
        while len(read) < len(values):
            message = next_message(consumer)
            if message.error() is None:  # meanwhile it tells that the store is away
                read.append(message.value().decode())
    assert reports.values(acknowledged=True) == read == values
    assert root.stub.effects()[Effect.ERROR_BEFORE] >= 20
    assert root.stored() == {0: values, 1: []}


@pytest.mark.fault("S6")
def test_endless_throttling_is_bounded_in_requests_and_memory(root: S3Root) -> None:
    with root.producer(message_timeout_ms=2000, queue_buffering_max_messages=50) as producer:
        produce(producer, "before")
        root.stub.set_rules(HttpRule(fault="error_before", status=503, code="SlowDown"))
        root.stub.requests(clear=True)
        reports = Reports()
        for number in range(50):
            producer.produce("t", f"{number}", partition=0, on_delivery=reports)
        with pytest.raises(QueueFull):
            producer.produce("t", "50", partition=0, on_delivery=reports)
        assert producer.flush(60) == 0
        # Full jitter from 10 ms to 1 s, and one repetition by the client: some dozens of requests
        # in two seconds.
        assert 2 <= len(root.stub.requests()) <= 150
        assert {error.code() for error, _ in reports} == {KafkaError._MSG_TIMED_OUT}
        assert len(reports) == 50
        root.stub.set_rules()
        produce(producer, "after")
    assert root.stored() == {0: ["before", "after"], 1: []}


# --- a store without conditions, and administration ---


@pytest.mark.fault("S2")
def test_a_store_that_ignores_conditions_is_refused_by_name_and_gets_no_record(
    stub: S3Stub,
) -> None:
    stub.set_rules(HttpRule(fault="ignored_condition", operation="create"))
    stub.effects(clear=True)
    prefix = uuid.uuid4().hex
    name = rf"s3://deltaq/{prefix} \(S3 at {stub.endpoint}\) created the same key twice"
    with pytest.raises(UnsafeStore, match=name):
        Topic("t", conf=stub.conf(prefix)).create()
    with AdminClient(stub.conf(prefix)) as admin, pytest.raises(UnsafeStore, match=name):
        admin.create_topics([NewTopic("t", 1)])["t"].result(20)
    with Producer(stub.conf(prefix)) as producer, pytest.raises(UnsafeStore, match=name):
        producer.produce("t", "v")
    stub.set_rules()
    assert stub.effects()[Effect.CONDITION_IGNORED] >= 3
    assert stub.objects(f"{prefix}/") == {}


@pytest.mark.fault("P5", "P6", "P7", "P8")
@pytest.mark.parametrize(
    "fault", ["error_before", "error_after", "reset_after", "hang_after", "late_apply"]
)
def test_a_topic_is_created_and_deleted_once_despite_lost_answers(root: S3Root, fault: Any) -> None:
    entry = "*/topics/made/_delta_log/*"
    root.timeout_ms = IMPATIENT_MS if fault == "hang_after" else root.timeout_ms
    with AdminClient(root.conf("admin")) as admin:
        root.stub.set_rules(HttpRule(fault=fault, operation="create", key=entry, nth=1, times=1))
        admin.create_topics([NewTopic("made", 3)])["made"].result(20)
        assert len(admin.list_topics("made", 20).topics["made"].partitions) == 3
        root.stub.set_rules(HttpRule(fault=fault, operation="create", key=entry, nth=1, times=1))
        admin.delete_topics(["made"])["made"].result(20)
        assert "made" not in admin.list_topics(timeout=20).topics
    assert len(root.stub.objects(f"{root.prefix}/topics/made/_delta_log/")) == 2
    eventually(lambda: sum(root.stub.effects().values()) == 2, "both faults")


@pytest.mark.fault("P5", "P6", "P8")
@pytest.mark.parametrize(
    "fault", ["error_before", "error_after", "reset_after", "hang_after", "late_apply"]
)
def test_offsets_are_committed_despite_lost_answers(root: S3Root, fault: Any) -> None:
    root.timeout_ms = IMPATIENT_MS if fault == "hang_after" else root.timeout_ms
    with root.producer() as producer:
        produce(producer, *"01234")
    with root.consumer("reader", enable_auto_commit=False) as consumer:
        consumer.subscribe(["t"])
        values_read(consumer, 5)
        root.stub.set_rules(
            HttpRule(fault=fault, operation="create", key="*/groups/g/_delta_log/*", times=1)
        )
        consumer.commit(offsets=[TopicPartition("t", 0, 5)], asynchronous=False)
    eventually(lambda: sum(root.stub.effects().values()) == 1, "the fault")
    with root.consumer("other") as other:
        assert other.committed([TopicPartition("t", 0)], 20)[0].offset == 5


# --- copies ---


@pytest.mark.fault("P5", "P6")
def test_a_copy_to_another_root_survives_lost_answers(root: S3Root) -> None:
    with root.producer() as producer:
        for number in range(6):
            produce(producer, f"value {number}", partition=number % 2)
    target = root.stub.conf(uuid.uuid4().hex, "deltaq", timeout_ms=root.timeout_ms, retries=1)
    root.stub.set_rules(
        HttpRule(
            fault="error_after", status=503, code="SlowDown", times=3, operation="create", key=ENTRY
        )
    )
    assert copy(root.conf(), target, bytes_at_once=1).failures == {}
    root.stub.set_rules()
    copied = Topic("t", conf=target).to_arrow()
    assert copied.num_rows == 6
    assert copied.equals(Topic("t", conf=root.conf()).to_arrow())
