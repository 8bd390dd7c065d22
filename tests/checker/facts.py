"""The facts that a history proves: which sends were committed, and at which offset each value
is.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.checker.history import Operation, Outcome, Partition

__all__ = ["Facts", "Log", "Place", "Rules", "Sent", "Transaction", "gather"]

Place = tuple[Partition, int]


@dataclass(frozen=True, slots=True)
class Rules:
    """The options of `check_history`."""

    drained: bool
    gaps: bool
    isolated_writes: bool
    expendable: frozenset[Hashable]
    unowned_s: float = math.inf


@dataclass(slots=True, eq=False)
class Sent:
    """A send and its `outcome`, which takes its transaction into account.

    `acknowledged`: when it was acknowledged to its client; infinity if never. `seen`: the first
    poll that returned it.
    """

    operation: Operation
    transaction: Transaction | None
    outcome: Outcome = "info"
    acknowledged: float = math.inf
    seen: Operation | None = None

    @property
    def value(self) -> Any:
        """What was sent."""
        return self.operation.records[0].value

    @property
    def topic(self) -> str:
        """Where it was sent to."""
        return self.operation.records[0].topic

    def evidence(self) -> tuple[Operation, ...]:
        """The send, and the operations that ended its transaction."""
        return (self.operation, *self.transaction.ends) if self.transaction else (self.operation,)


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction. It has failed if its commit was never requested. `is_seen`: whether a record
    of it was read.

    `asked`: when its commit was first requested; `acknowledged`: when its commit was acknowledged;
    infinity if never.
    """

    begin: Operation
    ends: list[Operation] = field(default_factory=list)
    sends: list[Sent] = field(default_factory=list)
    polls: list[Operation] = field(default_factory=list)
    commits: list[Operation] = field(default_factory=list)
    outcome: Outcome = "fail"
    is_seen: bool = False
    asked: float = math.inf
    acknowledged: float = math.inf

    def end(self, operation: Operation) -> bool:
        """Record an attempt to end it. Returns whether it has ended."""
        self.ends.append(operation)
        if operation.kind == "commit-transaction":
            self.asked = min(self.asked, operation.invoked)
            if operation.outcome != "fail":
                self.outcome = "ok" if operation.outcome == "ok" else "info"
        elif operation.outcome == "ok":
            self.outcome = "fail"
        if self.outcome == "ok" and operation.completed is not None:
            self.acknowledged = operation.completed
        return operation.outcome == "ok"


@dataclass(slots=True)
class Log:
    """The known content of a partition: for each offset, its values, each with an operation that
    proves it.

    `offsets`: all known offsets in order; `expendable`: those of which compaction or retention may
    remove all values; `required`: the others.
    """

    at: dict[int, dict[Any, Operation]] = field(default_factory=lambda: defaultdict(dict))
    offsets: list[int] = field(default_factory=list)
    required: list[int] = field(default_factory=list)
    expendable: list[int] = field(default_factory=list)

    def unread(self, start: int, end: int, gaps: bool) -> int | None:
        """The first offset in [start, end) at which a reader must find a record; None if there is
        none.
        """
        first = bisect_left(self.required, start)
        known = (
            self.required[first]
            if first < len(self.required) and self.required[first] < end
            else None
        )
        if gaps or known == start:
            return known
        low, high = bisect_left(self.expendable, start), bisect_left(self.expendable, end)
        if high - low == end - start:
            return None
        for offset, expendable in enumerate(self.expendable[low:high], start):
            if offset != expendable:
                return offset
        return start + high - low


@dataclass(slots=True)
class Facts:
    """A history in order of time, and the facts derived from it."""

    rules: Rules
    operations: list[Operation]
    sends: dict[Any, Sent] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    transaction_of: dict[tuple[str, float], Transaction] = field(default_factory=dict)
    polls: list[Operation] = field(default_factory=list)
    delivered: set[Any] = field(default_factory=set)
    places: dict[Any, dict[Place, Operation]] = field(default_factory=lambda: defaultdict(dict))
    logs: dict[Partition, Log] = field(default_factory=lambda: defaultdict(Log))

    def transaction(self, operation: Operation) -> Transaction | None:
        """The transaction that a poll, send or commit was part of."""
        return self.transaction_of.get((operation.process, operation.invoked))

    def is_undone(self, poll: Operation) -> bool:
        """Whether a poll must be repeated because its transaction failed."""
        transaction = self.transaction(poll)
        return transaction is not None and transaction.outcome == "fail"

    def only_place(self, value: object) -> Place | None:
        """The place of a value; None if it is unknown or there are several."""
        places = self.places.get(value, {})
        return next(iter(places)) if len(places) == 1 else None


def gather(operations: Iterable[Operation], rules: Rules) -> Facts:
    """Derive the outcome of each send and the places of each value. ValueError if a value was sent
    twice.
    """
    facts = Facts(rules, sorted(operations, key=lambda operation: operation.invoked))
    _collect(facts)
    _resolve_outcomes(facts)
    for poll in facts.polls:
        undone = facts.is_undone(poll)
        for topic, partition, offset, value in poll.records:
            sent = facts.sends.get(value)
            if sent is not None and (sent.seen is None or _end(poll) < _end(sent.seen)):
                sent.seen = poll
                if sent.transaction is not None:
                    sent.transaction.is_seen = True
            if not undone:
                facts.delivered.add(value)
            if partition is not None and offset is not None:
                _place(facts, (topic, partition), offset, value, poll)
    for sent in facts.sends.values():
        _, partition, offset, value = sent.operation.records[0]
        if partition is not None and offset is not None and _is_committed(sent):
            _place(facts, (sent.topic, partition), offset, value, sent.operation)
    for log in facts.logs.values():
        log.offsets = sorted(log.at)
        for offset in log.offsets:
            (log.expendable if log.at[offset].keys() <= rules.expendable else log.required).append(
                offset
            )
    return facts


def _collect(facts: Facts) -> None:
    open_transactions: dict[str, Transaction] = {}
    for operation in facts.operations:
        process, kind = operation.process, operation.kind
        if kind == "begin":
            open_transactions[process] = transaction = Transaction(operation)
            facts.transactions.append(transaction)
        elif kind == "crash":
            open_transactions.pop(process, None)
        current = open_transactions.get(process)
        if kind == "send":
            sent = Sent(operation, current)
            first = facts.sends.setdefault(sent.value, sent)
            if first is not sent:
                raise ValueError(
                    f"values must be unique: sent twice:\n{first.operation}\n{operation}"
                )
            if current is not None:
                current.sends.append(sent)
        elif kind == "poll":
            facts.polls.append(operation)
            if current is not None:
                current.polls.append(operation)
        elif kind == "commit" and current is not None:
            current.commits.append(operation)
        elif (
            kind in {"commit-transaction", "abort-transaction"}
            and current is not None
            and current.end(operation)
        ):
            del open_transactions[process]
        if current is not None:
            facts.transaction_of[process, operation.invoked] = current


def _resolve_outcomes(facts: Facts) -> None:
    for sent in facts.sends.values():
        transaction, said = sent.transaction, sent.operation.outcome
        if transaction is None:
            sent.outcome = "info" if said == "invoke" else said
            sent.acknowledged = _end(sent.operation) if said == "ok" else math.inf
        else:
            # A commit flushes: the acknowledgements of single sends of a transaction do not matter.
            sent.outcome = "fail" if said == "fail" else transaction.outcome
            sent.acknowledged = math.inf if said == "fail" else transaction.acknowledged


def _is_committed(sent: Sent) -> bool:
    if sent.outcome != "info":
        return sent.outcome == "ok"
    return sent.seen is not None or (sent.transaction is not None and sent.transaction.is_seen)


def _place(
    facts: Facts, partition: Partition, offset: int, value: object, shown_by: Operation
) -> None:
    facts.logs[partition].at[offset].setdefault(value, shown_by)
    facts.places[value].setdefault((partition, offset), shown_by)


def _end(operation: Operation) -> float:
    return math.inf if operation.completed is None else operation.completed
