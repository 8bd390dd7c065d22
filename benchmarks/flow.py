"""Flow: where messages spend their way at a steady load, stage by stage, and what a commit costs
each process.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from time import monotonic_ns, process_time
from uuid import uuid4

from benchmarks.barrier import send_to_reader, wait_for_all
from benchmarks.client import deltaq_client, records_in, subscribe
from benchmarks.distribution import Percentiles, distribution
from benchmarks.finding import Table, Target, cores_cell, known_cores
from benchmarks.history import Verdict, judge
from benchmarks.latency import Consumed, after_warmup, consume_all, with_unread
from benchmarks.load import DeliveryFailures, Load, send_patiently, send_steadily
from benchmarks.machine import OthersLoad
from benchmarks.payload import TimedPayloads
from benchmarks.suite import Place
from benchmarks.timed_store import Span, TimedStore
from deltaq import Consumer, Producer, Topic
from deltaq.names import data_key, topic_folder, topic_log
from deltaq.store import Store, open_store

STAGES = (
    "produce to put: woken, taken, encoded",
    "put of the data file",
    "put to create: handed over, drafted",
    "create of the log entry",
    "create to get: the consumer is woken",
    "get of the log entry",
    "get to get: understood, planned",
    "get of the data file",
    "get to poll: decoded, handed over",
)
"""In the order in which a message goes through them."""

UNMAINTAINED = {"maintenance.enable": False}
"""Maintenance would merge files, and the consumer read them instead."""


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """The loads, one after the other."""

    loads: tuple[Load, ...]


FULL_FLOW = FlowPlan(
    (
        Load(10_000, 5.0, 10.0, 3.0),
        Load(10_000, 20.0, 10.0, 3.0),
        Load(70_000, 5.0, 10.0, 3.0),
        Load(70_000, 20.0, 10.0, 3.0),
        Load(250_000, 5.0, 10.0, 3.0),
        Load(250_000, 20.0, 10.0, 3.0),
    )
)
QUICK_FLOW = FlowPlan((Load(10_000, 20.0, 2.0, 1.0),))


@dataclass(frozen=True, slots=True)
class Flow:
    """The outcome of one load: what each of `STAGES` took, in the same order, and all of them, over
    the messages that count and of which every request is known; one that was made again after a
    failure may not be.

    `sent_s`: how long sending took, to the last acknowledgement. `cpu_s`: of the producer, the
    consumer and all others, the store's server among them, from start to end.
    """

    load: Load
    verdict: Verdict
    commits: int
    stages: tuple[Percentiles, ...]
    whole: Percentiles
    sent_s: float
    cpu_s: tuple[float, float, float | None]
    others_cores: float | None


@dataclass(frozen=True, slots=True)
class Flows:
    """The outcome of a plan."""

    flows: tuple[Flow, ...]

    @property
    def is_clean(self) -> bool:
        return all(flow.verdict.is_clean for flow in self.flows)

    @property
    def others_cores(self) -> tuple[float, ...]:
        return known_cores(flow.others_cores for flow in self.flows)

    def tables(self) -> Iterator[Table]:
        """The stages of each load, and what its commits cost."""
        for flow in self.flows:
            counted = round(flow.load.rate * flow.load.seconds)
            title = (
                f"{flow.load}: ms on the way from `produce` to `poll`; {flow.whole.count:,} of "
                f"{counted:,} messages"
            )
            named = *zip(STAGES, flow.stages, strict=True), ("all", flow.whole)
            rows = [
                (name, *(f"{ms:.2f}" for ms in (took.p50, took.p90, took.p99, took.max)))
                for name, took in named
            ]
            yield Table(title, ("stage", "p50", "p90", "p99", "max"), tuple(rows))
        head = "load", "commits/s", "producer", "consumer", "others", "cores", "messages"
        yield Table(
            "CPU ms for each commit, warm-up included", head, tuple(map(_cost_row, self.flows))
        )

    def targets(self) -> Iterator[Target]:
        return iter(())


def _cost_row(flow: Flow) -> tuple[str, ...]:
    commits = max(1, flow.commits)
    cells = ("-" if cpu_s is None else f"{1000 * cpu_s / commits:.2f}" for cpu_s in flow.cpu_s)
    return (
        str(flow.load),
        f"{commits / flow.sent_s:.0f}",
        *cells,
        cores_cell(flow.others_cores),
        str(flow.verdict),
    )


def measure_flows(plan: FlowPlan, place: Place) -> Iterator[Flows]:
    """Carry a plan out: one outcome. Raises what either process raised."""
    flows = []
    for load in plan.loads:
        place.report(
            f"flow at {load}: {load.warmup_s:g} s to warm up, {load.seconds:g} s that count"
        )
        flows.append(_measured(place.root, load))
    yield Flows(tuple(flows))


def _measured(root: str, load: Load) -> Flow:
    found = transfer(root, "flow", load, send_load)
    stages, whole = found.stages()
    others = found.others_cores
    return Flow(
        load,
        found.verdict,
        len(found.commits),
        tuple(map(distribution, zip(*stages, strict=True))),
        distribution(whole),
        found.sent.seconds,
        (
            found.sent.cpu_s,
            found.read.consumed.cpu_s,
            None if others is None else others * found.seconds,
        ),
        others,
    )


# --- a load, and which requests each of its messages waited for
# -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProducerRequests:
    """The producer's requests for data files and log entries, by key; `acknowledged` if each
    message waits for the one before.
    """

    puts: Mapping[str, Span]
    creates: Mapping[str, Span]
    seconds: float = 0.0
    cpu_s: float = 0.0
    acknowledged: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ConsumerRequests:
    """The consumer's requests, by key, and what came of them."""

    consumed: Consumed
    entries: Mapping[str, Span]
    files: Mapping[str, Span]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A load from process to process. `commits`: of each log entry that adds files its key, and of
    each file its key and the number of its messages.
    """

    load: Load
    topic: str
    sent: ProducerRequests
    read: ConsumerRequests
    commits: Sequence[tuple[str, Sequence[tuple[str, int]]]]
    seconds: float = 0.0
    others_cores: float | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether each message arrived once and in order."""
        return judge(self.load.total, self.read.consumed.sequences, self.read.consumed.foreign)

    def stages(self) -> tuple[list[list[int]], list[int]]:
        """What each stage took of each message that counts and whose requests are all known, and
        all of them, in ns.

        One producer and one partition: message n is the nth of the log.
        """
        sent, read = self.sent, self.read
        files = [(entry, file) for entry, added in self.commits for file, _ in added]
        ends = list(accumulate(rows for _, added in self.commits for _, rows in added))
        stages, whole = [], []
        for at in after_warmup(self.load, read.consumed):
            entry, file = files[bisect_right(ends, read.consumed.sequences[at])]
            writes = sent.puts.get(file), sent.creates.get(entry)
            known = (*writes, read.entries.get(entry), read.files.get(file))
            spans = [span for span in known if span is not None]
            if len(spans) == len(known):
                moments = [
                    read.consumed.sent_ns[at],
                    *(moment for span in spans for moment in span),
                    read.consumed.received_ns[at],
                ]
                stages.append([later - sooner for sooner, later in pairwise(moments)])
                whole.append(moments[-1] - moments[0])
        return stages, whole


def transfer(
    root: str, kind: str, load: Load, send: Callable[[str, str, Load], ProducerRequests]
) -> Transfer:
    """Send with `send` in one process and read in another one; raises what either raised."""
    topic = f"{kind}-{uuid4().hex[:12]}"
    Topic(topic, conf={"bootstrap.servers": root}).create()
    others, began = OthersLoad(), monotonic_ns()
    sent, read = send_to_reader(partial(send, root, topic, load), partial(_read, root, topic, load))
    others_cores, seconds = others.cores(), (monotonic_ns() - began) / 1e9
    consumed = with_unread(read.consumed, load, records_in(deltaq_client(root), topic))
    commits = _commits(open_store(root), topic)
    return Transfer(
        load, topic, sent, replace(read, consumed=consumed), commits, seconds, others_cores
    )


def _commits(store: Store, topic: str) -> list[tuple[str, list[tuple[str, int]]]]:
    commits = []
    for key in sorted(
        entry.key for entry in store.list(topic_log(topic)) if entry.key.endswith(".json")
    ):
        adds = [
            action["add"]
            for line in store.get(key).splitlines()
            if "add" in (action := json.loads(line))
        ]
        files = [
            (
                data_key(topic_folder(topic), add["path"]),
                int(json.loads(add["stats"])["numRecords"]),
            )
            for add in adds
        ]
        if files:
            commits.append((key, files))
    return commits


def send_load(root: str, topic: str, load: Load) -> ProducerRequests:
    """Send each message when it is due."""
    payloads, failures, store = (
        TimedPayloads(load.rate),
        DeliveryFailures(),
        TimedStore(open_store(root), topic),
    )
    conf = {
        "bootstrap.servers": root,
        **failures.conf,
        "linger.ms": load.linger_ms,
        **UNMAINTAINED,
    }
    cpu_s = process_time()
    with Producer(conf, store=store) as producer:
        producer.list_topics(topic)
        wait_for_all()
        start_ns, _ = send_steadily(
            load,
            lambda number: send_patiently(producer, topic, payloads.make(number)),
            lambda: producer.poll(0),
        )
        producer.flush()
        seconds = (monotonic_ns() - start_ns) / 1e9
    failures.check()
    return ProducerRequests(store.puts, store.creates, seconds, process_time() - cpu_s)


def _read(root: str, topic: str, load: Load) -> ConsumerRequests:
    store = TimedStore(open_store(root), topic)
    conf = {
        "bootstrap.servers": root,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    cpu_s = process_time()
    with Consumer(conf, store=store) as consumer:
        subscribe(consumer, topic)
        store.forget()  # what opening the topic took
        wait_for_all()
        consumed = consume_all(consumer, TimedPayloads(load.rate), load, cpu_s)
    return ConsumerRequests(consumed, store.entries, store.files)
