"""The programs that were observed, written for any library with the names of confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fidelity.programs import consuming, groups, offsets, partitioning, positions, producing, topics
from tests.fidelity.session import Session

__all__ = ["PROGRAMS"]

_MODULES = (consuming, groups, offsets, partitioning, positions, producing, topics)

PROGRAMS: dict[str, Callable[[Session], Any]] = {
    program.__name__: program for module in _MODULES for program in module.PROGRAMS
}
"""All programs by the name of what was observed."""
