"""Assignors: pure functions that divide the partitions of topics among the members of a group."""

from __future__ import annotations

from deltaq.groups.assignors.range import assign_range
from deltaq.groups.assignors.roundrobin import assign_roundrobin
from deltaq.groups.assignors.sticky import assign_cooperative_sticky, assign_sticky
from deltaq.groups.assignors.subscription import (
    Assignment,
    Assignor,
    MemberSubscription,
    TopicPartitions,
)

__all__ = [
    "ASSIGNORS",
    "Assignment",
    "Assignor",
    "MemberSubscription",
    "TopicPartitions",
    "assign_cooperative_sticky",
    "assign_range",
    "assign_roundrobin",
    "assign_sticky",
]

ASSIGNORS: dict[str, Assignor] = {
    "range": assign_range,
    "roundrobin": assign_roundrobin,
    "sticky": assign_sticky,
    "cooperative-sticky": assign_cooperative_sticky,
}
"""The assignors by their names in `partition.assignment.strategy`."""
