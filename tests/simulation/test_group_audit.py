"""The audit of groups finds each breach of their rules in hand-made logs and histories, and no
other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from deltaq import names
from deltaq.testing import ManualClock
from tests.checker.history import Operation
from tests.checker.history import SeenRecord as Seen
from tests.simulation.audit.group import (
    IN_FLIGHT_S,
    MOVE_S,
    GroupAudit,
    GroupEntry,
    audit_group,
)
from tests.simulation.audit.hand_over import STOP_S, check_hand_overs, check_once
from tests.simulation.audit.oracle import Place, WrittenRecord
from tests.simulation.audit.topic import Audit, Removal
from tests.simulation.scenario import GROUP
from tests.simulator.disk import Disk

SESSION_S = 6.0


def member(
    client: str, assigned: Iterable[int], owned: dict[int, int], instance: str | None = None
) -> dict[str, Any]:
    """A member of topic `t`; `owned` has the generation since when, by partition."""
    return {
        "client": client,
        "topics": ["t"],
        "session": int(SESSION_S * 1000),
        "instance": instance,
        "assigned": {"t": list(assigned)},
        "owned": {"t": [[partition, since] for partition, since in owned.items()]},
    }


def head(generation: int, **members: dict[str, Any]) -> dict[str, Any]:
    """The head of a group of topic `t` with two partitions; the members are called a_1, b_1 ..."""
    of = {name.replace("_", "-"): body for name, body in members.items()}
    return {"generation": generation, "partitions": {"t": [2, 0, 0]} if of else {}, "members": of}


def clean() -> list[GroupEntry]:
    """Member a has both partitions, and gives one to b, which leaves; then a leaves."""

    def entry(
        version: int,
        operation: str,
        by: str,
        generation: int,
        offsets: dict[int, int] | None = None,
        state: dict[str, Any] | None = None,
    ) -> GroupEntry:
        committed = {f"t/id/{partition}": offset for partition, offset in (offsets or {}).items()}
        return GroupEntry(version, float(version), operation, by, generation, committed, state)

    return [
        entry(0, "JOIN", "", -1, {}, head(1, a_1=member("a", [0, 1], {0: 1, 1: 1}))),
        entry(1, "COMMIT OFFSETS", "a-1", 1, {0: 5, 1: 5}),
        entry(
            2,
            "JOIN",
            "",
            -1,
            {},
            head(2, a_1=member("a", [0], {0: 1, 1: 1}), b_1=member("b", [1], {})),
        ),
        entry(
            3,
            "RELEASE",
            "a-1",
            2,
            {1: 7},
            head(2, a_1=member("a", [0], {0: 1}), b_1=member("b", [1], {1: 2})),
        ),
        entry(4, "COMMIT OFFSETS", "b-1", 2, {1: 8}),
        entry(5, "LEAVE", "b-1", 2, {1: 9}, head(3, a_1=member("a", [0, 1], {0: 1, 1: 3}))),
        entry(6, "COMMIT OFFSETS", "a-1", 3, {0: 6, 1: 10}),
        entry(7, "LEAVE", "a-1", 3, {}, head(4)),
    ]


def audited(
    entries: list[GroupEntry],
    beats: dict[str, list[float]] | None = None,
    shown: dict[str, Any] | None = None,
) -> list[str]:
    """The problems of a log. Unless `beats` says otherwise, all members have a heartbeat each
    second. Those of b show `shown`.
    """
    disk = Disk("audited", ManualClock())
    every_second = [float(at) for at in range(100)]
    for name in ("a-1", "b-1", "b-2"):
        key = names.member_key(GROUP, name)
        times = disk.written[key] = (beats or {}).get(name, every_second)
        content = b"1" if shown is None else b"1 00000000 " + json.dumps({name: shown}).encode()
        disk.history[key] = [content if name == "b-1" else b"1"] * len(times)
    audit = GroupAudit(disk)
    for entry in entries:
        audit.take(entry)
    audit.check_sessions()
    return audit.problems


Change = Callable[[list[GroupEntry]], object]


def commit(after: int, by: str, generation: int, **offsets: int) -> Change:
    """Another commit of offsets of `p0`, `p1` ... after an entry."""
    committed = {f"t/id/{partition[1:]}": offset for partition, offset in offsets.items()}

    def add(entries: list[GroupEntry]) -> None:
        entries.insert(
            after + 1,
            GroupEntry(99, after + 0.5, "COMMIT OFFSETS", by, generation, committed, None),
        )

    return add


def other(version: int, **changes: Any) -> Change:
    """Another entry in the place of one."""

    def put(entries: list[GroupEntry]) -> None:
        entries[version] = replace(entries[version], **changes)

    return put


SHOWN = {"generation": 2, "after": 3, "offsets": {"t/id/1": [8, None]}}


def combined(after: int = 3, to: int = 8) -> list[GroupEntry]:
    """Member a, the leader, commits for b what b shows."""
    return [
        *clean()[: after + 1],
        GroupEntry(
            after + 1,
            after + 1.5,
            "COMMIT OFFSETS",
            "a-1",
            2,
            {"t/id/1": to},
            None,
            is_combined=True,
        ),
    ]


def test_a_leader_may_commit_what_a_member_shows():
    assert audited(combined(), shown=SHOWN) == []


@pytest.mark.parametrize(
    ("entries", "shown"),
    [
        (combined(), None),
        (combined(), SHOWN | {"generation": 1}),
        (combined(), SHOWN | {"after": 2}),
        (combined(), SHOWN | {"offsets": {}}),
        (combined(to=9), SHOWN),
        ([*clean()[:5], replace(combined()[-1], version=5, landed=5.5)], SHOWN),
    ],
    ids=[
        "nothing shown",
        "older generation",
        "older version",
        "not shown",
        "another offset",
        "a newer commit",
    ],
)
def test_a_leader_that_commits_anything_else_is_found(entries, shown):
    (problem,) = audited(entries, shown=shown)
    assert "which b-1 does not show" in problem


def test_a_leader_that_commits_for_a_former_member_is_found():
    (entry,) = combined()[-1:]
    assert (
        audited(
            [*clean()[:6], replace(entry, version=6, landed=6.5, offsets={"t/id/1": 10})],
            shown=SHOWN,
        )
        != []
    )


A_ALONE = {"a_1": member("a", [0, 1], {0: 1, 1: 3})}
BREACHES: dict[str, tuple[Change, str]] = {
    "a former owner commits": (
        commit(3, "a-1", 2, p1=8),
        "commits t/id/1, which OwnerSince(member='b-1', since=2) owns",
    ),
    "an owner commits for a time before it owned": (
        commit(3, "b-1", 1, p1=8),
        "commits t/id/1, which OwnerSince",
    ),
    "an outsider commits beside members": (
        commit(3, "", -1, p1=8),
        "commits t/id/1, and is no member",
    ),
    "a former member commits": (commit(7, "b-1", 3, p1=11), "commits t/id/1, and is no member"),
    "a commit names a generation to come": (commit(3, "b-1", 3, p1=8), "in a generation after 2"),
    "a committed offset moves back": (commit(4, "b-1", 2, p1=6), "moves t/id/1 back from 8 to 6"),
    "a partition is assigned twice": (
        other(2, head=head(2, a_1=member("a", [0, 1], {0: 1, 1: 1}), b_1=member("b", [1], {}))),
        "assigns a partition to two members",
    ),
    "a partition is owned twice": (
        other(3, head=head(2, a_1=member("a", [0], {0: 1, 1: 1}), b_1=member("b", [1], {1: 2}))),
        "gives a partition two owners",
    ),
    "a released partition has no owner": (
        other(3, head=head(2, a_1=member("a", [0], {0: 1}), b_1=member("b", [1], {}))),
        "leaves [('t', 1)] without an owner",
    ),
    "a partition is taken from a living member": (
        other(2, head=head(2, a_1=member("a", [0], {0: 1}), b_1=member("b", [1], {1: 2}))),
        "takes ('t', 1) from OwnerSince(member='a-1', since=1), a member",
    ),
    "a partition is given with an earlier generation": (
        other(5, head=head(3, a_1=member("a", [0, 1], {0: 1, 1: 2}))),
        "gives ('t', 1) to OwnerSince(member='a-1', since=2) in generation 3",
    ),
    "a generation is used twice": (other(5, head=head(2, **A_ALONE)), "has generation 2 after 2"),
    "a generation is left out": (other(5, head=head(5, **A_ALONE)), "has generation 5 after 2"),
    "a subscription is changed by another member": (
        other(
            5,
            by="a-1",
            offsets={},
            head=head(
                3, a_1=member("a", [0], {0: 1}), b_1=member("b", [1], {1: 2}) | {"topics": ["u"]}
            ),
        ),
        "changes the subscription of b-1",
    ),
    "a living member is removed": (
        other(5, by="a-1", offsets={}),
        "removes b-1, which was silent for 1.000 s at most",
    ),
}


@pytest.mark.parametrize(("change", "problem"), BREACHES.values(), ids=BREACHES.keys())
def test_a_breach_in_the_log_of_a_group_is_reported(change, problem):
    entries = clean()
    change(entries)
    assert [found for found in audited(entries) if problem in found], audited(entries)


def late(seconds: float) -> list[GroupEntry]:
    """The clean log with a release that comes as long after the assignment."""
    entries = clean()
    return [
        *entries[:3],
        *(replace(entry, landed=entry.landed + seconds - 1) for entry in entries[3:]),
    ]


def test_a_partition_that_a_living_owner_keeps_for_too_long_is_reported():
    assert audited(late(MOVE_S)) == []
    (problem,) = audited(late(MOVE_S + 0.1))
    assert "takes ('t', 1) from OwnerSince(member='a-1', since=1) after 20.100 s" in problem


def test_a_member_that_is_heard_after_a_silence_of_its_session_is_reported():
    silent = [0.0, 1.0, 1.0 + SESSION_S]
    assert audited(clean(), {"a-1": [*silent, 7.0 + IN_FLIGHT_S]}) == []
    (problem,) = audited(clean(), {"a-1": [*silent, 7.1 + IN_FLIGHT_S]})
    assert problem == "a-1 was silent from 1.000 to 7.000, and sends heartbeats at 17.100"


def replaced() -> list[GroupEntry]:
    """A static member is replaced by its successor, which has its partition in the same
    generation.
    """
    before = member("b", [1], {1: 1}, "static")
    return [
        GroupEntry(0, 0.0, "JOIN", "", -1, {}, head(1, a_1=member("a", [0], {0: 1}), b_1=before)),
        GroupEntry(1, 1.0, "JOIN", "", -1, {}, head(1, a_1=member("a", [0], {0: 1}), b_2=before)),
    ]


ALLOWED: dict[str, tuple[list[GroupEntry], dict[str, list[float]]]] = {
    "members come, release and leave": (clean(), {}),
    "a dead member is removed": (
        [*clean()[:5], replace(clean()[5], by="a-1", landed=20.0, offsets={}), *clean()[8:]],
        {"b-1": [2.0, 3.0]},
    ),
    "a static member is replaced": (replaced(), {}),
    "an outsider commits to a group without members": (
        [*clean(), GroupEntry(8, 8.0, "COMMIT OFFSETS", "", -1, {"t/id/0": 7}, None)],
        {},
    ),
    "offsets are forgotten, and begin anew": (
        [
            *clean(),
            GroupEntry(8, 8.0, "FORGET OFFSETS", "", -1, {"t/id/0": -1}, None),
            GroupEntry(9, 9.0, "COMMIT OFFSETS", "", -1, {"t/id/0": 1}, None),
        ],
        {},
    ),
}


@pytest.mark.parametrize(("entries", "beats"), ALLOWED.values(), ids=ALLOWED.keys())
def test_what_a_group_may_do_is_not_reported(entries, beats):
    assert audited(entries, beats) == []


def test_entries_are_read_from_the_bytes_of_the_log():
    disk = Disk("audited", ManualClock())
    for entry in clean():
        actions: list[dict[str, Any]] = [
            {
                "commitInfo": {
                    "operation": entry.operation,
                    "operationParameters": {
                        "member": entry.by,
                        "generation": str(entry.by_generation),
                    },
                }
            }
        ]
        actions += [
            {"txn": {"appId": app_id, "version": offset}}
            for app_id, offset in entry.offsets.items()
        ]
        if entry.head is not None:
            actions.append(
                {"domainMetadata": {"domain": "deltaq", "configuration": json.dumps(entry.head)}}
            )
        disk.put(
            f"groups/g/_delta_log/{entry.version:020d}.json",
            b"\n".join(json.dumps(a).encode() for a in actions),
        )
    audit = audit_group(disk)
    assert audit.problems == []
    assert audit.offsets == {"t/id/0": 6, "t/id/1": 10}
    assert [client for _, client in audit.moves["t", 1]] == ["a", "b", "a", None]
    disk.put(f"groups/g/_delta_log/{9:020d}.json", b"{}")
    with pytest.raises(AssertionError, match="gap"):
        audit_group(disk)


# --- what the members read ---


def poll(client: str, at: float, partition: int, *offsets: int) -> Operation:
    records = tuple(Seen("t#id", partition, offset, f"v{partition}.{offset}") for offset in offsets)
    return Operation(client, "poll", "ok", at, at + 0.1, records)


def assign(client: str, at: float, *partitions: int) -> Operation:
    return Operation(
        client,
        "assign",
        "ok",
        at,
        at,
        positions=tuple((("t", number), None) for number in partitions),
    )


def handed_over() -> list[Operation]:
    """What the members of the clean log read: each record once."""
    return [
        assign("a", 0.1, 0, 1),
        poll("a", 0.2, 0, 0, 1, 2, 3, 4),
        poll("a", 0.3, 1, 0, 1, 2, 3, 4),
        poll("a", 1.3, 1, 5, 6),
        assign("b", 3.1, 1),
        poll("b", 3.2, 1, 7),
        poll("b", 4.2, 1, 8),
        poll("a", 5.0, 0, 5),
        assign("a", 5.1, 1),
        poll("a", 5.2, 1, 9),
    ]


def judged(
    operations: list[Operation],
    removed: frozenset[str] = frozenset(),
    entries: Iterable[GroupEntry] | None = None,
) -> list[str]:
    """The breaches that a log, by default the clean one, and a topic of ten records in each
    partition show in these operations.
    """
    group = GroupAudit(Disk("audited", ManualClock()))
    for entry in clean() if entries is None else entries:
        group.take(entry)
    topic = Audit()
    for partition in range(2):
        for offset in range(10):
            place = Place("id", partition, offset)
            topic.records[place] = WrittenRecord(
                place, f"v{partition}.{offset}", None, 0, is_tombstone=False
            )
    topic.removals = [Removal(0.0, removed)]
    return [*check_hand_overs(operations, group, topic), *check_once(operations, group)]


def test_a_hand_over_at_the_committed_offset_is_not_reported():
    assert judged(handed_over()) == []


HAND_OVERS: dict[str, tuple[int, Operation, str]] = {
    "the next owner skips a record": (
        5,
        poll("b", 3.2, 1, 8),
        "b, assigned at 3.100000, starts at 8",
    ),
    "the next owner begins too early": (
        5,
        poll("b", 3.2, 1, 6, 7),
        "b, assigned at 3.100000, starts at 6",
    ),
    "a record is returned by two members": (5, poll("b", 3.2, 1, 6, 7), "was returned twice"),
    "a commit covers what was not read": (
        3,
        poll("a", 1.3, 1, 5),
        "a commits 7 of t/id/1 at 3.000000",
    ),
    "a record is returned without ownership": (
        5,
        poll("b", 3.2, 0, 9),
        "t[0] was taken from b at 0",
    ),
    "a record is returned long after the partition moved": (
        9,
        poll("b", 5.1 + STOP_S, 1, 9),
        "t[1] was taken from b at 5.0",
    ),
}


@pytest.mark.parametrize(
    ("number", "operation", "problem"), HAND_OVERS.values(), ids=HAND_OVERS.keys()
)
def test_a_breach_in_a_hand_over_is_reported(number, operation, problem):
    operations = handed_over()
    operations[number] = operation
    assert [found for found in judged(operations) if problem in found], judged(operations)


def test_a_record_that_maintenance_removed_may_be_passed_over():
    operations = handed_over()
    operations[5] = poll("b", 3.2, 1, 8)
    operations[6] = poll("b", 4.2, 1)
    removed = frozenset({"v1.7"})
    assert judged(operations, removed) == []


def test_a_record_of_a_topic_that_was_left_out_is_reported():
    entries = clean()[:5]
    without = member("b", [], {}) | {"topics": ["u"]}
    gone = head(3, a_1=member("a", [0, 1], {0: 1, 1: 3}), b_1=without)
    entries.append(GroupEntry(5, 5.0, "REBALANCE", "b-1", 2, {}, gone))
    operations = handed_over()[:7]
    assert judged(operations, entries=entries) == []
    (problem,) = judged([*operations, poll("b", 5.1, 1, 9)], entries=entries)
    assert problem.startswith("b has left t[1] out at 5.000000, and it returns ")
