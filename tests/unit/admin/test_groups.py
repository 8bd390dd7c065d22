"""Consumer groups through the admin client, against observations of a real cluster (confluent-kafka
2.16, Kafka 4).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

import deltaq.admin
from deltaq import Consumer, KafkaError, KafkaException, Topic, TopicPartition
from deltaq.admin import (
    AdminClient,
    ConsumerGroupListing,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
)
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.rebalance import joined, strategies
from deltaq.groups.state import Member, MemberIdentity
from deltaq.names import group_folder, log_entry, member_key
from deltaq.store import MemoryStore, open_store
from deltaq.testing import ManualClock
from tests.doubles.consuming import consumer, fill, topic, tp
from tests.doubles.groups import partition_counts
from tests.doubles.reading import drain

NAME: Any = 5  # where a string is due
RANGE = strategies(["range"])

# What a real cluster answered, without the texts of errors. Its `host` is an address: `/127.0.0.1`.
OBSERVED: dict[str, dict[str, Any]] = {
    "group_description": {
        "assignor": "range",
        "authorized_operations": None,
        "closed": ["EMPTY", [], ""],
        "coordinator": True,
        "listed": [["STABLE", "CLASSIC", False]],
        "member": {
            "assignment": [0, 1],
            "client_id": "cl",
            "id_prefix": True,
            "instance": None,
            "target": None,
        },
        "memberid_matches": True,
        "members": 1,
        "old_list_groups": [["Stable", "consumer", "range", 1]],
        "simple": False,
        "state": "STABLE",
        "type": "CLASSIC",
        "unknown": ["DEAD", []],
    },
    "group_offsets": {
        "after_alter": [("t", 0, 2)],
        "after_delete": [],
        "alter_active": [("t", 0, 2, "UNKNOWN_MEMBER_ID")],
        "alter_empty": [("t", 0, 2)],
        "alter_new_group": [("t", 0, 1)],
        "alter_past_end": [("t", 0, 999)],
        "alter_unknown_topic": [("nope", 0, 1, "UNKNOWN_TOPIC_OR_PART")],
        "asked": [("t", 0, 5), ("t", 1, -1001)],
        "committed_all": [("t", 0, 5)],
        "delete": None,
        "delete_active": "NON_EMPTY_GROUP",
        "delete_again": "GROUP_ID_NOT_FOUND",
        "new_group_state": "EMPTY",
        "none_committed_all": [],
        "none_committed_asked": [("t", 0, -1001), ("t", 1, -1001)],
        "resumes": [2],
        "unknown_group": [],
    },
}


@pytest.fixture
def admin(root) -> Iterator[AdminClient]:
    with AdminClient({"bootstrap.servers": root}) as client:
        yield client


def outcome(future: Future[Any]) -> str | None:
    """The name of a future's error; None if it has succeeded."""
    error = future.exception(30)
    if error is None:
        return None
    assert isinstance(error, KafkaException)
    return str(error.args[0].name())


def shown(partitions: list[TopicPartition] | None) -> list[tuple[Any, ...]]:
    assert partitions is not None
    return [
        (tp.topic, tp.partition, tp.offset, *([] if tp.error is None else [tp.error.name()]))
        for tp in sorted(partitions, key=lambda tp: tp.partition)
    ]


def listed(
    admin: AdminClient, group: str, asked: list[TopicPartition] | None = None
) -> list[tuple[Any, ...]]:
    future = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, asked)])[group]
    return shown(future.result(30).topic_partitions)


def altered(
    admin: AdminClient, group: str, *wanted: TopicPartition, timeout: float = 60
) -> list[tuple[Any, ...]]:
    request = [ConsumerGroupTopicPartitions(group, list(wanted))]
    future = admin.alter_consumer_group_offsets(request, request_timeout=timeout)[group]
    return shown(future.result(30).topic_partitions)


def removed(admin: AdminClient, group: str, *wanted: TopicPartition) -> list[tuple[Any, ...]]:
    future = admin.delete_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, list(wanted))]
    )[group]
    return shown(future.result(30).topic_partitions)


def state(admin: AdminClient, group: str) -> str:
    return admin.describe_consumer_groups([group])[group].result(30).state.name


def quick(root: str, group: str = "g", **conf: object) -> Consumer:
    """A consumer whose heartbeats a test need not wait for long."""
    return consumer(root, group, heartbeat__interval__ms=50, session__timeout__ms=6000, **conf)


# --- as observed ---


def test_a_group_is_described_and_listed_as_by_kafka(root, admin):
    topic(root, partitions=2)
    fill(root, 3)
    reader = quick(root, client__id="cl")
    reader.subscribe(["t"])
    drain(reader, 3)
    reader.commit(asynchronous=False)
    group = admin.describe_consumer_groups(["g"])["g"].result(30)
    (member,) = group.members
    found = {
        "assignor": group.partition_assignor,
        "authorized_operations": group.authorized_operations,
        "coordinator": group.coordinator is not None,
        "member": {
            "assignment": [tp.partition for tp in member.assignment.topic_partitions],
            "client_id": member.client_id,
            "id_prefix": member.member_id.startswith("cl-"),
            "instance": member.group_instance_id,
            "target": member.target_assignment,
        },
        "memberid_matches": member.member_id == reader.memberid(),
        "members": len(group.members),
        "simple": group.is_simple_consumer_group,
        "state": group.state.name,
        "type": group.type.name,
        "listed": [
            [entry.state.name, entry.type.name, entry.is_simple_consumer_group]
            for entry in admin.list_consumer_groups().result(30).valid
            if entry.group_id == "g"
        ],
        "old_list_groups": [
            [entry.state, entry.protocol_type, entry.protocol, len(entry.members)]
            for entry in admin.list_groups("g", timeout=30)
        ],
    }
    reader.close()
    group = admin.describe_consumer_groups(["g"])["g"].result(30)
    found["closed"] = [group.state.name, group.members, group.partition_assignor]
    group = admin.describe_consumer_groups(["nope"])["nope"].result(30)
    found["unknown"] = [group.state.name, group.members]
    assert found == OBSERVED["group_description"]


def test_committed_offsets_are_listed_altered_and_deleted_as_by_kafka(root, admin):
    topic(root, partitions=2)
    fill(root, 5)
    reader = quick(root)
    reader.subscribe(["t"])
    drain(reader, 5)
    found: dict[str, Any] = {
        "none_committed_all": listed(admin, "g"),
        "none_committed_asked": listed(admin, "g", [tp(0), tp(1)]),
    }
    reader.commit(asynchronous=False)
    found["committed_all"] = listed(admin, "g")
    found["asked"] = listed(admin, "g", [tp(0), tp(1)])
    found["alter_active"] = altered(admin, "g", tp(0, 2))
    found["delete_active"] = outcome(admin.delete_consumer_groups(["g"])["g"])
    reader.close()
    found["alter_empty"] = altered(admin, "g", tp(0, 2))
    found["after_alter"] = listed(admin, "g")
    with quick(root) as again:
        again.subscribe(["t"])
        found["resumes"] = [message.offset() for message in drain(again, 1)]
    found["alter_past_end"] = altered(admin, "g", tp(0, 999))
    found["alter_unknown_topic"] = altered(admin, "g", tp(0, 1, "nope"))
    found["alter_new_group"] = altered(admin, "new", tp(0, 1))
    found["new_group_state"] = state(admin, "new")
    found["unknown_group"] = listed(admin, "nope")
    found["delete"] = outcome(admin.delete_consumer_groups(["g"])["g"])
    found["delete_again"] = outcome(admin.delete_consumer_groups(["g"])["g"])
    found["after_delete"] = listed(admin, "g")
    assert found == OBSERVED["group_offsets"]


def test_a_group_that_only_assigned_consumers_commit_to_is_empty(root, admin):
    topic(root)
    fill(root, 6)
    with quick(root) as reader:
        reader.assign([tp()])
        assert [message.offset() for message in drain(reader, 2)] == [0, 1]
        reader.commit(asynchronous=False)
    assert state(admin, "g") == "EMPTY"
    with quick(root) as reader:
        reader.assign([tp()])
        assert [message.offset() for message in drain(reader, 1)] == [2]
    assert admin.describe_consumer_groups(["g"])["g"].result(30).is_simple_consumer_group


def test_an_outsiders_commit_is_refused_and_reads_as_none(root, admin):
    topic(root)
    fill(root, 1)
    with quick(root) as member, quick(root) as outsider:
        member.subscribe(["t"])
        drain(member, 1)
        outsider.assign([tp()])
        drain(outsider, 1)
        with pytest.raises(KafkaException) as caught:
            outsider.commit(asynchronous=False)
        assert caught.value.args[0] == KafkaError.UNKNOWN_MEMBER_ID
        assert listed(admin, "g", [tp()]) == [("t", 0, -1001)]


# --- names and arguments ---


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ConsumerGroupState, confluent_kafka.ConsumerGroupState),
        (ConsumerGroupType, confluent_kafka.ConsumerGroupType),
    ],
)
def test_states_and_types_have_the_names_numbers_and_order_of_the_real_client(ours, theirs):
    assert {name: value.value for name, value in ours.__members__.items()} == {
        name: value.value for name, value in theirs.__members__.items()
    }
    assert [value.name for value in sorted(ours)] == [value.name for value in sorted(theirs)]


@pytest.mark.parametrize(
    "name",
    [
        "ConsumerGroupDescription",
        "ConsumerGroupListing",
        "ListConsumerGroupsResult",
        "MemberAssignment",
        "MemberDescription",
        "ConsumerGroupTopicPartitions",
    ],
)
def test_requests_and_results_have_the_fields_of_the_real_client(name):
    theirs = getattr(confluent_kafka.admin, name, None) or getattr(confluent_kafka, name)
    ours = getattr(deltaq.admin, name)
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


@pytest.mark.parametrize("name", ["GroupMember", "GroupMetadata"])
def test_groups_of_the_old_call_have_the_attributes_of_the_real_client(name):
    theirs = vars(getattr(confluent_kafka.admin, name)())
    assert theirs.keys() == set(inspect.signature(getattr(deltaq.admin, name)).parameters)


WRONG: list[tuple[str, tuple[Any, ...], type[Exception]]] = [
    ("describe_consumer_groups", ("g",), TypeError),
    ("describe_consumer_groups", ([],), ValueError),
    ("describe_consumer_groups", ([5],), TypeError),
    ("delete_consumer_groups", ("g",), TypeError),
    ("delete_consumer_groups", ([],), ValueError),
    ("consumer_group_lag", ([],), ValueError),
    ("list_consumer_group_offsets", (None,), TypeError),
    ("list_consumer_group_offsets", ([],), ValueError),
    ("list_consumer_group_offsets", (["g"],), TypeError),
    ("list_consumer_group_offsets", ([ConsumerGroupTopicPartitions(NAME)],), TypeError),
    ("list_consumer_group_offsets", ([ConsumerGroupTopicPartitions("")],), ValueError),
    ("list_consumer_group_offsets", ([ConsumerGroupTopicPartitions("g", [])],), ValueError),
    ("list_consumer_group_offsets", ([ConsumerGroupTopicPartitions("g", (tp(),))],), TypeError),  # type: ignore[arg-type]
    ("list_consumer_group_offsets", ([ConsumerGroupTopicPartitions("g", [tp(0, 5)])],), ValueError),
    ("list_consumer_group_offsets", ([ConsumerGroupTopicPartitions("g", [tp(-1)])],), ValueError),
    (
        "list_consumer_group_offsets",
        ([ConsumerGroupTopicPartitions("g", [tp(0, name="")])],),
        ValueError,
    ),
    ("alter_consumer_group_offsets", ([ConsumerGroupTopicPartitions("g")],), ValueError),
    ("alter_consumer_group_offsets", ([ConsumerGroupTopicPartitions("g", [tp()])],), ValueError),
    ("alter_consumer_group_offsets", ([ConsumerGroupTopicPartitions("g", [NAME])],), TypeError),
    ("delete_consumer_group_offsets", ([ConsumerGroupTopicPartitions("g")],), ValueError),
    (
        "delete_consumer_group_offsets",
        ([ConsumerGroupTopicPartitions("g", [tp(0, 5)])],),
        ValueError,
    ),
]


@pytest.mark.parametrize(("name", "arguments", "error"), WRONG)
def test_a_wrong_call_is_refused_before_any_io_as_by_the_real_client(name, arguments, error):
    with AdminClient({"bootstrap.servers": "/nowhere/at/all"}) as admin, pytest.raises(error):
        getattr(admin, name)(*arguments)


@pytest.mark.parametrize(
    ("filters", "error"),
    [
        ({"states": [ConsumerGroupState.EMPTY]}, TypeError),
        ({"states": {"EMPTY"}}, TypeError),
        ({"types": ConsumerGroupType.CLASSIC}, TypeError),
        ({"types": {ConsumerGroupState.EMPTY}}, TypeError),
        ({"request_timeout": -1}, ValueError),
    ],
)
def test_a_wrong_filter_is_refused(filters, error):
    with AdminClient({"bootstrap.servers": "/nowhere/at/all"}) as admin, pytest.raises(error):
        admin.list_consumer_groups(**filters)


def test_a_group_id_that_no_group_can_have_is_refused_with_kafkas_code(admin):
    futures = [
        admin.describe_consumer_groups(["a/b"])["a/b"],
        admin.delete_consumer_groups(["a/b"])["a/b"],
        admin.consumer_group_lag(["a/b"])["a/b"],
        admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("a/b")])["a/b"],
    ]
    assert [outcome(future) for future in futures] == ["INVALID_GROUP_ID"] * len(futures)


def test_an_offset_of_more_than_64_bits_is_refused_before_any_io():
    request = [ConsumerGroupTopicPartitions("g", [TopicPartition("t", 0, 2**63)])]
    with (
        AdminClient({"bootstrap.servers": "/nowhere/at/all"}) as admin,
        pytest.raises(ValueError, match=r"below 2\^63"),
    ):
        admin.alter_consumer_group_offsets(request)


@pytest.mark.parametrize("call", ["alter_consumer_group_offsets", "delete_consumer_group_offsets"])
def test_a_partition_named_twice_is_refused(root, admin, call):
    topic(root)
    offset = 1 if call.startswith("alter") else -1001
    request = [ConsumerGroupTopicPartitions("g", [tp(0, offset), tp(0, offset)])]
    assert outcome(getattr(admin, call)(request)["g"]) == "_INVALID_ARG"


def test_metadata_that_is_too_long_refuses_its_own_partition_only(root, admin):
    topic(root, partitions=2)
    long = TopicPartition("t", 0, 1, "x" * 4097)
    request = [ConsumerGroupTopicPartitions("g", [long, tp(1, 7)])]
    refused, kept = admin.alter_consumer_group_offsets(request)["g"].result(30).topic_partitions
    assert (refused.error, kept.error) == (KafkaError.OFFSET_METADATA_TOO_LARGE, None)
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("g")])["g"]
    assert [(of.partition, of.offset) for of in found.result(30).topic_partitions] == [(1, 7)]


# --- lists ---


def test_groups_are_filtered_by_state_and_type(root, admin):
    topic(root)
    fill(root, 1)
    altered(admin, "empty", tp(0, 1))
    altered(admin, "deleted", tp(0, 1))
    assert outcome(admin.delete_consumer_groups(["deleted"])["deleted"]) is None

    def names(**filters: Any) -> set[str]:
        return {entry.group_id for entry in admin.list_consumer_groups(**filters).result(30).valid}

    with quick(root, "stable") as reader:
        reader.subscribe(["t"])
        drain(reader, 1)
        assert names() == {"empty", "stable"}
        assert names(states={ConsumerGroupState.STABLE}) == {"stable"}
        assert names(states={ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD}) == {"empty"}
        assert names(types={ConsumerGroupType.CLASSIC}) == {"empty", "stable"}
        assert names(types={ConsumerGroupType.CONSUMER}) == set()
        assert names(types=set(), states=None) == {"empty", "stable"}
        assert {entry.id for entry in admin.list_groups()} == {"empty", "stable"}
        assert admin.list_groups("deleted") == []


def test_a_group_that_cannot_be_read_is_among_the_errors_and_the_others_are_listed(memory_root):
    topic(memory_root)
    with AdminClient({"bootstrap.servers": memory_root}) as admin:
        altered(admin, "sound", tp(0, 1))
        altered(admin, "damaged", tp(0, 1))
        store = open_store(memory_root)
        store.put(log_entry(group_folder("damaged") + "_delta_log/", 0), b"{")
        result = admin.list_consumer_groups().result(30)
        assert result.valid == [ConsumerGroupListing("sound", True, ConsumerGroupState.EMPTY)]
        assert [error.args[0].name() for error in result.errors] == ["_BAD_MSG"]
        assert {entry.id: entry.error is None for entry in admin.list_groups()} == {
            "damaged": False,
            "sound": True,
        }


def test_a_root_without_groups_has_none(admin):
    result = admin.list_consumer_groups().result(30)
    assert (result.valid, result.errors) == ([], [])
    assert admin.list_groups() == []


# --- members ---


def join(log: GroupLog, name: str, member: Member, partitions: int) -> None:
    """Join a group that reads topic `t`."""
    log.change(
        "JOIN",
        MemberIdentity(name, -1),
        lambda head: joined(head, name, member, partition_counts(t=partitions), (), RANGE),
        float("inf"),
    )


def test_a_group_rebalances_while_a_partition_waits_for_its_owner(memory_root):
    topic(memory_root, partitions=2)
    log = GroupLog(open_store(memory_root), "g")
    first = Member(("t",), "a", "host-a", 45_000, protocols=(("range", ""),))
    second = Member(("t",), "b", "host-b", 45_000, instance_id="i", protocols=(("range", ""),))
    for name, member in (("a", first), ("b", second)):
        join(log, name, member, 2)
    with AdminClient({"bootstrap.servers": memory_root}) as admin:
        group = admin.describe_consumer_groups(["g"])["g"].result(30)
        assert group.state is ConsumerGroupState.PREPARING_REBALANCING
        assert [entry.state for entry in admin.list_groups()] == ["PreparingRebalance"]
        found = [
            (
                member.member_id,
                member.host,
                member.group_instance_id,
                [tp.partition for tp in member.assignment.topic_partitions],
                member.target_assignment
                and [tp.partition for tp in member.target_assignment.topic_partitions],
            )
            for member in group.members
        ]
        assert found == [("a", "host-a", None, [0, 1], [1]), ("b", "host-b", "i", [], [0])]


class Ticking(ManualClock):
    """A clock on which each sleep passes at once."""

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)


def group_of_the_dead(store: MemoryStore, clock: ManualClock, other_session_s: int = 10) -> None:
    """A group with an offset of topic `t`, whose two members have sent their last heartbeat."""
    Topic("t", store=store, clock=clock).create()
    Topic("u", store=store, clock=clock).create()
    log = GroupLog(store, "g", clock)
    for name, session_s in (("a", 10), ("b", other_session_s)):
        member = Member(("t",), name, "host", session_s * 1000, protocols=(("range", ""),))
        store.put(member_key("g", name), b"1")
        join(log, name, member, 1)
    for name in ("t", "u"):
        described = Topic(name, store=store, clock=clock).describe()
        log.commit(
            MemberIdentity("a", log.head().generation),
            [CommittedOffset(name, described.topic_id, 0, 7)],
            float("inf"),
        )


CHANGES: list[Callable[[AdminClient], object]] = [
    lambda admin: admin.delete_consumer_groups(["g"])["g"].result(30),
    lambda admin: altered(admin, "g", tp(0, 2)) == [("t", 0, 2)] or pytest.fail("not altered"),
    lambda admin: removed(admin, "g", tp(0)) == [("t", 0, -1001)] or pytest.fail("not removed"),
]


class Beating(Ticking):
    """While time passes, member `b` sends heartbeats, the first one after `silence_s`."""

    store: MemoryStore
    silence_s = 0.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.silence_s -= seconds
        if self.silence_s <= 0:
            self.store.put(member_key("g", "b"), str(self.monotonic()).encode())


@pytest.mark.fault("R7")
@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda admin: outcome(admin.delete_consumer_groups(["g"])["g"]), "NON_EMPTY_GROUP"),
        (lambda admin: altered(admin, "g", tp(0, 2)), [("t", 0, 2, "UNKNOWN_MEMBER_ID")]),
        (lambda admin: removed(admin, "g", tp(0)), [("t", 0, -1001, "GROUP_SUBSCRIBED_TO_TOPIC")]),
    ],
    ids=["delete", "alter", "delete offsets"],
)
@pytest.mark.parametrize("silence_s", [0, 12])
def test_one_living_member_keeps_the_group_as_it_is(change, answer, silence_s):
    store, clock = MemoryStore("beating"), Beating()
    group_of_the_dead(store, clock, other_session_s=30)
    clock.store, clock.silence_s = store, silence_s
    before = GroupLog(store, "g", clock).state()
    with AdminClient({"bootstrap.servers": store.url}, store=store, clock=clock) as admin:
        began_at = clock.monotonic()
        assert change(admin) == answer
        assert clock.monotonic() - began_at <= silence_s + 1, "its heartbeat is seen at once"
    assert GroupLog(store, "g", clock).state() == before
    assert len(list(store.list("groups/g/_members/"))) == 2


@pytest.mark.parametrize("change", CHANGES, ids=["delete", "alter", "delete offsets"])
def test_dead_members_delay_a_change_by_their_session_timeout_and_no_longer(change):
    store, clock = MemoryStore("dead"), Ticking()
    group_of_the_dead(store, clock)
    with AdminClient({"bootstrap.servers": store.url}, store=store, clock=clock) as admin:
        began_at = clock.monotonic()
        change(admin)
        assert 10 <= clock.monotonic() - began_at <= 11
        assert GroupLog(store, "g", clock).head().members == {}
        assert list(store.list("groups/g/_members/")) == []


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (
            lambda admin: outcome(admin.delete_consumer_groups(["g"], request_timeout=5)["g"]),
            "NON_EMPTY_GROUP",
        ),
        (
            lambda admin: altered(admin, "g", tp(0, 2), timeout=5),
            [("t", 0, 2, "UNKNOWN_MEMBER_ID")],
        ),
    ],
)
def test_a_change_is_refused_if_the_time_is_too_short_to_find_members_dead(change, answer):
    store, clock = MemoryStore("brief"), Ticking()
    group_of_the_dead(store, clock)
    with AdminClient({"bootstrap.servers": store.url}, store=store, clock=clock) as admin:
        assert change(admin) == answer
        assert GroupLog(store, "g", clock).head().members.keys() == {"a", "b"}


# --- offsets ---


def test_offsets_of_subscribed_topics_stay_and_those_of_others_are_deleted(root, admin):
    topic(root)
    topic(root, "u")
    fill(root, 3)
    altered(admin, "g", tp(0, 1), tp(0, 1, "u"))
    with quick(root) as reader:
        reader.subscribe(["t"])
        drain(reader, 1)
        assert sorted(removed(admin, "g", tp(0), tp(0, name="u"), tp(7), tp(0, name="nope"))) == [
            ("nope", 0, -1001, "UNKNOWN_TOPIC_OR_PART"),
            ("t", 0, -1001, "GROUP_SUBSCRIBED_TO_TOPIC"),
            ("t", 7, -1001, "UNKNOWN_TOPIC_OR_PART"),
            ("u", 0, -1001),
        ]
        assert listed(admin, "g") == [("t", 0, 1)]
    assert removed(admin, "g", tp(0)) == [("t", 0, -1001)]
    assert state(admin, "g") == "DEAD"
    request = [ConsumerGroupTopicPartitions("g", [tp(0)])]
    assert outcome(admin.delete_consumer_group_offsets(request)["g"]) == "GROUP_ID_NOT_FOUND"


def test_deleting_an_offset_of_a_topic_that_no_member_reads_does_not_wait_for_dead_members():
    store, clock = MemoryStore("other"), Ticking()
    group_of_the_dead(store, clock)
    with AdminClient({"bootstrap.servers": store.url}, store=store, clock=clock) as admin:
        before = clock.monotonic()
        assert removed(admin, "g", tp(0, name="u")) == [("u", 0, -1001)]
        assert clock.monotonic() == before
        assert GroupLog(store, "g", clock).head().members.keys() == {"a", "b"}
        assert listed(admin, "g") == [("t", 0, 7)]


def test_metadata_of_an_altered_offset_is_kept(root, admin):
    topic(root)
    altered(admin, "g", TopicPartition("t", 0, 3, "by hand"))
    future = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("g")])["g"]
    assert [entry.metadata for entry in future.result(30).topic_partitions] == ["by hand"]


def test_a_part_of_the_partitions_is_altered_if_others_do_not_exist(root, admin):
    topic(root)
    assert altered(admin, "g", tp(0, 3), tp(1, 3)) == [
        ("t", 0, 3),
        ("t", 1, 3, "UNKNOWN_TOPIC_OR_PART"),
    ]
    assert listed(admin, "g") == [("t", 0, 3)]


def test_offsets_of_a_topic_that_was_created_again_are_not_listed(root, admin):
    created = topic(root)
    altered(admin, "g", tp(0, 3))
    created.delete()
    assert listed(admin, "g") == []
    topic(root)
    assert listed(admin, "g") == []
    assert listed(admin, "g", [tp()]) == [("t", 0, -1001)]


def test_a_deleted_group_begins_anew(root, admin):
    topic(root)
    fill(root, 3)
    altered(admin, "g", tp(0, 2))
    assert outcome(admin.delete_consumer_groups(["g"])["g"]) is None
    assert state(admin, "g") == "DEAD"
    with quick(root) as reader:
        reader.subscribe(["t"])
        assert [message.offset() for message in drain(reader, 3)] == [0, 1, 2]
        reader.commit(asynchronous=False)
    assert listed(admin, "g") == [("t", 0, 3)]
    assert state(admin, "g") == "EMPTY"


@pytest.mark.fault("R7")
def test_a_member_that_is_alive_is_found_soon_and_keeps_its_offsets(root, admin):
    topic(root)
    fill(root, 2)
    with quick(root) as reader:
        reader.subscribe(["t"])
        drain(reader, 2)
        reader.commit(asynchronous=False)
        future = admin.delete_consumer_groups(["g"])["g"]
        assert outcome(future) == "NON_EMPTY_GROUP"
        assert listed(admin, "g") == [("t", 0, 2)]
        reader.commit(offsets=[tp(0, 1)], asynchronous=False)
        assert listed(admin, "g") == [("t", 0, 1)]


# --- lag ---


def test_each_partition_has_its_lag_and_its_owner(root, admin):
    topic(root, partitions=2)
    topic(root, "u")
    fill(root, 10)
    fill(root, 4, "u")
    altered(admin, "g", tp(0, 1, "u"))
    with quick(root, client__id="cl") as reader:
        reader.subscribe(["t"])
        drain(reader, 3)
        reader.commit(offsets=[tp(0, 3)], asynchronous=False)
        found = admin.consumer_group_lag(["g"])["g"].result(30)
        assert found.state is ConsumerGroupState.STABLE
        owner = reader.memberid()
        assert [
            (
                entry.topic,
                entry.partition,
                entry.committed,
                entry.start_offset,
                entry.end_offset,
                entry.lag,
            )
            for entry in found.partitions
        ] == [("t", 0, 3, 0, 10, 7), ("t", 1, None, 0, 0, 0), ("u", 0, 1, 0, 4, 3)]
        assert [(entry.member_id, entry.client_id) for entry in found.partitions] == [
            (owner, "cl"),
            (owner, "cl"),
            (None, None),
        ]
        assert found.lag == 10


def test_a_committed_offset_past_the_end_is_no_negative_lag(root, admin):
    topic(root, partitions=2)
    fill(root, 5)
    altered(admin, "g", tp(0, 999), tp(1, 0))
    found = admin.consumer_group_lag(["g"])["g"].result(30)
    assert [(entry.committed, entry.lag) for entry in found.partitions] == [(999, 0), (0, 0)]


def test_a_group_that_does_not_exist_has_no_lag(admin):
    found = admin.consumer_group_lag(["nope"])["nope"].result(30)
    assert (found.state, found.partitions, found.lag) == (ConsumerGroupState.DEAD, [], None)


def test_the_lag_of_a_group_without_commits_in_a_partition_with_records_is_unknown(root, admin):
    topic(root, partitions=3)
    fill(root, 10)
    with quick(root) as reader:
        reader.subscribe(["t"])
        drain(reader, 3)
        found = admin.consumer_group_lag(["g"])["g"].result(30)
        assert ([entry.lag for entry in found.partitions], found.lag) == ([None, 0, 0], None)
        reader.commit(offsets=[tp(1, 0)], asynchronous=False)
        assert admin.consumer_group_lag(["g"])["g"].result(30).lag is None
        reader.commit(offsets=[tp(0, 4)], asynchronous=False)
        assert admin.consumer_group_lag(["g"])["g"].result(30).lag == 6


def test_the_lag_of_a_partly_committed_group_without_members_is_unknown(root, admin):
    topic(root, partitions=2)
    fill(root, 5)
    altered(admin, "g", tp(1, 0))
    found = admin.consumer_group_lag(["g"])["g"].result(30)
    assert ([(entry.partition, entry.lag) for entry in found.partitions], found.lag) == (
        [(0, None), (1, 0)],
        None,
    )


def test_a_deleted_topic_has_no_lag(root, admin):
    created = topic(root)
    fill(root, 2)
    with quick(root) as reader:
        reader.subscribe(["t"])
        drain(reader, 2)
        reader.commit(asynchronous=False)
        created.delete()
        found = admin.consumer_group_lag(["g"])["g"].result(30)
        assert found.partitions == []
