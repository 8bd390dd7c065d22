"""The possible committed positions of each group over time, and commits that move a position
back.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tests.checker.anomaly import Anomaly
from tests.checker.facts import Facts
from tests.checker.history import Operation, Partition

__all__ = ["CommittedPositions", "Range"]

Range = tuple[int, int]
"""The lowest and the highest possible position."""


@dataclass(slots=True, eq=False)
class _Candidate:
    """A position that may be the committed one. `ended`: the latest time at which it can have been
    committed.
    """

    position: int
    by: Operation | None
    may_go_back: bool = False
    ended: float = math.inf
    is_acknowledged: bool = False


class CommittedPositions:
    """The committed positions of all groups, while a history is replayed in the order of time.

    A position is possible from the beginning of its commit until it is replaced by an acknowledged
    commit that began after its end. So a commit with unknown outcome can take effect late, but not
    after a later one was acknowledged, since a log is only appended to. A transaction with unknown
    outcome can be completed by any process at any time, until its process begins the next
    transaction, which requires that the outcome is known.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._possible: dict[tuple[str, Partition], list[_Candidate]] = defaultdict(
            lambda: [_Candidate(0, None, ended=-math.inf)]
        )
        self._begun: dict[tuple[str, Partition], tuple[list[float], list[int]]] = defaultdict(
            lambda: ([], [])
        )
        self._unfinished: dict[str, list[_Candidate]] = defaultdict(list)  # by process
        # The same, of transactions.
        self._unsettled: dict[str, list[_Candidate]] = defaultdict(list)
        self._asked: dict[str, dict[Partition, Range]] = {}
        self._sought: dict[str, set[Partition]] = defaultdict(set)

    def range(self, group: str, partition: Partition, since: float = math.inf) -> Range:
        """The range of positions that are possible now or were committed after time `since`."""
        positions = [candidate.position for candidate in self._possible[group, partition]]
        times, begun = self._begun[group, partition]
        positions += begun[bisect_right(times, since) :]
        return min(positions), max(positions)

    def seek(self, process: str, partition: Partition) -> None:
        """The process seeked, so its next commit may move the position back."""
        self._sought[process].add(partition)

    def crash(self, process: str, now: float) -> None:
        """The process is gone and does not retry its unfinished commits."""
        self._sought.pop(process, None)
        for candidate in self._unfinished.pop(process, ()):
            candidate.ended = min(candidate.ended, now)

    def begin_transaction(self, process: str, now: float) -> None:
        """The process begins a transaction, so the outcome of its previous one is known."""
        for candidate in self._unsettled.pop(process, ()):
            candidate.ended = min(candidate.ended, now)

    def begin(self, commit: Operation) -> None:
        """A commit begins that does not fail."""
        for partition, position in commit.positions:
            if position is not None:
                candidate = _Candidate(
                    position, commit, commit.is_reset or partition in self._sought[commit.process]
                )
                self._possible[commit.group or "", partition].append(candidate)
                unfinished = (
                    self._unfinished if self._facts.transaction(commit) is None else self._unsettled
                )
                unfinished[commit.process].append(candidate)
                times, begun = self._begun[commit.group or "", partition]
                times.append(commit.invoked)
                begun.append(position)

    def end(self, commit: Operation, now: float, is_acknowledged: bool) -> Iterator[Anomaly]:
        """A commit or its transaction ends. Yields commit-regression if it moved a position
        back.
        """
        for partition, position in commit.positions:
            key = commit.group or "", partition
            before = self._possible[key]
            for own in before:
                if own.by is commit:
                    own.ended, own.is_acknowledged = now, is_acknowledged
                    if is_acknowledged and own.may_go_back:
                        self._sought[commit.process].discard(partition)
            if is_acknowledged and position is not None:
                self._possible[key] = [
                    candidate for candidate in before if candidate.ended >= commit.invoked
                ]
                yield from _regression(commit, partition, position, before)

    def look_up(self, question: Operation) -> None:
        """A query of committed positions begins."""
        group = question.group or ""
        self._asked[question.process] = {
            partition: self.range(group, partition) for partition, _ in question.positions
        }

    def looked_up(self, answer: Operation) -> Iterator[Anomaly]:
        """The query ends. Yields commit-regression for a position below all that were possible
        since its beginning.
        """
        asked = self._asked.pop(answer.process, {})
        for partition, position in answer.positions:
            key = answer.group or "", partition
            low = min(self.range(*key, answer.invoked)[0], asked.get(partition, (0, 0))[0])
            if (position or 0) < low:
                known = [
                    candidate.by for candidate in self._possible[key] if candidate.by is not None
                ]
                what = (
                    f"{answer.group} had committed {low}, but its committed position is {position}"
                )
                yield Anomaly("commit-regression", partition, what, (*known[:1], answer))


def _regression(
    commit: Operation, partition: Partition, position: int, before: list[_Candidate]
) -> Iterator[Anomaly]:
    """`before`: the candidates until the commit, and the commit itself."""
    replaced = [old for old in before if old.is_acknowledged and old.ended < commit.invoked]
    highest = max(replaced, key=lambda old: old.position, default=None)
    if highest is None or highest.by is None or highest.position <= position:
        return
    # Another commit may have moved the position back before, on purpose, without being
    # acknowledged.
    since = [old for old in before if old.by is not None and old.by.invoked > highest.by.invoked]
    if not any(old.may_go_back and old.position <= position for old in since):
        what = f"{commit.group} had committed {highest.position}, and then {position}"
        yield Anomaly("commit-regression", partition, what, (highest.by, commit))
