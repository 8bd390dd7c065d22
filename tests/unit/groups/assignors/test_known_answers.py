"""Known answers of the assignors.

The cases `confluent-kafka` were observed with Kafka's Python client and a broker. The others follow
from the rules of Kafka's assignors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from deltaq.groups.assignors import ASSIGNORS, MemberSubscription

TP = tuple[str, int]


def member(
    member_id: str, topics: str, owned: str = "", generation: int = 1, instance: str | None = None
):
    """A member of the topics in a string ("ta tb"), owning the partitions in another ("ta0
    ta1").
    """
    return MemberSubscription(
        member_id,
        frozenset(topics.split()),
        named(owned),
        generation if owned else -1,
        instance_id=instance,
    )


def named(partitions: str) -> tuple[TP, ...]:
    return tuple(
        (name.rstrip("0123456789"), int(name[len(name.rstrip("0123456789")) :]))
        for name in partitions.split()
    )


@dataclass(frozen=True)
class Case:
    name: str
    assignor: str
    partitions: dict[str, int]
    members: list[MemberSubscription]
    expected: dict[str, str] = field(default_factory=dict)


CASES = [
    Case("no topic exists", "range", {}, [member("a", "t")], {"a": ""}),
    Case("one member has all", "range", {"t": 3}, [member("a", "t")], {"a": "t0 t1 t2"}),
    Case(
        "only subscribed topics", "range", {"t": 3, "u": 3}, [member("a", "t")], {"a": "t0 t1 t2"}
    ),
    Case(
        "more members than partitions",
        "range",
        {"t": 1},
        [member("a", "t"), member("b", "t")],
        {"a": "t0", "b": ""},
    ),
    Case(
        "first members get more",
        "range",
        {"t": 5},
        [member("a", "t"), member("b", "t")],
        {"a": "t0 t1 t2", "b": "t3 t4"},
    ),
    Case(
        "confluent-kafka: each topic on its own",
        "range",
        {"ta": 3, "tb": 3},
        [member("A", "ta tb"), member("B", "ta tb")],
        {"A": "ta0 ta1 tb0 tb1", "B": "ta2 tb2"},
    ),
    Case(
        "mixed subscriptions",
        "range",
        {"ta": 3, "tb": 2},
        [member("a", "ta"), member("b", "ta tb"), member("c", "ta")],
        {"a": "ta0", "b": "ta1 tb0 tb1", "c": "ta2"},
    ),
    Case(
        "static members keep their place whatever their member ids",
        "range",
        {"t": 3},
        [
            member("z", "t", instance="1"),
            member("y", "t", instance="2"),
            member("a", "t", instance="3"),
        ],
        {"z": "t0", "y": "t1", "a": "t2"},
    ),
    Case(
        "static members come before the others",
        "range",
        {"t": 2},
        [member("a", "t"), member("z", "t", instance="i")],
        {"z": "t0", "a": "t1"},
    ),
    Case(
        "confluent-kafka: one after the other",
        "roundrobin",
        {"ta": 3, "tb": 3},
        [member("A", "ta tb"), member("B", "ta tb")],
        {"A": "ta0 ta2 tb1", "B": "ta1 tb0 tb2"},
    ),
    Case(
        "mixed subscriptions",
        "roundrobin",
        {"ta": 3, "tb": 2},
        [member("a", "ta"), member("b", "ta tb"), member("c", "ta")],
        {"a": "ta0", "b": "ta1 tb0 tb1", "c": "ta2"},
    ),
    Case(
        "static members in order of instance",
        "roundrobin",
        {"t": 3},
        [
            member("z", "t", instance="1"),
            member("y", "t", instance="2"),
            member("a", "t", instance="3"),
        ],
        {"z": "t0", "y": "t1", "a": "t2"},
    ),
    Case(
        "a new group",
        "sticky",
        {"ta": 3, "tb": 3},
        [member("a", "ta tb"), member("b", "ta tb")],
        {"a": "ta0 ta2 tb1", "b": "ta1 tb0 tb2"},
    ),
    Case(
        "confluent-kafka: a second member joins",
        "sticky",
        {"t": 4},
        [member("A", "t", "t0 t1 t2 t3"), member("B", "t")],
        {"A": "t2 t3", "B": "t0 t1"},
    ),
    Case(
        "a member leaves",
        "sticky",
        {"t": 3},
        [member("b", "t", "t1 t2")],
        {"b": "t0 t1 t2"},
    ),
    Case(
        "only the partitions of the member that left move",
        "sticky",
        {"t": 6},
        [member("a", "t", "t0 t1"), member("b", "t", "t2 t3")],
        {"a": "t0 t1 t5", "b": "t2 t3 t4"},
    ),
    Case(
        "a partition that two members claim for one generation has no owner",
        "sticky",
        {"t": 2},
        [member("a", "t", "t0 t1", 2), member("b", "t", "t0", 2)],
        {"a": "t1", "b": "t0"},
    ),
    Case(
        "the newest generation owns",
        "sticky",
        {"t": 2},
        [member("a", "t", "t0 t1", 3), member("b", "t", "t0 t1", 2)],
        {"a": "t1", "b": "t0"},
    ),
    Case(
        "a topic that is no longer subscribed",
        "sticky",
        {"ta": 2, "tb": 2},
        [member("a", "tb", "ta0 tb0"), member("b", "ta tb", "ta1 tb1")],
        {"a": "tb0 tb1", "b": "ta0 ta1"},
    ),
    Case(
        "confluent-kafka: partitions in other hands wait",
        "cooperative-sticky",
        {"t": 4},
        [member("A", "t", "t0 t1 t2 t3"), member("B", "t")],
        {"A": "t2 t3", "B": ""},
    ),
    Case(
        "confluent-kafka: released partitions are assigned",
        "cooperative-sticky",
        {"t": 4},
        [member("A", "t", "t2 t3"), member("B", "t")],
        {"A": "t2 t3", "B": "t0 t1"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.assignor}: {case.name}")
def test_an_assignment_is_the_known_one(case: Case) -> None:
    found = ASSIGNORS[case.assignor](case.partitions, case.members)
    assert {member_id: sorted(partitions) for member_id, partitions in found.items()} == {
        member_id: sorted(named(partitions)) for member_id, partitions in case.expected.items()
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.assignor}: {case.name}")
def test_the_order_of_the_members_does_not_matter(case: Case) -> None:
    found = ASSIGNORS[case.assignor](case.partitions, case.members[::-1])
    assert found == ASSIGNORS[case.assignor](case.partitions, case.members)
