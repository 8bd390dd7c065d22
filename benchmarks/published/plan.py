"""What is measured: loads, each of them on one of the ways from process to process."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.load import Load

__all__ = [
    "DELTA_RS",
    "DELTA_RS_KEPT",
    "FULL_PUBLISHED",
    "MESSAGES",
    "QUICK_PUBLISHED",
    "TABLES",
    "PublishedPlan",
    "Trial",
    "range_plan",
]

MESSAGES = "messages"
TABLES = "tables"
DELTA_RS = "delta-rs by URI"
DELTA_RS_KEPT = "delta-rs, table kept"
"""The ways: deltaq message by message, and by tables; plain delta-rs given the URI for each table
of rows, and with one object for all of them.
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """A load and its way. All but MESSAGES hand over a table each `tick_ms`, of the rows that have
    become due.
    """

    load: Load
    way: str = MESSAGES
    tick_ms: float = 0.0

    @property
    def name(self) -> str:
        """How the messages go, without how many."""
        if self.way == MESSAGES:
            return f"linger {self.load.linger_ms:g} ms"
        if self.way == TABLES:
            return f"tables each {self.tick_ms:g} ms, linger {self.load.linger_ms:g} ms"
        return f"{self.way}, each {self.tick_ms:g} ms"

    @property
    def is_ours(self) -> bool:
        """Whether it goes through deltaq."""
        return self.way in {MESSAGES, TABLES}

    def __str__(self) -> str:
        return f"{self.load.rate:,}/s, {self.name}"


@dataclass(frozen=True, slots=True)
class PublishedPlan:
    """What is measured, one after the other, and how long a window is."""

    trials: tuple[Trial, ...]
    window_s: float


def _plain(rate: int, seconds: float, warmup_s: float) -> tuple[Trial, ...]:
    return tuple(
        Trial(Load(rate, 0.0, seconds, warmup_s), way, 100.0) for way in (DELTA_RS, DELTA_RS_KEPT)
    )


def _messages(rate: int) -> tuple[Trial, ...]:
    return tuple(Trial(Load(rate, linger_ms, 30.0, 5.0)) for linger_ms in (20.0, 5.0))


def range_plan(start: int, end: int, step: int, seconds: float) -> PublishedPlan:
    """Messages at the rates from `start` to `end`, both included, each for `seconds`, of which the
    first tenth does not count, at most 30 seconds: the article's five minutes have that much.
    """
    warmup_s = min(30.0, seconds / 10)
    rates = range(start, end + 1, step)
    trials = tuple(Trial(Load(rate, 20.0, seconds - warmup_s, warmup_s)) for rate in rates)
    return PublishedPlan(trials, window_s=5.0)


FULL_PUBLISHED = PublishedPlan(
    (
        *_messages(10_000),
        *_plain(10_000, 30.0, 5.0),
        *_messages(30_000),
        *_messages(70_000),
        *_plain(70_000, 30.0, 5.0),
        *_messages(150_000),
        *_messages(250_000),
        # Each table becomes a file of its own: with fewer of them, rows wait longer, and the disk
        # syncs less often.
        Trial(Load(500_000, 5.0, 30.0, 5.0), TABLES, 20.0),
        Trial(Load(1_000_000, 5.0, 60.0, 5.0), TABLES, 50.0),
    ),
    window_s=5.0,
)
QUICK_PUBLISHED = PublishedPlan(
    (
        *(Trial(Load(rate, 20.0, 3.0, 1.0)) for rate in (10_000, 70_000)),
        *_plain(10_000, 3.0, 1.0),
        Trial(Load(500_000, 5.0, 3.0, 1.0), TABLES, 20.0),
    ),
    window_s=1.0,
)
