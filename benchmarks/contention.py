"""Contention: more and more producers, consumers and partitions of one topic, and what each of them still gets."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import perf_counter, process_time
from uuid import uuid4

from benchmarks.client import Client, deltaq_client, subscribe
from benchmarks.distribution import Distribution, distribution
from benchmarks.fairness import Crowd, Fairness, measure_fairness
from benchmarks.finding import Chart, Series, Table, Target, at_most, cores_cell, known_cores
from benchmarks.history import Verdict, judge, judge_partitions, summed
from benchmarks.latency import Consumed, Produced, consume_all, waits_ns
from benchmarks.load import DeliveryFailures, Load, send_patiently, send_steadily
from benchmarks.machine import OthersLoad
from benchmarks.payload import TimedPayloads
from benchmarks.rendezvous import START_TIMEOUT_S, meet, run_together
from benchmarks.suite import Tell
from deltaq import Topic
from deltaq.partitioner import consistent

__all__ = [
    "FULL_CONTENTION",
    "QUICK_CONTENTION",
    "Contention",
    "ContentionPlan",
    "Readers",
    "Spread",
    "judge_spread",
    "keys_of",
    "measure_contention",
]

JUDGED_PRODUCERS = 16
PUTS_AIM = 1.5
P99_AIM = 3.0
"""How many times one producer's p99 that of sixteen may be."""

BURST_WARMUP = 1_000
"""Messages that go before a burst: what is loaded at first use is no matter of its speed."""


@dataclass(frozen=True, slots=True)
class ContentionPlan:
    """What shares a topic: each crowd; each number of `readers` of the same load; each number of `partitions`, under a
    load and then with `burst` messages as fast as they can be sent."""

    crowds: tuple[Crowd, ...]
    reader_load: Load
    readers: tuple[int, ...]
    spread_load: Load
    partitions: tuple[int, ...]
    burst: int


FULL_CONTENTION = ContentionPlan(
    tuple(Crowd(producers, 20.0, rate) for rate in (100, 0) for producers in (1, 4, 16, 64)),
    Load(1_000, 20.0, 20.0, 3.0),
    (1, 20),
    Load(10_000, 20.0, 15.0, 3.0),
    (1, 10, 100, 1_000),
    burst=500_000,
)
QUICK_CONTENTION = ContentionPlan(
    tuple(Crowd(producers, 3.0, rate=100) for producers in (1, 4)),
    Load(1_000, 20.0, 2.0, 0.5),
    (1, 3),
    Load(2_000, 20.0, 2.0, 0.5),
    (1, 10, 100),
    burst=20_000,
)


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
        """A crowd's p99 to that of one producer of the same kind; None if none was measured."""
        alone = next((one for one in self._alike(crowd.crowd) if one.crowd.producers == 1), None)
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
        """Of sixteen producers, on an object store."""
        for crowd in self.crowds if self.judged else ():
            if crowd.crowd.producers == JUDGED_PRODUCERS:
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
    return Crowd(1, 0.0, crowd.rate, crowd.window)


def _crowd_chart(
    title: str, unit: str, kinds: Sequence[Sequence[Fairness]], figure: Callable[[Fairness], float], log_y: bool = False
) -> Chart:
    series = [
        Series(
            str(crowds[0].crowd).partition(", ")[2], tuple((float(one.crowd.producers), figure(one)) for one in crowds)
        )
        for crowds in kinds
    ]
    return Chart(title, "producers", unit, tuple(series), log_x=True, log_y=log_y)


# --- measuring -------------------------------------------------------------------------------------------------------


def measure_contention(root: str, plan: ContentionPlan, tell: Tell) -> Contention:
    """Carry a plan out below `root`, which several processes must be able to reach. Raises what one of them raised."""
    crowds, readers, spreads = [], [], []
    for crowd in plan.crowds:
        tell(f"contention, {crowd}: {crowd.seconds:g} s")
        share = measure_fairness(root, crowd)
        crowds.append(share)
        tell(f"  {share.puts_per_commit:.2f} PUTs/commit, p99 {share.acknowledged.p99:,.1f} ms, {share.verdict}")
    for consumers in plan.readers:
        tell(f"contention, {consumers} consumers at {plan.reader_load}")
        read = _measure_readers(root, plan.reader_load, consumers)
        readers.append(read)
        tell(f"  p99 {read.latency.p99:.1f} ms, {read.verdict}")
    for partitions in plan.partitions:
        tell(f"contention, {partitions:,} partitions at {plan.spread_load}")
        spread = _measure_spread(root, plan, partitions)
        spreads.append(spread)
        tell(f"  p99 {spread.latency.p99:.1f} ms, burst {spread.burst_rate:,.0f}/s, {spread.verdict}")
    return Contention(plan, root.startswith("s3://"), tuple(crowds), tuple(readers), tuple(spreads))


def _measure_readers(root: str, load: Load, consumers: int) -> Readers:
    topic = _new_topic(root, "readers", 1)
    client, others = deltaq_client(root), OthersLoad()
    produced, consumed = _run_load(client, topic, load, (None,), consumers)
    others_cores = others.cores()
    verdicts = [judge(load.total, one.sequences, one.foreign) for one in consumed]
    waits = [waits_ns(load, one) for one in consumed]
    return Readers(
        consumers,
        load,
        summed(verdicts),
        distribution(wait for one in waits for wait in one),
        max(distribution(one).p99 for one in waits if one),
        load.achieved_rate(produced.start_ns, produced.end_ns),
        produced.cpu_s,
        sum(one.cpu_s for one in consumed),
        others_cores,
    )


def _measure_spread(root: str, plan: ContentionPlan, partitions: int) -> Spread:
    load, keys = plan.spread_load, keys_of(partitions)
    topic, burst_topic = _new_topic(root, "spread", partitions), _new_topic(root, "burst", partitions)
    client, others = deltaq_client(root), OthersLoad()
    produced, (consumed,) = _run_load(client, topic, load, keys, 1)
    (burst_s,) = run_together([partial(_burst, client, burst_topic, keys, plan.burst)])
    others_cores = others.cores()
    verdict = judge_spread(load.total, consumed.sequences, partitions, consumed.foreign)
    return Spread(
        partitions,
        load,
        summed([verdict, _judge_topic(root, burst_topic, partitions, BURST_WARMUP + plan.burst)]),
        distribution(waits_ns(load, consumed)),
        load.achieved_rate(produced.start_ns, produced.end_ns),
        produced.cpu_s,
        consumed.cpu_s,
        plan.burst,
        plan.burst / burst_s,
        others_cores,
    )


def _new_topic(root: str, kind: str, partitions: int) -> str:
    name = f"{kind}-{uuid4().hex[:12]}"
    Topic(name, partitions=partitions, conf={"bootstrap.servers": root}).create()
    return name


def keys_of(partitions: int) -> tuple[bytes, ...]:
    """For each partition a key that the default partitioner gives to it."""
    found: dict[int, bytes] = {}
    for number in count():
        if len(found) == partitions:
            break
        key = b"%d" % number
        found.setdefault(consistent(key, partitions), key)
    return tuple(found[partition] for partition in range(partitions))


def judge_spread(sent: int, sequences: Sequence[int], partitions: int, foreign: int = 0) -> Verdict:
    """Judge messages of which number n went to partition n modulo `partitions`: those of each are to come in order."""
    arrivals = [array("q") for _ in range(partitions)]
    for sequence in sequences:
        arrivals[sequence % partitions].append(sequence // partitions)
    return judge_partitions(sent, arrivals, foreign)


def _judge_topic(root: str, topic: str, partitions: int, sent: int) -> Verdict:
    """Read a topic and judge it as `judge_spread` does; what is in another partition than it should be is foreign."""
    payloads, sequences, foreign = TimedPayloads(sent), array("q"), 0
    for batch in Topic(topic, conf={"bootstrap.servers": root}).to_batches():
        partition = batch.column("_partition")[0].as_py()
        for value in batch.column("value").to_pylist():
            content = payloads.read(value)
            if content is None or content[1] % partitions != partition:
                foreign += 1
            else:
                sequences.append(content[1])
    return judge_spread(sent, sequences, partitions, foreign)


# --- the processes ---------------------------------------------------------------------------------------------------


def _run_load(
    client: Client, topic: str, load: Load, keys: Sequence[bytes | None], consumers: int
) -> tuple[Produced, list[Consumed]]:
    """Send `load` from one process, message n with key n modulo their number, and read all of it in each of others."""
    partitions = len(keys)
    produce: Callable[[], Produced | Consumed] = partial(_produce, client, topic, load, keys)
    consume: Callable[[], Produced | Consumed] = partial(_consume, client, topic, load, partitions)
    outcomes = run_together([produce, *[consume] * consumers])
    (produced,) = [one for one in outcomes if isinstance(one, Produced)]
    return produced, [one for one in outcomes if isinstance(one, Consumed)]


def _produce(client: Client, topic: str, load: Load, keys: Sequence[bytes | None]) -> Produced:
    payloads, failures, waits = TimedPayloads(load.rate), DeliveryFailures(), 0

    def send(sequence: int) -> None:
        nonlocal waits
        waits += send_patiently(producer, topic, payloads.make(sequence), keys[sequence % len(keys)])

    conf = {**client.conf, **failures.conf, "linger.ms": load.linger_ms}
    with client.api.Producer(conf) as producer:
        producer.list_topics(topic)
        meet()
        cpu_s = process_time()
        start_ns, end_ns = send_steadily(load, send, lambda: producer.poll(0))
        producer.flush()
        cpu_s = process_time() - cpu_s
    failures.check()
    return Produced(start_ns, end_ns, waits, cpu_s)


def _consume(client: Client, topic: str, load: Load, partitions: int) -> Consumed:
    conf = {**client.conf, "group.id": f"reader-{uuid4().hex[:12]}", "auto.offset.reset": "earliest"}
    with client.api.Consumer(conf) as consumer:
        subscribe(consumer, topic, partitions, START_TIMEOUT_S)
        meet()
        return consume_all(consumer, TimedPayloads(load.rate), load, process_time())


def _burst(client: Client, topic: str, keys: Sequence[bytes], messages: int) -> float:
    """Send some messages to warm up and then `messages` as fast as possible; seconds until these were acknowledged."""
    total, failures = BURST_WARMUP + messages, DeliveryFailures()
    payloads = TimedPayloads(total)
    values = [payloads.make(sequence) for sequence in range(total)]
    conf = {**client.conf, **failures.conf, "queue.buffering.max.messages": 0}
    with client.api.Producer(conf) as producer:
        for sequence in range(BURST_WARMUP):
            producer.produce(topic, values[sequence], keys[sequence % len(keys)])
        producer.flush()
        start = perf_counter()
        for sequence in range(BURST_WARMUP, total):
            producer.produce(topic, values[sequence], keys[sequence % len(keys)])
        producer.flush()
        seconds = perf_counter() - start
    failures.check()
    return seconds
