"""Producers, consumers and admin clients on a bucket whose server misbehaves: nothing lost, doubled or made up.

The clients are the real ones down to the HTTP library; the server is a process of its own that fails by rules, lists in
pages of three keys, and tells what its faults did.
"""

from __future__ import annotations

import json
import os
import re
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from deltaq import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    OutcomeUnknown,
    Producer,
    QueueFull,
    Topic,
    TopicPartition,
    UnsafeStore,
)
from deltaq.admin import AdminClient, NewTopic
from deltaq.testing.checker import check_history, report
from deltaq.testing.history import History
from deltaq.testing.s3_stub import Effect, HttpRule, S3Stub
from tests.doubles.reading import eventually, next_message

pytestmark = pytest.mark.s3

ENTRY = "*/topics/t/_delta_log/*.json"
DATA = "*/topics/t/*.parquet"
TIMEOUT_MS = 300
PAGE = "<html><head><title>Sign in</title></head><body/></html>"


@pytest.fixture(scope="module")
def stub() -> Iterator[S3Stub]:
    with S3Stub(page_keys=3) as stub:
        yield stub


class Root:
    """A root of its own in the stub, with the topic `t`."""

    def __init__(self, stub: S3Stub) -> None:
        self.stub = stub
        self.prefix = uuid.uuid4().hex
        stub.set_rules()
        Topic("t", partitions=2, conf=self.conf()).create()
        stub.effects(clear=True)
        stub.requests(clear=True)

    def conf(self, user: str = "test", **more: Any) -> dict[str, object]:
        """Clients with one `user` share a store, and their producers a writer."""
        options = {"timeout_ms": TIMEOUT_MS, "user_agent": user, "retries": 1, **more}
        return self.stub.conf(self.prefix, "deltaq", **options)

    def producer(self, user: str = "test", **config: Any) -> Producer:
        return Producer({**self.conf(user), "linger.ms": 0}, **config)

    def consumer(self, user: str = "test", group: str = "g", **config: Any) -> Consumer:
        return Consumer({**self.conf(user), "group.id": group, "auto.offset.reset": "earliest"}, **config)

    def entries(self) -> dict[int, list[dict[str, Any]]]:
        """The log, as the server has it."""
        found = self.stub.objects(f"{self.prefix}/topics/t/_delta_log/")
        logs = {int(re.sub(r"\D", "", key.rpartition("/")[2])): data for key, data in found.items()}
        return {version: [json.loads(line) for line in data.splitlines()] for version, data in logs.items()}

    def stored(self) -> dict[int, list[str]]:
        """All values by partition, in order, read with faults off by a client that knows nothing yet."""
        self.stub.set_rules()
        found: dict[int, list[str]] = {0: [], 1: []}
        with self.consumer(uuid.uuid4().hex, enable_partition_eof=True) as consumer:
            consumer.assign([TopicPartition("t", partition, 0) for partition in found])
            ended = 0
            while ended < len(found):
                message = next_message(consumer)
                if message.error() is None:
                    assert message.offset() == len(found[message.partition()])
                    found[message.partition()].append(message.value().decode())
                else:
                    assert message.error() == KafkaError._PARTITION_EOF, message.error()
                    ended += 1
        return found


@pytest.fixture
def root(stub: S3Stub) -> Iterator[Root]:
    yield Root(stub)
    stub.set_rules()


class Reports(list[tuple[Any, Any]]):
    """Collects (error, message)."""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        self.append((error, message))

    def values(self, *, acknowledged: bool) -> list[str]:
        return [message.value().decode() for error, message in self if (error is None) == acknowledged]


def produce(producer: Producer, *values: str, partition: int = 0) -> Reports:
    reports = Reports()
    for value in values:
        producer.produce("t", value, partition=partition, on_delivery=reports)
    assert producer.flush(60) == 0
    assert len(reports) == len(values)
    return reports


# --- one commit ---


@pytest.mark.fault("P5", "P6")
@pytest.mark.parametrize(
    "rule",
    [
        HttpRule(fault="error_after", status=500, times=1, operation="create", key=ENTRY),
        HttpRule(fault="error_after", status=503, code="SlowDown", times=1, operation="create", key=ENTRY),
        HttpRule(fault="reset_after", times=1, operation="create", key=ENTRY),
        HttpRule(fault="hang_after", times=1, operation="create", key=ENTRY),
    ],
    ids=lambda rule: f"{rule.fault} {rule.status}",
)
def test_a_commit_that_was_stored_without_an_answer_is_acknowledged_and_stands_once(root: Root, rule: HttpRule) -> None:
    with root.producer() as producer:
        produce(producer, "first")
        root.stub.set_rules(rule)
        assert produce(producer, "second").values(acknowledged=True) == ["second"]
        assert root.stub.effects() == {Effect.ANSWER_LOST: 1}
        assert produce(producer, "third").values(acknowledged=True) == ["third"]
    assert sorted(root.entries()) == [0, 1, 2, 3]
    assert root.stored() == {0: ["first", "second", "third"], 1: []}


@pytest.mark.fault("P5", "P6", "P10")
def test_a_commit_is_not_told_as_failed_while_nobody_can_look(root: Root) -> None:
    with root.producer(message_timeout_ms=1000) as producer:
        produce(producer, "first")
        root.stub.set_rules(
            HttpRule(fault="reset_after", times=1, operation="create", key=ENTRY),
            HttpRule(fault="error_before", status=503, key=ENTRY),
        )
        ((error, _),) = produce(producer, "second")
        assert error == KafkaError._MSG_TIMED_OUT
        token = re.search(r"token (\S+)\)", error.str())
        assert token is not None, "the outcome is unknown, and told as that"
        with pytest.raises(OutcomeUnknown):
            producer.resolve("t", token[1], 0.5)
        root.stub.set_rules()
        assert producer.resolve("t", token[1], 20) is True
    assert root.stored() == {0: ["first", "second"], 1: []}


@pytest.mark.fault("P7")
def test_of_a_commit_that_lands_late_and_its_repetition_exactly_one_stands(root: Root) -> None:
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
    assert effects[Effect.LATE_WRITE_REFUSED] >= 3, "late writes that found the repetition in their place"
    assert sorted(root.entries()) == list(range(len(expected) + 1))
    assert root.stored() == {0: expected, 1: []}


def creates(root: Root) -> list[int]:
    """The slots of the log that were tried, in order."""
    asked = [
        request for request in root.stub.requests() if request.operation == "create" and "_delta_log" in request.key
    ]
    return [int(request.key.rpartition("/")[2].removesuffix(".json")) for request in asked]


@pytest.mark.fault("P8")
@pytest.mark.parametrize("status", [409, 412])
def test_a_refusal_without_an_object_is_followed_by_another_try_of_the_same_slot(root: Root, status: int) -> None:
    with root.producer() as producer:
        produce(producer, "first")
        root.stub.set_rules(HttpRule(fault="error_before", status=status, times=2, operation="create", key=ENTRY))
        root.stub.requests(clear=True)
        assert produce(producer, "second").values(acknowledged=True) == ["second"]
    assert creates(root) == [2, 2, 2]
    assert root.stub.effects() == {Effect.ERROR_BEFORE: 2}
    assert root.stored() == {0: ["first", "second"], 1: []}


@pytest.mark.fault("P8")
@pytest.mark.parametrize("fault", ["slow", "error_after", "reset_after"])
def test_a_slot_that_a_stranger_has_is_followed_by_the_next_one(root: Root, fault: Any) -> None:
    with root.producer("one") as one, root.producer("other") as other:
        produce(one, "first")
        produce(other, "second")
        # `one` has not heard of slot 2 yet; where the answer is lost, what it does not hear is the refusal.
        root.stub.set_rules(HttpRule(fault=fault, delay_ms=(0, 0), times=1, operation="create", key=ENTRY))
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
STORM = [Effect.ANSWER_LOST, Effect.ERROR_BEFORE, Effect.LATE_WRITE_LANDED, Effect.LATE_WRITE_REFUSED]


def under_fire(seed: int) -> list[HttpRule]:
    """About 35 % of the commits are hit; each kind of fault with its own dice."""
    faults = [
        HttpRule(fault=fault, operation="create", key=ENTRY, probability=0.07, seed=seed * 10 + number, **more)
        for number, (fault, more) in enumerate(COMMIT_FAULTS.items())
    ]
    return [
        *faults,
        HttpRule(fault="error_before", status=409, operation="create", key=ENTRY, probability=0.03, seed=seed),
    ]


def write(root: Root, history: History, name: str) -> None:
    """Produce one record a commit, as a service that sends again what it was told to have failed."""
    with root.producer(name) as producer:
        for number in range(RECORDS):
            value = f"{name}:{number}"
            sending = history.send(name, "t", value, number % 2)

            def reported(error: KafkaError | None, message: Message, sending: Any = sending) -> None:
                if error is None:
                    sending.ok(partition=message.partition(), offset=message.offset())
                else:
                    sending.info(error)

            producer.produce("t", value, partition=number % 2, on_delivery=reported)
            assert producer.flush(60) == 0


@pytest.mark.fault("P5", "P6", "P7", "P8", "P11")
def test_several_writers_under_fire_have_every_record_there_once_and_in_order(stub: S3Stub) -> None:
    effects: Counter[Effect] = Counter()
    for seed in range(24):
        root, history = Root(stub), History()
        stub.set_rules(*under_fire(seed))
        threads = [
            threading.Thread(target=write, args=(root, history, f"{seed}-{writer}")) for writer in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        effects += stub.effects()
        polling = history.poll("reader")
        stored = root.stored()
        polling.ok(
            ("t", partition, offset, value) for partition in stored for offset, value in enumerate(stored[partition])
        )
        told = Counter(operation.outcome for operation in history.operations if operation.kind == "send")
        assert told == {"ok": WRITERS * RECORDS}, f"seed {seed}"
        anomalies = check_history(history.operations, drained=True)
        assert not anomalies, f"seed {seed}:\n{report(anomalies)}"
        assert sum(map(len, stored.values())) == WRITERS * RECORDS
        if seed >= 5 and all(effects[effect] >= 5 for effect in STORM):
            break
    assert [effect for effect in STORM if effects[effect] < 5] == [], effects


@pytest.mark.fault("S6")
def test_a_throttling_storm_delays_records_and_loses_none(root: Root) -> None:
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
def test_a_throttling_storm_without_end_is_bounded_in_requests_and_in_memory(root: Root) -> None:
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
        # Full jitter from 10 ms to 1 s, and one repetition by the client: some dozens of requests in two seconds.
        assert 2 <= len(root.stub.requests()) <= 150
        assert {error.code() for error, _ in reports} == {KafkaError._MSG_TIMED_OUT}
        assert len(reports) == 50
        root.stub.set_rules()
        produce(producer, "after")
    assert root.stored() == {0: ["before", "after"], 1: []}


# --- lists and reads that lie ---


def values_read(consumer: Consumer, count: int) -> tuple[list[str], list[KafkaError]]:
    """The next `count` values, and what was told in between."""
    values: list[str] = []
    errors: list[KafkaError] = []
    while len(values) < count:
        message = next_message(consumer)
        if message.error() is None:
            values.append(message.value().decode())
        else:
            errors.append(message.error())
    return values, errors


@pytest.fixture
def filled(root: Root) -> Root:
    """Ten commits of one record each, values `0` to `9`, in partition 0; and nobody who knows them."""
    with root.producer("filler") as producer:
        for number in range(10):
            produce(producer, f"{number}")
    root.stub.requests(clear=True)
    root.stub.effects(clear=True)
    return root


TEN = [f"{number}" for number in range(10)]
LISTS_THAT_LIE = {
    "the newest key left out": HttpRule(fault="stale_list", keys=1),
    "the five newest keys left out": HttpRule(fault="stale_list", keys=5),
    "pages twice, now and then": HttpRule(fault="repeated_page", probability=0.4),
    "a page that is none, once": HttpRule(fault="error_before", status=200, body=PAGE, operation="list*", times=1),
    "pages that are none, now and then": HttpRule(
        fault="error_before", status=200, body=PAGE, operation="list*", probability=0.2
    ),
    "a page that breaks off": HttpRule(fault="short_body", operation="list*", times=2),
    "XML that breaks off": HttpRule(fault="truncate", operation="list*", times=2),
}


@pytest.mark.fault("S3")
@pytest.mark.parametrize("kind", LISTS_THAT_LIE)
def test_a_listing_that_lies_neither_hides_nor_doubles_a_record(filled: Root, kind: str) -> None:
    filled.stub.set_rules(LISTS_THAT_LIE[kind])
    with filled.consumer("reader") as consumer, filled.producer("newcomer") as producer:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert values_read(consumer, 10)[0] == TEN
        assert produce(producer, "10").values(acknowledged=True) == ["10"]
        assert values_read(consumer, 1)[0] == ["10"]
    assert sum(filled.stub.effects().values()) >= 1
    assert filled.stored() == {0: [*TEN, "10"], 1: []}
    assert sorted(filled.entries()) == list(range(12))


@pytest.mark.fault("S3")
def test_a_listing_that_is_none_is_not_taken_for_a_topic_that_is_none(filled: Root) -> None:
    page = HttpRule(fault="error_before", status=200, body=PAGE, operation="list*")
    with filled.consumer("reader") as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        values_read(consumer, 10)
        assert list(consumer.list_topics(timeout=10).topics) == ["t"]
        filled.stub.set_rules(page)
        with pytest.raises(KafkaException, match="which is there") as caught:
            consumer.list_topics(timeout=2)
        assert caught.value.args[0].code() in {KafkaError._TRANSPORT, KafkaError._TIMED_OUT}
    assert filled.stub.effects()[Effect.ERROR_BEFORE] >= 1


@pytest.mark.fault("S4")
@pytest.mark.parametrize("key", [ENTRY, DATA])
@pytest.mark.parametrize("nth", [1, 4])
def test_an_object_that_is_denied_once_though_it_is_there_is_read_all_the_same(
    filled: Root, key: str, nth: int
) -> None:
    filled.stub.set_rules(
        HttpRule(fault="error_before", status=404, code="NoSuchKey", operation="get*", key=key, nth=nth, times=1)
    )
    with filled.consumer("reader") as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert values_read(consumer, 10)[0] == TEN
    assert filled.stub.effects() == {Effect.ERROR_BEFORE: 1}


@pytest.mark.fault("S4")
@pytest.mark.parametrize("key", ["*/_delta_log/*4.json", DATA])
def test_an_object_that_is_denied_for_good_though_it_is_listed_is_told_and_never_skipped(
    filled: Root, key: str
) -> None:
    filled.stub.set_rules(HttpRule(fault="error_before", status=404, code="NoSuchKey", operation="get*", key=key))
    told: list[KafkaError] = []
    with filled.consumer("reader", error_cb=told.append) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])

        def is_told() -> bool:
            message = consumer.poll(0.01)
            error = None if message is None else message.error()
            assert message is None or error == KafkaError._BAD_MSG
            if error is not None:
                told.append(error)
            return bool(told)

        eventually(is_told, "an error")
        # Of the log's entry: asked for in vain again and again; of the data file: damage.
        assert "4.json' and does not find it" in told[0].str() if key != DATA else ".parquet" in told[0].str()
        filled.stub.set_rules()
        consumer.seek(TopicPartition("t", 0, 0))
        assert values_read(consumer, 10)[0] == TEN


# --- damage on the way ---

DAMAGE: list[Any] = ["truncate", "flip_bit", "short_body", "garbage"]


def damaging(kind: Any, **when: Any) -> HttpRule:
    if kind == "garbage":
        return HttpRule(fault="error_before", status=200, body=PAGE, operation="get*", **when)
    return HttpRule(fault=kind, operation="get*", **when)


@pytest.mark.fault("B1", "B2", "B4")
@pytest.mark.parametrize("key", [ENTRY, DATA])
@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_damaged_on_the_way_is_fetched_again(filled: Root, kind: Any, key: str) -> None:
    filled.stub.set_rules(damaging(kind, key=key, nth=3, times=1))
    with filled.consumer("reader") as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert values_read(consumer, 10) == (TEN, [])
    assert sum(filled.stub.effects().values()) == 1


@pytest.mark.fault("B1", "B2")
@pytest.mark.parametrize("kind", ["truncate", "flip_bit", "garbage"])
@pytest.mark.parametrize("key", ["*/_delta_log/*4.json", DATA])
def test_what_is_always_damaged_is_told_as_damaged_and_nothing_of_it_delivered(
    filled: Root, kind: Any, key: str
) -> None:
    filled.stub.set_rules(damaging(kind, key=key))
    with filled.consumer("reader") as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        told = next_message(consumer).error()
        assert told is not None
        assert told.code() == KafkaError._BAD_MSG
        assert ".parquet" in told.str() if key == DATA else "4.json" in told.str()
        filled.stub.set_rules()
        consumer.seek(TopicPartition("t", 0, 0))
        assert values_read(consumer, 10)[0] == TEN


@pytest.mark.fault("P6", "P15")
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_commit_whose_answer_was_lost_and_that_is_read_back_damaged_once_is_acknowledged(
    root: Root, kind: Any
) -> None:
    with root.producer() as producer:
        produce(producer, "first")
        root.stub.set_rules(
            HttpRule(fault="reset_after", times=1, operation="create", key=ENTRY),
            damaging(kind, key="*/topics/t/_delta_log/*2.json", times=1),
        )
        assert produce(producer, "second").values(acknowledged=True) == ["second"]
    assert sum(root.stub.effects().values()) == 2
    assert root.stored() == {0: ["first", "second"], 1: []}


# --- credentials ---


@pytest.mark.fault("S5")
def test_expired_credentials_are_told_as_unavailable_and_nothing_is_lost_when_they_are_back(root: Root) -> None:
    expired = HttpRule(fault="error_before", status=403, code="ExpiredToken")
    with root.producer() as producer, root.consumer() as consumer:
        consumer.subscribe(["t"])
        produce(producer, "0", "1")
        assert values_read(consumer, 2)[0] == ["0", "1"]
        root.stub.set_rules(expired)
        refused = produce(producer, "2", "3")
        assert [error.code() for error, _ in refused] == [KafkaError._TRANSPORT] * 2
        assert all("ExpiredToken" in error.str() and "check the credentials" in error.str() for error, _ in refused)
        told = next_message(consumer).error()
        assert told is not None
        assert told.code() in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
        assert root.stub.effects()[Effect.ERROR_BEFORE] >= 2
        root.stub.set_rules()
        assert produce(producer, *refused.values(acknowledged=False)).values(acknowledged=True) == ["2", "3"]
        assert values_read(consumer, 2)[0] == ["2", "3"]
        consumer.commit(asynchronous=False)
    assert root.stored() == {0: ["0", "1", "2", "3"], 1: []}
    with root.consumer() as consumer:
        assert consumer.committed([TopicPartition("t", 0)], 20)[0].offset == 4


@pytest.mark.fault("S5")
def test_credentials_that_a_container_renews_are_taken_up_without_a_failure(
    root: Root, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    token = tmp_path / "token"
    token.write_text("who-asks")
    soon = "2026-01-01T00:00:00Z"  # over: so they are asked for again and again
    address = root.stub.give_credentials("FIRST", soon)
    conf = {key: value for key, value in root.conf("renewing").items() if "access_key" not in key}
    conf["store.container_credentials_full_uri"] = address
    conf["store.container_authorization_token_file"] = str(token)
    reports = Reports()
    with Producer({**conf, "linger.ms": 0}) as producer:

        def signed_by(access_key: str) -> bool:
            producer.produce("t", f"{len(reports)}", partition=0, on_delivery=reports)
            assert producer.flush(20) == 0
            return f"Credential={access_key}/" in root.stub.requests()[-1].headers["authorization"]

        eventually(lambda: signed_by("FIRST"), "a request with the first key")
        root.stub.give_credentials("SECOND", soon)
        eventually(lambda: signed_by("SECOND"), "a request with the second key")
        root.stub.set_rules(HttpRule(fault="error_before", status=403, code="ExpiredToken", access_key="FIRST"))
        assert signed_by("SECOND")
    assert root.stub.effects() == {}
    assert reports.values(acknowledged=False) == []
    assert root.stored() == {0: [f"{number}" for number in range(len(reports))], 1: []}


# --- a store without conditions, and administration ---


@pytest.mark.fault("S2")
def test_a_store_that_ignores_conditions_gets_no_record_and_is_told_by_its_name(stub: S3Stub) -> None:
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
@pytest.mark.parametrize("fault", ["error_before", "error_after", "reset_after", "hang_after", "late_apply"])
def test_a_topic_is_created_and_deleted_once_whatever_becomes_of_the_answers(root: Root, fault: Any) -> None:
    entry = "*/topics/made/_delta_log/*"
    with AdminClient(root.conf("admin")) as admin:
        root.stub.set_rules(HttpRule(fault=fault, operation="create", key=entry, nth=1, times=1))
        admin.create_topics([NewTopic("made", 3)])["made"].result(20)
        assert len(admin.list_topics("made", 20).topics["made"].partitions) == 3
        root.stub.set_rules(HttpRule(fault=fault, operation="create", key=entry, nth=1, times=1))
        admin.delete_topics(["made"])["made"].result(20)
        assert "made" not in admin.list_topics(timeout=20).topics
    assert len(root.stub.objects(f"{root.prefix}/topics/made/_delta_log/")) == 2
    assert sum(root.stub.effects().values()) == 2


@pytest.mark.fault("P5", "P6", "P8")
@pytest.mark.parametrize("fault", ["error_before", "error_after", "reset_after", "hang_after", "late_apply"])
def test_offsets_are_committed_whatever_becomes_of_the_answers(filled: Root, fault: Any) -> None:
    with filled.consumer("reader", enable_auto_commit=False) as consumer:
        consumer.subscribe(["t"])
        values_read(consumer, 5)
        filled.stub.set_rules(HttpRule(fault=fault, operation="create", key="*/groups/g/_delta_log/*", times=1))
        consumer.commit(offsets=[TopicPartition("t", 0, 5)], asynchronous=False)
        assert sum(filled.stub.effects().values()) >= 0
        filled.stub.set_rules()
    with filled.consumer("other") as other:
        assert other.committed([TopicPartition("t", 0)], 20)[0].offset == 5
