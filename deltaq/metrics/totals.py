"""Adding up the events of counters and histograms, by their labels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from deltaq.clock import SYSTEM_CLOCK
from deltaq.metrics.catalogue import METRICS
from deltaq.metrics.events import Counter, Event, Histogram, Metric


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram has counted: the times in each of its buckets, the last one without an end,
    and their sum.
    """

    buckets: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many times were counted."""
        return sum(self.buckets)


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of a metric for some labels."""

    metric: Metric
    labels: Mapping[str, str]
    value: float | Distribution


@dataclass(slots=True)
class _Buckets:
    counts: list[int]
    sum: float = 0.0


@dataclass(slots=True)
class _Series:
    """The values of one metric by the values of its labels."""

    numbers: dict[tuple[str, ...], float] = field(default_factory=dict)
    buckets: dict[tuple[str, ...], _Buckets] = field(default_factory=dict)


class Totals:
    """A listener that adds up the events of each metric by its labels, since it was made.
    Thread-safe.
    """

    def __init__(self) -> None:
        # Re-entrant: a signal handler may cause an event while one is counted.
        self._lock = SYSTEM_CLOCK.condition()
        self._series = {
            metric: _Series() for metric in METRICS if isinstance(metric, Counter | Histogram)
        }

    def __call__(self, event: Event) -> None:
        metric = event.metric
        key = tuple(event.labels.get(label, "") for label in metric.labels)
        with self._lock:
            series = self._series[metric]
            if isinstance(metric, Histogram):
                buckets = series.buckets.setdefault(key, _Buckets([0] * (len(metric.bounds) + 1)))
                buckets.counts[bisect_left(metric.bounds, event.amount)] += 1
                buckets.sum += event.amount
            else:
                series.numbers[key] = series.numbers.get(key, 0) + event.amount

    def read(self) -> dict[str, float]:
        """The total of each counter over all labels, by name."""
        with self._lock:
            return {
                metric.name: sum(series.numbers.values())
                for metric, series in self._series.items()
                if isinstance(metric, Counter)
            }

    def samples(self) -> Iterator[Sample]:
        """The values of all counters and histograms that have any, by their labels. A counter
        without labels has 0.
        """
        with self._lock:
            found = [
                sample
                for metric, series in self._series.items()
                for sample in _samples(metric, series)
            ]
        return iter(found)


def _samples(metric: Metric, series: _Series) -> Iterator[Sample]:
    numbers = series.numbers or (
        {(): 0.0} if isinstance(metric, Counter) and not metric.labels else {}
    )
    for key, number in numbers.items():
        yield Sample(metric, dict(zip(metric.labels, key, strict=True)), number)
    for key, buckets in series.buckets.items():
        value = Distribution(tuple(buckets.counts), buckets.sum)
        yield Sample(metric, dict(zip(metric.labels, key, strict=True)), value)
