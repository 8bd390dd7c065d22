"""Checks that two members of a group cannot both commit for a partition that they own at the same time."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from deltaq.testing.checker.anomaly import Anomaly
from deltaq.testing.checker.facts import Facts
from deltaq.testing.history import Operation, Partition

__all__ = ["two_owners"]

_Key = tuple[str, Partition]


@dataclass(slots=True)
class _Ownership:
    """The time from the assignment of a partition until the member gave it up."""

    claim: Operation
    until: float = math.inf


def two_owners(facts: Facts) -> Iterator[Anomaly]:
    """Yields two-owners for each pair of ownerships that overlap with commits of both during the overlap."""
    commits = _accepted(facts)
    for key, ownerships in _ownerships(facts).items():
        current: list[_Ownership] = []
        for ownership in ownerships:
            current = [other for other in current if other.until > ownership.claim.invoked]
            for other in current:
                start, end = ownership.claim.invoked, min(ownership.until, other.until)
                first = _between(commits.get((*key, other.claim.process), []), start, end)
                second = _between(commits.get((*key, ownership.claim.process), []), start, end)
                if first and second:
                    group, partition = key
                    names = f"{other.claim.process} and {ownership.claim.process}"
                    what = f"{names} both owned it, and {group} accepted commits of both meanwhile"
                    yield Anomaly("two-owners", partition, what, (other.claim, ownership.claim, first, second))
            current.append(ownership)


def _ownerships(facts: Facts) -> dict[_Key, list[_Ownership]]:
    """All ownerships, in order of their beginning."""
    found: dict[_Key, list[_Ownership]] = defaultdict(list)
    held: dict[str, dict[_Key, _Ownership]] = defaultdict(dict)
    for operation in facts.operations:
        mine = held[operation.process]
        if operation.kind == "assign" and operation.group is not None:
            for partition, _ in operation.positions:
                key = operation.group, partition
                if key not in mine:
                    mine[key] = _Ownership(operation)
                    found[key].append(mine[key])
        elif operation.kind in {"unassign", "crash"}:
            given_up = {partition for partition, _ in operation.positions}
            for key in [key for key in mine if not given_up or key[1] in given_up]:
                mine.pop(key).until = operation.invoked
    return found


def _accepted(facts: Facts) -> dict[tuple[str, Partition, str], list[Operation]]:
    """Acknowledged commits, in order of their beginning, by group, partition and process."""
    found: dict[tuple[str, Partition, str], list[Operation]] = defaultdict(list)
    for operation in facts.operations:
        if operation.kind != "commit" or operation.outcome != "ok" or operation.group is None:
            continue
        transaction = facts.transaction(operation)
        if transaction is None or transaction.outcome == "ok":
            for partition, _ in operation.positions:
                found[operation.group, partition, operation.process].append(operation)
    return found


def _between(commits: list[Operation], start: float, end: float) -> Operation | None:
    """The first commit that began and ended between `start` and `end`."""
    for commit in commits[bisect_left(commits, start, key=lambda commit: commit.invoked) :]:
        if commit.invoked > end:
            break
        if commit.completed is not None and commit.completed < end:
            return commit
    return None
