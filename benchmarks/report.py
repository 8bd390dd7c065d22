"""What a run of the benchmarks found: as text for a terminal, as JSON for a program. Pure."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.finding import Outcome, Table, Target

QUIET_CORES = 0.1
"""Up to this the machine counts as quiet."""


@dataclass(frozen=True, slots=True)
class Findings:
    """`found` by the name of the suite that found it. `machine` says what it was measured on,
    `started` when (ISO 8601, UTC).
    """

    started: str
    machine: Mapping[str, str]
    found: Mapping[str, tuple[Outcome, ...]]

    def __iter__(self) -> Iterator[Outcome]:
        for found in self.found.values():
            yield from found

    @property
    def is_clean(self) -> bool:
        """Whether every message of everything measured arrived as it should."""
        return all(finding.is_clean for finding in self)

    @property
    def targets(self) -> list[Target]:
        """Every target for which something was measured."""
        return [target for finding in self for target in finding.targets()]

    @property
    def is_quiet(self) -> bool | None:
        """Whether the machine was ours; None if nothing tells."""
        cores = self._others_cores
        return statistics.median(cores) <= QUIET_CORES if cores else None

    @property
    def quiet(self) -> str:
        """The same in a sentence."""
        cores = self._others_cores
        if not cores:
            return "How much of the machine others were using meanwhile is unknown."
        typical, most = statistics.median(cores), max(cores)
        what = (
            f"Others kept {typical:.2f} cores busy (median of the measurements; at most {most:.2f})"
        )
        return f"{what}." if self.is_quiet else f"{what}: too many for figures to be relied on."

    @property
    def _others_cores(self) -> list[float]:
        return [cores for finding in self for cores in finding.others_cores]


def as_json(findings: Findings) -> str:
    """Everything, for comparisons between runs: each finding in the list of its suite, and the
    targets.
    """
    content = asdict(findings)
    found = content.pop("found")
    return json.dumps(
        content | found | {"targets": [asdict(target) for target in findings.targets]}, indent=1
    )


def as_text(findings: Findings) -> str:
    """Everything a reader wants to see at the end of a run."""
    lines = [
        ", ".join(f"{name} {value}" for name, value in findings.machine.items()),
        findings.quiet,
    ]
    for finding in findings:
        for table in finding.tables():
            lines += ["", table.title, *_columns(table)]
    if targets := findings.targets:
        rows = (
            (target.name, target.aim, target.found, "met" if target.met else "MISSED")
            for target in targets
        )
        lines += ["", *_columns(Table("", ("target", "aim", "found", ""), tuple(rows)))]
    return "\n".join(lines)


def _columns(table: Table) -> list[str]:
    """As wide as they need to be: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(table.head, *table.rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join([cells[0].ljust(widths[0]), *padded[1:]]).rstrip()

    return [line(table.head), "  ".join("-" * width for width in widths), *map(line, table.rows)]
