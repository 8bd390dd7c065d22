"""Checks the claim of a poll to be at the tail of a partition."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

from tests.checker.anomaly import Anomaly
from tests.checker.facts import Facts, Sent
from tests.checker.history import Operation, Partition

__all__ = ["Tails"]


@dataclass(frozen=True, slots=True)
class _Proof:
    """Proof that a value was visible at `time`: it was acknowledged or read itself, or
    (`of_another`) another value of its transaction was read.
    """

    time: float
    offset: int
    sent: Sent
    of_another: bool


class Tails:
    """The last offset of each partition that must have been visible to all clients, at any time."""

    def __init__(self, facts: Facts) -> None:
        proofs: dict[Partition, list[_Proof]] = defaultdict(list)
        others = _first_seen(facts)
        for value, places in facts.places.items():
            sent = facts.sends.get(value)
            if sent is None or value in facts.rules.expendable:
                continue
            seen = sent.seen.completed if sent.seen is not None else None
            own = min(sent.acknowledged, math.inf if seen is None else seen)
            other = others.get((id(sent.transaction), sent.topic), math.inf)
            for partition, offset in places:
                proofs[partition].append(_Proof(own, offset, sent, False))
                if other < own:
                    proofs[partition].append(_Proof(other, offset, sent, True))
        self._times: dict[Partition, list[float]] = {}
        self._highest: dict[Partition, list[_Proof]] = {}
        for partition, found in proofs.items():
            found.sort(key=lambda proof: proof.time)
            self._times[partition] = [proof.time for proof in found]
            highest: list[_Proof] = []
            for proof in found:
                beaten = not highest or proof.offset >= highest[-1].offset
                highest.append(proof if beaten else highest[-1])
            self._highest[partition] = highest

    def judge(self, poll: Operation, partition: Partition, position: int) -> Anomaly | None:
        """realtime-lag or torn-transaction if the poll ended at `position` but later records were
        visible before it.
        """
        before = bisect_left(self._times.get(partition, ()), poll.invoked)
        if before == 0:
            return None
        proof = self._highest[partition][before - 1]
        if proof.offset < position:
            return None
        sent, transaction = proof.sent, proof.sent.transaction
        if proof.of_another and transaction is not None:
            seen = next(
                other
                for other in transaction.sends
                if other.seen is not None and other.topic == sent.topic
            )
            what = (
                f"{seen.value!r} had been read, but {sent.value!r} of the same transaction is "
                "missing at the tail"
            )
            evidence = (seen.operation, sent.operation, *([seen.seen] if seen.seen else []), poll)
            return Anomaly("torn-transaction", partition, what, evidence)
        what = (
            f"{sent.value!r} was at {proof.offset} before the poll began, which claims the tail at "
            f"{position}"
        )
        shown = [sent.seen] if sent.seen is not None and sent.seen is not poll else []
        return Anomaly("realtime-lag", partition, what, (*sent.evidence(), *shown, poll))


def _first_seen(facts: Facts) -> dict[tuple[int, str], float]:
    """When a record of a transaction was first read, by transaction and topic: each topic shows its
    part at once.
    """
    first: dict[tuple[int, str], float] = {}
    for transaction in facts.transactions:
        for sent in transaction.sends:
            if sent.seen is not None and sent.seen.completed is not None:
                key = id(transaction), sent.topic
                first[key] = min(first.get(key, math.inf), sent.seen.completed)
    return first
