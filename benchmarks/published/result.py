"""The result of one trial, from what its producer and its consumer measured."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.floor import Floor
from benchmarks.history import Verdict
from benchmarks.load import Load
from benchmarks.published.marks import Marks, by_window, marks, middle_of
from benchmarks.published.plan import Trial
from benchmarks.published.rows import Arrivals, judge_rows

__all__ = ["Result", "Seen", "Sent"]


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
class Result:
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
