"""Anomalies, and their report for the reader of a failed test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.checker.history import Operation, Partition

__all__ = ["Anomaly", "report"]

# Anomalies of each name that are reported in full; later ones are mostly consequences of the first.
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Anomaly:
    """An anomaly. `check_history` explains each `name`.

    `partition`: where it happened; None if several partitions are affected. `what`: a description.
    `operations`: the evidence.
    """

    name: str
    partition: Partition | None
    what: str
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        where = "" if self.partition is None else f" in {self.partition[0]}[{self.partition[1]}]"
        return "\n    ".join([f"{self.name}{where}: {self.what}", *map(str, self.operations)])


def report(anomalies: Iterable[Anomaly]) -> str:
    """Format anomalies as text: the count of each name, and the first five of each in full."""
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
