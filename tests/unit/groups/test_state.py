"""The membership of a group as text: written, read again, of an earlier format, and damaged."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from deltaq import Corrupt, Fenced, GroupInUse, Incompatible, KafkaError
from deltaq.delta.actions import DomainMetadata
from deltaq.delta.table_state import TableState, restored_state
from deltaq.groups.state import (
    NO_MEMBER,
    GroupHead,
    Member,
    MemberIdentity,
    Owner,
    PartitionCount,
    check_may_commit,
    check_no_members,
    check_not_in_use,
    group_head,
    matching,
    not_a_member,
    parse_head,
)
from tests.doubles.groups import new_member, partition_counts

PATH = "groups/g/"
ALICE = Member(
    ("t", "^u"),
    "alice",
    "host-a",
    45_000,
    rebalance_timeout_ms=300_000,
    instance_id="static-a",
    protocols=(("sticky", ""), ("range", "AAE=")),
    assignment="AAI=",
    heartbeat="process-1",
    joined=3,
)
BOB = new_member("bob", 10_000, joined=2)
HEAD = GroupHead(
    7,
    {"a": ALICE, "b": BOB},
    "range",
    {"t": PartitionCount(2, 17, 1_700_000_000_000), "u": PartitionCount(1, 0)},
    {"a": frozenset({("t", 0), ("u", 0)}), "b": frozenset({("t", 1)})},
    {("t", 0): Owner("a", 3), ("t", 1): Owner("a", 3), ("u", 0): Owner("a", 5)},
)


def head_of(body: str) -> GroupHead:
    return group_head(restored_state(7, [DomainMetadata("deltaq", body)]), PATH)


def test_a_group_that_was_never_used_is_empty():
    assert group_head(TableState(), PATH) == GroupHead(0, {})
    assert GroupHead().leader is None
    assert GroupHead().is_stable()


def test_a_head_is_the_same_after_it_was_written_and_read():
    assert parse_head(HEAD.action().configuration, PATH) == HEAD
    assert parse_head(GroupHead(4).action().configuration, PATH) == GroupHead(4)


def test_the_preference_of_assignors_is_kept():
    read = parse_head(HEAD.action().configuration, PATH).members["a"]
    assert read.protocols == (("sticky", ""), ("range", "AAE="))


def test_the_members_are_readable_json():
    assert json.loads(HEAD.action().configuration) == {
        "format": 2,
        "generation": 7,
        "protocolType": "consumer",
        "protocol": "range",
        "leader": "b",
        "partitions": {"t": [2, 17, 1700000000000], "u": [1, 0, 0]},
        "members": {
            "a": {
                "topics": ["t", "^u"],
                "client": "alice",
                "host": "host-a",
                "session": 45_000,
                "rebalance": 300_000,
                "instance": "static-a",
                "protocolType": "consumer",
                "protocols": {"sticky": "", "range": "AAE="},
                "assignment": "AAI=",
                "heartbeat": "process-1",
                "joined": 3,
                "assigned": {"t": [0], "u": [0]},
                "owned": {"t": [[0, 3], [1, 3]], "u": [[0, 5]]},
            },
            "b": {
                "topics": ["t"],
                "client": "bob",
                "host": "host",
                "session": 10_000,
                "rebalance": 0,
                "instance": None,
                "protocolType": "consumer",
                "protocols": {"range": ""},
                "assignment": "",
                "heartbeat": "",
                "joined": 2,
                "assigned": {"t": [1]},
                "owned": {},
            },
        },
    }


def test_a_group_of_format_1_is_read():
    body = {"topics": ["t"], "client": "alice", "host": "host-a", "session": 45_000}
    head = head_of(json.dumps({"format": 1, "generation": 4, "members": {"a": body}}))
    alice = Member(("t",), "alice", "host-a", 45_000, rebalance_timeout_ms=45_000)
    assert head == GroupHead(4, {"a": alice}, assigned={"a": frozenset()}, format=1)
    assert head_of('{"format":1,"generation":5,"members":{}}') == GroupHead(5, format=1)


def test_fields_that_a_later_version_adds_are_ignored():
    body = json.loads(HEAD.action().configuration) | {"later": 1}
    body["members"]["a"]["later"] = 1
    assert head_of(json.dumps(body)) == HEAD


MEMBER = '{"topics":["t"],"client":"c","host":"h","session":1%s}'


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        '{"format":1}',
        '{"format":1,"generation":1,"members":{"a":{}}}',
        '{"format":1,"generation":1,"members":{"a":[]}}',
        '{"format":1,"generation":1,"members":{"a":{"topics":1,"client":"c","host":"h","session":1}}}',
        '{"format":1,"generation":1,"members":{"a":{"topics":[],"client":"c","host":"h"}}}',
        '{"format":1,"generation":1,"members":{"a":{"topics":[],"client":"c","host":"h","session":0}}}',
        '{"format":1,"generation":1,"members":{"a":{"topics":[],"client":"c","host":"h","session":true}}}',
        '{"format":1,"generation":1,"generation":2,"members":{}}',
        '{"format":2,"members":{}}',
        '{"format":2,"generation":"x","members":{}}',
        '{"format":2,"generation":null,"members":{}}',
        '{"format":2,"generation":1,"members":{},"partitions":[1]}',
        '{"format":2,"generation":1,"members":{},"partitions":{"t":[-1,0,0]}}',
        '{"format":2,"generation":1,"members":{},"partitions":{"t":[true,0,0]}}',
        '{"format":2,"generation":1,"members":{},"partitions":{"t":[1,-1,0]}}',
        '{"format":2,"generation":1,"members":{},"partitions":{"t":[1000000000,0,0]}}',
        '{"format":2,"generation":1,"members":{"a":%s}}' % (MEMBER % ',"protocols":["range"]'),
        '{"format":2,"generation":1,"members":{"a":%s}}' % (MEMBER % ',"joined":"x"'),
        '{"format":2,"generation":1,"members":{"a":%s}}' % (MEMBER % ',"rebalance":null'),
        '{"format":2,"generation":1,"members":{"a":%s}}' % (MEMBER % ',"assigned":[0]'),
        '{"format":2,"generation":1,"members":{"a":%s}}' % (MEMBER % ',"assigned":{"t":[-1]}'),
        '{"format":2,"generation":1,"members":{"a":%s}}' % (MEMBER % ',"assigned":{"t":["0"]}'),
        '{"format":2,"generation":1,"members":{"a":%s}}' % (MEMBER % ',"owned":{"t":[0]}'),
        '{"format":2,"generation":1,"members":{"a":%s}}' % (MEMBER % ',"owned":{"t":[[0,-1]]}'),
        '{"format":2,"generation":1,"members":{"a":%s}}' % (MEMBER % ',"owned":{"t":[[0,1,2]]}'),
        '{"format":2,"generation":1,"members":{"a":%s}}' % (MEMBER.replace('"t"', "1") % ""),
        '{"format":2,"generation":1,"members":{"a":%s}}' % (MEMBER.replace('"t"', '"^["') % ""),
        '{"format":2,"generation":1,"members":{"a":%s,"b":%s}}'
        % ((MEMBER % ',"owned":{"t":[[0,1]]}',) * 2),
    ],
)
def test_a_damaged_group_is_refused_with_path_and_version(body):
    with pytest.raises(Corrupt, match=r"groups/g/ \(version 7\)"):
        head_of(body)


@pytest.mark.parametrize("format_of_group", ["3", "0", '"2"', "null", "true"])
def test_a_newer_group_is_refused_with_its_path(format_of_group):
    with pytest.raises(Incompatible, match="groups/g/"):
        head_of('{"generation":1,"members":{},"format":' + format_of_group + "}")


def test_the_leader_is_the_oldest_member_and_of_two_the_first_by_id():
    assert GroupHead(1, {"b": BOB, "a": ALICE}).leader == "b"
    assert GroupHead(1, {"b": BOB, "a": BOB}).leader == "a"


def test_owned_partitions_are_those_of_the_member_alone():
    assert HEAD.owned("a") == {("t", 0), ("t", 1), ("u", 0)}
    assert HEAD.owned("b") == frozenset()


def test_a_group_is_stable_once_each_partition_is_owned_by_the_member_it_is_assigned_to():
    assert not HEAD.is_stable(), "t[1] is assigned to b, and a owns it"
    assigned = {"a": frozenset({("t", 0)})}
    assert GroupHead(
        1, {"a": ALICE}, assigned=assigned, owners={("t", 0): Owner("a", 1)}
    ).is_stable()
    assert not GroupHead(1, {"a": ALICE}, assigned=assigned).is_stable()
    assert not GroupHead(1, {"a": ALICE}, owners={("t", 0): Owner("a", 1)}).is_stable()


def test_a_static_member_is_found_by_its_instance_id():
    assert HEAD.instance("static-a") == "a"
    assert HEAD.instance("static-b") is None
    assert HEAD.instance(None) is None, "which is the instance id of member b"


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        (["orders"], {"orders"}),
        (["orders", "absent"], {"orders"}),
        (["^ord"], {"orders", "orders-eu"}),
        (["^.*-eu$", "users"], {"orders-eu", "users"}),
        (["^"], {"orders", "orders-eu", "users"}),
        (["ord"], set()),
    ],
)
def test_a_subscription_names_or_matches_existing_topics(topics, expected):
    assert matching(topics, ["orders", "orders-eu", "users"]) == expected


# --- what the log of a group refuses ---


ANN, BEN = new_member("alice"), new_member("bob", instance_id="static-b")
OWNED_HEAD = GroupHead(
    9,
    {"a": ANN, "b": BEN},
    partition_counts=partition_counts(t=4),
    assigned={"a": frozenset({("t", 0), ("t", 1)}), "b": frozenset({("t", 2)})},
    owners={("t", 0): Owner("a", 1), ("t", 1): Owner("b", 5), ("t", 2): Owner("b", 7)},
)


@pytest.mark.parametrize(
    ("identity", "partitions"),
    [
        (MemberIdentity("a", 9), [0]),
        (
            MemberIdentity("a", 1),
            [0],
        ),  # older than many rebalances, none of which has moved the partition
        (MemberIdentity("b", 5), [1]),  # assigned to another member, and not released yet
        (MemberIdentity("b", 7), [1, 2]),
        (MemberIdentity("b", 7, "static-b"), [1, 2]),
        (MemberIdentity("a", 9), [3]),  # has no owner
        (MemberIdentity("a", -1), [3, 17]),
        (MemberIdentity("a", 9), []),
    ],
)
def test_the_owner_of_the_partitions_may_commit(identity, partitions):
    check_may_commit(OWNED_HEAD, "g", identity, [("t", partition) for partition in partitions])


@pytest.mark.fault("R3")
@pytest.mark.parametrize(
    ("identity", "partitions", "code", "texts"),
    [
        (
            MemberIdentity("a", 0),
            [0],
            KafkaError.ILLEGAL_GENERATION,
            ["generation 0", "t[0]", "another member", "'g'"],
        ),
        (MemberIdentity("b", 4), [1], KafkaError.ILLEGAL_GENERATION, ["generation 4", "t[1]"]),
        (MemberIdentity("b", 6), [1, 2], KafkaError.ILLEGAL_GENERATION, ["generation 6", "t[2]"]),
        (MemberIdentity("a", 9), [1], KafkaError.ILLEGAL_GENERATION, ["t[1]", "another member"]),
        (MemberIdentity("a", 9), [0, 3, 2], KafkaError.ILLEGAL_GENERATION, ["t[2]"]),
        (
            MemberIdentity("c", 9),
            [0],
            KafkaError.UNKNOWN_MEMBER_ID,
            ["removed from group 'g'", "session.timeout.ms"],
        ),
        (MemberIdentity("c", 9), [3], KafkaError.UNKNOWN_MEMBER_ID, ["removed from group 'g'"]),
        (MemberIdentity("c", 9), [], KafkaError.UNKNOWN_MEMBER_ID, ["removed from group 'g'"]),
        (
            MemberIdentity("c", 9, "static-c"),
            [0],
            KafkaError.UNKNOWN_MEMBER_ID,
            ["removed from group 'g'"],
        ),
        (NO_MEMBER, [3], KafkaError.UNKNOWN_MEMBER_ID, ["not a member of group 'g'", "poll()"]),
    ],
)
def test_a_commit_by_another_member_or_of_an_earlier_ownership_is_refused(
    identity, partitions, code, texts
):
    with pytest.raises(Fenced) as caught:
        check_may_commit(OWNED_HEAD, "g", identity, [("t", partition) for partition in partitions])
    assert caught.value.args[0] == code
    assert not caught.value.error.fatal()
    for text in texts:
        assert text in caught.value.error.str()


def test_a_static_member_that_another_consumer_has_replaced_is_fenced_for_good():
    with pytest.raises(Fenced) as caught:
        check_may_commit(OWNED_HEAD, "g", MemberIdentity("former-b", 8, "static-b"), [("t", 1)])
    assert caught.value.args[0] == KafkaError.FENCED_INSTANCE_ID
    assert caught.value.error.fatal()
    for text in ("'g'", "group.instance.id 'static-b'"):
        assert text in caught.value.error.str()


@pytest.mark.fault("R3")
def test_a_commit_into_a_partition_that_came_back_needs_the_newer_generation():
    """The member has lost the partition and got it again: records read before are those of the
    earlier ownership.
    """
    for since, may in ((5, True), (6, False)):
        head = replace(OWNED_HEAD, owners={("t", 0): Owner("a", since)})
        if may:
            check_may_commit(head, "g", MemberIdentity("a", 5), [("t", 0)])
        else:
            with pytest.raises(Fenced):
                check_may_commit(head, "g", MemberIdentity("a", 5), [("t", 0)])


def test_a_former_member_learns_whether_it_may_join_again():
    assert not not_a_member(OWNED_HEAD, "g", None).error.fatal()
    assert not not_a_member(OWNED_HEAD, "g", "static-c").error.fatal()
    assert not_a_member(OWNED_HEAD, "g", "static-b").error.fatal()


def test_an_outside_commit_is_refused_while_a_member_is_not_dead():
    with pytest.raises(Fenced) as caught:
        check_no_members(OWNED_HEAD, "g", ["a"])
    assert caught.value.args[0] == KafkaError.UNKNOWN_MEMBER_ID
    assert not caught.value.error.fatal()
    for text in (
        "'g'",
        "assign()",
        "'bob' on host 'host'",
        "member id 'b'",
        "another group.id",
        "45 s",
    ):
        assert text in caught.value.error.str()
    check_no_members(OWNED_HEAD, "g", ["b", "a", "c"])
    check_no_members(GroupHead(4), "g", [])


def test_offsets_are_deleted_only_while_all_members_are_dead():
    with pytest.raises(GroupInUse, match="consumer 'alice' on host 'host'") as caught:
        check_not_in_use(OWNED_HEAD, "g", [])
    assert caught.value.group == "g"
    assert caught.value.args[0] == KafkaError.NON_EMPTY_GROUP
    assert not caught.value.error.retriable()
    with pytest.raises(GroupInUse, match="consumer 'bob'"):
        check_not_in_use(OWNED_HEAD, "g", ["a"])
    check_not_in_use(OWNED_HEAD, "g", ["a", "b"])
    check_not_in_use(GroupHead(4), "g", [])
