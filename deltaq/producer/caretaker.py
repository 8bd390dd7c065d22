"""Background maintenance of a topic, as its sender sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from deltaq.delta.table_state import TableState

__all__ = ["BackgroundMaintenance", "MaintenanceSlot"]


class BackgroundMaintenance(Protocol):
    """Maintains the topic while it is written; see `deltaq/maintenance/background.py`."""

    def uploaded(self, path: str, rows: pa.RecordBatch) -> None:
        """The file `path` with `rows` was uploaded, and is in the topic once its commit succeeds."""

    def committed(self, version: int, state: Callable[[], TableState]) -> None:
        """A commit became `version`; `state()` returns a copy of the table's state."""

    def due_in_s(self) -> float:
        """Seconds until `look_after` should be called, even if nothing is written."""

    def look_after(self) -> None:
        """Start due maintenance in the background."""


@dataclass(slots=True)
class MaintenanceSlot:
    """Holds the topic's maintenance, None if this process does none. The parts of a sender share it."""

    current: BackgroundMaintenance | None = None
