"""Findings as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.finding import Table
from benchmarks.report.findings import Findings

__all__ = ["as_text"]


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
    if not table.head:
        return [cell for row in table.rows for cell in row]
    widths = [max(map(len, column)) for column in zip(table.head, *table.rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join([cells[0].ljust(widths[0]), *padded[1:]]).rstrip()

    return [line(table.head), "  ".join("-" * width for width in widths), *map(line, table.rows)]
