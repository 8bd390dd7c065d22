"""The outcome of a measurement as a report shows it: tables and targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells: the first column is aligned to the left, the others to the right."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """A target, the figure that was measured, and whether it was met."""

    name: str
    aim: str
    found: str
    met: bool


def columns(head: str) -> tuple[str, ...]:
    """The heads of a table from a line of text with "|" between them."""
    return tuple(name.strip() for name in head.split("|"))


class Outcome(Protocol):
    """The outcome of one measurement, a frozen dataclass whose fields are written as JSON."""

    @property
    def is_clean(self) -> bool:
        """Whether every message arrived once, in order and unchanged. Otherwise its figures are
        void.
        """

    @property
    def others_cores(self) -> tuple[float, ...]:
        """Cores that other programs kept busy, for each part of the measurement for which that is
        known.
        """

    def tables(self) -> Iterable[Table]:
        """The tables."""

    def targets(self) -> Iterable[Target]:
        """The targets for which something was measured."""


def at_most(name: str, aim: float, found: float, unit: str = "") -> Target:
    """A figure that should not be above `aim`."""
    return Target(name, f"<= {_aim(aim)}{unit}", f"{_figure(found)}{unit}", found <= aim)


def at_least(name: str, aim: float, found: float, unit: str = "") -> Target:
    """A figure that should not be below `aim`."""
    return Target(name, f">= {_aim(aim)}{unit}", f"{_figure(found)}{unit}", found >= aim)


def _aim(aim: float) -> str:
    return f"{aim:,.0f}" if abs(aim) >= 1000 else f"{aim:g}"


def _figure(found: float) -> str:
    return f"{found:,.0f}" if abs(found) >= 1000 else f"{found:.2f}"


def known_cores(found: Iterable[float | None]) -> tuple[float, ...]:
    """For `others_cores`: the values that the system could report."""
    return tuple(cores for cores in found if cores is not None)


def cores_cell(cores: float | None) -> str:
    """The same as a cell of a table."""
    return "?" if cores is None else f"{cores:.2f}"
