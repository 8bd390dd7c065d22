"""What is measured, what was published of it, and the result of a trial."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.floor import Floor
from benchmarks.history import Verdict
from benchmarks.load import Load
from benchmarks.published.rows import Arrivals, Marks, by_window, judge_rows, marks, middle_of

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


@dataclass(frozen=True, slots=True)
class Sent:
    """The producer's side of a trial."""

    achieved_rate: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """The consumer's side of a trial."""

    verdict: Verdict
    windows: tuple[Marks, ...]
    whole: Marks
    cpu_s: float

    @classmethod
    def of(cls, load: Load, arrivals: Arrivals, window_s: float, cpu_s: float) -> Seen:
        """From everything that arrived. Raises ValueError if no message counts."""
        verdict = judge_rows(load.total, arrivals)
        counted = (arrivals.sequences >= load.warmup) & (arrivals.sequences < load.total)
        latency_ns = (arrivals.received_ns - arrivals.sent_ns)[counted]
        windows = by_window(load, arrivals.sequences[counted], latency_ns, window_s)
        return cls(verdict, windows, marks(latency_ns), cpu_s)


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial.

    The latency of a single message counts from the call of `produce`, and `from_due` from when it
    should have been sent. A row of a table has only the latter: it waits for its table as a message
    waits for `linger.ms`.

    `windows` are in the order in which messages were due, `whole` is of all messages that count.
    `middle_from_due`, the median of the windows from when messages were due, is used to compare the
    ways. `floor` is of the bare store for files of the mean size. Commits and bytes include the
    warm-up.
    """

    trial: Trial
    verdict: Verdict
    windows: tuple[Marks, ...]
    whole: Marks
    from_due: Marks
    middle_from_due: Marks
    achieved_rate: float
    kept_up_s: float
    commits: int
    data_bytes: int
    log_bytes: int
    producer_cpu_s: float
    consumer_cpu_s: float
    floor: Floor
    others_cores: float | None

    @property
    def middle(self) -> Marks:
        """The median of the windows, for each mark; of two in the middle, the worse."""
        return middle_of(self.windows)

    @property
    def worst_p99(self) -> float:
        """The 99th percentile of the worst window, in milliseconds."""
        return max(window.p99 for window in self.windows)

    @property
    def is_kept_up(self) -> bool:
        """Whether the rate was kept up to the end."""
        return self.kept_up_s >= self.trial.load.seconds
