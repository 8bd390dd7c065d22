"""What can be measured by itself: what to do, in full and for a first impression, and how it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from benchmarks.finding import Finding

__all__ = ["Place", "Suite", "Tell"]

Tell: TypeAlias = Callable[[str], None]
"""Takes a line about how far it is."""

_Plan = TypeVar("_Plan")


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is measured: topics below an empty `root`, and where Kafka is needed, a broker at `kafka`
    (host:port)."""

    root: str
    kafka: str
    tell: Tell


@dataclass(frozen=True, slots=True)
class Suite(Generic[_Plan]):
    """One of the benchmarks, of which `measure` carries out either plan.

    `usual`: it is measured if none is chosen. `only_local`: why it takes a local disk, if it does. `versions`: of the
    peers that take part, by name.
    """

    full: _Plan
    quick: _Plan
    measure: Callable[[_Plan, Place], Iterable[Finding]]
    usual: bool = False
    needs_kafka: bool = False
    only_local: str = ""
    versions: Callable[[], Mapping[str, str]] = dict
