"""deltaq next to a real Kafka: the same loads and program text, alternating, on the same
machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

from benchmarks.client import Client, deltaq_client, kafka_client
from benchmarks.distribution import marks
from benchmarks.finding import (
    Table,
    Target,
    at_least,
    at_most,
    cores_cell,
    known_cores,
)
from benchmarks.floor import FLOOR_ROUNDS, against_floor
from benchmarks.latency import Latency, measure_latency
from benchmarks.load import Load
from benchmarks.payload import MESSAGE_BYTES
from benchmarks.suite import Place
from benchmarks.throughput import KAFKA_WAYS, Run, fill_topic, measure_throughput, name_of

_NAMES = ("deltaq", "Kafka")

_AIMS = {100_000: (1.5, 20.0), 1_000_000: (4.0, 150.0)}
"""Up to so many messages a second: the p50 next to Kafka's, and the p99 in milliseconds."""

_SPEED_AIM = 1.0


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """For both clients: each load `rounds` times, then `messages` through each method of sending
    and receiving.
    """

    loads: tuple[Load, ...]
    messages: int
    rounds: int


@dataclass(frozen=True, slots=True)
class PeerRatio:
    """The same figure of deltaq and of Kafka: medians of the rounds."""

    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """deltaq's figure divided by Kafka's."""
        return self.ours / self.theirs


@dataclass(frozen=True, slots=True)
class Peers:
    """The outcome of a plan."""

    plan: PeerPlan
    delivered: tuple[Latency, ...]
    runs: tuple[Run, ...]

    def latency(self, load: Load, mark: str) -> PeerRatio:
        """A mark of the distribution, such as `p99`, in milliseconds."""
        return PeerRatio(*(self._latency(name, load, mark) for name in _NAMES))

    def _latency(self, client: str, load: Load, mark: str) -> float:
        same = [one for one in self.delivered if (one.client, one.load) == (client, load)]
        return float(statistics.median(getattr(one.from_send, mark) for one in same))

    def speed(self, way: str) -> PeerRatio:
        """Messages a second, until all is there."""
        return PeerRatio(*(self._speed(name, way) for name in _NAMES))

    def _speed(self, client: str, way: str) -> float:
        same = [run for run in self.runs if (run.client, run.way) == (client, way)]
        return float(statistics.median(run.messages / run.seconds for run in same))

    def cpu_us(self, way: str) -> PeerRatio:
        """Microseconds of processor time of the client's process for each message."""
        return PeerRatio(*(self._cpu_us(name, way) for name in _NAMES))

    def _cpu_us(self, client: str, way: str) -> float:
        same = [run for run in self.runs if (run.client, run.way) == (client, way)]
        return float(statistics.median(run.cpu_s / run.messages * 1e6 for run in same))

    @property
    def is_clean(self) -> bool:
        """Whether every message of every load arrived as it should. (A throughput run that went
        wrong has raised.)
        """
        return all(one.verdict.is_clean for one in self.delivered)

    @property
    def others_cores(self) -> tuple[float, ...]:
        """Of deltaq's loads: while Kafka is measured, its broker is one of the others."""
        return known_cores(one.others_cores for one in self.delivered if one.client == "deltaq")

    @property
    def _ways(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.way for run in self.runs))

    def tables(self) -> Iterator[Table]:
        """Every load, and the median of each way."""
        title = "deltaq and Kafka: ms from `produce` in one process to the value in the other"
        used = "achieved/s", "CPU s in", "CPU s out", "others", "messages"
        head = (
            "load",
            "client",
            "p50",
            "p99",
            "p99.9",
            "max",
            "due p99",
            "floor",
            "p50/floor",
            *used,
        )
        same = sorted(self.delivered, key=lambda one: (one.load.rate, one.client))
        yield Table(title, head, tuple(map(_row, same)))
        title = (
            f"Messages of {MESSAGE_BYTES} random bytes a second, until all is acknowledged or read:"
            " medians"
        )
        rows = tuple(
            (name_of(way), *_both(self.speed(way), ",.0f"), *_both(self.cpu_us(way), ".2f"))
            for way in self._ways
        )
        if rows:
            costs = "deltaq CPU us each", "Kafka CPU us each", "ratio"
            yield Table(title, ("way", "deltaq", "Kafka", "ratio", *costs), rows)

    def targets(self) -> Iterator[Target]:
        """The targets of the medians."""
        for load in self.plan.loads:
            ratio, p99_ms = next(aims for rate, aims in _AIMS.items() if load.rate <= rate)
            yield at_most(f"p50, {load}, deltaq/Kafka", ratio, self.latency(load, "p50").ratio)
            yield at_most(f"p99, {load}", p99_ms, self.latency(load, "p99").ours, " ms")
        for way in self._ways:
            yield at_least(f"{name_of(way)}, deltaq/Kafka", _SPEED_AIM, self.speed(way).ratio)


def _both(compared: PeerRatio, form: str) -> tuple[str, str, str]:
    return format(compared.ours, form), format(compared.theirs, form), f"{compared.ratio:.2f}"


def _row(one: Latency) -> tuple[str, ...]:
    return (
        str(one.load),
        one.client,
        *marks(one.from_send),
        f"{one.from_due.p99:.1f}",
        *against_floor(one.from_send.p50, one.floor),
        f"{one.achieved_rate:,.0f}",
        f"{one.producer_cpu_s:.2f}",
        f"{one.consumer_cpu_s:.2f}",
        cores_cell(one.others_cores),
        str(one.verdict),
    )


def measure_peers(plan: PeerPlan, place: Place) -> Iterator[Peers]:
    """Carry a plan out with deltaq and with the broker at `place.kafka`: one outcome."""
    place.report("deltaq and Kafka, alternating")
    delivered: list[Latency] = []
    runs: list[Run] = []
    for measured in compare((deltaq_client(place.root), kafka_client(place.kafka)), plan):
        if isinstance(measured, Latency):
            delivered.append(measured)
            figures = (
                f"p50 {measured.from_send.p50:.1f} ms, p99 {measured.from_send.p99:.1f} ms, "
                f"{measured.verdict}"
            )
            place.report(f"  {measured.load}, {measured.client}: {figures}")
        else:
            runs.append(measured)
            place.report(
                f"  {measured.way}, {measured.client}: "
                f"{measured.messages / measured.seconds:,.0f}/s"
            )
    yield Peers(plan, tuple(delivered), tuple(runs))


def compare(clients: Sequence[Client], plan: PeerPlan) -> Iterator[Latency | Run]:
    """One measurement after the other. The order of the clients alternates from round to round."""
    for round_ in range(plan.rounds):
        order = clients if round_ % 2 else list(reversed(clients))
        for load in plan.loads:
            for client in order:
                yield measure_latency(client, load, FLOOR_ROUNDS)
    filled = f"filled-{uuid4().hex[:12]}"
    for client in clients if plan.messages else ():
        fill_topic(client, filled, plan.messages, seed=1)
    for round_ in range(plan.rounds if plan.messages else 0):
        for way in KAFKA_WAYS:
            for client in clients if round_ % 2 else reversed(clients):
                yield measure_throughput(client, way, plan.messages, 1, filled)
