"""Fairness: many processes write one topic at once; who gets how much of it, and what the crowd costs in requests."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, monotonic_ns
from typing import Any
from uuid import uuid4

from benchmarks.counting_store import CountingStore
from benchmarks.distribution import Distribution, distribution
from benchmarks.finding import Chart, Series, Table, Target, at_least, cores_cell, known_cores
from benchmarks.history import Verdict, judge, summed
from benchmarks.load import DeliveryFailures
from benchmarks.machine import OthersLoad
from benchmarks.payload import CrowdPayloads
from benchmarks.rendezvous import meet, run_together
from benchmarks.suite import Place
from deltaq import KafkaError, Message, Producer, Topic
from deltaq.names import topic_log
from deltaq.store import open_store

__all__ = [
    "Crowd",
    "Crowds",
    "Fairness",
    "Share",
    "judge_values",
    "measure_crowds",
    "measure_fairness",
    "summarise",
]

_FAIRNESS_AIM = 0.5
_PUTS_AIM = 2.0

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who writes: `producers` processes for `seconds`.

    Each one sends `rate` messages a second; with a rate of 0 it is greedy: it always keeps `window` messages on their
    way, so that what it gets acknowledged is what the others leave it. `each_for_itself` means that none commits for
    another one (`deltaq.group.commit=false`).
    """

    producers: int
    seconds: float
    rate: int = 0
    window: int = 1_000
    each_for_itself: bool = False

    def __str__(self) -> str:
        return f"{self.producers} producers, {self.way}"

    @property
    def way(self) -> str:
        """All but how many there are."""
        pace = f"{self.rate:,}/s each" if self.rate else f"{self.window:,} on their way each"
        return f"{pace}, each for itself" if self.each_for_itself else pace


@dataclass(frozen=True, slots=True)
class Share:
    """What one process got: `in_time` messages acknowledged before the time was up, of `sent` in the end.

    Requests, `sent` and `acknowledged`, which counts the delivery callbacks, include a message to warm up.
    """

    sent: int
    acknowledged: int
    in_time: int
    requests: Mapping[str, int]
    waited_ns: array[int]


@dataclass(frozen=True, slots=True)
class Fairness:
    """The outcome of one crowd.

    `in_time` has the messages acknowledged in time of each process, fewest first. `creates` are all attempts to create
    a log entry, `commits` those that stand, `lost_races` those that met others; `data_puts` the uploaded files.
    """

    crowd: Crowd
    verdict: Verdict
    in_time: tuple[int, ...]
    commits: int
    creates: int
    lost_races: int
    data_puts: int
    entry_gets: int
    acknowledged: Distribution
    others_cores: float | None

    @property
    def fairness(self) -> float:
        """What the slowest got, as a share of what the fastest got."""
        return self.in_time[0] / max(1, self.in_time[-1])

    @property
    def puts_per_commit(self) -> float:
        """Attempts to create a log entry for each one that stands; 1 is the least possible."""
        return self.creates / max(1, self.commits)


@dataclass(frozen=True, slots=True)
class Crowds:
    """The outcomes of all crowds."""

    crowds: tuple[Fairness, ...]

    @property
    def is_clean(self) -> bool:
        return all(crowd.verdict.is_clean for crowd in self.crowds)

    @property
    def others_cores(self) -> tuple[float, ...]:
        return known_cores(crowd.others_cores for crowd in self.crowds)

    def tables(self) -> Iterator[Table]:
        """Who got how much, and what it cost."""
        title = "Many processes on one topic: messages acknowledged in time, and requests for each commit"
        shares = "slowest", "fastest", "ratio"
        requests = "commits/s", "PUTs/commit", "lost races", "files/commit", "GETs/commit"
        head = "crowd", *shares, *requests, "ack p50 ms", "p99", "max", "others", "messages"
        yield Table(title, head, tuple(map(_row, self.crowds)))

    def charts(self) -> Iterator[Chart]:
        """The share of each process."""
        series = tuple(
            Series(
                str(crowd.crowd),
                tuple((float(at), count / max(1, crowd.in_time[-1])) for at, count in enumerate(crowd.in_time, 1)),
            )
            for crowd in self.crowds
        )
        yield Chart("What each process got", "process, slowest first", "of what the fastest got", series)

    def targets(self) -> Iterator[Target]:
        """Nobody gets much less than another one, and few attempts are lost."""
        for crowd in self.crowds:
            yield at_least(f"slowest/fastest, {crowd.crowd}", _FAIRNESS_AIM, crowd.fairness)
            puts = crowd.puts_per_commit
            yield Target(f"PUTs/commit, {crowd.crowd}", f"< {_PUTS_AIM:g}", f"{puts:.2f}", puts < _PUTS_AIM)


def _row(crowd: Fairness) -> tuple[str, ...]:
    commits, waited = max(1, crowd.commits), crowd.acknowledged
    return (
        str(crowd.crowd),
        f"{crowd.in_time[0]:,}",
        f"{crowd.in_time[-1]:,}",
        f"{crowd.fairness:.2f}",
        f"{crowd.commits / crowd.crowd.seconds:.1f}",
        f"{crowd.puts_per_commit:.2f}",
        f"{crowd.lost_races:,}",
        f"{crowd.data_puts / commits:.2f}",
        f"{crowd.entry_gets / commits:.1f}",
        *(f"{mark:,.0f}" for mark in (waited.p50, waited.p99, waited.max)),
        cores_cell(crowd.others_cores),
        str(crowd.verdict),
    )


def measure_crowds(plan: Sequence[Crowd], place: Place) -> Iterator[Crowds]:
    """Let one crowd after the other write: one outcome."""
    measured = []
    for crowd in plan:
        place.tell(f"fairness, {crowd}: {crowd.seconds:g} s")
        found = measure_fairness(place.root, crowd)
        shares = f"slowest to fastest {found.fairness:.2f}, {found.puts_per_commit:.2f} PUTs/commit"
        place.tell(f"  {shares}, {found.verdict}")
        measured.append(found)
    yield Crowds(tuple(measured))


def measure_fairness(root: str, crowd: Crowd) -> Fairness:
    """Let a crowd write a new topic of one partition below `root`, and read everything back."""
    name = f"fairness-{uuid4().hex[:12]}"
    topic = Topic(name, conf={"bootstrap.servers": root})
    topic.create()
    store = open_store(root)
    entries_before = sum(1 for _ in store.list(topic_log(name)))
    others = OthersLoad()
    shares = run_together([partial(_produce, root, name, number, crowd) for number in range(crowd.producers)])
    others_cores = others.cores()
    commits = sum(1 for _ in store.list(topic_log(name))) - entries_before
    verdict = judge_values([share.sent for share in shares], topic.to_arrow().column("value").to_pylist())
    return summarise(crowd, shares, commits, verdict, others_cores)


def summarise(
    crowd: Crowd, shares: Sequence[Share], commits: int, verdict: Verdict, others_cores: float | None
) -> Fairness:
    """Add up what the processes counted. Pure."""
    requests: Counter[str] = Counter()
    for share in shares:
        requests.update(share.requests)
    # By process: a callback too many of one does not make up for one too few of another.
    unacknowledged = sum(abs(share.sent - share.acknowledged) for share in shares)
    return Fairness(
        crowd,
        replace(verdict, unacknowledged=unacknowledged),
        tuple(sorted(share.in_time for share in shares)),
        commits,
        sum(count for name, count in requests.items() if name.startswith("entry create")),
        requests["entry create exists"],
        requests["data put ok"] + requests["data put error"] + requests["data create ok"],
        sum(count for name, count in requests.items() if name.startswith("entry get")),
        distribution(waited for share in shares for waited in share.waited_ns),
        others_cores,
    )


def judge_values(sent: Sequence[int], values: Sequence[bytes]) -> Verdict:
    """Judge what is in the topic, in its order: `sent[p]` messages of each producer p, each once and in order."""
    arrivals = [array("q") for _ in sent]
    payloads = [CrowdPayloads(producer) for producer in range(len(sent))]
    foreign = 0
    for value in values:
        content = CrowdPayloads.read_any(value, payloads)
        if content is None:
            foreign += 1
        else:
            arrivals[content[0]].append(content[1])
    judged = [judge(count, numbers) for count, numbers in zip(sent, arrivals, strict=True)]
    return summed([*judged, Verdict(0, foreign, 0, 0, 0, foreign)])


# --- the processes ---------------------------------------------------------------------------------------------------


def _produce(root: str, topic: str, number: int, crowd: Crowd) -> Share:
    """One process of the crowd."""
    store = CountingStore(open_store(root), topic_log(topic))
    payloads, failures = CrowdPayloads(number), DeliveryFailures()
    produced_ns, acknowledged_ns = array("q"), array("q")

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        # One partition: messages are acknowledged in the order in which they were sent.
        if error is not None:
            failures.append(error)
        acknowledged_ns.append(monotonic_ns())

    # Without maintenance: what is counted are the writers' own requests.
    conf: dict[str, Any] = {
        "bootstrap.servers": root,
        "client.id": f"producer-{number}",
        "maintenance.enable": False,
        "deltaq.group.commit": "false" if crowd.each_for_itself else "auto",
    }
    with Producer(conf, store=store, on_delivery=acknowledged) as producer:
        # What is loaded at first use, and the proof that the store is safe, are no matter of fairness.
        produced_ns.append(monotonic_ns())
        producer.produce(topic, payloads.make(0))
        producer.flush()
        meet()
        start_ns, end = monotonic_ns(), monotonic() + crowd.seconds
        while monotonic() < end:
            for sequence in range(len(produced_ns), _wanted(crowd, monotonic_ns() - start_ns, len(acknowledged_ns))):
                produced_ns.append(monotonic_ns())
                producer.produce(topic, payloads.make(sequence))
            producer.poll(0.01)
        in_time = len(acknowledged_ns) - 1
        producer.flush()
    failures.check()
    waited_ns = array("q", (then - sent for sent, then in zip(produced_ns, acknowledged_ns, strict=False)))
    return Share(len(produced_ns), len(acknowledged_ns), in_time, dict(store.counts), waited_ns[1:])


def _wanted(crowd: Crowd, elapsed_ns: int, acknowledged: int) -> int:
    """How many messages should have been sent by now."""
    return 1 + elapsed_ns * crowd.rate // _SECOND_NS if crowd.rate else acknowledged + crowd.window
