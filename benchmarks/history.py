"""Whether every message arrived, once, unchanged and in order. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of `sent` messages with the sequence numbers 0, 1, 2, …

    `doubled` counts the arrivals beyond the first, `disordered` the first arrivals after one with a
    higher number, `foreign` those whose content was never sent or changed on the way.
    `unacknowledged` counts delivery callbacks that were not made, or made beyond the one of each
    message, where they are counted.
    """

    sent: int
    received: int
    lost: int
    doubled: int
    disordered: int
    foreign: int
    unacknowledged: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing went wrong."""
        return not (
            self.lost or self.doubled or self.disordered or self.foreign or self.unacknowledged
        )

    def __str__(self) -> str:
        faults = "lost", "doubled", "disordered", "foreign", "unacknowledged"
        wrong = {name: getattr(self, name) for name in faults}
        return (
            ", ".join(f"{count:,} {name}" for name, count in wrong.items() if count) or "complete"
        )


def judge(sent: int, arrivals: array[int], foreign: int = 0) -> Verdict:
    """Judge the sequence numbers in the order of their arrival. `foreign`: arrivals that had
    none.
    """
    seen = bytearray(sent)
    doubled = disordered = 0
    highest = -1
    for sequence in arrivals:
        if not 0 <= sequence < sent:
            foreign += 1
        elif seen[sequence]:
            doubled += 1
        else:
            seen[sequence] = 1
            disordered += sequence < highest
            highest = max(highest, sequence)
    lost = seen.count(0)
    return Verdict(sent, sent - lost + doubled + foreign, lost, doubled, disordered, foreign)


def unread(sent: int, arrived: int, records: int) -> int:
    """How many of the records in a topic are beyond both what was sent and what arrived: doubles
    that were written when the reader had stopped.
    """
    return max(0, records - max(sent, arrived))


def judge_partitions(sent: int, arrivals: Sequence[array[int]], foreign: int = 0) -> Verdict:
    """Judge messages that went round all partitions, so that number n was the n // partitions-th of
    its own: in `arrivals` those of each, in their order. Only messages of one partition have an
    order.
    """
    counts = [len(range(partition, sent, len(arrivals))) for partition in range(len(arrivals))]
    judged = [judge(count, numbers) for count, numbers in zip(counts, arrivals, strict=True)]
    return summed([*judged, Verdict(0, foreign, 0, 0, 0, foreign)])


def summed(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several parts, or readers, as one."""
    parts = map(astuple, (Verdict(0, 0, 0, 0, 0, 0), *verdicts))
    return Verdict(*map(sum, zip(*parts, strict=True)))
