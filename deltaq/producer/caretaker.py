"""Whoever looks after a topic beside its writer, as the writer knows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from deltaq.delta.table_state import TableState

__all__ = ["BackgroundMaintenance", "MaintenanceSlot"]


class BackgroundMaintenance(Protocol):
    """Keeps the topic in good order while it is written; see `deltaq/maintenance/background.py`."""

    def uploaded(self, path: str, rows: pa.RecordBatch) -> None:
        """The file `path` has `rows` in it, and will be in the topic if its commit succeeds."""

    def committed(self, version: int, state: Callable[[], TableState]) -> None:
        """A commit became `version`; `state()` is a copy of the table's state then."""

    def due_in_s(self) -> float:
        """Seconds until `look_after` should be called, even if nothing is written."""

    def look_after(self) -> None:
        """Do what is due, in the background."""


@dataclass(slots=True)
class MaintenanceSlot:
    """Who does it, if anybody does."""

    taker: BackgroundMaintenance | None = None
