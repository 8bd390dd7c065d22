"""A benchmark suite: its full and its quick plan, and the function that carries out either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from benchmarks.finding import Outcome

Report: TypeAlias = Callable[[str], None]
"""Takes a line of progress."""

_Plan = TypeVar("_Plan")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a suite runs: topics below an empty `root`; for comparisons, a Kafka broker at `kafka`
    (host:port).
    """

    root: str
    kafka: str
    report: Report


@dataclass(frozen=True, slots=True)
class Suite(Generic[_Plan]):
    """A benchmark; `measure` carries out either plan.

    `usual`: it runs if no suite is chosen. `needs_kafka`: the command that starts a broker for it,
    if it needs one. `only_local`: the reason why it needs a local disk, if it does. `versions`
    returns the versions of the other programs that take part, by name.
    """

    full: _Plan
    quick: _Plan
    measure: Callable[[_Plan, Place], Iterable[Outcome]]
    usual: bool = False
    needs_kafka: str = ""
    only_local: str = ""
    versions: Callable[[], Mapping[str, str]] = dict
