"""deltaq next to a real Kafka: the same loads and the same program text, in turns, on the same machine."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

from benchmarks.client import Client
from benchmarks.distribution import Distribution, distribution
from benchmarks.history import Verdict, judge
from benchmarks.latency import Load, after_warmup, send_and_read
from benchmarks.machine import OthersLoad
from benchmarks.throughput import KAFKA_WAYS, Run, fill_topic, measure_throughput

__all__ = ["Delivered", "PeerPlan", "Peers", "Rivals", "measure_peers"]


_NAMES = ("deltaq", "Kafka")


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """What both clients are given: each load `rounds` times, then `messages` each way in and out."""

    loads: tuple[Load, ...]
    messages: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """One load through one client, from `produce` in one process to the value in another one."""

    client: str
    load: Load
    verdict: Verdict
    latency: Distribution
    achieved_rate: float
    producer_cpu_s: float
    consumer_cpu_s: float
    others_cores: float | None


@dataclass(frozen=True, slots=True)
class Rivals:
    """One figure of both: of deltaq, and of the peer. Medians of the rounds."""

    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """Ours to theirs."""
        return self.ours / self.theirs


@dataclass(frozen=True, slots=True)
class Peers:
    """The outcome of a plan."""

    plan: PeerPlan
    delivered: tuple[Delivered, ...]
    runs: tuple[Run, ...]

    def latency(self, load: Load, mark: str) -> Rivals:
        """A mark of the distribution, such as `p99`, in milliseconds."""
        return Rivals(*(self._latency(name, load, mark) for name in _NAMES))

    def _latency(self, client: str, load: Load, mark: str) -> float:
        alike = [one for one in self.delivered if (one.client, one.load) == (client, load)]
        return float(statistics.median(getattr(one.latency, mark) for one in alike))

    def speed(self, way: str) -> Rivals:
        """Messages a second, until all is there."""
        return Rivals(*(self._speed(name, way) for name in _NAMES))

    def _speed(self, client: str, way: str) -> float:
        alike = [run for run in self.runs if (run.client, run.way) == (client, way)]
        return float(statistics.median(run.messages / run.seconds for run in alike))


def measure_peers(clients: Sequence[Client], plan: PeerPlan) -> Iterator[Delivered | Run]:
    """One measurement after the other; who comes first changes from round to round, so that none profits from it."""
    for round_ in range(plan.rounds):
        turn = clients if round_ % 2 else list(reversed(clients))
        for load in plan.loads:
            for client in turn:
                yield _deliver(client, load)
    filled = f"filled-{uuid4().hex[:12]}"
    for client in clients if plan.messages else ():
        fill_topic(client, filled, plan.messages, seed=1)
    for round_ in range(plan.rounds if plan.messages else 0):
        for way in KAFKA_WAYS:
            for client in clients if round_ % 2 else reversed(clients):
                yield measure_throughput(client, way, plan.messages, 1, filled)


def _deliver(client: Client, load: Load) -> Delivered:
    topic = f"latency-{uuid4().hex[:12]}"
    client.create_topic(topic)
    others = OthersLoad()
    produced, consumed = send_and_read(client, topic, load)
    counted = after_warmup(load, consumed)
    return Delivered(
        client.name,
        load,
        judge(load.total, consumed.sequences, consumed.foreign),
        distribution(consumed.received_ns[at] - consumed.sent_ns[at] for at in counted),
        load.total / ((produced.end_ns - produced.start_ns) / 1e9),
        produced.cpu_s,
        consumed.cpu_s,
        others.cores(),
    )
