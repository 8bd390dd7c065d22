"""Checks that no two owners of a partition commit at the same time, and that no partition stays
without an owner.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tests.checker.anomaly import Anomaly
from tests.checker.facts import Facts
from tests.checker.history import Operation, Partition

__all__ = ["Unowned", "two_owners", "unowned", "unowned_times"]

_Key = tuple[str, Partition]


@dataclass(slots=True)
class _Ownership:
    """The time from the assignment of a partition until the member gave it up."""

    claim: Operation
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class Unowned:
    """The time in which no owner of a partition showed life: from the last sign of `before` to the
    first of `after`, the operations that assigned the partition.
    """

    group: str
    partition: Partition
    seconds: float
    before: Operation
    after: Operation


def two_owners(facts: Facts) -> Iterator[Anomaly]:
    """Yields two-owners for each pair of ownerships that overlap with commits of both during the
    overlap.
    """
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
                    yield Anomaly(
                        "two-owners", partition, what, (other.claim, ownership.claim, first, second)
                    )
            current.append(ownership)


def unowned(facts: Facts) -> Iterator[Anomaly]:
    """Yields unowned for each time beyond `Rules.unowned_s` in which no owner of a partition showed
    life.
    """
    if facts.rules.unowned_s < math.inf:
        for found in unowned_times(facts, facts.rules.unowned_s):
            names = f"{found.before.process} and then {found.after.process}"
            what = (
                f"{names} owned it for {found.group}, but for {found.seconds:.3f} s no owner showed"
                " life"
            )
            yield Anomaly("unowned", found.partition, what, (found.before, found.after))


def unowned_times(facts: Facts, longer_than_s: float) -> Iterator[Unowned]:
    """All times of this length in which no owner of a partition began or ended an operation.

    What precedes the first owner and follows the last one does not count.
    """
    signs = _signs_of_life(facts)
    for (group, partition), ownerships in _ownerships(facts).items():
        stretches = sorted(
            (
                stretch
                for ownership in ownerships
                for stretch in _stretches(ownership, signs, longer_than_s)
            ),
            key=lambda stretch: stretch[:2],
        )
        alive_until, _, before = stretches[0]
        for start, end, claim in stretches:
            if start - alive_until > longer_than_s:
                yield Unowned(group, partition, start - alive_until, before, claim)
            if end >= alive_until:
                alive_until, before = end, claim


def _signs_of_life(facts: Facts) -> dict[str, list[float]]:
    """When each process began or ended an operation, in order."""
    found: dict[str, list[float]] = defaultdict(list)
    for operation in facts.operations:
        if operation.kind != "crash":
            found[operation.process].append(operation.invoked)
            if operation.completed is not None:
                found[operation.process].append(operation.completed)
    return {process: sorted(times) for process, times in found.items()}


def _stretches(
    ownership: _Ownership, signs: dict[str, list[float]], longest_s: float
) -> Iterator[tuple[float, float, Operation]]:
    """The stretches of an ownership in which its process was never silent for longer."""
    claim = ownership.claim
    times = signs[claim.process]
    start = end = claim.invoked
    for time in times[bisect_left(times, claim.invoked) : bisect_right(times, ownership.until)]:
        if time - end > longest_s:
            yield start, end, claim
            start = time
        end = time
    yield start, end, claim


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
