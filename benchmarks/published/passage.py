"""The outcome of one trial: what its producer and its consumer saw."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.floor import Floor
from benchmarks.history import Verdict
from benchmarks.load import Load
from benchmarks.published.marks import Marks, by_window, marks, middle_of
from benchmarks.published.plan import Trial
from benchmarks.published.rows import Arrivals, judge_rows

__all__ = ["Passage", "Seen", "Sent"]


@dataclass(frozen=True, slots=True)
class Sent:
    """The producer's side of a passage."""

    achieved_rate: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """The consumer's side of a passage."""

    verdict: Verdict
    windows: tuple[Marks, ...]
    whole: Marks
    cpu_s: float

    @classmethod
    def of(cls, load: Load, arrivals: Arrivals, window_s: float, cpu_s: float) -> Seen:
        """What it saw, of all that arrived. ValueError if none of it counts."""
        verdict = judge_rows(load.total, arrivals)
        counted = (arrivals.sequences >= load.warmup) & (arrivals.sequences < load.total)
        latency_ns = (arrivals.received_ns - arrivals.sent_ns)[counted]
        windows = by_window(load, arrivals.sequences[counted], latency_ns, window_s)
        return cls(verdict, windows, marks(latency_ns), cpu_s)


@dataclass(frozen=True, slots=True)
class Passage:
    """The outcome of a trial.

    Of a message that is handed over by itself, latency counts from the call of `produce`, and `from_due` from when it
    was to be sent. A row of a table has but the latter: it waits for its table as a message waits for `linger.ms`.
    `middle_from_due` is as `middle`, with which the ways are compared; `floor` of the bare store for files of the mean
    size.
    `windows` are in the order in which messages were due, `whole` is of all that counted. Commits and bytes include the
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
        """Of each mark, the median of the windows: the worse one of two in the middle."""
        return middle_of(self.windows)

    @property
    def worst_p99(self) -> float:
        """The 99th percentile of the worst window, in milliseconds."""
        return max(window.p99 for window in self.windows)

    @property
    def is_kept_up(self) -> bool:
        """Whether it was kept up to the end."""
        return self.kept_up_s >= self.trial.load.seconds
