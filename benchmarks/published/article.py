"""What was published of Delta tables as a queue."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.published.marks import Marks

__all__ = ["KEEPS_UP_P99_MS", "MODES_MS", "PUBLISHED", "Figure", "best_p50", "published_at"]


@dataclass(frozen=True, slots=True)
class Figure:
    """What was published of `rate` messages a second, with writer and reader set to commit each
    `mode_ms`.
    """

    rate: int
    mode_ms: int
    marks: Marks


PUBLISHED = (
    Figure(10_000, 1000, Marks(940, 940, 940, 950, 1_940)),
    Figure(10_000, 100, Marks(260, 350, 360, 530, 670)),
    Figure(30_000, 100, Marks(280, 310, 320, 380, 640)),
    Figure(70_000, 1000, Marks(1_450, 1_720, 1_840, 1_890, 2_050)),
    Figure(70_000, 100, Marks(1_240, 16_060, 24_820, 35_660, 41_320)),
    Figure(150_000, 1000, Marks(1_680, 1_940, 2_040, 2_180, 3_090)),
    Figure(250_000, 1000, Marks(1_980, 2_270, 2_410, 3_360, 4_580)),
)
"""Of Pathway's article on Delta tables as a queue: MinIO in the same network, five minutes of which
the first 30 seconds do not count, one thread in each program, percentiles cumulative over the run.
"""

MODES_MS = (1000, 100)
"""The settings that were measured; not every rate in each of them."""

KEEPS_UP_P99_MS = 2_000.0
"""The article's measure: at a rate that is kept up, the 99th percentile stays below this."""


def published_at(rate: int, mode_ms: int) -> Figure | None:
    """The figure of a rate in one of `MODES_MS`, None if there is none."""
    return next(
        (figure for figure in PUBLISHED if (figure.rate, figure.mode_ms) == (rate, mode_ms)), None
    )


def best_p50(rate: int) -> float | None:
    """The lowest median that was published of a rate, in milliseconds, whatever the mode; None if
    there is none.
    """
    return min((figure.marks.p50 for figure in PUBLISHED if figure.rate == rate), default=None)
