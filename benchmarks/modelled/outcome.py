"""Latency, requests and dollars of each stream, next to published figures of other systems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.distribution import Distribution
from benchmarks.finding import Chart, Series, Table, Target, at_most, cores_cell, known_cores
from benchmarks.history import Verdict
from benchmarks.modelled.model import DAYS_KEPT
from benchmarks.modelled.others import PUBLISHED_COSTS, PUBLISHED_LATENCIES, Published
from benchmarks.modelled.plan import ModelledPlan, Stream

__all__ = ["Cell", "Modelled"]

AIM_LINGER_MS = 250.0
ACKNOWLEDGED_AIM_MS = 700.0
ARRIVED_AIM_MS = 1_000.0
"""Marks p99 at this linger: about what systems with servers in front of S3 Standard publish of
themselves.
"""

KEPT_UP_SHARE = 0.9
"""Of what is sent a second, what has to go all the way in the whole time, the last message's
latency included.
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One stream. Latencies are from when a message was due, without the warm-up, `acknowledged` to
    the delivery callback and `arrived` to the consumer's hands.

    `requests` by kind are those of all clients within `seconds`: from the first message until every
    one had been both acknowledged and read.
    """

    stream: Stream
    verdict: Verdict
    acknowledged: Distribution
    arrived: Distribution
    seconds: float
    requests: dict[str, int]
    cpu_s: float
    others_cores: float | None

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10^6) a second that went all the way, in the whole time."""
        return self.verdict.sent * self.stream.message_bytes / 1e6 / self.seconds

    @property
    def requests_per_s(self) -> dict[str, float]:
        """In the whole time."""
        return {kind: number / self.seconds for kind, number in self.requests.items()}

    @property
    def is_kept_up(self) -> bool:
        """Whether the stream kept up. Otherwise latencies depend on the duration, and requests are
        of a lower rate.
        """
        return self.mb_per_s >= KEPT_UP_SHARE * self.stream.mb_per_s


@dataclass(frozen=True, slots=True)
class Modelled:
    """The outcome of a plan."""

    plan: ModelledPlan
    cells: tuple[Cell, ...]

    @property
    def is_clean(self) -> bool:
        return all(cell.verdict.is_clean for cell in self.cells)

    @property
    def others_cores(self) -> tuple[float, ...]:
        return known_cores(cell.others_cores for cell in self.cells)

    def request_dollars(self, cell: Cell) -> float:
        """A day."""
        return self.plan.model.prices.dollars_for_requests(cell.requests_per_s)

    def kept_dollars(self, cell: Cell) -> float:
        """A day."""
        return self.plan.model.dollars_for_keeping(cell.mb_per_s)

    def tables(self) -> Iterator[Table]:
        """Latency and cost of each stream, and published figures of other systems."""
        if self.cells:
            yield self._latency_table()
            yield self._cost_table()
            yield _published(
                "Dollars a day, as published by others", ("10 MB/s", "100 MB/s"), PUBLISHED_COSTS
            )
            marks = "ack p50", "p99", "end to end p50", "p99"
            yield _published(
                "Latency on S3 in ms, as published by others", marks, PUBLISHED_LATENCIES
            )

    def charts(self) -> Iterator[Chart]:
        """Dollars and marks over `linger.ms`."""
        if self.cells:
            name = self.plan.model.name
            dollars, arrived = (
                self._lines(self.request_dollars),
                self._lines(lambda cell: cell.arrived.p99),
            )
            yield Chart(
                f"Requests, modelled {name}",
                "linger.ms",
                "$ a day",
                dollars,
                log_x=True,
                log_y=True,
            )
            yield Chart(
                f"End to end, p99, modelled {name}",
                "linger.ms",
                "ms",
                arrived,
                log_x=True,
                log_y=True,
            )

    def targets(self) -> Iterator[Target]:
        """Of the streams with the one linger for which others publish what they reach."""
        for cell in self.cells:
            if cell.stream.load.linger_ms == AIM_LINGER_MS:
                what = f"modelled {self.plan.model.name}, {cell.stream}"
                yield at_most(
                    f"acknowledged p99, {what}", ACKNOWLEDGED_AIM_MS, cell.acknowledged.p99, " ms"
                )
                yield at_most(f"end to end p99, {what}", ARRIVED_AIM_MS, cell.arrived.p99, " ms")

    def _lines(self, figure: Callable[[Cell], float]) -> tuple[Series, ...]:
        return tuple(
            Series(
                f"{rate:g} MB/s",
                tuple(
                    (cell.stream.load.linger_ms, figure(cell))
                    for cell in self.cells
                    if cell.stream.mb_per_s == rate
                ),
            )
            for rate in dict.fromkeys(cell.stream.mb_per_s for cell in self.cells)
        )

    def _latency_table(self) -> Table:
        head = (
            "stream",
            "ack p50",
            "p99",
            "end to end p50",
            "p99",
            "max",
            "achieved MB/s",
            "kept up",
            "CPU s",
            "others",
            "messages",
        )
        rows = [
            (
                str(cell.stream),
                *(f"{mark:,.0f}" for mark in (cell.acknowledged.p50, cell.acknowledged.p99)),
                *(
                    f"{mark:,.0f}"
                    for mark in (cell.arrived.p50, cell.arrived.p99, cell.arrived.max)
                ),
                f"{cell.mb_per_s:.1f}",
                _kept_up(cell),
                f"{cell.cpu_s:.1f}",
                cores_cell(cell.others_cores),
                str(cell.verdict),
            )
            for cell in self.cells
        ]
        return Table(
            f"Modelled {self.plan.model.name}: ms from when a message was due", head, tuple(rows)
        )

    def _cost_table(self) -> Table:
        title = (
            f"Modelled {self.plan.model.name}: requests a second and dollars a day at the MB/s that"
            f" were achieved; {DAYS_KEPT} days kept, not compressed; without the machines of the "
            "clients"
        )
        kinds = "PUT", "GET", "LIST", "DELETE"
        dollars = "requests $", "storage $", "both $"
        head = "stream", "achieved MB/s", "kept up", *(f"{kind}/s" for kind in kinds), *dollars
        rows = []
        for cell in self.cells:
            rates = (f"{cell.requests_per_s.get(kind, 0.0):.1f}" for kind in kinds)
            requests, kept = self.request_dollars(cell), self.kept_dollars(cell)
            prices = (f"{price:.2f}" for price in (requests, kept, requests + kept))
            rows.append((str(cell.stream), f"{cell.mb_per_s:.1f}", _kept_up(cell), *rates, *prices))
        return Table(title, head, tuple(rows))


def _kept_up(cell: Cell) -> str:
    return "yes" if cell.is_kept_up else "NO"


def _published(title: str, figures: Sequence[str], published: Sequence[Published]) -> Table:
    rows = tuple((one.system, *one.figures, one.source) for one in published)
    return Table(title, ("system", *figures, "source"), rows)
