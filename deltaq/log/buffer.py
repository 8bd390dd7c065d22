"""Records on their way from `produce` to the log: one buffer per client and topic.

`produce` appends to `rows` without a lock: appending to a list is atomic, and only the topic's writer removes, always
from the front. A row is (value, key, partition, timestamp in ms or 0, headers, callback, time it was produced).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from deltaq.errors import KafkaException
from deltaq.log.records import Columns, Headers

__all__ = ["ArrowBlock", "BufferSettings", "RecordBuffer", "Report", "Row"]

Row: TypeAlias = "tuple[object, bytes | None, int, int, Headers, object, float]"


@dataclass(frozen=True, slots=True)
class BufferSettings:
    """How a client wants its records of a topic written."""

    linger_s: float
    batch_bytes: int
    batch_rows: int
    timeout_s: float
    compression: str
    compression_level: int | None
    partitioner: str


@dataclass(frozen=True, slots=True)
class ArrowBlock:
    """Records that came as a table. They are committed together. `partitions` in `columns` may be -1: not chosen yet."""

    columns: Columns
    callback: object
    produced_at: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """What became of records of one buffer: they got offsets, or `error`.

    `next_offsets[p]` is the offset of the first of these records in partition p; later ones count on from it in the
    order of `records`. `columns` is what was written, None if that was not reached. `append_time_ms` is set where the topic stamps records itself.
    """

    records: Sequence[Row] | ArrowBlock
    partitions: Sequence[int]
    columns: Columns | None
    next_offsets: Mapping[int, int]
    append_time_ms: int | None
    error: KafkaException | None
    finished_at: float
    topic: str

    def __len__(self) -> int:
        return len(self.records.columns) if isinstance(self.records, ArrowBlock) else len(self.records)


class RecordBuffer:
    """Records of one client for one topic that wait to be written."""

    __slots__ = ("_sealed", "bytes", "flushing", "full_at", "report", "rows", "settings", "wake")

    def __init__(self, settings: BufferSettings, report: Callable[[Report], None], wake: Callable[[], None]) -> None:
        self.settings = settings
        self.report = report
        self.wake = wake
        self.rows: list[Row] = []
        self.bytes = 0  # of `rows`, about: a lost update between threads is forgotten at the next take
        self.full_at = settings.batch_rows
        self.flushing = False
        self._sealed: deque[list[Row] | ArrowBlock] = deque()

    def __len__(self) -> int:
        """Records waiting."""
        sealed = tuple(self._sealed)
        return len(self.rows) + sum(len(s) if isinstance(s, list) else len(s.columns) for s in sealed)

    def append_block(self, block: ArrowBlock) -> None:
        """Add a table behind the rows that are here already."""
        self._seal()
        self._sealed.append(block)
        self.wake()

    def first_produced_at(self) -> float | None:
        """When the oldest waiting record was produced; None if there is none."""
        if self._sealed:
            first = self._sealed[0]
            return first[0][6] if isinstance(first, list) else first.produced_at
        rows = self.rows
        return rows[0][6] if rows else None

    def is_full(self) -> bool:
        """Whether there is enough for a batch, so that lingering makes no sense."""
        return bool(self._sealed) or len(self.rows) >= self.full_at or self.bytes >= self.settings.batch_bytes

    def take(self, rows_max: int, span_s: float) -> list[Row] | ArrowBlock | None:
        """Remove the oldest records: one table, or rows produced within `span_s` of each other. Only the writer calls this."""
        if self._sealed:
            first = self._sealed.popleft()
            if isinstance(first, ArrowBlock):
                return first
            head, rest = _split(first, rows_max, span_s)
            if rest:
                self._sealed.appendleft(rest)
            return head
        head, _ = _split(self.rows[:rows_max], rows_max, span_s)
        self.bytes = 0
        del self.rows[: len(head)]
        return head or None

    def _seal(self) -> None:
        rows = self.rows[:]
        if rows:
            del self.rows[: len(rows)]
            self._sealed.append(rows)


def _split(rows: list[Row], rows_max: int, span_s: float) -> tuple[list[Row], list[Row]]:
    count = min(len(rows), rows_max)
    if count and rows[count - 1][6] - rows[0][6] > span_s:
        end = rows[0][6] + span_s
        count = next(i for i, row in enumerate(rows) if row[6] > end)
    return rows[:count], rows[count:]
