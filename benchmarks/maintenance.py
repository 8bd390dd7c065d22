"""Maintenance in a producer's background, on against off: what it costs the messages, and what it
keeps small.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from statistics import median
from time import monotonic_ns, process_time
from uuid import uuid4

from benchmarks.distribution import Percentiles, distribution, marks, percentile
from benchmarks.finding import Table, Target, at_most, cores_cell, known_cores
from benchmarks.history import Verdict, judge
from benchmarks.load import DeliveryFailures, Load, due_messages, send_patiently
from benchmarks.machine import OthersLoad
from benchmarks.payload import TimedPayloads
from benchmarks.suite import Place
from deltaq import KafkaError, Message, Producer, Topic, names
from deltaq.delta.actions import Add, Remove, parse_entry
from deltaq.store import open_store

_AIM = 1.25
"""Of the 99th percentiles, with maintenance to without."""


@dataclass(frozen=True, slots=True)
class MaintenancePlan:
    """`pairs` of trials of the same load, one with and one without maintenance each.

    `window_s`: the length of the windows that have a percentile each.
    """

    load: Load
    pairs: int
    window_s: float


@dataclass(frozen=True, slots=True)
class MaintenanceTrial:
    """One producer in a process of its own, on a new topic.

    `acknowledged` counts from `produce` to the delivery callback, without the warm-up;
    `window_p99s` are its 99th percentiles in milliseconds, one window after the other. `commits`
    are those that added records, `rewrites` those in which maintenance put new files in the place
    of others. `files_at_most`: live files at any one version.
    """

    on: bool
    verdict: Verdict
    acknowledged: Percentiles
    window_p99s: tuple[float, ...]
    achieved_rate: float
    commits: int
    rewrites: int
    files_at_most: int
    files_at_end: int
    checkpoints: int
    cpu_s: float
    others_cores: float | None


@dataclass(frozen=True, slots=True)
class MaintenanceCost:
    """The outcome of a plan."""

    plan: MaintenancePlan
    trials: tuple[MaintenanceTrial, ...]

    @property
    def is_clean(self) -> bool:
        return all(trial.verdict.is_clean for trial in self.trials)

    @property
    def others_cores(self) -> tuple[float, ...]:
        return known_cores(trial.others_cores for trial in self.trials)

    def p99(self, *, on: bool) -> float:
        """The median over the windows of all trials of their 99th percentiles, in milliseconds.

        A short stall of the machine affects one window only, not the whole trial.
        """
        return median(p99 for trial in self.trials if trial.on == on for p99 in trial.window_p99s)

    @property
    def ratio(self) -> float:
        """The p99 with maintenance divided by the p99 without."""
        return self.p99(on=True) / self.p99(on=False)

    def tables(self) -> Iterator[Table]:
        """Every trial, those without maintenance first."""
        title = (
            f"Maintenance in the producer's background, {self.plan.load}: ms from `produce` to the "
            "delivery callback"
        )
        counts = "achieved/s", "commits", "rewrites", "files", "CPU s", "others", "messages"
        head = (
            "maintenance",
            "p50",
            "p99",
            "p99.9",
            "max",
            f"p99 of {self.plan.window_s:g} s",
            *counts,
        )
        yield Table(title, head, tuple(map(_row, sorted(self.trials, key=lambda trial: trial.on))))

    def targets(self) -> Iterator[Target]:
        """The ratio of the latencies with and without maintenance."""
        name = f"p99 of {self.plan.window_s:g} s with maintenance/without, {self.plan.load}"
        yield at_most(name, _AIM, self.ratio)


def _row(trial: MaintenanceTrial) -> tuple[str, ...]:
    return (
        "on" if trial.on else "off",
        *marks(trial.acknowledged),
        f"{median(trial.window_p99s):.1f}",
        f"{trial.achieved_rate:,.0f}",
        f"{trial.commits:,}",
        f"{trial.rewrites:,}",
        f"{trial.files_at_most:,}",
        f"{trial.cpu_s:.1f}",
        cores_cell(trial.others_cores),
        str(trial.verdict),
    )


def measure_maintenance(plan: MaintenancePlan, place: Place) -> Iterator[MaintenanceCost]:
    """Carry a plan out: one outcome."""
    place.report(
        f"maintenance in the background at {plan.load}: {plan.pairs} times with and without"
    )
    trials = []
    for trial in measure_trials(place.root, plan):
        place.report(
            f"  {'with' if trial.on else 'without'}: p99 {trial.acknowledged.p99:.1f} ms, "
            f"{trial.verdict}"
        )
        trials.append(trial)
    yield MaintenanceCost(plan, tuple(trials))


def measure_trials(root: str, plan: MaintenancePlan) -> Iterator[MaintenanceTrial]:
    """Measure one trial after the other. The order within a pair alternates, so that neither is
    always first.
    """
    for pair in range(plan.pairs):
        for on in (False, True) if pair % 2 else (True, False):
            yield _trial(root, plan, on)


def live_files(entries: Sequence[bytes]) -> list[int]:
    """How many live files there are after each of a log's first entries."""
    found: list[int] = []
    live: set[str] = set()
    for version, entry in enumerate(entries):
        for action in parse_entry(entry, version, str(version)).actions:
            if isinstance(action, Add):
                live.add(action.path)
            elif isinstance(action, Remove):
                live.discard(action.path)
        found.append(len(live))
    return found


def window_p99s(load: Load, waited_ns: Sequence[int], window_s: float) -> tuple[float, ...]:
    """The 99th percentiles in milliseconds, one window after the other from the end of the warm-up
    on.

    `waited_ns` has one value for each message of the load, in their order. A window at the end that
    is not whole is left out, unless it is the only one.
    """
    size = min(round(load.rate * window_s), load.total - load.warmup)
    starts = range(load.warmup, load.total - size + 1, size)
    return tuple(percentile(sorted(waited_ns[start : start + size]), 990) / 1e6 for start in starts)


def _trial(root: str, plan: MaintenancePlan, on: bool) -> MaintenanceTrial:
    load = plan.load
    name = f"maintenance-{uuid4().hex[:12]}"
    topic = Topic(name, conf={"bootstrap.servers": root})
    topic.create()
    others = OthersLoad()
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        waited_ns, rate, cpu_s = pool.submit(_produce, root, name, load, on).result()
    others_cores = others.cores()
    store, payloads = open_store(root), TimedPayloads(load.rate)
    listed = sorted(entry.key for entry in store.list(names.topic_log(name)))
    entries = [store.get(key) for key in listed if names.entry_version(key) is not None]
    files = live_files(entries)
    contents = [payloads.read(value) for value in topic.to_arrow().column("value").to_pylist()]
    arrivals = array("q", (content[1] for content in contents if content is not None))
    rewrites = sum(later < earlier for earlier, later in pairwise(files))
    return MaintenanceTrial(
        on,
        judge(load.total, arrivals, len(contents) - len(arrivals)),
        distribution(waited_ns[load.warmup :]),
        window_p99s(load, waited_ns, plan.window_s),
        rate,
        len(files) - 1 - rewrites,
        rewrites,
        max(files),
        files[-1],
        sum(names.checkpoint_version(key) is not None for key in listed),
        cpu_s,
        others_cores,
    )


def _produce(root: str, topic: str, load: Load, on: bool) -> tuple[array[int], float, float]:
    """In the process of the trial: how long each message waited for its acknowledgement, the
    messages a second that were sent, and CPU seconds.
    """
    failures = DeliveryFailures()
    produced_ns, waited_ns = array("q"), array("q")

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        # One partition: messages are acknowledged in the order in which they were sent.
        if error is not None:
            failures.append(error)
        waited_ns.append(monotonic_ns() - produced_ns[len(waited_ns)])

    payloads, cpu_s = TimedPayloads(load.rate), process_time()
    conf = {"bootstrap.servers": root, "linger.ms": load.linger_ms, "maintenance.enable": on}
    with Producer(conf, on_delivery=acknowledged) as producer:
        producer.list_topics(topic)
        start_ns = monotonic_ns()
        for due in due_messages(load, start_ns):
            for sequence in due:
                payload = payloads.make(sequence)
                produced_ns.append(monotonic_ns())  # to wait for room in the queue counts too
                send_patiently(producer, topic, payload)
            producer.poll(0)
        end_ns = monotonic_ns()
        producer.flush()
    failures.check()
    return waited_ns, load.achieved_rate(start_ns, end_ns), process_time() - cpu_s
