"""Many processes write one topic at once: how much of it each gets, and how many requests that
costs.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, monotonic_ns
from typing import Any
from uuid import uuid4

from benchmarks.barrier import run_together, wait_for_all
from benchmarks.counting_store import CountingStore
from benchmarks.distribution import Percentiles, distribution
from benchmarks.history import Verdict, judge, summed
from benchmarks.load import DeliveryFailures
from benchmarks.machine import OthersLoad
from benchmarks.payload import ProducerPayloads
from deltaq import KafkaError, Message, Producer, Topic
from deltaq.names import topic_log
from deltaq.store import open_store

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ProducerLoad:
    """The load of `producers` processes that write one topic for `seconds`.

    Each sends `rate` messages a second. With a rate of 0 it writes as fast as it can: it always
    keeps `window` messages in flight. `without_group_commit` sets `deltaq.group.commit=false`.
    """

    producers: int
    seconds: float
    rate: int = 0
    window: int = 1_000
    without_group_commit: bool = False

    def __str__(self) -> str:
        return f"{self.producers} producers, {self.way}"

    @property
    def way(self) -> str:
        """The load without the number of producers."""
        pace = f"{self.rate:,}/s each" if self.rate else f"{self.window:,} in flight each"
        return f"{pace}, without group commit" if self.without_group_commit else pace


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one process: `in_time` messages acknowledged before the time was up, of `sent`
    in the end.

    Requests, `sent` and `acknowledged`, which counts the delivery callbacks, include a message to
    warm up.
    """

    sent: int
    acknowledged: int
    in_time: int
    requests: Mapping[str, int]
    waited_ns: array[int]


@dataclass(frozen=True, slots=True)
class ProducerShares:
    """The outcome of one load.

    `in_time` has the messages acknowledged in time of each process, fewest first. `creates` are all
    attempts to create a log entry, `commits` those that stand, `lost_races` those that met others;
    `data_puts` the uploaded files.
    """

    load: ProducerLoad
    verdict: Verdict
    in_time: tuple[int, ...]
    commits: int
    creates: int
    lost_races: int
    data_puts: int
    entry_gets: int
    acknowledged: Percentiles
    others_cores: float | None

    @property
    def fairness(self) -> float:
        """Messages of the slowest process, as a share of those of the fastest."""
        return self.in_time[0] / max(1, self.in_time[-1])

    @property
    def puts_per_commit(self) -> float:
        """Attempts to create a log entry for each one that stands; 1 is the least possible."""
        return self.creates / max(1, self.commits)


def measure_fairness(root: str, load: ProducerLoad) -> ProducerShares:
    """Let the producers of `load` write a new topic of one partition below `root`, and read
    everything back.
    """
    name = f"fairness-{uuid4().hex[:12]}"
    topic = Topic(name, conf={"bootstrap.servers": root})
    topic.create()
    store = open_store(root)
    entries_before = sum(1 for _ in store.list(topic_log(name)))
    others = OthersLoad()
    shares = run_together(
        [partial(_produce, root, name, number, load) for number in range(load.producers)]
    )
    others_cores = others.cores()
    commits = sum(1 for _ in store.list(topic_log(name))) - entries_before
    verdict = judge_values(
        [share.sent for share in shares], topic.to_arrow().column("value").to_pylist()
    )
    return summarise(load, shares, commits, verdict, others_cores)


def summarise(
    load: ProducerLoad,
    shares: Sequence[Share],
    commits: int,
    verdict: Verdict,
    others_cores: float | None,
) -> ProducerShares:
    """Add up what the processes counted. Pure."""
    requests: Counter[str] = Counter()
    for share in shares:
        requests.update(share.requests)
    # By process: a callback too many of one does not make up for one too few of another.
    unacknowledged = sum(abs(share.sent - share.acknowledged) for share in shares)
    return ProducerShares(
        load,
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
    """Judge what is in the topic, in its order: `sent[p]` messages of each producer p, each once
    and in order.
    """
    arrivals = [array("q") for _ in sent]
    payloads = [ProducerPayloads(producer) for producer in range(len(sent))]
    foreign = 0
    for value in values:
        content = ProducerPayloads.read_any(value, payloads)
        if content is None:
            foreign += 1
        else:
            arrivals[content[0]].append(content[1])
    judged = [judge(count, numbers) for count, numbers in zip(sent, arrivals, strict=True)]
    return summed([*judged, Verdict(0, foreign, 0, 0, 0, foreign)])


# --- the processes
# --------------------------------------------------------------------------------------------------


def _produce(root: str, topic: str, number: int, load: ProducerLoad) -> Share:
    """One process of the load."""
    store = CountingStore(open_store(root), topic_log(topic))
    payloads, failures = ProducerPayloads(number), DeliveryFailures()
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
        "deltaq.group.commit": "false" if load.without_group_commit else "auto",
    }
    with Producer(conf, store=store, on_delivery=acknowledged) as producer:
        # Code loaded at first use and the probe of the store are not part of the measurement.
        produced_ns.append(monotonic_ns())
        producer.produce(topic, payloads.make(0))
        producer.flush()
        wait_for_all()
        start_ns, end = monotonic_ns(), monotonic() + load.seconds
        while monotonic() < end:
            for sequence in range(
                len(produced_ns), _wanted(load, monotonic_ns() - start_ns, len(acknowledged_ns))
            ):
                produced_ns.append(monotonic_ns())
                producer.produce(topic, payloads.make(sequence))
            producer.poll(0.01)
        in_time = len(acknowledged_ns) - 1
        producer.flush()
    failures.check()
    waited_ns = array(
        "q", (then - sent for sent, then in zip(produced_ns, acknowledged_ns, strict=False))
    )
    return Share(len(produced_ns), len(acknowledged_ns), in_time, dict(store.counts), waited_ns[1:])


def _wanted(load: ProducerLoad, elapsed_ns: int, acknowledged: int) -> int:
    """How many messages should have been sent by now."""
    return 1 + elapsed_ns * load.rate // _SECOND_NS if load.rate else acknowledged + load.window
