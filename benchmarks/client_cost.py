"""The client alone: what a message costs it where the store costs nearly nothing, and whether its
memory stays flat.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TypeVar
from uuid import uuid4

import pyarrow as pa

from benchmarks.barrier import await_reader
from benchmarks.client import Client, deltaq_client, records_in, subscribe
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
from benchmarks.history import Verdict, judge, unread
from benchmarks.latency import QUIET_S, TIMEOUT_S
from benchmarks.load import DeliveryFailures, Load, send_patiently, send_steadily
from benchmarks.machine import OthersLoad
from benchmarks.payload import TimedPayloads, as_arrow, random_values
from benchmarks.suite import Report
from benchmarks.throughput import FILE_ROWS, WAYS, Run, measured_way, name_of

__all__ = [
    "FULL_CLIENT_COST",
    "QUICK_CLIENT_COST",
    "Arrivals",
    "ClientCost",
    "ClientCostPlan",
    "Memory",
    "MemoryPlan",
    "measure_client_cost",
    "measure_memory",
    "resident_mb",
    "slope_mb_per_hour",
]

ARROW_AIM = 5.0
"""Millions of rows a second."""

GROWTH_AIM = 0.05
"""By how much of what was taken at the start the memory may grow."""

_STATM = Path("/proc/self/statm")
_EDGE = 8
"""Growth is from the first to the last eighth of the time in question: single samples go up and
down.
"""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A producer and a consumer in one process. Growth is that within the last `judged_s` seconds
    of the load.
    """

    load: Load
    judged_s: float
    sample_s: float = 1.0


@dataclass(frozen=True, slots=True)
class ClientCostPlan:
    """`messages` each way in and out, `rounds` times; then the memory."""

    messages: int
    rounds: int
    memory: MemoryPlan | None
    ways: tuple[str, ...] = WAYS


FULL_CLIENT_COST = ClientCostPlan(1_000_000, 5, MemoryPlan(Load(10_000, 20.0, 540.0, 60.0), 480.0))
QUICK_CLIENT_COST = ClientCostPlan(
    200_000, 1, MemoryPlan(Load(10_000, 20.0, 8.0, 2.0), 7.0, sample_s=0.25)
)


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident megabytes (10^6) of the process, as (seconds since the first message, megabytes)."""

    plan: MemoryPlan
    verdict: Verdict
    achieved_rate: float
    samples_mb: tuple[tuple[float, float], ...]
    others_cores: float | None

    @property
    def warm_mb(self) -> tuple[tuple[float, float], ...]:
        """The samples after the warm-up."""
        return tuple(sample for sample in self.samples_mb if sample[0] >= self.plan.load.warmup_s)

    @property
    def start_mb(self) -> float:
        """What it took when it was warm."""
        return self.warm_mb[0][1]

    @property
    def end_mb(self) -> float:
        """What it took at the end."""
        return self.samples_mb[-1][1]

    @property
    def highest_mb(self) -> float:
        """The most that it took when it was warm."""
        return max(taken for _, taken in self.warm_mb)

    @property
    def slope_mb_per_hour(self) -> float:
        """Of a straight line through the samples after the warm-up."""
        return slope_mb_per_hour(self.warm_mb)

    @property
    def growth(self) -> float:
        """Growth within the time that is judged, as a share of what was taken at the start."""
        begin_s = self.samples_mb[-1][0] - self.plan.judged_s
        judged = [taken for at, taken in self.samples_mb if at >= begin_s]
        edge = max(1, len(judged) // _EDGE)
        return (
            statistics.median(judged[-edge:]) - statistics.median(judged[:edge])
        ) / self.start_mb


@dataclass(frozen=True, slots=True)
class ClientCost:
    """The outcome of a plan. A run with a wrong content is no outcome: it raises. `memory` is None
    where the system does not report it.
    """

    plan: ClientCostPlan
    runs: tuple[Run, ...]
    memory: Memory | None

    @property
    def is_clean(self) -> bool:
        return self.memory is None or self.memory.verdict.is_clean

    @property
    def others_cores(self) -> tuple[float, ...]:
        of_memory = [] if self.memory is None else [self.memory.others_cores]
        return known_cores([*(run.others_cores for run in self.runs), *of_memory])

    def rate(self, way: str) -> float:
        """Messages a second until all was there; the median of the runs."""
        return statistics.median(run.messages / run.seconds for run in self._of(way))

    def tables(self) -> Iterator[Table]:
        """What a message costs each way, and what the memory did."""
        if self.runs:
            yield self._cost_table()
        if self.memory is not None:
            yield _memory_table(self.memory)

    def charts(self) -> Iterator[Chart]:
        """The memory over time."""
        if self.memory is not None:
            points = tuple((at / 60, taken) for at, taken in self.memory.samples_mb)
            yield Chart(
                "Memory of a producer and a consumer",
                "minutes",
                "MB resident",
                (Series("process", points),),
            )

    def targets(self) -> Iterator[Target]:
        """Of tables in and out, and of the memory's growth."""
        for way in ("produce_arrow", "consume_arrow"):
            if self._of(way):
                yield at_least(
                    f"{way}, client alone", ARROW_AIM, self.rate(way) / 1e6, " million rows/s"
                )
        if self.memory is not None:
            name = f"growth of memory within {self.memory.plan.judged_s:g} s"
            yield at_most(name, GROWTH_AIM * 100, self.memory.growth * 100, " %")

    def _of(self, way: str) -> list[Run]:
        return [run for run in self.runs if run.way == way]

    def _cost_table(self) -> Table:
        head = "way", "us in the call", "us until there", "CPU us", "messages/s", "others"
        rows = []
        for way in dict.fromkeys(run.way for run in self.runs):
            runs = self._of(way)
            called = [run.calls_s / run.messages for run in runs if run.calls_s is not None]
            others = known_cores(run.others_cores for run in runs)
            rows.append(
                (
                    name_of(way),
                    f"{statistics.median(called) * 1e6:.3f}" if called else "",
                    f"{1e6 / self.rate(way):.3f}",
                    f"{statistics.median(run.cpu_s / run.messages for run in runs) * 1e6:.3f}",
                    f"{self.rate(way):,.0f}",
                    cores_cell(statistics.median(others) if others else None),
                )
            )
        title = (
            "The client alone, store in memory: microseconds a message, medians of "
            f"{self.plan.rounds}"
        )
        return Table(title, head, tuple(rows))


def _memory_table(memory: Memory) -> Table:
    head = (
        "load",
        "start",
        "end",
        "highest",
        "MB/hour",
        "growth",
        "achieved/s",
        "others",
        "messages",
    )
    row = (
        f"{memory.plan.load}, {memory.samples_mb[-1][0]:,.0f} s",
        *(f"{taken:.1f}" for taken in (memory.start_mb, memory.end_mb, memory.highest_mb)),
        f"{memory.slope_mb_per_hour:+.1f}",
        f"{memory.growth:+.1%}",
        f"{memory.achieved_rate:,.0f}",
        cores_cell(memory.others_cores),
        str(memory.verdict),
    )
    return Table("Resident MB of a producer and a consumer in one process", head, (row,))


def slope_mb_per_hour(samples_mb: Sequence[tuple[float, float]]) -> float:
    """The slope of the line with the least squares through (seconds, megabytes); 0 for a single
    sample. Pure.
    """
    if len(samples_mb) < 2:
        return 0.0
    seconds, taken = zip(*samples_mb, strict=True)
    return statistics.linear_regression(seconds, taken).slope * 3600


def measure_client_cost(root: str, plan: ClientCostPlan, report: Report) -> ClientCost:
    """Measure each way on a store in memory, and the memory with topics below `root`. Raises
    WrongContent.
    """
    runs = []
    # Round by round, so that a moment in which the machine was busy does not hit all runs of one
    # way.
    for number in range(1, plan.rounds + 1):
        for way in plan.ways:
            run = _in_a_process(_alone, way, plan.messages, number)
            runs.append(run)
            report(
                f"client alone, round {number} of {plan.rounds}, {way}: "
                f"{run.seconds / run.messages * 1e6:.3f} us each"
            )
    memory = None
    if plan.memory is not None:
        load = plan.memory.load
        report(f"memory at {load}: {load.warmup_s + load.seconds:g} s")
        memory = _in_a_process(measure_memory, root, plan.memory)
        report(f"  {memory.slope_mb_per_hour:+.1f} MB/hour, {memory.verdict}")
    return ClientCost(plan, tuple(runs), memory)


_Measured = TypeVar("_Measured", Run, Memory)


def _in_a_process(measure: Callable[..., _Measured], *arguments: object) -> _Measured:
    """Measure in a fresh process, and how busy others were meanwhile."""
    others = OthersLoad()
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        outcome = pool.submit(measure, *arguments).result()
    return replace(outcome, others_cores=others.cores())


# --- in the fresh process
# --------------------------------------------------------------------------------------------


def _alone(way: str, messages: int, seed: int) -> Run:
    """Go one way twice, on a store in the memory of this process. The second time counts: what it
    costs to get memory from the system for the first time is no matter of the client.
    """
    client, filled = deltaq_client(f"memory://{uuid4().hex}"), "filled"
    if not way.startswith("produce"):
        _fill(client, filled, random_values(messages, seed))
    measured_way(client, way, messages, seed, filled)
    calls_s, seconds, cpu_s = measured_way(client, way, messages, seed, filled)
    return Run(way, messages, calls_s, seconds, cpu_s, None, client.name)


def _fill(client: Client, topic: str, values: list[bytes]) -> None:
    """Fill a new topic as `fill_topic` does, but leave it to itself: maintenance would go on while
    it is read, in the process that is measured.
    """
    client.create_topic(topic)
    with client.api.Producer({**client.conf, "maintenance.enable": False}) as producer:
        for first in range(0, len(values), FILE_ROWS):
            producer.produce_arrow(
                topic, pa.table({"value": as_arrow(values[first : first + FILE_ROWS])})
            )
            producer.flush()


def measure_memory(root: str, plan: MemoryPlan) -> Memory:
    """Send and read the load of a plan in this process, and sample how much memory that takes.

    Nothing that grows with the number of messages is kept.
    """
    client, topic, load = deltaq_client(root), f"memory-{uuid4().hex[:12]}", plan.load
    client.create_topic(topic)
    payloads, arrivals, ready = TimedPayloads(load.rate), Arrivals(), Event()
    samples_mb: list[tuple[float, float]] = []
    start = monotonic()

    def sample() -> None:
        elapsed_s = monotonic() - start
        if elapsed_s >= len(samples_mb) * plan.sample_s:
            samples_mb.append((elapsed_s, resident_mb()))

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read, client, topic, load, payloads, arrivals, ready)
        await_reader(ready, reading)
        start = monotonic()
        rate = _send(client, topic, load, payloads, sample)
        samples_mb.append((monotonic() - start, resident_mb()))
        foreign = reading.result()
    foreign += unread(load.total, len(arrivals) + foreign, records_in(client, topic))
    return Memory(plan, judge(load.total, arrivals.all(), foreign), rate, tuple(samples_mb), None)


def _send(
    client: Client, topic: str, load: Load, payloads: TimedPayloads, each_ms: Callable[[], None]
) -> float:
    """Send a load, and call `each_ms` about every millisecond meanwhile; messages a second."""
    failures = DeliveryFailures()

    def poll() -> None:
        producer.poll(0)
        each_ms()

    conf = {**client.conf, **failures.conf, "linger.ms": load.linger_ms}
    with client.api.Producer(conf) as producer:
        producer.list_topics(topic)
        start_ns, end_ns = send_steadily(
            load, lambda sequence: send_patiently(producer, topic, payloads.make(sequence)), poll
        )
        producer.flush()
    failures.check()
    return load.achieved_rate(start_ns, end_ns)


def _read(
    client: Client,
    topic: str,
    load: Load,
    payloads: TimedPayloads,
    arrivals: Arrivals,
    ready: Event,
) -> int:
    """Note all that arrives until nothing more comes; how many messages had never been sent."""
    foreign = 0
    conf = {**client.conf, "group.id": f"memory-{topic}", "auto.offset.reset": "earliest"}
    with client.api.Consumer(conf) as consumer:
        subscribe(consumer, topic)
        ready.set()
        last = monotonic()
        while monotonic() - last <= (QUIET_S if len(arrivals) >= load.total else TIMEOUT_S):
            for message in consumer.consume(500, 0.05):
                last = monotonic()
                if (error := message.error()) is not None:
                    raise RuntimeError(f"an error instead of a message: {error}")
                content = payloads.read(message.value())
                if content is None:
                    foreign += 1
                else:
                    arrivals.add(content[1])
    return foreign


class Arrivals:
    """Sequence numbers in the order in which they came, kept as runs of consecutive ones: however
    many have come, it is one run when all is well.
    """

    def __init__(self) -> None:
        self._runs: list[list[int]] = []  # first, count
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return len(self._runs)

    def add(self, sequence: int) -> None:
        """Note one more."""
        self._count += 1
        if self._runs and sequence == sum(self._runs[-1]):
            self._runs[-1][1] += 1
        else:
            self._runs.append([sequence, 1])

    def all(self) -> array[int]:
        """Each of them, in their order."""
        return array(
            "q", chain.from_iterable(range(first, first + count) for first, count in self._runs)
        )


def resident_mb() -> float:
    """Megabytes of memory that this process takes now; where the system is not Linux and does not
    report, the most that it has ever taken, which stays flat only if the other does not grow.
    """
    if not _STATM.exists():
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Bytes on macOS, elsewhere KiB.
        return most / 1e6 if sys.platform == "darwin" else most * 1024 / 1e6
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
