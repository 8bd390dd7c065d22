"""What is wrong with a history, in a form for the reader of a failed test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deltaq.testing.history import Operation, Partition

__all__ = ["Anomaly", "report"]

SHOWN = 5  # of each name: the first ones tell the story, the others are mostly its consequences


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that must not happen, by the name that `check_history` explains.

    `partition`: where; None if it concerns several. `what`: a sentence. `operations`: the evidence.
    """

    name: str
    partition: Partition | None
    what: str
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        where = "" if self.partition is None else f" in {self.partition[0]}[{self.partition[1]}]"
        return "\n    ".join([f"{self.name}{where}: {self.what}", *map(str, self.operations)])


def report(anomalies: Iterable[Anomaly]) -> str:
    """All that was found as text: how many of each name, and the first few of each in full."""
    by_name: dict[str, list[Anomaly]] = {}
    for anomaly in anomalies:
        by_name.setdefault(anomaly.name, []).append(anomaly)
    if not by_name:
        return "no anomalies"
    lines = [", ".join(f"{len(found):,} {name}" for name, found in by_name.items())]
    for name, found in by_name.items():
        lines += map(str, found[:SHOWN])
        if len(found) > SHOWN:
            lines.append(f"... and {len(found) - SHOWN:,} more {name}")
    return "\n".join(lines)
