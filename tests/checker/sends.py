"""Checks that the records of a process are in the order in which it sent them."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from tests.checker.anomaly import Anomaly
from tests.checker.facts import Facts, Sent, Transaction
from tests.checker.history import Partition

__all__ = ["disordered_sends", "mixed_sends"]


def disordered_sends(facts: Facts) -> Iterator[Anomaly]:
    """Yields nonmonotonic-send and int-nonmonotonic-send."""
    last: dict[str, dict[Partition, tuple[int, Sent]]] = defaultdict(dict)
    for operation in facts.operations:
        if operation.kind == "crash":
            last.pop(operation.process, None)
        if operation.kind != "send":
            continue
        sent = facts.sends[operation.records[0].value]
        place = facts.only_place(sent.value)
        if place is None:
            continue
        partition, offset = place
        before = last[operation.process].get(partition)
        last[operation.process][partition] = offset, sent
        if before is not None and offset <= before[0]:
            inside = sent.transaction is not None and sent.transaction is before[1].transaction
            name = "int-nonmonotonic-send" if inside else "nonmonotonic-send"
            what = (
                f"{sent.value!r} was sent after {before[1].value!r}, but is at {offset}, before "
                f"{before[0]}"
            )
            yield Anomaly(name, partition, what, (before[1].operation, sent.operation))


def mixed_sends(facts: Facts) -> Iterator[Anomaly]:
    """Yields int-send-skip, at most one for each transaction and partition."""
    for transaction in facts.transactions:
        for partition, offsets in _places_of(facts, transaction).items():
            log = facts.logs[partition]
            for offset, following in itertools.pairwise(offsets):
                between = log.offsets[bisect_right(log.offsets, offset)]
                if between < following:
                    foreign = next(iter(log.at[between].items()))
                    what = (
                        f"{foreign[0]!r} lies at {between}, between {offset} and {following} of one"
                        " transaction"
                    )
                    yield Anomaly(
                        "int-send-skip",
                        partition,
                        what,
                        (transaction.begin, foreign[1], *transaction.ends),
                    )
                    break


def _places_of(facts: Facts, transaction: Transaction) -> dict[Partition, list[int]]:
    places: dict[Partition, set[int]] = defaultdict(set)
    for sent in transaction.sends:
        if place := facts.only_place(sent.value):
            places[place[0]].add(place[1])
    return {partition: sorted(offsets) for partition, offsets in places.items()}
