"""The programs that were observed, written for any library with the names of confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fidelity.programs import (
    admin_page,
    consumer_page,
    consuming,
    groups,
    offsets,
    partitioning,
    positions,
    producer_page,
    producing,
    share_page,
    topics,
    transactions,
    transactions_page,
    values_page,
)
from tests.fidelity.session import ProgramRun

__all__ = ["DOCUMENTED", "PROGRAMS"]

_PAGES = (
    producer_page,
    consumer_page,
    admin_page,
    values_page,
    transactions_page,
    share_page,
)
_MODULES = (
    consuming,
    groups,
    offsets,
    partitioning,
    positions,
    producing,
    topics,
    transactions,
    *_PAGES,
)

PROGRAMS: dict[str, Callable[[ProgramRun], Any]] = {
    program.__name__: program for module in _MODULES for program in module.PROGRAMS
}
"""All programs by the name of what was observed."""

DOCUMENTED: frozenset[str] = frozenset(
    program.__name__ for page in _PAGES for program in page.PROGRAMS
)
"""Those that ask what the pages of the client's documentation say."""
