"""One consumer and its group: subscribing, callbacks, patterns, sessions that end, and joining
again.
"""

from __future__ import annotations

import struct
import threading
import uuid
from typing import Any

import pytest

from deltaq import (
    Consumer,
    Fenced,
    KafkaError,
    KafkaException,
    OutcomeUnknown,
    Producer,
    Topic,
    TopicPartition,
    WrongState,
)
from deltaq.admin import AdminClient, NewPartitions
from deltaq.clock import SystemClock
from deltaq.groups.heartbeat import Heartbeat
from deltaq.groups.log import GroupLog
from deltaq.groups.session import Session
from deltaq.maintenance.report import FAILURES
from deltaq.maintenance.run import Maintenance
from deltaq.store import MemoryStore, open_store
from deltaq.testing import Effect, Fault, FaultyStore, Rule
from tests.doubles.consumer_group import generation
from tests.doubles.groups import join, leave, new_member, new_membership
from tests.doubles.reading import TIMEOUT_S, drain, eventually, next_message, poll_until_raised

EVER = None
QUICK = {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 40, "max.poll.interval.ms": 60_000}
SHORT_MS = 1000
"""A session time-out that a test can wait for, but longer than a busy machine keeps a thread
waiting.
"""

SHORT = QUICK | {"session.timeout.ms": SHORT_MS}


@pytest.fixture
def root() -> str:
    return f"memory://{uuid.uuid4().hex}"


def topic(root: str, name: str = "t", partitions: int = 1) -> Topic:
    return Topic(name, partitions=partitions, conf={"bootstrap.servers": root}).create()


def fill(root: str, count: int, name: str = "t", partition: int = -1, start: int = 0) -> None:
    with Producer(bootstrap_servers=root, linger_ms=60_000) as producer:  # one commit
        for number in range(start, start + count):
            producer.produce(name, f"v{number}", partition=partition)


def consumer(root: str, **conf: object) -> Consumer:
    base: dict[str, object] = {
        "bootstrap.servers": root,
        "group.id": "g",
        "auto.offset.reset": "earliest",
    }
    return Consumer(base | QUICK | {key.replace("__", "."): value for key, value in conf.items()})


class RecordedCallbacks(list[tuple[str, list[tuple[str, int]]]]):
    """Records rebalance callbacks as (name, [(topic, partition), ...])."""

    def callbacks(self) -> dict[str, Any]:
        def record(name):
            return lambda consumer, partitions: self.append(
                (name, [(p.topic, p.partition) for p in partitions])
            )

        return {f"on_{name}": record(name) for name in ("assign", "revoke", "lost")}


def held(reader: Consumer) -> list[tuple[str, int]]:
    return [(p.topic, p.partition) for p in reader.assignment()]


def put_out(root: str, reader: Consumer) -> None:
    """What another process does that takes the consumer for dead."""
    member_id = reader.memberid()
    assert member_id is not None
    leave(GroupLog(open_store(root), "g"), member_id)


def await_assignment(reader: Consumer, expected: list[tuple[str, int]]) -> None:
    eventually(
        lambda: reader.poll(0.005) is None and held(reader) == expected,
        f"an assignment of {expected}",
    )


# --- subscribing ---


def test_a_member_gets_all_partitions_and_returns_them(root):
    topic(root, partitions=2)
    calls = RecordedCallbacks()
    reader = consumer(root)
    reader.subscribe(["t"], **calls.callbacks())
    assert calls == [], "callbacks run inside poll"
    await_assignment(reader, [("t", 0), ("t", 1)])
    assert calls == [("assign", [("t", 0), ("t", 1)])]
    reader.close()
    assert calls[1:] == [("revoke", [("t", 0), ("t", 1)])]


@pytest.mark.parametrize("wanted", ["t", "^t"])
def test_a_subscribed_consumer_is_a_member_before_it_polls(root, wanted):
    topic(root, partitions=2)
    calls = RecordedCallbacks()
    with consumer(root) as reader, AdminClient({"bootstrap.servers": root}) as admin:
        reader.subscribe([wanted], **calls.callbacks())

        def members() -> list[int]:
            found = admin.describe_consumer_groups(["g"])["g"].result(TIMEOUT_S)
            return [len(member.assignment.topic_partitions) for member in found.members]

        eventually(lambda: members() == [2], "the join")
        assert reader.memberid() is not None
        assert (calls, reader.assignment()) == (
            [],
            [],
        ), "callbacks and the assignment wait for the poll"
        await_assignment(reader, [("t", 0), ("t", 1)])
        assert calls == [("assign", [("t", 0), ("t", 1)])]


def test_a_consumer_that_never_polled_leaves_its_group_as_it_closes(root):
    topic(root, partitions=2)
    calls = RecordedCallbacks()
    reader = consumer(root)
    reader.subscribe(["t"], **calls.callbacks())
    eventually(reader.memberid, "the join")
    reader.close()
    assert calls == []
    assert GroupLog(open_store(root), "g").head().members == {}


def test_another_subscription_replaces_the_first(root):
    for name, count in (("one", 3), ("two", 3)):
        topic(root, name)
        fill(root, count, name)
    calls = RecordedCallbacks()
    with consumer(root, enable__auto__commit=False) as reader:
        reader.subscribe(["one"], **calls.callbacks())
        assert [m.offset() for m in drain(reader, 2)] == [0, 1]
        member_id = reader.memberid()
        reader.subscribe(["two"], **calls.callbacks())
        assert [(m.topic(), m.offset()) for m in drain(reader, 3)] == [
            ("two", 0),
            ("two", 1),
            ("two", 2),
        ]
        assert reader.memberid() == member_id
        reader.unsubscribe()
        assert reader.poll(0.01) is None
        assert [(name, parts[0][0]) for name, parts in calls] == [
            ("assign", "one"),
            ("revoke", "one"),
            ("assign", "two"),
            ("revoke", "two"),
        ]
        reader.subscribe(["one"])
        assert next_message(reader).offset() == 0, "nothing was committed"


def test_subscribing_replaces_what_was_assigned_by_hand(root):
    for name in ("one", "two"):
        topic(root, name)
        fill(root, 2, name)
    with consumer(root) as reader:
        reader.assign([TopicPartition("one", 0, 0)])
        assert next_message(reader).topic() == "one"
        reader.subscribe(["two"])
        assert [m.topic() for m in drain(reader, 2)] == ["two", "two"]
        assert held(reader) == [("two", 0)]


def test_on_assign_may_choose_where_to_start(root):
    topic(root)
    fill(root, 6)

    def from_four(reader, partitions):
        for partition in partitions:
            partition.offset = 4
        reader.assign(partitions)

    with consumer(root) as reader:
        reader.subscribe(["t"], on_assign=from_four)
        assert [m.offset() for m in drain(reader, 2)] == [4, 5]


def test_partitions_in_on_assign_have_no_offset_yet(root):
    topic(root)
    seen: list[int] = []
    with consumer(root) as reader:
        reader.subscribe(["t"], on_assign=lambda c, parts: seen.extend(p.offset for p in parts))
        await_assignment(reader, [("t", 0)])
    assert seen == [-1001]


def test_a_callback_exception_is_raised_and_the_assignment_is_made(root):
    topic(root)
    fill(root, 1)

    def fail(reader, partitions):
        raise ValueError("mine")

    reader = consumer(root)
    reader.subscribe(["t"], on_assign=fail, on_revoke=fail)
    with pytest.raises(ValueError, match="mine"):
        next_message(reader)
    assert next_message(reader).offset() == 0
    with pytest.raises(ValueError, match="mine"):
        reader.close()
    with consumer(root) as after:  # the group is free
        after.subscribe(["t"])
        assert after.poll(0.3) is None, "what was handed out is committed"


@pytest.mark.parametrize("ends", [Consumer.close, Consumer.unsubscribe])
@pytest.mark.parametrize("ended_by", [Consumer.close, Consumer.unsubscribe])
def test_a_callback_may_end_the_subscription_that_is_being_revoked(root, ends, ended_by):
    topic(root)
    fill(root, 3)
    revoked: list[list[TopicPartition]] = []

    def revoke(reader, partitions):
        revoked.append(partitions)
        ends(reader)

    reader = consumer(root)
    reader.subscribe(["t"], on_revoke=revoke)
    drain(reader, 2)
    ended_by(reader)
    reader.close()
    assert revoked == [[TopicPartition("t", 0)]]
    with consumer(root) as after:
        after.subscribe(["t"])
        assert next_message(after).offset() == 2


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("ends", [Consumer.close, Consumer.unsubscribe])
@pytest.mark.parametrize("at", ["on_assign", "on_revoke", "on_lost"])
def test_a_subscription_ended_by_a_callback_is_not_assigned(root, at, ends, strategy):
    """Cooperatively, nothing is revoked where partitions only come; a topic that goes is."""
    topic(root, "u")
    fill(root, 1, "u")
    topic(root)
    assigned: list[list[TopicPartition]] = []
    callbacks = {
        "on_assign": lambda reader, partitions: assigned.append(partitions),
        at: lambda reader, partitions: ends(reader),
    }
    with consumer(root, partition__assignment__strategy=strategy) as reader:
        reader.subscribe(["t", "u"], **callbacks)
        if at != "on_assign":
            assert next_message(reader).topic() == "u"
        if at == "on_lost":
            put_out(root, reader)
        elif at == "on_revoke":
            AdminClient({"bootstrap.servers": root}).delete_topics(["t"])["t"].result()
        while reader._state.current is not None:
            reader.poll(0.005)
        if ends is Consumer.unsubscribe:
            assert held(reader) == []
            assert reader.poll(0) is None
    assert len(assigned) == (at != "on_assign")


def test_a_callback_may_subscribe_anew(root):
    topic(root, "u")
    fill(root, 2, "u")
    topic(root)
    reader = consumer(root)
    reader.subscribe(["t"], on_revoke=lambda reader, partitions: reader.subscribe(["u"]))
    await_assignment(reader, [("t", 0)])
    reader.unsubscribe()
    assert [message.value() for message in drain(reader, 2)] == [b"v0", b"v1"]
    assert reader.memberid() is not None
    reader.close()
    with consumer(root) as after:
        after.subscribe(["u"])
        await_assignment(after, [("u", 0)])


def test_a_subscription_that_a_callback_makes_and_polls_keeps_its_member_and_its_partitions(root):
    topic(root, "u")
    fill(root, 2, "u")
    topic(root)
    members: list[str | None] = []

    def begin_anew(reader, partitions):
        reader.subscribe(["u"])
        assert next_message(reader).value() == b"v0"
        members.append(reader.memberid())

    with consumer(root) as reader:
        reader.subscribe(["t"], on_revoke=begin_anew)
        await_assignment(reader, [("t", 0)])
        reader.unsubscribe()
        assert held(reader) == [("u", 0)]
        assert next_message(reader).value() == b"v1"
        assert members == [reader.memberid()]


@pytest.mark.parametrize(
    ("does", "members"), [(Consumer.close, 0), (lambda reader: reader.subscribe(["u"]), 1)]
)
def test_a_callback_that_closes_or_subscribes_after_another_subscription_leaves_no_second_membership(  # noqa: E501
    root, does, members
):
    topic(root)
    reader = consumer(root, group__id="inside")
    called = []

    def revoked(reader, partitions):
        called.append(partitions)
        does(reader)

    reader.subscribe(["t"])
    await_assignment(reader, [("t", 0)])
    reader.subscribe(["t", "u"], on_revoke=revoked)
    eventually(lambda: called or reader.poll(0.005), "on_revoke")
    assert [thread.name for thread in threading.enumerate()].count("deltaq-group-inside") == members
    reader.close()


@pytest.mark.parametrize("wait", [Consumer.poll, Consumer.consume, Consumer.consume_arrow])
def test_an_unbounded_poll_ends_once_a_callback_closes_the_consumer(root, wait):
    topic(root)
    fill(root, 1)
    reader: Consumer = consumer(
        root, enable__auto__commit=False, on_commit=lambda *_: reader.close()
    )
    reader.assign([TopicPartition("t", 0)])
    drain(reader, 1)
    reader.commit()
    assert not wait(reader, timeout=None)
    with pytest.raises(RuntimeError, match="Consumer closed"):
        reader.poll(0)


def test_an_exception_during_consume_loses_no_message(root):
    topic(root, "a")
    fill(root, 3, "a")

    def fail_once(reader, partitions):
        if any(p.topic == "b" for p in partitions) and not failed:
            failed.append(True)
            raise ValueError("mine")

    failed: list[bool] = []
    with consumer(root, topic__metadata__refresh__interval__ms=20) as reader:
        reader.subscribe(["^[ab]$"], on_assign=fail_once)
        assert [m.offset() for m in drain(reader, 1)] == [0]
        topic(root, "b")
        with pytest.raises(ValueError, match="mine"):
            reader.consume(100, TIMEOUT_S)
        assert sorted(m.offset() for m in drain(reader, 2)) == [1, 2]


def test_eager_members_use_assign_and_cooperative_ones_incremental_assign(root):
    topic(root)
    for strategy, wrong in (
        ("range", [lambda c: c.incremental_assign([]), lambda c: c.incremental_unassign([])]),
        ("cooperative-sticky", [lambda c: c.assign([])]),
    ):
        with consumer(root, partition__assignment__strategy=strategy) as reader:
            reader.subscribe(["t"])
            await_assignment(reader, [("t", 0)])
            for call in wrong:
                with pytest.raises(WrongState) as caught:
                    call(reader)
                assert caught.value.args[0] == KafkaError._STATE
            reader.unassign()
            assert held(reader) == []


@pytest.mark.fault("R8")
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("range", [("assign", [0]), ("revoke", [0]), ("assign", [0, 1, 2]), ("revoke", [0, 1, 2])]),
        ("cooperative-sticky", [("assign", [0]), ("assign", [1, 2]), ("revoke", [0, 1, 2])]),
    ],
)
def test_partitions_that_are_added_are_read_from_their_start(root, strategy, expected):
    topic(root)
    fill(root, 2)
    calls = RecordedCallbacks()
    with consumer(
        root, partition__assignment__strategy=strategy, auto__offset__reset="latest"
    ) as reader:
        reader.subscribe(["t"], **calls.callbacks())
        await_assignment(reader, [("t", 0)])
        assert reader.poll(0.05) is None
        AdminClient({"bootstrap.servers": root}).create_partitions([NewPartitions("t", 3)])[
            "t"
        ].result(20)
        fill(root, 1, partition=2)
        message = next_message(reader)
        assert (message.partition(), message.offset()) == (2, 0)
    assert [(name, [partition for _, partition in parts]) for name, parts in calls] == expected


def test_added_partitions_are_noticed_by_the_next_poll_though_records_are_ready(root):
    topic(root)
    fill(root, 3)
    with consumer(root) as reader:
        reader.subscribe(["t"])
        assert next_message(reader).offset() == 0
        before = generation(reader)
        AdminClient({"bootstrap.servers": root}).create_partitions([NewPartitions("t", 2)])[
            "t"
        ].result()
        added = TopicPartition("t", 1)
        eventually(
            lambda: reader.get_watermark_offsets(added, cached=True) == (0, 0),
            "the fetcher has read of it",
        )
        assert next_message(reader).offset() == 1
        eventually(lambda: generation(reader) != before, "the group has a new generation")


# --- patterns ---


def test_a_pattern_finds_topics_that_come_later(root):
    topic(root, "pat-one")
    topic(root, "other")
    with consumer(root, topic__metadata__refresh__interval__ms=20) as reader:
        reader.subscribe(["^pat-.*"])
        await_assignment(reader, [("pat-one", 0)])
        topic(root, "pat-two")
        await_assignment(reader, [("pat-one", 0), ("pat-two", 0)])


def test_with_an_interval_of_minus_one_a_pattern_is_matched_once(root):
    topic(root, "pat-one")
    store = FaultyStore(open_store(root))
    conf = {"bootstrap.servers": root, "group.id": "g", "topic.metadata.refresh.interval.ms": -1}
    with Consumer(conf, store=store) as reader:
        reader.subscribe(["^pat-.*"])
        await_assignment(reader, [("pat-one", 0)])
        topic(root, "pat-two")
        for _ in range(20):
            reader.poll(0.005)
        assert held(reader) == [("pat-one", 0)]
        assert store.operations["list_folders"] == 1


def test_topics_by_name_and_by_pattern_together(root):
    for name in ("a", "b-1", "b-2", "c"):
        topic(root, name)
    with consumer(root) as reader:
        reader.subscribe(["a", "^b-"])
        await_assignment(reader, [("a", 0), ("b-1", 0), ("b-2", 0)])


def test_a_pattern_without_matches_is_reported_once(root):
    with consumer(root) as reader:
        reader.subscribe(["^nomatch-"])
        message = next_message(reader)
        assert (message.error(), message.topic()) == (KafkaError.UNKNOWN_TOPIC_OR_PART, "^nomatch-")
        assert reader.poll(0.05) is None


def test_an_unknown_topic_is_reported_once_and_read_once_it_exists(root):
    with consumer(root) as reader:
        reader.subscribe(["nope"])
        message = next_message(reader)
        assert (message.error(), message.topic()) == (KafkaError.UNKNOWN_TOPIC_OR_PART, "nope")
        assert reader.poll(0.05) is None
        topic(root, "nope")
        fill(root, 1, "nope")
        assert next_message(reader).offset() == 0


def test_a_deleted_topic_matched_by_a_pattern_is_dropped_without_error(root):
    topic(root, "pat-one")
    gone = topic(root, "pat-two")
    with consumer(root) as reader:
        reader.subscribe(["^pat-"])
        await_assignment(reader, [("pat-one", 0), ("pat-two", 0)])
        gone.delete()
        await_assignment(reader, [("pat-one", 0)])


def test_a_store_outage_during_pattern_matching_is_reported_to_error_cb(root):
    topic(root, "pat-one")
    store = FaultyStore(open_store(root), Rule("list_folders", "*", Fault.error_before(), 1))
    errors: list[KafkaError] = []
    conf = {"bootstrap.servers": root, "group.id": "g"} | QUICK
    with Consumer(conf, store=store, error_cb=errors.append) as reader:
        reader.subscribe(["^pat-"])
        await_assignment(reader, [("pat-one", 0)])
    assert errors == [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN]


# --- membership ---


def test_a_member_has_an_id_and_metadata_in_the_layout_of_librdkafka(root):
    topic(root)
    with consumer(root, client__id="me") as reader:
        assert reader.memberid() is None
        assert reader.consumer_group_metadata() == b"CGMDv2:\xff\xff\xff\xffg\x00\x00\x01"
        reader.subscribe(["t"])
        await_assignment(reader, [("t", 0)])
        member_id = reader.memberid()
        assert member_id is not None
        assert member_id.startswith("me-")
        generation = struct.pack("<i", 1)
        expected = b"CGMDv2:" + generation + b"g\x00" + member_id.encode() + b"\x00\x01"
        assert reader.consumer_group_metadata() == expected


@pytest.mark.fault("K2")
def test_the_longest_names_can_be_written_subscribed_to_and_maintained_on_disk(tmp_path):
    """249 characters, Kafka's limit: each name ends up in file names, which have 255 bytes."""
    long, conf = "x" * 249, {"bootstrap.servers": str(tmp_path), "client.id": "c" * 249}
    Topic(long, conf=conf).create()
    with Producer(conf, deltaq_group_commit="true") as producer:
        producer.produce(long, b"v")
    with Consumer(conf | QUICK, group_id="g" * 249, auto_offset_reset="earliest") as reader:
        reader.subscribe([long])
        assert next_message(reader).value() == b"v"
        member_id = reader.memberid()
        assert member_id is not None
        assert member_id.startswith("c" * 200)
        reader.commit(asynchronous=False)
        assert Maintenance(open_store(str(tmp_path))).round()[FAILURES] == 0


def test_an_unexpected_heartbeat_error_is_reported_and_the_consumer_rejoins(root, monkeypatch):
    topic(root)
    fill(root, 1)
    with consumer(root, enable__auto__commit=False) as reader:
        reader.subscribe(["t"])
        assert next_message(reader).offset() == 0
        beat = Heartbeat.beat
        monkeypatch.setattr(Heartbeat, "beat", lambda *_: 1 // 0)
        with pytest.raises(KafkaException, match=r"group 'g'.*ZeroDivisionError") as caught:
            poll_until_raised(reader)
        assert caught.value.args[0] == KafkaError._FAIL
        assert reader.memberid() is None
        monkeypatch.setattr(Heartbeat, "beat", beat)
        eventually(lambda: reader.memberid() is not None)


def test_a_defect_in_leaving_is_logged_and_the_consumer_closes(root, monkeypatch, caplog):
    topic(root)
    reader = consumer(root)
    reader.subscribe(["t"])
    await_assignment(reader, [("t", 0)])
    monkeypatch.setattr(Session, "leave", lambda *_: 1 // 0)
    reader.close()
    assert "leaving failed" in caplog.text


def test_a_second_member_gets_its_share_and_all_once_the_first_leaves(root):
    topic(root, partitions=2)
    first, second = consumer(root, client__id="A"), consumer(root, client__id="B")
    first.subscribe(["t"])
    await_assignment(first, [("t", 0), ("t", 1)])
    second.subscribe(["t"])
    eventually(
        lambda: first.poll(0.005) is second.poll(0.005) is None and held(second) == [("t", 1)],
        "a share",
    )
    for partition in range(2):
        fill(root, 10, partition=partition)
    for reader, mine in ((first, 0), (second, 1)):
        assert [(m.partition(), m.offset()) for m in drain(reader, 10)] == [
            (mine, offset) for offset in range(10)
        ]
        assert held(reader) == [("t", mine)]
    first.close()
    await_assignment(second, [("t", 0), ("t", 1)])
    fill(root, 1, partition=0)
    message = next_message(second)
    assert (message.partition(), message.offset()) == (0, 10), "from the committed offset on"
    second.close()


@pytest.mark.fault("R1", "R3", "C3")
def test_a_member_without_heartbeats_is_replaced_and_fenced(root):
    topic(root)
    fill(root, 10)
    store = FaultyStore(open_store(root))
    calls = RecordedCallbacks()
    conf = {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest"} | SHORT
    stopped = Consumer(conf, store=store, client_id="b", enable_auto_commit=False)
    stopped.subscribe(["t"], **calls.callbacks())
    messages = drain(stopped, 4)
    stopped.commit(message=messages[1], asynchronous=False)
    store.add(Rule("*", "*", Fault.slow(), EVER))  # every operation hangs, as in a stopped process

    second = consumer(root, client__id="a")
    second.subscribe(["t"])
    assert [m.offset() for m in drain(second, 4)] == [
        2,
        3,
        4,
        5,
    ], "from the committed offset of the dead one"

    # While it is silent it stops delivering by itself, without an error from outside.
    assert stopped.poll(0.01) is None
    assert held(stopped) == []
    assert calls[1:] == [("lost", [("t", 0)])]
    store.clear()
    store.release()
    with pytest.raises(Fenced) as caught:
        stopped.commit(message=messages[3], asynchronous=False)
    assert caught.value.args[0] == KafkaError.UNKNOWN_MEMBER_ID
    assert stopped.committed([TopicPartition("t", 0)])[0].offset == 2

    # Back again, it joins as another member, to which `range` assigns nothing.
    eventually(
        lambda: stopped.poll(0.005) is None and stopped.memberid() is not None, "another session"
    )
    assert [m.offset() for m in drain(second, 4)] == [6, 7, 8, 9]
    second.close()
    stopped.close()


@pytest.mark.fault("R3")
def test_a_removed_member_cannot_commit_records_it_had_read(root):
    topic(root)
    fill(root, 3)
    with consumer(root, enable__auto__commit=False) as reader:
        reader.subscribe(["t"])
        messages = drain(reader, 2)
        # Another process declares it dead.
        log = GroupLog(open_store(root), "g")
        join(log, "usurper", gone=list(log.head().members))
        with pytest.raises(Fenced):
            reader.commit(message=messages[1], asynchronous=False)
        assert reader.committed([TopicPartition("t", 0)])[0].offset == -1001


def test_a_rejoined_member_has_a_new_identity(root):
    topic(root)
    fill(root, 5)
    calls = RecordedCallbacks()
    with consumer(root, enable__auto__commit=False) as reader:
        reader.subscribe(["t"], **calls.callbacks())
        drain(reader, 3)
        before = reader.memberid()
        put_out(root, reader)
        eventually(lambda: reader.memberid() not in (None, before), "it is another member")
        assert [m.offset() for m in drain(reader, 5)] == [
            0,
            1,
            2,
            3,
            4,
        ], "again, for nothing was committed"
        assert [name for name, _ in calls] == ["assign", "lost", "assign"]


def test_a_removed_consumer_loses_its_partitions_although_it_has_rejoined(root):
    """By its next call, and before it returns a record: another member may have read on
    meanwhile.
    """
    topic(root)
    fill(root, 3)
    calls = RecordedCallbacks()
    with consumer(root) as reader:
        reader.subscribe(["t"], **calls.callbacks())
        assert next_message(reader).offset() == 0
        before = reader.memberid()
        put_out(root, reader)
        eventually(lambda: reader.memberid() not in (None, before), "it is another member")
        with pytest.raises(Fenced) as caught:
            reader.commit(asynchronous=False)
        assert caught.value.args[0] == KafkaError._ASSIGNMENT_LOST
        assert reader.poll(0) is None
        assert calls[:2] == [("assign", [("t", 0)]), ("lost", [("t", 0)])]
        await_assignment(reader, [("t", 0)])


def test_a_member_removed_during_silence_loses_its_partitions_and_rejoins(root):
    topic(root)
    store = FaultyStore(open_store(root))
    calls = RecordedCallbacks()
    with Consumer({"bootstrap.servers": root, "group.id": "g"} | SHORT, store=store) as reader:
        reader.subscribe(["t"], **calls.callbacks())
        await_assignment(reader, [("t", 0)])
        member_id = reader.memberid() or ""
        store.add(Rule("put", "groups/*", Fault.slow(), times=1))
        eventually(lambda: reader.memberid() is None, "its session is over")
        leave(GroupLog(open_store(root), "g"), member_id)
        store.release()
        eventually(lambda: reader.poll(0.005) is None and len(calls) == 3, "another session")
        assert [name for name, _ in calls] == ["assign", "lost", "assign"]
        assert reader.memberid() not in (None, member_id)


def test_on_revoke_is_called_if_there_is_no_on_lost(root):
    topic(root)
    calls = RecordedCallbacks()
    with consumer(root) as reader:
        callbacks = calls.callbacks()
        del callbacks["on_lost"]
        reader.subscribe(["t"], **callbacks)
        await_assignment(reader, [("t", 0)])
        put_out(root, reader)
        eventually(lambda: reader.poll(0.005) is None and len(calls) >= 2, "the loss")
    assert [name for name, _ in calls][:2] == ["assign", "revoke"]


def test_an_application_that_does_not_poll_loses_its_membership(root):
    topic(root)
    fill(root, 3)
    calls = RecordedCallbacks()
    conf = {
        "session__timeout__ms": 2000,
        "max__poll__interval__ms": 2000,
        "heartbeat__interval__ms": 20,
    }
    with consumer(root, enable__auto__commit=False, **conf) as reader:
        reader.subscribe(["t"], **calls.callbacks())
        drain(reader, 2)
        log = GroupLog(open_store(root), "g")
        eventually(
            lambda: log.head().members == {}, "the group is free while the application is away"
        )
        with pytest.raises(Fenced) as caught:
            reader.commit(asynchronous=False)
        assert caught.value.args[0] == KafkaError._ASSIGNMENT_LOST
        message = next_message(reader)
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._MAX_POLL_EXCEEDED
        assert message.topic() is None
        assert [m.offset() for m in drain(reader, 3)] == [0, 1, 2]
        assert [name for name, _ in calls] == ["assign", "lost", "assign"]


def test_a_store_outage_within_the_session_timeout_is_survived(root):
    topic(root)
    fill(root, 3)
    store = FaultyStore(open_store(root))
    conf = {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest"} | QUICK
    with Consumer(conf, store=store) as reader:
        reader.subscribe(["t"])
        drain(reader, 1)
        member_id = reader.memberid()
        store.add(Rule("put", "groups/*", Fault.error_before(), 2))
        eventually(lambda: store.effects[Effect.ERROR_BEFORE] == 2 and store.operations["put"] > 8)
        assert [m.offset() for m in drain(reader, 2)] == [1, 2]
        assert reader.memberid() == member_id


def test_a_join_with_unknown_outcome_is_retried_without_an_error(root, monkeypatch):
    topic(root)
    fill(root, 1)
    change, tries = GroupLog.change, []

    def first_without_an_answer(self, operation, *arguments):
        head = change(self, operation, *arguments)
        if operation == "JOIN":
            tries.append(head)
            if len(tries) == 1:
                raise OutcomeUnknown("no answer", token="0:x")
        return head

    monkeypatch.setattr(GroupLog, "change", first_without_an_answer)
    with consumer(root) as reader:
        reader.subscribe(["t"])
        assert next_message(reader).value() == b"v0"
        assert len(tries) == 2
        assert len(GroupLog(open_store(root), "g").head().members) == 1


def test_a_member_that_cannot_write_heartbeats_stops_delivering(root):
    topic(root)
    fill(root, 3)
    store = FaultyStore(open_store(root))
    errors: list[KafkaError] = []
    conf = {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest"} | SHORT
    with Consumer(conf, store=store, error_cb=errors.append) as reader:
        reader.subscribe(["t"])
        drain(reader, 1)
        store.add(Rule("put", "groups/*", Fault.error_before(), EVER))
        eventually(lambda: reader.memberid() is None)
        assert reader.poll(0.01) is None
        assert held(reader) == []
        eventually(lambda: reader.poll(0.01) is None and errors)
        assert {error.name() for error in errors} == {"_TRANSPORT", "_ALL_BROKERS_DOWN"}
        store.clear()
        assert [m.offset() for m in drain(reader, 2)] in ([0, 1], [1, 2])


def test_a_group_that_the_store_refuses_is_asked_at_the_pace_of_heartbeats_however_busy_its_topics(
    root,
):
    topic(root)
    store = FaultyStore(open_store(root), Rule("put", "groups/*", Fault.refused(), EVER))
    clock, refusals = SystemClock(), 0
    conf = {"bootstrap.servers": root, "group.id": "g"} | QUICK | {"heartbeat.interval.ms": 200}
    with (
        Consumer(conf, store=store) as reader,
        Producer(bootstrap_servers=root, linger_ms=0) as producer,
    ):
        reader.subscribe(["t"])
        began = clock.monotonic()
        while refusals < 4:
            producer.produce("t", b"x")
            producer.flush()
            try:
                reader.poll(0.005)
            except KafkaException as error:
                refusals += error.error.code() == KafkaError._TRANSPORT
        assert clock.monotonic() - began > 0.55, "an interval between each two of them"


class Suspended(SystemClock):
    """The clock of a machine that was suspended for `slept` seconds."""

    slept = 0.0

    def uptime(self) -> float:
        return super().uptime() + self.slept


def test_the_time_between_polls_counts_from_the_first_one():
    """As in Kafka: a program may take its time between `subscribe` and the first `poll`."""
    clock, store = Suspended(), MemoryStore("test")
    member = new_member(session_timeout_ms=30_000)
    membership = new_membership(store, clock, member, 0.02, max_poll_interval_s=10.0)
    membership.begin()
    eventually(lambda: membership.view)

    def beats() -> bytes:
        return store.get(f"groups/g/_members/{membership.session.member_id}")

    seen = [beats()]
    for _ in range(2):  # the first one may have begun before the clock went on
        clock.slept += 11.0
        eventually(lambda: beats() != seen[-1], "a heartbeat")
        seen.append(beats())
    assert (membership.problem(), membership.view is None) == ("", False)
    membership.polled()
    clock.slept += 11.0
    eventually(lambda: "max.poll.interval.ms" in membership.problem())
    assert membership.view is None
    membership.close()


@pytest.mark.fault("C4")
def test_a_suspended_machine_counts_as_silence():
    clock, store = Suspended(), MemoryStore("test")
    membership = new_membership(store, clock, new_member(session_timeout_ms=30_000), 10.0)
    membership.begin()
    eventually(lambda: membership.view)
    clock.slept = 31.0
    assert membership.view is None, "before any thread has run again"
    membership.close()


def test_heartbeats_leave_nothing_behind(root):
    topic(root)
    store = open_store(root)
    with consumer(root) as reader:
        reader.subscribe(["t"])
        await_assignment(reader, [("t", 0)])
        assert len(list(store.list("groups/g/_members/"))) == 1
        before = reader.memberid()
        put_out(root, reader)
        eventually(lambda: reader.memberid() not in (None, before), "it is another member")
        await_assignment(reader, [("t", 0)])
        assert len(list(store.list("groups/g/_members/"))) == 1
    assert list(store.list("groups/g/_members/")) == []


def test_groups_do_not_disturb_each_other(root):
    topic(root)
    fill(root, 3)
    with consumer(root, group__id="a") as one, consumer(root, group__id="b") as two:
        one.subscribe(["t"])
        two.subscribe(["t"])
        assert [m.offset() for m in drain(one, 3)] == [0, 1, 2]
        assert [m.offset() for m in drain(two, 3)] == [0, 1, 2]


def test_a_damaged_group_is_reported_with_its_path(root):
    topic(root)
    with consumer(root) as reader:
        reader.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    open_store(root).put("groups/g/_delta_log/00000000000000000001.json", b"{")
    with consumer(root) as reader:
        reader.subscribe(["t"])
        with pytest.raises(
            KafkaException, match=r"groups/g/_delta_log/0+1\.json \(version 1\)"
        ) as caught:
            next_message(reader)
        assert caught.value.args[0] == KafkaError._BAD_MSG
