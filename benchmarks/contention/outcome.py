"""What each of many still gets of a topic: how it is shown, and what was aimed at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.contention.plan import ContentionPlan
from benchmarks.distribution import Distribution
from benchmarks.fairness import Crowd, Fairness
from benchmarks.finding import Chart, Series, Table, Target, at_most, cores_cell, known_cores
from benchmarks.history import Verdict
from benchmarks.load import Load

__all__ = ["Contention", "Readers", "Spread"]

JUDGED_PRODUCERS = 16
PUTS_AIM = 1.5
P99_AIM = 3.0
"""How many times one producer's p99 that of sixteen may be."""


@dataclass(frozen=True, slots=True)
class Readers:
    """Consumers in a process and a group of their own each, so each reads all. `latency` is of all of them, from
    `produce`; `slowest_p99_ms` of the one that fared worst. CPU from when all were ready."""

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
    """One producer whose keys go round all partitions, and one consumer: latency from `produce` under the load; and
    without a consumer, `burst_rate` messages a second until all of a burst was acknowledged."""

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
    """The outcome of a plan. `judged` says whether it ran on an object store, for which there are aims."""

    plan: ContentionPlan
    judged: bool
    crowds: tuple[Fairness, ...]
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
        return *self.crowds, *self.readers, *self.spreads

    def p99_ratio(self, crowd: Fairness) -> float | None:
        """A crowd's p99 to that of one producer of the same pace, who has nobody to commit for; None if none was
        measured."""
        pace = self._alike(replace(crowd.crowd, each_for_itself=False))
        alone = next((one for one in pace if one.crowd.producers == 1), None)
        return None if alone is None else crowd.acknowledged.p99 / alone.acknowledged.p99

    def tables(self) -> Iterator[Table]:
        """Producers, consumers and partitions, as far as they were measured."""
        if self.crowds:
            yield self._crowd_table()
        if self.readers:
            yield self._reader_table()
        if self.spreads:
            yield self._spread_table()

    def charts(self) -> Iterator[Chart]:
        """Over the number of producers, and of partitions."""
        kinds = [self._alike(crowd) for crowd in dict.fromkeys(_kind(one.crowd) for one in self.crowds)]
        if self.crowds:
            yield _crowd_chart("Acknowledgement, p99", "ms", kinds, lambda crowd: crowd.acknowledged.p99, log_y=True)
            yield _crowd_chart("Commits", "commits/s", kinds, lambda crowd: crowd.commits / crowd.crowd.seconds)
            yield _crowd_chart("Attempts for each commit", "PUTs/commit", kinds, lambda crowd: crowd.puts_per_commit)
        if self.spreads:
            p50 = Series("p50", tuple((one.partitions, one.latency.p50) for one in self.spreads))
            p99 = Series("p99", tuple((one.partitions, one.latency.p99) for one in self.spreads))
            rate = Series("acknowledged", tuple((one.partitions, one.burst_rate) for one in self.spreads))
            yield Chart("From `produce` to the consumer", "partitions", "ms", (p50, p99), log_x=True, log_y=True)
            yield Chart("A burst over all partitions", "partitions", "messages/s", (rate,), log_x=True)

    def targets(self) -> Iterator[Target]:
        """Of sixteen producers as they are by default, on an object store."""
        for crowd in self.crowds if self.judged else ():
            if crowd.crowd.producers == JUDGED_PRODUCERS and not crowd.crowd.each_for_itself:
                yield at_most(f"PUTs/commit, {crowd.crowd}", PUTS_AIM, crowd.puts_per_commit)
                ratio = self.p99_ratio(crowd)
                # Of greedy ones the p99 tells how much there is in the queues: n times as much for n producers.
                if crowd.crowd.rate and ratio is not None:
                    yield at_most(f"p99 to one producer's, {crowd.crowd}", P99_AIM, ratio)

    def _alike(self, crowd: Crowd) -> list[Fairness]:
        return [one for one in self.crowds if _kind(one.crowd) == _kind(crowd)]

    def _crowd_table(self) -> Table:
        head = (
            "crowd",
            "commits/s",
            "PUTs/commit",
            "lost races",
            "slowest/fastest",
            "acknowledged/s",
            "ack p50 ms",
            "p99",
            "p99/one's",
            "others",
            "messages",
        )
        rows = []
        for one in self.crowds:
            ratio = self.p99_ratio(one)
            rows.append(
                (
                    str(one.crowd),
                    f"{one.commits / one.crowd.seconds:.1f}",
                    f"{one.puts_per_commit:.2f}",
                    f"{one.lost_races:,}",
                    f"{one.fairness:.2f}",
                    f"{sum(one.in_time) / one.crowd.seconds:,.0f}",
                    f"{one.acknowledged.p50:,.1f}",
                    f"{one.acknowledged.p99:,.1f}",
                    "" if ratio is None else f"{ratio:.1f}",
                    cores_cell(one.others_cores),
                    str(one.verdict),
                )
            )
        return Table("Producers of one topic, each a process", head, tuple(rows))

    def _reader_table(self) -> Table:
        title = f"Consumers of one topic, each reading all: ms from `produce`, {self.readers[0].load}"
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
                *(f"{mark:.1f}" for mark in (one.latency.p50, one.latency.p99, one.latency.max, one.slowest_p99_ms)),
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
        title = f"Partitions, one producer: ms from `produce`, {first.load}; then {first.burst:,} messages at once"
        head = "partitions", "p50", "p99", "max", "achieved/s", "CPU s in", "CPU s out", "burst/s", "others", "messages"
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


def _kind(crowd: Crowd) -> Crowd:
    """What two crowds that differ in nothing but their size and their time have in common."""
    return replace(crowd, producers=1, seconds=0.0)


def _crowd_chart(
    title: str, unit: str, kinds: Sequence[Sequence[Fairness]], figure: Callable[[Fairness], float], log_y: bool = False
) -> Chart:
    series = [
        Series(crowds[0].crowd.way, tuple((float(one.crowd.producers), figure(one)) for one in crowds))
        for crowds in kinds
    ]
    return Chart(title, "producers", unit, tuple(series), log_x=True, log_y=log_y)
