"""What a writer sends together, in which order, and how far it has come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from deltaq.clock import Clock
from deltaq.log.buffer import RecordBuffer, Records
from deltaq.log.records import Columns
from deltaq.log.topic_state import PendingSegment

__all__ = ["FLIGHT_BYTES_MAX", "FLIGHT_ROWS_MAX", "Flight", "Flights", "Part", "by_encoding"]

FLIGHT_ROWS_MAX = 250_000
FLIGHT_BYTES_MAX = 256 * 1024 * 1024
"""About how much goes into one flight, far below what one Arrow array can hold."""


@dataclass(slots=True, eq=False)
class Part:
    """Records of one buffer inside a flight; `partitions` (of rows) and `columns` are filled in by encoding them.

    `bytes` is their share of the client's budget, `epoch_ms` what the monotonic clock's zero was on the wall clock when
    they were encoded. `told` is set once the client knows what became of them.
    """

    buffer: RecordBuffer
    records: Records
    bytes: int
    partitions: list[int] = field(default_factory=list)
    columns: Columns | None = None
    epoch_ms: float = 0.0
    told: bool = False


@dataclass(slots=True, eq=False)
class Flight:
    """Records that are uploaded together, taken at `taken_at`. `deadline` is that of its oldest record. Both on the
    monotonic clock.

    `segments` and `topic_id` are known once `is_uploaded`.
    """

    parts: list[Part]
    taken_at: float
    deadline: float
    segments: list[PendingSegment] = field(default_factory=list)
    topic_id: str = ""
    is_uploaded: bool = False

    @property
    def is_unwanted(self) -> bool:
        """Whether nobody waits for any of it any more."""
        return all(part.told for part in self.parts)


class Flights:
    """The flights of one writer. Whoever calls or looks holds `changed`, and those who wait on it are told."""

    def __init__(self, clock: Clock) -> None:
        self.changed = clock.condition()
        self.buffers: list[RecordBuffer] = []  # what they are taken from
        self.waiting: deque[Flight] = deque()  # for their upload or commit, in the order in which they were taken
        self.under_way: dict[Part, None] = {}  # in the order in which they were taken
        self.is_stopping = False

    def take(self, now: float) -> Flight:
        """A flight of what waits in the buffers, in its place among the others."""
        parts = list(_oldest(self.buffers))
        flight = Flight(parts, now, min(part.records.produced_at + part.buffer.settings.timeout_s for part in parts))
        self.waiting.append(flight)
        self.under_way.update(dict.fromkeys(parts))
        return flight

    def uploaded(self, flight: Flight) -> None:
        """Its upload has ended. Without segments nothing of it is there, and nothing will be."""
        if flight.segments:
            flight.is_uploaded = True
        elif flight in self.waiting:
            self.waiting.remove(flight)
        self.changed.notify_all()

    def front(self) -> Flight | None:
        """The flight that comes next, if it has been uploaded. Those that nobody wants are dropped."""
        while self.waiting and self.waiting[0].is_unwanted:
            self.waiting.popleft()
            self.changed.notify_all()
        return self.waiting[0] if self.waiting and self.waiting[0].is_uploaded else None

    def take_uploaded(self, topic_id: str) -> Iterator[Flight]:
        """Those in front that were uploaded for this topic, to be committed."""
        while (flight := self.front()) is not None and flight.topic_id == topic_id:
            yield self.waiting.popleft()
        self.changed.notify_all()

    def put_back(self, flights: Sequence[Flight]) -> None:
        """To be tried again before all others."""
        self.waiting.extendleft(reversed(flights))
        self.changed.notify_all()


def _oldest(buffers: Sequence[RecordBuffer]) -> Iterator[Part]:
    """The oldest records of each buffer. Those of one flight share a deadline: so they must be about equally old, and
    of clients with the same patience."""
    waiting = [(at, buffer) for buffer in buffers if (at := buffer.first_produced_at()) is not None]
    oldest_at, first = min(waiting, key=lambda entry: entry[0])
    timeout_s = first.settings.timeout_s
    rows_left, bytes_left = FLIGHT_ROWS_MAX, FLIGHT_BYTES_MAX
    for _, buffer in waiting:
        if buffer.settings.timeout_s == timeout_s and rows_left and bytes_left > 0:
            rows_max = min(rows_left, buffer.rows_within(bytes_left))
            taken = buffer.take(rows_max, oldest_at + timeout_s / 10)
            if taken is not None:
                rows_left = max(0, rows_left - len(taken[0]))
                bytes_left -= taken[1]
                yield Part(buffer, *taken)


def by_encoding(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Parts that can share a segment: those whose clients want the same compression."""
    groups: dict[tuple[str, int | None], list[Part]] = {}
    for part in parts:
        settings = part.buffer.settings
        groups.setdefault((settings.compression, settings.compression_level), []).append(part)
    yield from groups.values()
