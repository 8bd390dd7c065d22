"""Compares what polls returned with what was sent: which values became visible, and where."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from tests.checker.anomaly import Anomaly
from tests.checker.facts import Facts, Sent, Transaction
from tests.checker.history import Operation, Partition

__all__ = ["ReadRanges", "misplaced", "missing", "out_of_turn"]

ReadRanges = Mapping[Partition, Sequence[tuple[int, int]]]
"""The ranges of offsets [start, end) that consumers have read past, in order, disjoint and not
adjacent.
"""


def misplaced(facts: Facts) -> Iterator[Anomaly]:
    """Yields inconsistent-offsets and duplicate."""
    for partition, log in facts.logs.items():
        for offset, values in log.at.items():
            if len(values) > 1:
                what = f"offset {offset} holds {_listed(map(repr, values))}"
                yield Anomaly("inconsistent-offsets", partition, what, tuple(values.values()))
    for value, places in facts.places.items():
        if len(places) > 1:
            partitions = {partition for partition, _ in places}
            where = _listed(f"{topic}[{number}]@{offset}" for (topic, number), offset in places)
            only = partitions.pop() if len(partitions) == 1 else None
            yield Anomaly("duplicate", only, f"{value!r} is at {where}", tuple(places.values()))


def out_of_turn(facts: Facts) -> Iterator[Anomaly]:
    """Yields aborted-read, precommitted-read and unsent-read, at most one for each value."""
    reported: set[object] = set()
    for poll in facts.polls:
        for topic, partition, _, value in poll.records:
            sent = facts.sends.get(value)
            found = _why_out_of_turn(facts, poll, sent)
            if found is not None and value not in reported:
                reported.add(value)
                name, what = found
                where = None if partition is None else (topic, partition)
                evidence = (poll,) if sent is None else (*sent.evidence(), poll)
                yield Anomaly(name, where, f"{value!r} {what}", evidence)


def _why_out_of_turn(facts: Facts, poll: Operation, sent: Sent | None) -> tuple[str, str] | None:
    if sent is None:
        return "unsent-read", "was read but never sent"
    transaction = sent.transaction
    if poll.completed is not None and poll.completed < sent.operation.invoked:
        return "unsent-read", "was read before it was sent"
    if transaction is not None and facts.transaction(poll) is transaction:
        return "precommitted-read", "was read by the transaction that sent it"
    if sent.outcome == "fail":
        return (
            "aborted-read",
            "was read, though its send failed or its transaction was not committed",
        )
    if (
        transaction is not None
        and poll.completed is not None
        and poll.completed < transaction.asked
    ):
        return "precommitted-read", "was read before its transaction was asked to commit"
    return None


def missing(facts: Facts, read_ranges: ReadRanges) -> Iterator[Anomaly]:
    """Yields lost-write, unseen and torn-transaction."""
    for sent in facts.sends.values():
        if sent.outcome == "ok" and (why := _why_missing(facts, read_ranges, sent)):
            yield Anomaly(
                why[0], why[1], f"{sent.value!r} was acknowledged, {why[2]}", sent.evidence()
            )
    for transaction in facts.transactions:
        if transaction.outcome != "fail" and transaction.is_seen:
            yield from _torn(facts, read_ranges, transaction)


def _torn(facts: Facts, read_ranges: ReadRanges, transaction: Transaction) -> Iterator[Anomaly]:
    seen = next(sent for sent in transaction.sends if sent.seen)
    for sent in transaction.sends:
        if sent.outcome != "fail" and (why := _why_missing(facts, read_ranges, sent)):
            what = f"{seen.value!r} of a transaction was read; {sent.value!r} of the same, {why[2]}"
            evidence = (
                transaction.begin,
                seen.operation,
                *sent.evidence(),
                *([seen.seen] if seen.seen else []),
            )
            yield Anomaly("torn-transaction", why[1], what, evidence)
            return


def _why_missing(
    facts: Facts, read_ranges: ReadRanges, sent: Sent
) -> tuple[str, Partition | None, str] | None:
    """(name, partition, description) if no consumer received a value that one must have received;
    else None.
    """
    if sent.value in facts.delivered or sent.value in facts.rules.expendable:
        return None
    _, number, offset, _ = sent.operation.records[0]
    partition = None if number is None else (sent.topic, number)
    if partition is not None and offset is not None:
        passed = read_ranges.get(partition, ())
        if facts.rules.drained and passed:
            passed = [(0, passed[-1][1])]
        at = bisect_right(passed, offset, key=lambda read_range: read_range[0]) - 1
        if at >= 0 and offset < passed[at][1]:
            return (
                "lost-write",
                partition,
                f"at offset {offset}, and never read, though later offsets were",
            )
    if facts.rules.drained:
        return "unseen", partition, "and never read by the end"
    return None


def _listed(texts: Iterator[str]) -> str:
    listed = list(texts)
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")
