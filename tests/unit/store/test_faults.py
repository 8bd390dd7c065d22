"""Each operation of the store, each way of failing: what the client is told is what happened.

A fault strikes one operation of a client on time that stands still but for its sleeps. Then the
topic is read without faults: what was told as done stands once, what was told as not done never
will, and what was told as unknown can be resolved, after which not even a late write changes it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from deltaq import (
    Consumer,
    KafkaError,
    KafkaException,
    OutcomeUnknown,
    Producer,
    Topic,
    TopicPartition,
    Unavailable,
    UnsafeStore,
)
from deltaq.delta.retry import error_pause_s
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.store import MemoryStore, Store
from deltaq.testing import Effect, Fault, FaultyStore, ManualClock, Rule, messages_of
from deltaq.topics.log import TopicLog
from tests.doubles.reading import TIMEOUT_S, drain, eventually, next_message

ENTRY = "*_delta_log/*.json"
DATA = "*.parquet"
EVER = None

DONE, NOT_DONE, UNKNOWN = "done", "not done", "unknown"

# What came back where the answer should have been: a proxy's page.
GARBAGE = Fault.damage(lambda data: b"<html><body>502 Bad Gateway</body></html>")
AWAY = {
    "429": Fault.error_before("429 Slow Down"),
    "500": Fault.error_before("500"),
    "503": Fault.error_before("503"),
}
NO_ANSWER = {
    **AWAY,
    "error_after": Fault.error_after(),
    "hang": Fault.hang(0.7),
    "slow": Fault.slow(0.7),
}
WRITING = {
    **NO_ANSWER,
    "late": Fault.late_apply(),
    "403": Fault.refused("403"),
    "no_space": Fault.no_space(),
}
READING = {**NO_ANSWER, "404": Fault.missing(), "403": Fault.refused("403")}
BODIES = {
    "short": Fault.truncate(20),
    "empty": Fault.truncate(0),
    "flipped": Fault.flip_bit(),
    "garbage": GARBAGE,
}
LISTING = {**NO_ANSWER, "403": Fault.refused("403")}
FAULTS = {**WRITING, **READING, **BODIES, "conflict": Fault.conflict()}


def produced(store: FaultyStore, clock: ManualClock) -> tuple[str, str, Producer]:
    """Produce one message: what became of it as told, with the reason; and the producer, not
    closed.
    """
    reported: list[tuple[KafkaError | None, Any]] = []
    conf = {"bootstrap.servers": "memory://unused", "linger.ms": 0, "message.timeout.ms": 3000}
    producer = Producer(conf, store=store, clock=clock)
    try:
        producer.produce(
            "t", b"new", on_delivery=lambda error, message: reported.append((error, message))
        )
    except KafkaException as error:  # the first message of a topic looks it up
        return NOT_DONE, error.args[0].str(), producer
    assert producer.flush(10**6) == 0
    ((failure, message),) = reported
    if failure is None:
        assert message.offset() == 1
        return DONE, "", producer
    return (UNKNOWN if "token" in failure.str() else NOT_DONE), failure.str(), producer


def a_topic() -> MemoryStore:
    """A store with a topic of one message."""
    store = MemoryStore(uuid.uuid4().hex)
    with Producer({"bootstrap.servers": "memory://unused"}, store=store) as producer:
        producer.produce("t", b"old")
    return store


def values(store: Store) -> list[bytes]:
    return [message.value() for message in messages_of(store, "t")]


# The operation; on which keys; the fault; what is told when it strikes once, and when it strikes
# for ever.
PRODUCING = [
    *(("put", DATA, name, DONE, NOT_DONE) for name in (*AWAY, "error_after", "hang", "late")),
    *(("put", DATA, name, NOT_DONE, NOT_DONE) for name in ("403", "no_space")),
    ("put", DATA, "slow", DONE, DONE),
    *(("create", ENTRY, name, DONE, UNKNOWN) for name in (*AWAY, "hang", "late")),
    *(("create", ENTRY, name, DONE, DONE) for name in ("error_after", "slow")),
    *(("create", ENTRY, name, NOT_DONE, NOT_DONE) for name in ("403", "no_space")),
    ("create", ENTRY, "conflict", DONE, NOT_DONE),
    *(
        ("get", ENTRY, name, DONE, NOT_DONE)
        for name in (*AWAY, "error_after", "hang", "404", *BODIES)
    ),
    ("get", ENTRY, "slow", DONE, DONE),
    ("get", ENTRY, "403", NOT_DONE, NOT_DONE),
    *(("list", "*", name, DONE, NOT_DONE) for name in (*AWAY, "error_after", "hang")),
    ("list", "*", "slow", DONE, DONE),
    ("list", "*", "403", NOT_DONE, NOT_DONE),
    *(("delete", "*", name, DONE, DONE) for name in WRITING if name != "no_space"),
]


@pytest.mark.fault("S1", "P5", "P6", "P7", "P8", "P9")
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "ever"])
@pytest.mark.parametrize(
    ("operation", "key", "name", "once", "ever"),
    PRODUCING,
    ids=[f"{case[0]}-{case[2]}" for case in PRODUCING],
)
def test_a_producer_reports_the_outcome_of_each_message(operation, key, name, once, ever, lasting):
    inner, clock = a_topic(), ManualClock(auto_advance=True)
    # The first look at an entry only asks whether it exists: damage is done to the second, which is
    # read.
    rule = Rule(
        operation, key, FAULTS[name], EVER if lasting else 1, nth=2 if name in BODIES else 1
    )
    store = FaultyStore(inner, rule, clock=clock)
    verdict, reason, producer = produced(store, clock)
    assert (verdict, reason) == (ever if lasting else once, reason)
    assert store.effects
    store.clear()
    if verdict == UNKNOWN:
        token = re.search(r"\(token (\d+:\w+:\w+)\)", reason)
        assert token
        verdict = DONE if producer.resolve("t", token[1]) else NOT_DONE
    assert not any(store.land_late()) or operation != "create", "a resolved outcome is final"
    assert values(inner) == ([b"old", b"new"] if verdict == DONE else [b"old"])
    producer.close()
    if verdict == NOT_DONE:
        again, reason, producer = produced(FaultyStore(inner), clock)
        assert (again, reason) == (DONE, ""), (
            "nothing is left behind that is in the way of the next"
        )
        producer.close()


@pytest.mark.fault("P10")
@pytest.mark.parametrize("name", [*AWAY, "hang", "403", "404", "error_after", *BODIES])
def test_an_unanswered_commit_that_cannot_be_read_back_is_unknown_and_never_failed(name):
    inner, clock = a_topic(), ManualClock(auto_advance=True)
    store = FaultyStore(inner, clock=clock)
    producer = Producer(
        {"bootstrap.servers": "memory://unused", "linger.ms": 0}, store=store, clock=clock
    )
    producer.list_topics("t")
    producer.produce("t", b"first")
    assert producer.flush(10**6) == 0
    reported: list[Any] = []
    store.add(Rule("create", ENTRY, Fault.error_after()), Rule("get", ENTRY, FAULTS[name], EVER))
    producer.produce("t", b"new", on_delivery=lambda error, _: reported.append(error))
    assert producer.flush(10**6) == 0
    store.clear()
    assert store.effects[Effect.ANSWER_LOST] >= 1
    assert len(store.struck) == 2 or name == "error_after"
    (error,) = reported
    token = re.search(r"\(token (\d+:\w+:\w+)\)", error.str())
    assert token, error.str()
    assert producer.resolve("t", token[1]) is True
    assert values(inner) == [b"old", b"first", b"new"]
    producer.close()


# --- whatever commits: topics and groups ---

COMMITTING = [
    *((name, DONE, UNKNOWN) for name in (*AWAY, "hang", "late")),
    *((name, DONE, DONE) for name in ("error_after", "slow")),
    *((name, NOT_DONE, NOT_DONE) for name in ("403", "no_space")),
    ("conflict", DONE, NOT_DONE),
]


def commit_offset(store: Store, clock: ManualClock) -> None:
    offsets = [CommittedOffset("t", "an-id", 0, 5, None)]
    GroupLog(store, "g", clock).commit(None, offsets, clock.monotonic() + 3)


def is_committed(store: Store) -> bool:
    return GroupLog(store, "g").committed([("t", "an-id", 0)])[0] is not None


ACTIONS: dict[str, tuple[Callable[[Store, ManualClock], object], Callable[[Store], bool]]] = {
    "create": (
        lambda store, clock: Topic("other", store=store, clock=clock).create(timeout=3),
        lambda store: Topic("other", store=store).exists(),
    ),
    "delete": (
        lambda store, clock: TopicLog(store, "t", clock).delete(clock.monotonic() + 3),
        lambda store: not Topic("t", store=store).exists(),
    ),
    "commit": (commit_offset, is_committed),
}


@pytest.mark.fault("S1", "P5", "P6", "P7", "P8", "P9")
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "ever"])
@pytest.mark.parametrize(("name", "once", "ever"), COMMITTING, ids=[case[0] for case in COMMITTING])
@pytest.mark.parametrize("action", ACTIONS)
def test_topics_and_committed_offsets_match_the_reported_outcomes(
    action, name, once, ever, lasting
):
    inner, clock = a_topic(), ManualClock(auto_advance=True)
    store = FaultyStore(
        inner, Rule("create", ENTRY, FAULTS[name], EVER if lasting else 1), clock=clock
    )
    act, stands = ACTIONS[action]
    try:
        act(store, clock)
    except OutcomeUnknown:
        verdict = UNKNOWN
    except Unavailable:
        verdict = NOT_DONE
    else:
        verdict = DONE
    assert verdict == (ever if lasting else once)
    assert store.effects
    if verdict != UNKNOWN:
        assert not any(store.land_late()), "what was told cannot change any more"
        assert stands(inner) is (verdict == DONE)
    store.land_late()
    if not stands(inner):
        act(inner, clock)
        assert stands(inner), "nothing is left behind that is in the way of the next"


# --- reading ---

CONF = {
    "bootstrap.servers": "memory://unused",
    "group.id": "reader",
    "auto.offset.reset": "earliest",
}


def filled(count: int = 6) -> MemoryStore:
    store = MemoryStore(uuid.uuid4().hex)
    with Producer(
        {"bootstrap.servers": "memory://unused", "linger.ms": 0}, store=store
    ) as producer:
        for number in range(count):
            producer.produce("t", b"%d" % number)
            producer.flush(TIMEOUT_S)
    return store


READS = [
    *(("get", key, name) for key in (ENTRY, DATA) for name in (*READING, *BODIES) if name != "403"),
    *(("get_range", DATA, name) for name in (*READING, *BODIES) if name not in ("403", "slow")),
    *(("list", "*", name) for name in LISTING if name != "403"),
]


@pytest.mark.fault("S1", "S4", "B4")
@pytest.mark.parametrize(
    ("operation", "key", "name"), READS, ids=["-".join(case) for case in READS]
)
def test_a_consumer_skips_and_doubles_nothing_with_any_one_faulty_answer(operation, key, name):
    fault = Fault.slow(0) if name == "slow" else Fault.hang(0) if name == "hang" else FAULTS[name]
    inner = filled()
    # A file is read in parts where it is larger than what may be fetched at once.
    if operation == "get_range":
        with Producer(
            {"bootstrap.servers": "memory://unused", "linger.ms": 60_000}, store=inner
        ) as producer:
            for number in range(6, 12):
                producer.produce("t", b"%d" % number + uuid.uuid4().hex.encode() * 20_000)
    expected = values(inner)
    store = FaultyStore(inner, Rule(operation, key, fault, 1, nth=2))
    with Consumer(CONF, store=store, fetch_max_bytes=500_000, message_max_bytes=500_000) as reader:
        reader.assign([TopicPartition("t", 0, 0)])
        assert [message.value() for message in drain(reader, len(expected))] == expected
    assert store.effects


@pytest.mark.fault("S1", "S4")
@pytest.mark.parametrize(
    ("operation", "key", "name", "code"),
    [
        *(("get", DATA, name, KafkaError._TRANSPORT) for name in (*AWAY, "error_after", "403")),
        *(
            ("get", ENTRY, name, KafkaError._TRANSPORT)
            for name in (*AWAY, "error_after", "403", "404")
        ),
        *(("list", "*", name, KafkaError._TRANSPORT) for name in (*AWAY, "error_after", "403")),
        *(("get", key, name, KafkaError._BAD_MSG) for key in (DATA, ENTRY) for name in BODIES),
        ("read", DATA, "404", KafkaError._BAD_MSG),
    ],
)
def test_a_consumer_that_cannot_read_gets_an_error_and_never_an_empty_topic(
    operation, key, name, code
):
    inner = filled(3)
    store = FaultyStore(inner, Rule(operation, key, FAULTS[name], EVER))
    reported: list[Any] = []
    with Consumer(CONF, store=store, enable_partition_eof=True, error_cb=reported.append) as reader:
        reader.assign([TopicPartition("t", 0, 0)])

        def heard() -> bool:
            event = reader.poll(0.01)
            if event is not None:
                assert event.error() is not None
                reported.append(event.error())
            return bool(reported)

        eventually(heard)
        # An outage is reported of the one request and of the whole store.
        assert {error.code() for error in reported} - {KafkaError._ALL_BROKERS_DOWN} == {code}
        store.clear()
        reader.seek(TopicPartition("t", 0, 0))
        found: list[Any] = []
        while len(found) < 3:
            event = next_message(reader)
            found += [event.value()] if event.error() is None else []
        assert found == [b"0", b"1", b"2"]


# --- what a store may never do, and what it may ---


@pytest.mark.fault("S2")
@pytest.mark.parametrize("begin", [*ACTIONS, "produce"])
def test_a_store_that_ignores_conditions_is_refused_by_name_before_any_write(begin):
    inner, clock = (
        MemoryStore("careless") if begin != "delete" else a_topic(),
        ManualClock(auto_advance=True),
    )
    before = [entry.key for entry in inner.list("")]
    store = FaultyStore(inner, Rule("create", "*", Fault.ignored_condition(), EVER), clock=clock)
    if begin == "produce":
        verdict, reason, producer = produced(store, clock)
        assert verdict == NOT_DONE
        producer.close()
    else:
        with pytest.raises(UnsafeStore) as caught:
            ACTIONS[begin][0](store, clock)
        reason = str(caught.value)
    assert inner.url in reason
    assert "ignores create-if-absent" in reason
    assert store.effects == {Effect.CONDITION_IGNORED: 1}
    assert [entry.key for entry in inner.list("")] == before


@pytest.mark.fault("S3")
@pytest.mark.parametrize(
    ("fault", "effect"),
    [(Fault.stale_list(2), Effect.KEYS_HIDDEN), (Fault.repeated_page(2), Effect.PAGE_REPEATED)],
)
def test_a_listing_that_is_stale_or_repeats_itself_hides_no_entry(fault, effect):
    inner = filled(2)
    store = FaultyStore(inner, Rule("list", "*", fault, EVER))
    log = TopicLog(store, "t", indexed=True)
    assert log.load()
    with Producer(
        {"bootstrap.servers": "memory://unused", "linger.ms": 0}, store=inner
    ) as producer:
        for number in range(2, 7):
            producer.produce("t", b"%d" % number)
            producer.flush(TIMEOUT_S)
    log.check_end()
    assert log.live_head.next_offsets == (7,)
    assert store.effects == {effect: 1}
    with Consumer(CONF, store=store) as reader:
        reader.assign([TopicPartition("t", 0, 0)])
        assert [message.value() for message in drain(reader, 7)] == [
            b"%d" % number for number in range(7)
        ]


@pytest.mark.fault("S4")
@pytest.mark.parametrize("times", [3, EVER])
def test_a_listed_but_missing_entry_is_retried_and_then_unavailable(times):
    inner, clock = filled(2), ManualClock(auto_advance=True)
    store = FaultyStore(inner, clock=clock)
    log = TopicLog(store, "t", clock, indexed=True)
    log.load()
    with Producer({"bootstrap.servers": "memory://unused"}, store=inner) as producer:
        producer.produce("t", b"2")
    store.add(Rule("get", ENTRY, Fault.missing(), times))
    if times is EVER:
        with pytest.raises(Unavailable, match=r"the store lists .* and does not find it") as caught:
            log.check_end()
        assert caught.value.args[0].retriable()
        with pytest.raises(Unavailable, match="faster than it can be read"):
            Topic("t", store=store, clock=clock).exists()
    else:
        log.check_end()
        assert log.live_head.next_offsets == (3,)
    assert store.effects[Effect.OBJECT_HIDDEN] >= 3


@pytest.mark.fault("S4")
def test_a_committed_but_missing_data_file_is_retried():
    inner = filled(3)
    store = FaultyStore(inner, Rule("read", DATA, Fault.missing(), 3))
    assert Topic("t", store=store).to_arrow()["value"].to_pylist() == [b"0", b"1", b"2"]
    store.add(Rule("read", DATA, Fault.missing(), 3))
    with Consumer(CONF, store=store) as reader:
        reader.assign([TopicPartition("t", 0, 0)])
        assert [message.value() for message in drain(reader, 3)] == [b"0", b"1", b"2"]
    assert store.effects == {Effect.OBJECT_HIDDEN: 6}


# --- throttling ---


class CountingClock(ManualClock):
    """Notes every pause."""

    def __init__(self, seed: int) -> None:
        super().__init__(auto_advance=True, seed=seed)
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        super().sleep(seconds)


@pytest.mark.fault("S6")
@pytest.mark.parametrize(("operation", "key"), [("put", DATA), ("create", ENTRY), ("get", ENTRY)])
def test_throttling_is_retried_with_backoff_jitter_and_one_deadline(operation, key):
    def storm(seed: int) -> tuple[CountingClock, FaultyStore]:
        clock = CountingClock(seed)
        store = FaultyStore(
            a_topic(), Rule(operation, key, Fault.error_before("429 Slow Down"), EVER), clock=clock
        )
        started_at = clock.monotonic()
        verdict, reason, producer = produced(store, clock)
        assert verdict != DONE
        assert "429 Slow Down" in reason
        assert 3.0 <= clock.monotonic() - started_at < 3.1, (
            "message.timeout.ms, all attempts together"
        )
        store.clear()
        producer.close()
        return clock, store

    clock, store = storm(1)
    asked = store.effects[Effect.ERROR_BEFORE]
    assert asked <= 20, "a store that is throttling is not asked a hundred times in three seconds"
    ceilings = [error_pause_s(failures, 1.0) for failures in range(1, len(clock.pauses) + 1)]
    assert all(pause <= ceiling for pause, ceiling in zip(clock.pauses, ceilings, strict=True))
    assert max(clock.pauses) > 10 * clock.pauses[0]
    assert clock.pauses != storm(2)[0].pauses, "two clients do not come back at the same time"


@pytest.mark.fault("S6")
def test_transient_throttling_loses_and_doubles_nothing():
    inner, clock = a_topic(), ManualClock(auto_advance=True)
    store = FaultyStore(
        inner, Rule("*", "*", Fault.error_before("503"), EVER, probability=0.5), clock=clock, seed=3
    )
    reported: list[KafkaError | None] = []
    conf = {"bootstrap.servers": "memory://unused", "linger.ms": 0, "message.timeout.ms": 600_000}
    with Producer(conf, store=store, clock=clock) as producer:
        sent = 0
        while sent < 50:
            try:
                producer.produce(
                    "t", b"%d" % sent, on_delivery=lambda error, _: reported.append(error)
                )
            except Unavailable:
                continue  # the look at the topic, which the caller repeats
            sent += 1
            producer.flush(10**6)
    assert reported == [None] * 50
    assert values(inner) == [b"old", *(b"%d" % number for number in range(50))]
    assert store.effects[Effect.ERROR_BEFORE] > 50
