"""A benchmark suite: its full and its quick plan, and the function that carries out either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from benchmarks.finding import Finding

__all__ = ["Keep", "Place", "Report", "Suite", "keep_nothing"]

Report: TypeAlias = Callable[[str], None]
"""Takes a line of progress."""

_Plan = TypeVar("_Plan")


Keep: TypeAlias = Callable[[str, str], None]
"""Writes figures that are done (the end of the file's name, text), in place of those that it wrote
before.
"""


def keep_nothing(ending: str, text: str) -> None:
    """For runs whose figures are wanted only as a whole."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a suite runs: topics below an empty `root`; for comparisons, a Kafka broker at `kafka`
    (host:port). A suite of many loads passes its figures to `keep` after each one, so that an
    interruption loses none that are done.
    """

    root: str
    kafka: str
    report: Report
    keep: Keep = keep_nothing


@dataclass(frozen=True, slots=True)
class Suite(Generic[_Plan]):
    """A benchmark; `measure` carries out either plan.

    `usual`: it runs if no suite is chosen. `needs_kafka`: the command that starts a broker for it,
    if it needs one. `only_local`: the reason why it needs a local disk, if it does. `versions`
    returns the versions of the other programs that take part, by name.
    """

    full: _Plan
    quick: _Plan
    measure: Callable[[_Plan, Place], Iterable[Finding]]
    usual: bool = False
    needs_kafka: str = ""
    only_local: str = ""
    versions: Callable[[], Mapping[str, str]] = dict
