"""The outcome of the contention suite: its tables, charts and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.contention.plan import ContentionPlan
from benchmarks.contention.producers import Fairness, ProducerLoad
from benchmarks.distribution import Distribution
from benchmarks.finding import (
    Chart,
    Series,
    Table,
    Target,
    at_least,
    at_most,
    cores_cell,
    known_cores,
)
from benchmarks.history import Verdict
from benchmarks.load import Load

__all__ = ["Contention", "Readers", "Spread"]

JUDGED_PRODUCERS = 16
FAIRNESS_AIM = 0.5
"""Least messages of the slowest of sixteen producers, as a share of those of the fastest."""
PUTS_AIM = 1.5
P99_AIM = 8.0
"""How many times one producer's p99 that of sixteen may be."""


@dataclass(frozen=True, slots=True)
class Readers:
    """Consumers, each in its own process and group, so that each reads all. `latency` is of all of
    them, from `produce`; `slowest_p99_ms` is of the slowest one. CPU seconds count from when all
    were ready.
    """

    consumers: int
    load: Load
    verdict: Verdict
    latency: Distribution
    slowest_p99_ms: float
    achieved_rate: float
    producer_cpu_s: float
    consumers_cpu_s: float
    others_cores: float | None


@dataclass(frozen=True, slots=True)
class Spread:
    """One producer whose keys go round all partitions, and one consumer: latency from `produce`
    under the load; and without a consumer, `burst_rate` messages a second until all of a burst was
    acknowledged.
    """

    partitions: int
    load: Load
    verdict: Verdict
    latency: Distribution
    achieved_rate: float
    producer_cpu_s: float
    consumer_cpu_s: float
    burst: int
    burst_rate: float
    others_cores: float | None


@dataclass(frozen=True, slots=True)
class Contention:
    """The outcome of a plan. `judged` says whether it ran on an object store, for which there are
    aims.
    """

    plan: ContentionPlan
    judged: bool
    producers: tuple[Fairness, ...]
    readers: tuple[Readers, ...]
    spreads: tuple[Spread, ...]

    @property
    def is_clean(self) -> bool:
        return all(one.verdict.is_clean for one in self._parts)

    @property
    def others_cores(self) -> tuple[float, ...]:
        return known_cores(one.others_cores for one in self._parts)

    @property
    def _parts(self) -> tuple[Fairness | Readers | Spread, ...]:
        return *self.producers, *self.readers, *self.spreads

    def p99_ratio(self, one: Fairness) -> float | None:
        """p99 relative to that of a single producer at the same rate; None if no single producer
        was measured.
        """
        same_rate = self._same_kind(replace(one.load, without_group_commit=False))
        alone = next((other for other in same_rate if other.load.producers == 1), None)
        return None if alone is None else one.acknowledged.p99 / alone.acknowledged.p99

    def tables(self) -> Iterator[Table]:
        """Producers, consumers and partitions, as far as they were measured."""
        if self.producers:
            yield self._producer_table()
        if self.readers:
            yield self._reader_table()
        if self.spreads:
            yield self._spread_table()

    def charts(self) -> Iterator[Chart]:
        """Over the number of producers, and of partitions."""
        kinds = [
            self._same_kind(load)
            for load in dict.fromkeys(_kind(one.load) for one in self.producers)
        ]
        if self.producers:
            yield _producer_chart(
                "Acknowledgement, p99", "ms", kinds, lambda one: one.acknowledged.p99, log_y=True
            )
            yield _producer_chart(
                "Commits", "commits/s", kinds, lambda one: one.commits / one.load.seconds
            )
            yield _producer_chart(
                "Attempts for each commit", "PUTs/commit", kinds, lambda one: one.puts_per_commit
            )
        if self.spreads:
            p50 = Series("p50", tuple((one.partitions, one.latency.p50) for one in self.spreads))
            p99 = Series("p99", tuple((one.partitions, one.latency.p99) for one in self.spreads))
            rate = Series(
                "acknowledged", tuple((one.partitions, one.burst_rate) for one in self.spreads)
            )
            yield Chart(
                "From `produce` to the consumer",
                "partitions",
                "ms",
                (p50, p99),
                log_x=True,
                log_y=True,
            )
            yield Chart(
                "A burst over all partitions", "partitions", "messages/s", (rate,), log_x=True
            )

    def targets(self) -> Iterator[Target]:
        """Of sixteen producers with group commit: their shares, and on an object store their
        commits and latency.
        """
        for one in self.producers:
            if one.load.producers != JUDGED_PRODUCERS or one.load.without_group_commit:
                continue
            yield at_least(f"slowest/fastest, {one.load}", FAIRNESS_AIM, one.fairness)
            if self.judged:
                yield at_most(f"PUTs/commit, {one.load}", PUTS_AIM, one.puts_per_commit)
                ratio = self.p99_ratio(one)
                # The p99 of greedy producers measures their queues, which are n times as long for n
                # producers.
                if one.load.rate and ratio is not None:
                    yield at_most(f"p99 to one producer's, {one.load}", P99_AIM, ratio)

    def _same_kind(self, load: ProducerLoad) -> list[Fairness]:
        return [one for one in self.producers if _kind(one.load) == _kind(load)]

    def _producer_table(self) -> Table:
        head = (
            "producers",
            "commits/s",
            "PUTs/commit",
            "lost races",
            "files/commit",
            "GETs/commit",
            "slowest/fastest",
            "acknowledged/s",
            "ack p50 ms",
            "p99",
            "p99/one's",
            "others",
            "messages",
        )
        rows = []
        for one in self.producers:
            ratio = self.p99_ratio(one)
            rows.append(
                (
                    str(one.load),
                    f"{one.commits / one.load.seconds:.1f}",
                    f"{one.puts_per_commit:.2f}",
                    f"{one.lost_races:,}",
                    f"{one.data_puts / max(1, one.commits):.2f}",
                    f"{one.entry_gets / max(1, one.commits):.1f}",
                    f"{one.fairness:.2f}",
                    f"{sum(one.in_time) / one.load.seconds:,.0f}",
                    f"{one.acknowledged.p50:,.1f}",
                    f"{one.acknowledged.p99:,.1f}",
                    "" if ratio is None else f"{ratio:.1f}",
                    cores_cell(one.others_cores),
                    str(one.verdict),
                )
            )
        return Table("Producers of one topic, each a process", head, tuple(rows))

    def _reader_table(self) -> Table:
        title = (
            f"Consumers of one topic, each reading all: ms from `produce`, {self.readers[0].load}"
        )
        head = (
            "consumers",
            "p50",
            "p99",
            "max",
            "slowest's p99",
            "achieved/s",
            "CPU s in",
            "CPU s out",
            "each",
            "others",
            "messages",
        )
        rows = [
            (
                f"{one.consumers:,}",
                *(
                    f"{mark:.1f}"
                    for mark in (
                        one.latency.p50,
                        one.latency.p99,
                        one.latency.max,
                        one.slowest_p99_ms,
                    )
                ),
                f"{one.achieved_rate:,.0f}",
                f"{one.producer_cpu_s:.2f}",
                f"{one.consumers_cpu_s:.2f}",
                f"{one.consumers_cpu_s / one.consumers:.2f}",
                cores_cell(one.others_cores),
                str(one.verdict),
            )
            for one in self.readers
        ]
        return Table(title, head, tuple(rows))

    def _spread_table(self) -> Table:
        first = self.spreads[0]
        title = (
            f"Partitions, one producer: ms from `produce`, {first.load}; then {first.burst:,} "
            "messages at once"
        )
        head = (
            "partitions",
            "p50",
            "p99",
            "max",
            "achieved/s",
            "CPU s in",
            "CPU s out",
            "burst/s",
            "others",
            "messages",
        )
        rows = [
            (
                f"{one.partitions:,}",
                *(f"{mark:.1f}" for mark in (one.latency.p50, one.latency.p99, one.latency.max)),
                f"{one.achieved_rate:,.0f}",
                f"{one.producer_cpu_s:.2f}",
                f"{one.consumer_cpu_s:.2f}",
                f"{one.burst_rate:,.0f}",
                cores_cell(one.others_cores),
                str(one.verdict),
            )
            for one in self.spreads
        ]
        return Table(title, head, tuple(rows))


def _kind(load: ProducerLoad) -> ProducerLoad:
    """The load without its size and duration: equal for loads that are compared with each other."""
    return replace(load, producers=1, seconds=0.0)


def _producer_chart(
    title: str,
    unit: str,
    kinds: Sequence[Sequence[Fairness]],
    figure: Callable[[Fairness], float],
    log_y: bool = False,
) -> Chart:
    series = [
        Series(kind[0].load.way, tuple((float(one.load.producers), figure(one)) for one in kind))
        for kind in kinds
    ]
    return Chart(title, "producers", unit, tuple(series), log_x=True, log_y=log_y)
