"""Checks that every consumer continued at the right position, by replaying the history in order of
time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.checker.anomaly import Anomaly
from tests.checker.committed import CommittedPositions
from tests.checker.facts import Facts, Transaction
from tests.checker.history import Operation, Partition
from tests.checker.lag import Tails
from tests.checker.reach import GroupReach

__all__ = ["Replay"]


@dataclass(slots=True)
class _Position:
    """Where a process must continue: from `low` to `high` (None: no upper bound).

    `set_by`: the operation that set the position. `reader`: the poll or transaction that read last.
    `since`: for a member that has not read yet, the time of its assignment, since it reads the
    group's committed position some time after that.
    """

    low: int
    high: int | None
    set_by: Operation
    reader: object = None
    since: float | None = None


class Replay:
    """Replays polls, assignments and commits. `read_ranges` is complete when `anomalies` is
    exhausted.
    """

    def __init__(self, facts: Facts) -> None:
        self.read_ranges: dict[Partition, list[tuple[int, int]]] = {}
        self._facts = facts
        self._tails = Tails(facts)
        self._committed = CommittedPositions(facts)
        self._reach = GroupReach()
        self._positions: dict[str, dict[Partition, _Position]] = defaultdict(dict)
        self._group_of: dict[str, str] = {}
        self._subscribed: dict[str, Operation] = {}
        self._in_endless_poll: set[str] = set()
        self._polling: dict[str, Operation] = {}
        self._before_transaction: dict[str, dict[Partition, _Position | None]] = {}
        self._runs: dict[Partition, list[tuple[int, int]]] = defaultdict(list)

    def anomalies(self) -> Iterator[Anomaly]:
        """Yields poll-skip, nonmonotonic-poll, their `int-` variants, realtime-lag and
        commit-regression.
        """
        moments: list[tuple[float, bool, int]] = []
        for index, operation in enumerate(self._facts.operations):
            if operation.kind == "send":
                continue
            moments.append((operation.invoked, False, index))
            if (ended := self._end_of(operation)) is not None:
                moments.append((ended, True, index))
        for now, is_end, index in sorted(moments):
            operation = self._facts.operations[index]
            if is_end:
                yield from self._end(operation, now)
            else:
                yield from self._begin(operation)
        self.read_ranges.update(
            (partition, _merged(runs)) for partition, runs in self._runs.items()
        )

    def _end_of(self, operation: Operation) -> float | None:
        """The time at which the end of an operation takes effect; None if its end has no effect."""
        transaction = self._facts.transaction(operation)
        if operation.kind == "commit" and transaction is not None:
            return transaction.acknowledged if transaction.outcome == "ok" else None
        if operation.kind in {
            "poll",
            "commit",
            "committed",
            "commit-transaction",
            "abort-transaction",
        }:
            return operation.completed
        return None

    def _begin(self, operation: Operation) -> Iterator[Anomaly]:
        process, kind = operation.process, operation.kind
        positions = self._positions[process]
        if kind == "poll":
            self._begin_poll(operation)
        elif kind == "commit":
            self._begin_commit(operation)
        elif kind == "committed":
            self._committed.look_up(operation)
        elif kind == "assign":
            yield from self._assign(operation)
        elif kind == "unassign":
            for partition in [partition for partition, _ in operation.positions] or list(positions):
                self._drop(process, partition)
        elif kind == "subscribe":
            for partition in list(positions):
                self._drop(process, partition)
            self._subscribed[process] = operation
            self._group_of[process] = operation.group or ""
        elif kind == "seek":
            for partition, to in operation.positions:
                self._seek(operation, partition, to)
        elif kind == "begin":
            self._end_transaction(process, "fail")
            self._committed.begin_transaction(process, operation.invoked)
            self._before_transaction[process] = {}
        elif kind == "crash":
            positions.clear()
            self._committed.crash(process, operation.invoked)
            self._before_transaction.pop(process, None)
            self._subscribed.pop(process, None)
            self._group_of.pop(process, None)
            self._in_endless_poll.discard(process)
            self._polling.pop(process, None)

    def _end(self, operation: Operation, now: float) -> Iterator[Anomaly]:
        if operation.kind == "poll":
            yield from self._end_poll(operation)
        elif operation.kind == "commit":
            is_transactional = self._facts.transaction(operation) is not None
            if operation.outcome != "fail":
                yield from self._committed.end(
                    operation, now, is_transactional or operation.outcome == "ok"
                )
        elif operation.kind == "committed":
            yield from self._committed.looked_up(operation)
        elif transaction := self._facts.transaction(operation):
            self._end_transaction(operation.process, transaction.outcome)

    def _begin_poll(self, poll: Operation) -> None:
        self._polling[poll.process] = poll
        group = self._group_of.get(poll.process)
        if group is None:
            return
        self._reach.begin(group, poll)
        if poll.outcome in {"invoke", "info"}:
            self._reach.lose(group, poll.process, self._positions[poll.process])
            self._in_endless_poll.add(poll.process)

    def _begin_commit(self, commit: Operation) -> None:
        transaction = self._facts.transaction(commit)
        if commit.outcome == "fail" or (transaction is not None and transaction.outcome == "fail"):
            return
        self._committed.begin(commit)
        if commit.is_reset or self._group_of.get(commit.process) != commit.group:
            for partition, position in commit.positions:
                self._reach.move(commit.group or "", commit.process, partition, position or 0)

    def _assign(self, assignment: Operation) -> Iterator[Anomaly]:
        process, group = assignment.process, assignment.group
        if group is not None and self._group_of.get(process) != group:
            self._group_of[process] = group
            # It returns records as a member that it was not yet.
            if (poll := self._polling.get(process)) is not None:
                self._begin_poll(poll)
        for partition, start in assignment.positions:
            if group is None:
                self._seek(assignment, partition, start)
                continue
            self._drop(process, partition)
            position = self._from_group(assignment, group, partition)
            if start is not None:
                yield from self._start(position, process, partition, start, assignment)
                position = _Position(start, start, assignment)
            self._positions[process][partition] = position
            if process in self._in_endless_poll:
                self._reach.lose(group, process, [partition])

    def _from_group(self, assignment: Operation, group: str, partition: Partition) -> _Position:
        low, high = self._committed.range(group, partition)
        return _Position(low, high, assignment, since=assignment.invoked)

    def _drop(self, process: str, partition: Partition) -> None:
        self._positions[process].pop(partition, None)
        self._before_transaction.get(process, {}).pop(partition, None)

    def _seek(self, operation: Operation, partition: Partition, to: int | None) -> None:
        process = operation.process
        self._drop(process, partition)
        self._positions[process][partition] = _Position(-1 if to is None else to, to, operation)
        self._committed.seek(process, partition)
        if (group := self._group_of.get(process)) is not None:
            if to is None:
                self._reach.lose(group, process, [partition])
            else:
                self._reach.move(group, process, partition, to)

    def _end_transaction(self, process: str, outcome: str) -> None:
        """Undo the polls of a transaction that was not committed; with unknown outcome, allow both
        positions.
        """
        for partition, before in self._before_transaction.pop(process, {}).items():
            after = self._positions[process].get(partition)
            if outcome == "ok" or after is None:
                continue
            if before is None:
                del self._positions[process][partition]
            elif outcome == "fail":
                self._positions[process][partition] = before
            else:
                after.low = min(after.low, before.low)

    def _end_poll(self, poll: Operation) -> Iterator[Anomaly]:
        process, transaction = poll.process, self._facts.transaction(poll)
        self._polling.pop(process, None)
        positions, undo = self._positions[process], self._before_transaction.get(process)
        counts = not self._facts.is_undone(poll)
        for topic, number, offset, _ in poll.records:
            if number is None or offset is None:
                continue
            partition = topic, number
            position = positions.get(partition)
            if undo is not None and partition not in undo:
                undo[partition] = None if position is None else replace(position)
            if position is None and process in self._subscribed:
                position = self._from_group(
                    self._subscribed[process], self._group_of[process], partition
                )
                position.low = 0
            if position is None:
                position = positions[partition] = _Position(offset, offset, poll)
            elif position.since is not None:
                yield from self._start(position, process, partition, offset, poll)
            elif position.low != offset or position.high != offset:
                yield from self._jump(position, partition, offset, poll, transaction)
            start = position.low if position.low == position.high else offset
            if counts:
                _add_run(self._runs[partition], min(start, offset), offset + 1)
            positions[partition] = position
            position.low = position.high = offset + 1
            position.set_by, position.reader, position.since = poll, transaction or poll, None
        if (group := self._group_of.get(process)) is not None:
            self._reach.end(group, poll)
        for partition in poll.at_tail:
            highest = self._highest(process, partition)
            if highest is not None and (lag := self._tails.judge(poll, partition, highest)):
                yield lag

    def _highest(self, process: str, partition: Partition) -> int | None:
        """The highest position at which a process can be; None if it may be anywhere."""
        position = self._positions[process].get(partition)
        if position is not None and position.since is None:
            return position.high
        # A member that has read nothing is where its group has committed, at some time since it
        # began.
        begun = self._subscribed.get(process) if position is None else position.set_by
        if begun is None:
            return None
        _, committed = self._committed.range(self._group_of[process], partition, begun.invoked)
        return committed if position is None else max(committed, position.high or 0)

    def _jump(
        self,
        position: _Position,
        partition: Partition,
        offset: int,
        poll: Operation,
        transaction: Transaction | None,
    ) -> Iterator[Anomaly]:
        inside = "int-" if position.reader is (transaction or poll) else ""
        evidence = (position.set_by, poll) if position.set_by is not poll else (poll,)
        if offset < position.low:
            what = f"read {offset}, though it had read up to {position.low - 1}"
            yield Anomaly(f"{inside}nonmonotonic-poll", partition, what, evidence)
        elif position.high is not None and offset > position.high:
            skipped = self._facts.logs[partition].unread(
                position.high, offset, self._facts.rules.gaps
            )
            if skipped is not None:
                what = (
                    f"read {offset}, where {position.high} came next: passed over "
                    f"{self._at(partition, skipped)}"
                )
                yield Anomaly(
                    f"{inside}poll-skip",
                    partition,
                    what,
                    (*self._shown(partition, skipped), *evidence),
                )

    def _start(
        self,
        position: _Position,
        process: str,
        partition: Partition,
        offset: int,
        operation: Operation,
    ) -> Iterator[Anomaly]:
        """Check that a member starts between the lowest and the highest position its group may have
        committed.
        """
        group = self._group_of[process]
        low, high = self._committed.range(group, partition, position.set_by.invoked)
        low, high = min(low, position.low), max(high, position.high or 0)
        reach = self._reach.of(group, process, partition)
        bound = int(min(high, reach))
        evidence = (
            (position.set_by, operation) if position.set_by is not operation else (operation,)
        )
        if offset < low:
            what = f"{process} starts at {offset}, though {group} had committed {low}"
            yield Anomaly("nonmonotonic-poll", partition, what, evidence)
        elif offset > bound:
            skipped = self._facts.logs[partition].unread(bound, offset, self._facts.rules.gaps)
            if skipped is not None:
                did = "committed" if high <= reach else "read"
                what = f"{process} starts at {offset}, though {group} had {did} only up to {bound}"
                shown = self._shown(partition, skipped)
                yield Anomaly(
                    "poll-skip",
                    partition,
                    f"{what}: passed over {self._at(partition, skipped)}",
                    (*shown, *evidence),
                )
        self._reach.move(group, process, partition, offset)

    def _shown(self, partition: Partition, offset: int) -> Sequence[Operation]:
        return list(self._facts.logs[partition].at.get(offset, {}).values())

    def _at(self, partition: Partition, offset: int) -> str:
        values = self._facts.logs[partition].at.get(offset)
        return f"{next(iter(values))!r} at {offset}" if values else f"offset {offset}"


def _add_run(runs: list[tuple[int, int]], start: int, end: int) -> None:
    if runs and runs[-1][0] <= start <= runs[-1][1]:
        runs[-1] = runs[-1][0], max(end, runs[-1][1])
    else:
        runs.append((start, end))


def _merged(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        _add_run(merged, start, end)
    return merged
