"""Committed offsets: every way to commit, as the real client does it; and never to the wrong topic
or out of order.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from deltalake import DeltaTable

from deltaq import (
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    Fenced,
    InvalidConfig,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    Topic,
    TopicPartition,
    Unavailable,
    UnknownTopic,
    WrongState,
)
from deltaq.groups.log import GroupLog
from deltaq.groups.offset_commits import OffsetCommitter
from deltaq.groups.offsets import ToCommit
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from tests.doubles.reading import TIMEOUT_S, drain, eventually, next_message


def topic(root: str, partitions: int = 1) -> Topic:
    return Topic("t", partitions=partitions, conf={"bootstrap.servers": root}).create()


def fill(root: str, count: int, start: int = 0) -> None:
    with Producer(bootstrap_servers=root, linger_ms=60_000) as producer:  # one commit
        for number in range(start, start + count):
            producer.produce("t", f"v{number}", partition=0)


def consumer(root: str, group: str = "g", **conf: Any) -> Consumer:
    base: dict[str, object] = {
        "bootstrap.servers": root,
        "group.id": group,
        "auto.offset.reset": "earliest",
    }
    base["enable.auto.commit"] = False
    return Consumer(base | {key.replace("__", "."): value for key, value in conf.items()})


def tp(
    partition: int = 0, offset: int = OFFSET_INVALID, metadata: str | None = None, name: str = "t"
):
    return TopicPartition(name, partition, offset, metadata)


def committed(root: str, partition: int = 0, group: str = "g") -> int:
    with consumer(root, group) as reader:
        return reader.committed([tp(partition)])[0].offset


def raised(call) -> str:
    with pytest.raises(KafkaException) as caught:
        call()
    return caught.value.error.name()


# --- commit ---


def test_every_form_of_commit_commits_its_offsets(root):
    topic(root, 2)
    fill(root, 5)
    with consumer(root) as reader:
        reader.subscribe(["t"])
        assert raised(lambda: reader.commit(asynchronous=False)) == "_NO_OFFSET"
        first, _, _ = drain(reader, 3)
        assert [p.offset for p in reader.commit(message=first, asynchronous=False)] == [1]
        assert [(p.partition, p.offset) for p in reader.commit(asynchronous=False)] == [
            (0, 3),
            (1, OFFSET_INVALID),
        ]
        assert raised(lambda: reader.commit(asynchronous=False)) == "_NO_OFFSET", "nothing new"
        assert [p.offset for p in reader.commit(offsets=[tp(0, 1)], asynchronous=False)] == [1]
        assert [p.offset for p in reader.committed([tp(0), tp(1)])] == [1, OFFSET_INVALID]
        assert [p.offset for p in reader.commit(offsets=[tp(0, 9999)], asynchronous=False)] == [
            9999
        ]
        (noted,) = reader.commit(offsets=[tp(0, 2, "hello")], asynchronous=False)
        assert (noted.offset, noted.metadata) == (2, "hello")
        (read_back,) = reader.committed([tp(0)])
        assert (read_back.offset, read_back.metadata) == (2, "hello")
        assert raised(lambda: reader.commit(offsets=[], asynchronous=False)) == "_NO_OFFSET"
        assert (
            raised(lambda: reader.commit(offsets=[tp(0, -5)], asynchronous=False)) == "_NO_OFFSET"
        )
        assert reader.commit() is None
        legacy: dict[str, Any] = {"async": False}
        assert reader.commit(offsets=[tp(0, 4)], **legacy) == [tp(0)]


def test_an_asynchronous_commit_of_nothing_is_reported_to_on_commit(root):
    topic(root, 2)
    results: list[tuple[str, list[tuple[int, int]]]] = []

    def on_commit(error: KafkaError, partitions: list[TopicPartition]) -> None:
        results.append((error.name(), [(p.partition, p.offset) for p in partitions]))

    with consumer(root, on_commit=on_commit) as reader:
        assert reader.commit() is None
        reader.assign([tp(0, 0), tp(1, 0)])
        assert [reader.commit(), reader.commit(offsets=[]), reader.commit(offsets=[tp(0)])] == [
            None
        ] * 3
        reader.poll(0)
    # As confluent-kafka with a broker.
    nothing = OFFSET_INVALID
    assert results == [
        ("_NO_OFFSET", found) for found in ([], [(0, nothing), (1, nothing)], [], [(0, nothing)])
    ]


def test_a_commit_fails_for_unknown_partitions_only(root):
    topic(root, 2)
    with consumer(root) as reader:
        with pytest.raises(UnknownTopic) as caught:
            reader.commit(offsets=[tp(0, 1, name="nope")], asynchronous=False)
        assert caught.value.args[0] == KafkaError.UNKNOWN_TOPIC_OR_PART
        with pytest.raises(UnknownTopic):
            reader.commit(offsets=[tp(9, 1)], asynchronous=False)
        unknown, known = reader.commit(offsets=[tp(9, 1), tp(1, 7)], asynchronous=False)
        assert unknown.error == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert known.error is None
        assert reader.committed([tp(1)])[0].offset == 7


def test_an_unknown_partition_has_no_committed_offset(root):
    topic(root)
    with consumer(root) as reader:
        nope, missing, none = reader.committed([tp(0, name="nope"), tp(5), tp(0)], timeout=5)
    assert (nope.offset, nope.error) == (OFFSET_INVALID, None)
    assert missing.offset == OFFSET_INVALID
    assert missing.error == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert (none.offset, none.error) == (OFFSET_INVALID, None)


def test_committed_offsets_of_many_partitions_are_read_once_per_topic():
    store = FaultyStore(MemoryStore("test"))
    Topic("t", partitions=50, store=store).create()
    with Consumer({"bootstrap.servers": "memory://unused", "group.id": "g"}, store=store) as reader:
        reader.committed([tp()])
        before = store.operations.total()
        assert [p.offset for p in reader.committed([tp(n) for n in range(50)])] == [
            OFFSET_INVALID
        ] * 50
        assert store.operations.total() - before <= 3, (
            "the topic's next entry, also in its archive, and the group's"
        )


def test_a_message_that_was_not_consumed_can_be_committed_by_its_offset(root):
    topic(root)
    with consumer(root) as reader:
        assert reader.commit(message=Message("t", 0, 41), asynchronous=False)[0].offset == 42
        with pytest.raises(InvalidConfig):
            reader.commit(message=Message("t", 0))


def test_the_next_consumer_starts_at_the_committed_offsets(root):
    topic(root)
    fill(root, 6)
    for expected in (0, 2, 4):
        with consumer(root) as reader:
            reader.assign([tp()])
            assert [m.offset() for m in drain(reader, 2)] == [expected, expected + 1]
            reader.commit(asynchronous=False)


def test_any_delta_client_can_look_up_a_committed_offset(tmp_path):
    root = str(tmp_path)
    handle = topic(root, 2)
    with consumer(root) as reader:
        reader.commit(offsets=[tp(0, 5), tp(1, 7, "a note")], asynchronous=False)
        reader.commit(offsets=[tp(0, 6)], asynchronous=False)
    table = DeltaTable(str(tmp_path / "groups" / "g"))
    topic_id = handle.describe().topic_id
    assert table.transaction_version(f"t/{topic_id}/0") == 6
    assert table.transaction_version(f"t/{topic_id}/1") == 7
    assert table.to_pyarrow_table().num_rows == 0


# --- in the background ---


def test_an_asynchronous_commit_is_reported_from_poll(root):
    topic(root)
    fill(root, 2)
    seen = []
    threads = []

    def on_commit(error, partitions):
        threads.append(threading.get_ident())
        seen.append((error, [(p.partition, p.offset, p.error) for p in partitions]))

    with consumer(root, on_commit=on_commit) as reader:
        reader.assign([tp()])
        drain(reader, 2)
        assert reader.commit() is None
        eventually(lambda: committed(root) == 2)
        assert seen == [], "never outside of poll"
        eventually(lambda: reader.poll(0.01) is None and seen)
        reader.commit(offsets=[tp(0, 5, name="nope")])
        eventually(lambda: reader.poll(0.01) is None and len(seen) == 2)
    assert seen[0] == (None, [(0, 2, None)])
    assert seen[1] == (KafkaError.UNKNOWN_TOPIC_OR_PART, [(0, 5, KafkaError.UNKNOWN_TOPIC_OR_PART)])
    assert set(threads) == {threading.get_ident()}


def test_an_asynchronous_commit_copies_its_argument():
    store = FaultyStore(MemoryStore("test"))
    Topic("t", store=store).create()
    seen: list[list[TopicPartition]] = []
    conf = {"bootstrap.servers": "memory://unused", "group.id": "g", "enable.auto.commit": False}
    position, nowhere = tp(0, 5), tp(0, 5, name="nope")
    with Consumer(
        conf, store=store, on_commit=lambda error, partitions: seen.append(partitions)
    ) as reader:
        store.add(Rule("create", "groups/*", Fault.slow(), times=1))
        reader.commit(offsets=[tp(0, 4)])
        eventually(lambda: store.blocked == 1)
        reader.commit(offsets=[position])
        position.offset = 77  # where the program will be soon
        store.release()
        reader.commit(offsets=[nowhere])
    assert [(p.offset, p.error) for (p,) in seen] == [
        (4, None),
        (5, None),
        (5, KafkaError.UNKNOWN_TOPIC_OR_PART),
    ]
    assert nowhere.error is None


def test_commits_take_effect_in_call_order(root):
    topic(root)
    seen = []
    with consumer(
        root, on_commit=lambda error, partitions: seen.append(partitions[0].offset)
    ) as reader:
        for offset in range(1, 20):
            reader.commit(offsets=[tp(0, offset)])
        reader.commit(offsets=[tp(0, 20)], asynchronous=False)
        assert reader.committed([tp(0)])[0].offset == 20
    assert seen == list(range(1, 20)), "what was queued is told by close at the latest"
    assert committed(root) == 20


def test_close_commits_queued_offsets(root):
    topic(root)
    with consumer(root) as reader:
        reader.commit(offsets=[tp(0, 3)])
    assert committed(root) == 3


@pytest.mark.fault("R6")
@pytest.mark.parametrize("how", ["subscribe", "assign"])
def test_close_commits_exactly_the_delivered_records(root, how):
    topic(root)
    fill(root, 6)
    with consumer(root, enable__auto__commit=True) as reader:
        if how == "subscribe":
            reader.subscribe(["t"])
        else:
            reader.assign([tp()])
        drain(reader, 4)
    assert committed(root) == 4


@pytest.mark.fault("R6")
def test_auto_commit_commits_at_its_interval_without_any_call(root):
    topic(root)
    fill(root, 3)
    seen = []
    conf: dict[str, Any] = {"enable__auto__commit": True, "auto__commit__interval__ms": 20}
    with consumer(
        root, on_commit=lambda error, partitions: seen.append(partitions), **conf
    ) as reader:
        reader.subscribe(["t"])
        # In one call, so that no interval ends between them.
        assert len(reader.consume(2, TIMEOUT_S)) == 2
        eventually(lambda: committed(root) == 2)
        drain(reader, 1)
        eventually(lambda: committed(root) == 3)
        eventually(lambda: reader.poll(0.01) is None and len(seen) == 2)
        assert reader.poll(0.1) is None
    assert [partitions[0].offset for partitions in seen] == [2, 3], "nothing new, nothing to commit"


def test_auto_commit_keeps_its_interval_while_the_application_commits_too():
    clock = ManualClock()
    store = MemoryStore("test", clock)
    log = GroupLog(store, "g", clock)
    asked, stored = [ToCommit(tp(0, 1), "id")], [ToCommit(tp(1, 7), "id")]
    seen: list[int] = []
    committer = OffsetCommitter(
        log,
        lambda: None,
        lambda _: None,
        lambda: stored,
        lambda _, done: seen.append(done[0].partition),
        5.0,
        clock,
    )
    committer.begin()
    try:
        for number in range(1, 4):  # every two seconds, so that five never pass between two of them
            clock.until_waiting()
            clock.advance(2)
            committer.commit_later(asked)
            eventually(lambda: seen.count(0) == number)  # noqa: B023 - it is called before the next one
        eventually(lambda: 1 in seen)
    finally:
        committer.close()
    assert seen.count(1) == 1, "nothing new, nothing to commit"


def test_without_auto_commit_nothing_is_committed(root):
    topic(root)
    fill(root, 3)
    with consumer(root) as reader:
        reader.subscribe(["t"])
        drain(reader, 3)
    assert committed(root) == OFFSET_INVALID


# --- store_offsets: the strict recipe ---


@pytest.mark.fault("R6")
def test_only_stored_offsets_are_committed_without_automatic_storing(root):
    topic(root)
    fill(root, 6)
    with consumer(root, enable__auto__offset__store=False, enable__auto__commit=True) as reader:
        reader.subscribe(["t"])
        messages = drain(reader, 4)
        assert raised(lambda: reader.commit(asynchronous=False)) == "_NO_OFFSET"
        reader.store_offsets(offsets=[tp(0, 3)])
        assert reader.commit(asynchronous=False)[0].offset == 3
        with pytest.raises(WrongState, match=r"t\[5\] is not assigned"):
            reader.store_offsets(offsets=[tp(5, 3)])
        assert (
            raised(lambda: reader.store_offsets(offsets=[tp(0, 3, name="other")]))
            == "_UNKNOWN_PARTITION"
        )
        # Stores what is assigned.
        reader.store_offsets(offsets=[tp(0, 3, name="other"), tp(0, 2), tp(5, 3)])
        assert [(p.topic, p.offset) for p in reader.commit(asynchronous=False)] == [("t", 2)]
        reader.store_offsets(offsets=[])
        wrong: list[dict[str, Any]] = [{}, {"message": messages[0], "offsets": [tp(0, 1)]}]
        for arguments in wrong:
            with pytest.raises(ValueError, match="either message or offsets"):
                reader.store_offsets(**arguments)
        reader.store_offsets(message=messages[3])
    assert committed(root) == 4


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (tp(0, 2**63 - 1), "beyond the last"),
        (tp(-1, 3), "is negative"),
        (tp(0, 3, name="no/topic"), "topic name"),
    ],
)
def test_an_invalid_offset_is_not_stored_and_nothing_beside_it(wrong, what, root):
    topic(root)
    with consumer(root, enable__auto__offset__store=False) as reader:
        reader.assign([tp(0, 0)])
        with pytest.raises(InvalidConfig, match=what):
            reader.store_offsets(offsets=[tp(0, 1), wrong])
        assert raised(lambda: reader.commit(asynchronous=False)) == "_NO_OFFSET"


@pytest.mark.parametrize("nothing", [OFFSET_INVALID, OFFSET_END, -2, -1000, -5])
def test_storing_an_invalid_offset_changes_nothing(nothing, root):
    topic(root, 2)
    fill(root, 3)
    with consumer(root, enable__auto__offset__store=False) as reader:
        reader.assign([tp(0, 0), tp(1, 0)])
        drain(reader, 2)
        reader.store_offsets(offsets=[tp(0, nothing)])
        assert raised(lambda: reader.commit(asynchronous=False)) == "_NO_OFFSET"
        # Of partition 1 nothing has come.
        reader.store_offsets(offsets=reader.position(reader.assignment()))
        results = reader.commit(asynchronous=False)
        assert [(p.partition, p.offset) for p in results] == [(0, 2), (1, OFFSET_INVALID)]
        reader.store_offsets(offsets=[tp(0, nothing)])
        assert raised(lambda: reader.commit(asynchronous=False)) == "_NO_OFFSET"
    assert (committed(root), committed(root, 1)) == (2, OFFSET_INVALID)


def test_storing_by_hand_and_automatically_exclude_each_other(root):
    topic(root)
    with consumer(root) as reader:
        assert raised(lambda: reader.store_offsets(offsets=[tp(0, 1)])) == "_INVALID_ARG"


def test_an_offset_that_was_stored_before_anything_was_read_is_committed_once(root):
    topic(root)
    fill(root, 3)
    seen = []
    conf: dict[str, Any] = {
        "enable__auto__commit": True,
        "auto__commit__interval__ms": 10,
        "enable__auto__offset__store": False,
    }
    with consumer(
        root, on_commit=lambda error, partitions: seen.append(partitions), **conf
    ) as reader:
        reader.assign([tp(0, 0)])
        reader.store_offsets(offsets=[tp(0, 2)])
        eventually(lambda: reader.commit(offsets=[tp(0, 2)], asynchronous=False))
        for _ in range(20):
            reader.poll(0.01)
    assert len(seen) <= 1


# --- topics that were deleted and created again ---


@pytest.mark.fault("R8")
def test_offsets_of_a_deleted_topic_do_not_apply_to_the_next_one_of_its_name(root):
    handle = topic(root)
    fill(root, 3)
    with consumer(root) as reader:
        reader.subscribe(["t"])
        assert [m.offset() for m in drain(reader, 3)] == [0, 1, 2]
        reader.commit(asynchronous=False)
        handle.delete()
        message = next_message(reader)
        assert (message.error(), message.topic()) == (KafkaError.UNKNOWN_TOPIC_OR_PART, "t")
        eventually(lambda: reader.poll(0) is None and reader.assignment() == [])
        topic(root)
        fill(root, 2, start=10)
        assert [(m.offset(), m.value()) for m in drain(reader, 2)] == [(0, b"v10"), (1, b"v11")]
        assert reader.committed([tp(0)])[0].offset == OFFSET_INVALID
        assert reader.commit(asynchronous=False)[0].offset == 2
    assert committed(root) == 2


@pytest.mark.fault("R8")
def test_records_of_a_deleted_topic_are_not_committed_for_its_successor(root):
    handle = topic(root)
    fill(root, 3)
    with consumer(root, enable__auto__commit=True) as reader:
        reader.assign([tp(0, 0)])
        messages = drain(reader, 2)
        handle.delete()
        topic(root)
        fill(root, 5, start=10)
        eventually(lambda: reader.get_watermark_offsets(tp(), cached=True) == (0, 5))
        reader.commit(message=messages[1], asynchronous=False)
    assert committed(root) == OFFSET_INVALID, "not 2: that would skip records of the new topic"


@pytest.mark.fault("R8")
def test_a_late_stored_message_of_a_deleted_topic_is_not_committed_for_its_successor(root):
    handle = topic(root)
    fill(root, 3)
    with consumer(root, enable__auto__offset__store=False) as reader:
        reader.assign([tp(0, 0)])
        *_, last = drain(reader, 3)
        handle.delete()
        topic(root)
        fill(root, 5, start=10)
        while next_message(reader).value() != b"v10":
            pass
        reader.store_offsets(message=last)
        reader.commit(asynchronous=False)
    assert committed(root) == OFFSET_INVALID, "not 3: that would skip records of the new topic"


@pytest.mark.fault("R8")
def test_a_call_returns_records_of_one_of_two_topics_of_a_name(root):
    """Else an offset that the application commits by name could be of either."""
    handle = topic(root)
    fill(root, 3)
    with consumer(root) as reader:
        reader.assign([tp(0, 0)])
        assert next_message(reader).offset() == 0  # the others are fetched with it
        handle.delete()
        topic(root)
        fill(root, 5, start=10)
        eventually(lambda: reader.get_watermark_offsets(tp(), cached=True) == (0, 5))
        # A slow store shows the reader that there is no such topic for a moment: an event.
        first = [message for message in reader.consume(10, 2) if message.error() is None]
        assert [message.value() for message in first] == [b"v1", b"v2"]
        reader.commit(offsets=[tp(0, 3)], asynchronous=False)
        assert committed(root) == OFFSET_INVALID, "not 3: that would skip records of the new topic"
        found: list[Message] = []
        while len(found) < 5:
            found += [m for m in reader.consume(5, 1) if m.error() is None]
        assert [m.value() for m in found] == [b"v%d" % number for number in range(10, 15)]
        reader.commit(offsets=[tp(0, 5)], asynchronous=False)
    assert committed(root) == 5


def test_a_topic_replaced_between_two_polls_is_read_from_its_start(root):
    handle = topic(root)
    fill(root, 3)
    with consumer(root, auto__offset__reset="latest") as reader:
        reader.assign([tp(0, 3)])
        eventually(
            lambda: reader.get_watermark_offsets(tp(), cached=True) == (0, 3),
            "the end of the first topic",
        )
        assert reader.poll(0.05) is None
        handle.delete()
        topic(root)
        fill(root, 5, start=10)
        found = [m for m in drain(reader, 5) if m.error() is None]
        while len(found) < 5:
            found += [m for m in drain(reader, 1) if m.error() is None]
    assert [(m.offset(), m.value()) for m in found] == [
        (n, f"v{10 + n}".encode()) for n in range(5)
    ]


# --- when it cannot be done ---


def test_a_commit_fails_as_a_whole_when_the_store_refuses(root):
    store = FaultyStore(MemoryStore("test"))
    Topic("t", store=store).create()
    seen = []
    conf = {"bootstrap.servers": "memory://unused", "group.id": "g", "enable.auto.commit": False}
    with Consumer(conf, store=store, on_commit=lambda *r: seen.append(r)) as reader:
        store.add(Rule("create", "groups/*", Fault.refused(), times=2))
        assert raised(lambda: reader.commit(offsets=[tp(0, 1)], asynchronous=False)) == "_TRANSPORT"
        reader.commit(offsets=[tp(0, 2)])
        eventually(lambda: reader.poll(0.01) is None and seen)
        ((error, partitions),) = seen
        assert error == KafkaError._TRANSPORT
        assert [(p.offset, p.error) for p in partitions] == [(2, KafkaError._TRANSPORT)]
        assert reader.committed([tp(0)])[0].offset == OFFSET_INVALID
        reader.commit(offsets=[tp(0, 3)], asynchronous=False)
        assert reader.committed([tp(0)])[0].offset == 3


@pytest.mark.fault("R5")
def test_a_lost_answer_does_not_fail_a_commit(root):
    store = FaultyStore(MemoryStore("test"))
    Topic("t", store=store).create()
    with Consumer(bootstrap_servers="memory://unused", group_id="g", store=store) as reader:
        store.add(Rule("create", "groups/*", Fault.error_after()))
        assert reader.commit(offsets=[tp(0, 1)], asynchronous=False)[0].offset == 1
        assert reader.committed([tp(0)])[0].offset == 1
        assert len(list(store.list("groups/g/_delta_log/"))) == 1, "it was not written again"


@pytest.mark.fault("R3")
def test_a_consumer_that_is_no_member_cannot_commit_to_a_group_with_members(root):
    topic(root)
    fill(root, 3)
    with consumer(root, heartbeat__interval__ms=100) as member, consumer(root) as outsider:
        member.subscribe(["t"])
        drain(member, 1)
        with pytest.raises(Fenced, match=r"is subscribed with group\.id 'g'") as caught:
            outsider.commit(offsets=[tp(0, 3)], asynchronous=False)
        assert caught.value.args[0] == KafkaError.UNKNOWN_MEMBER_ID
        assert outsider.committed([tp(0)])[0].offset == OFFSET_INVALID
        member.commit(asynchronous=False)
        assert outsider.committed([tp(0)])[0].offset == 1
        member.unsubscribe()
        outsider.commit(offsets=[tp(0, 3)], asynchronous=False)
        assert outsider.committed([tp(0)])[0].offset == 3


# --- metadata ---


@pytest.mark.parametrize("text", ["", "a note", "\u00e9", None])
def test_metadata_is_read_back_as_it_was_committed(root, text):
    topic(root)
    with consumer(root) as reader:
        for earlier in ("before", text):
            reader.commit(offsets=[TopicPartition("t", 0, 1, earlier)], asynchronous=False)
        assert [tp.metadata for tp in reader.committed([tp(0)])] == [text]


def test_metadata_that_is_too_long_refuses_its_own_partition_only(root):
    """As a broker does, whose offset.metadata.max.bytes is 4096."""
    topic(root, 2)
    long = TopicPartition("t", 0, 1, "x" * 4097)
    results: list[tuple[KafkaError | None, list[KafkaError | None]]] = []
    with consumer(
        root, on_commit=lambda error, found: results.append((error, [tp.error for tp in found]))
    ) as reader:
        with pytest.raises(KafkaException, match="topic 't' has 4,097 characters") as caught:
            reader.commit(offsets=[long], asynchronous=False)
        assert caught.value.args[0] == KafkaError.OFFSET_METADATA_TOO_LARGE
        refused, kept = reader.commit(offsets=[long, tp(1, 7)], asynchronous=False)
        assert refused.error == KafkaError.OFFSET_METADATA_TOO_LARGE
        assert kept.error is None
        assert [place.offset for place in reader.committed([tp(0), tp(1)])] == [OFFSET_INVALID, 7]
        for offsets in ([long, tp(1, 8)], [long]):
            reader.commit(offsets=offsets)
        eventually(lambda: reader.poll(0.01) is None and len(results) == 2)
        assert reader.committed([tp(1)])[0].offset == 8
    too_large = KafkaError.OFFSET_METADATA_TOO_LARGE
    assert results == [(None, [too_large, None]), (too_large, [too_large])]


@pytest.mark.parametrize(
    ("text", "error"), [("a\0b", ValueError), ("\ud800", UnicodeEncodeError), (5, TypeError)]
)
def test_metadata_that_cannot_be_kept_is_refused(text, error):
    with pytest.raises(error):
        TopicPartition("t", 0, 1, text)
    partition = TopicPartition("t", 0, 1, "note")
    with pytest.raises(error):
        partition.metadata = text
    assert partition.metadata == "note"


# --- what a closed consumer, and a store that does not answer, say ---


def test_a_closed_consumer_can_be_entered_and_only_its_calls_are_refused(memory_root):
    reader = consumer(memory_root)
    reader.close()
    with reader, pytest.raises(RuntimeError, match="Consumer closed"):
        reader.poll(0)


def test_a_store_that_does_not_answer_is_a_time_out_for_queries():
    store = FaultyStore(
        MemoryStore("silent"),
        *(Rule(op, "*", Fault.error_before(), times=None) for op in ("get", "list")),
    )
    with Consumer({"bootstrap.servers": "memory://unused", "group.id": "g"}, store=store) as reader:
        for ask in (
            lambda: reader.committed([tp(0)], 5),
            lambda: reader.get_watermark_offsets(tp(0), 5),
            lambda: reader.offsets_for_times([tp(0, 0)], 5),
        ):
            with pytest.raises(Unavailable) as caught:
                ask()
            assert caught.value.error.code() == KafkaError._TIMED_OUT
