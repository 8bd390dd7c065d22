"""Checks that a transaction's records and its offset commits took effect together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.checker.anomaly import Anomaly
from tests.checker.facts import Facts, Transaction
from tests.checker.history import Operation, Partition

__all__ = ["halves"]

_Key = tuple[str, Partition]


def halves(facts: Facts) -> Iterator[Anomaly]:
    """Yields torn-transaction, based on `committed` queries after all commits."""
    commits: dict[_Key, list[Operation]] = defaultdict(list)
    answers: dict[_Key, tuple[Operation, int]] = {}
    for operation in facts.operations:
        for partition, position in operation.positions:
            key = operation.group or "", partition
            if operation.kind == "commit" and operation.outcome != "fail":
                commits[key].append(operation)
                answers.pop(key, None)
            elif operation.kind == "committed" and operation.outcome == "ok":
                answers[key] = operation, position or 0
    for transaction in facts.transactions:
        for commit in transaction.commits:
            for partition, position in commit.positions:
                key = commit.group or "", partition
                if key not in answers or position is None:
                    continue
                answer, now = answers[key]
                rivals = [other for other in commits[key] if (partition, now) in other.positions]
                if what := _why_torn(facts, transaction, commit, position, now, rivals):
                    evidence = (transaction.begin, commit, *transaction.ends, answer)
                    yield Anomaly(
                        "torn-transaction",
                        partition,
                        f"{commit.group} is at {now}, {what}",
                        evidence,
                    )


def _why_torn(
    facts: Facts,
    transaction: Transaction,
    commit: Operation,
    position: int,
    now: int,
    rivals: list[Operation],
) -> str | None:
    """`rivals`: all commits of the position `now`, which is the committed one."""
    seen = next((sent for sent in transaction.sends if sent.seen is not None), None)
    if now < position and seen is not None and facts.rules.drained:
        if all(rival.invoked < commit.invoked for rival in rivals):
            return f"and {seen.value!r} was read, which is of a transaction that commits {position}"
    elif now == position and rivals == [commit]:
        if transaction.outcome == "fail":
            return "which only a transaction that was not committed would have committed"
        if transaction.sends and seen is None and facts.rules.drained:
            return "which only a transaction commits of which nothing was read"
    return None
