"""Contention: producers, consumers and partitions of one topic in growing numbers, and the share of
each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from time import perf_counter
from uuid import uuid4

from benchmarks.barrier import run_together
from benchmarks.client import Client, deltaq_client
from benchmarks.distribution import Percentiles, distribution
from benchmarks.finding import (
    Table,
    Target,
    at_least,
    at_most,
    columns,
    cores_cell,
    known_cores,
)
from benchmarks.history import Verdict, judge, judge_partitions, summed
from benchmarks.latency import run_load, waits_ns
from benchmarks.load import DeliveryFailures, Load
from benchmarks.machine import OthersLoad
from benchmarks.payload import TimedPayloads
from benchmarks.producers import ProducerLoad, ProducerShares, measure_fairness
from benchmarks.suite import Report
from deltaq import Topic
from deltaq.partitioner import assign_partitions


@dataclass(frozen=True, slots=True)
class ContentionPlan:
    """Measurements in their order: each load of `producers`, some of them again without group
    commit; each number of `readers` of the same load; each number of `partitions`, under a load and
    then with `burst` messages as fast as they can be sent.
    """

    producers: tuple[ProducerLoad, ...]
    reader_load: Load
    readers: tuple[int, ...]
    spread_load: Load
    partitions: tuple[int, ...]
    burst: int


FULL_CONTENTION = ContentionPlan(
    tuple(
        ProducerLoad(producers, 20.0, rate, without_group_commit=alone)
        for rate in (100, 0)
        for producers, alone in (
            (1, False),
            (4, False),
            (4, True),
            (16, False),
            (16, True),
            (64, False),
        )
    ),
    Load(1_000, 20.0, 20.0, 3.0),
    (1, 20),
    Load(10_000, 20.0, 15.0, 3.0),
    (1, 10, 100, 1_000),
    burst=500_000,
)
QUICK_CONTENTION = ContentionPlan(
    tuple(ProducerLoad(producers, 3.0, rate=100) for producers in (1, 4)),
    Load(1_000, 20.0, 2.0, 0.5),
    (1, 3),
    Load(2_000, 20.0, 2.0, 0.5),
    (1, 10, 100),
    burst=20_000,
)


JUDGED_PRODUCERS = 16
FAIRNESS_AIM = 0.5
"""Least messages of the slowest of sixteen producers, as a share of those of the fastest."""
PUTS_AIM = 1.5
P99_AIM = 8.0
"""How many times one producer's p99 that of sixteen may be."""


@dataclass(frozen=True, slots=True)
class Readers:
    """Consumers, each in its own process and group, so that each reads all. `latency` is of all of
    them, from `produce`; `slowest_p99_ms` is of the slowest one. CPU seconds count from when all
    were ready.
    """

    consumers: int
    load: Load
    verdict: Verdict
    latency: Percentiles
    slowest_p99_ms: float
    achieved_rate: float
    producer_cpu_s: float
    consumers_cpu_s: float
    others_cores: float | None


@dataclass(frozen=True, slots=True)
class Spread:
    """One producer whose keys go round all partitions, and one consumer: latency from `produce`
    under the load; and without a consumer, `burst_rate` messages a second until all of a burst was
    acknowledged.
    """

    partitions: int
    load: Load
    verdict: Verdict
    latency: Percentiles
    achieved_rate: float
    producer_cpu_s: float
    consumer_cpu_s: float
    burst: int
    burst_rate: float
    others_cores: float | None


@dataclass(frozen=True, slots=True)
class Contention:
    """The outcome of a plan. `judged` says whether it ran on an object store, for which there are
    aims.
    """

    plan: ContentionPlan
    judged: bool
    producers: tuple[ProducerShares, ...]
    readers: tuple[Readers, ...]
    spreads: tuple[Spread, ...]

    @property
    def is_clean(self) -> bool:
        return all(one.verdict.is_clean for one in self._parts)

    @property
    def others_cores(self) -> tuple[float, ...]:
        return known_cores(one.others_cores for one in self._parts)

    @property
    def _parts(self) -> tuple[ProducerShares | Readers | Spread, ...]:
        return *self.producers, *self.readers, *self.spreads

    def p99_ratio(self, one: ProducerShares) -> float | None:
        """p99 relative to that of a single producer at the same rate; None if no single producer
        was measured.
        """
        same_rate = self._same_kind(replace(one.load, without_group_commit=False))
        alone = next((other for other in same_rate if other.load.producers == 1), None)
        return None if alone is None else one.acknowledged.p99 / alone.acknowledged.p99

    def tables(self) -> Iterator[Table]:
        """Producers, consumers and partitions, as far as they were measured."""
        if self.producers:
            yield self._producer_table()
        if self.readers:
            yield self._reader_table()
        if self.spreads:
            yield self._spread_table()

    def targets(self) -> Iterator[Target]:
        """Of sixteen producers with group commit: their shares, and on an object store their
        commits and latency.
        """
        for one in self.producers:
            if one.load.producers != JUDGED_PRODUCERS or one.load.without_group_commit:
                continue
            yield at_least(f"slowest/fastest, {one.load}", FAIRNESS_AIM, one.fairness)
            if self.judged:
                yield at_most(f"PUTs/commit, {one.load}", PUTS_AIM, one.puts_per_commit)
                ratio = self.p99_ratio(one)
                # The p99 of greedy producers measures their queues, which are n times as long for n
                # producers.
                if one.load.rate and ratio is not None:
                    yield at_most(f"p99 to one producer's, {one.load}", P99_AIM, ratio)

    def _same_kind(self, load: ProducerLoad) -> list[ProducerShares]:
        return [one for one in self.producers if _kind(one.load) == _kind(load)]

    def _producer_table(self) -> Table:
        head = columns(
            "producers | commits/s | PUTs/commit | lost races | files/commit | GETs/commit | "
            "slowest/fastest | acknowledged/s | ack p50 ms | p99 | p99/one's | others | messages"
        )
        rows = []
        for one in self.producers:
            ratio = self.p99_ratio(one)
            rows.append(
                (
                    str(one.load),
                    f"{one.commits / one.load.seconds:.1f}",
                    f"{one.puts_per_commit:.2f}",
                    f"{one.lost_races:,}",
                    f"{one.data_puts / max(1, one.commits):.2f}",
                    f"{one.entry_gets / max(1, one.commits):.1f}",
                    f"{one.fairness:.2f}",
                    f"{sum(one.in_time) / one.load.seconds:,.0f}",
                    f"{one.acknowledged.p50:,.1f}",
                    f"{one.acknowledged.p99:,.1f}",
                    "" if ratio is None else f"{ratio:.1f}",
                    cores_cell(one.others_cores),
                    str(one.verdict),
                )
            )
        return Table("Producers of one topic, each a process", head, tuple(rows))

    def _reader_table(self) -> Table:
        title = (
            f"Consumers of one topic, each reading all: ms from `produce`, {self.readers[0].load}"
        )
        head = columns(
            "consumers | p50 | p99 | max | slowest's p99 | achieved/s | CPU s in | CPU s out | "
            "each | others | messages"
        )
        rows = [
            (
                f"{one.consumers:,}",
                *(
                    f"{mark:.1f}"
                    for mark in (
                        one.latency.p50,
                        one.latency.p99,
                        one.latency.max,
                        one.slowest_p99_ms,
                    )
                ),
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
        title = (
            f"Partitions, one producer: ms from `produce`, {first.load}; then {first.burst:,} "
            "messages at once"
        )
        head = columns(
            "partitions | p50 | p99 | max | achieved/s | CPU s in | CPU s out | burst/s | "
            "others | messages"
        )
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


def _kind(load: ProducerLoad) -> ProducerLoad:
    """The load without its size and duration: equal for loads that are compared with each other."""
    return replace(load, producers=1, seconds=0.0)


BURST_WARMUP = 1_000
"""Messages that go before a burst: what is loaded at first use is no matter of its speed."""


def burst(client: Client, topic: str, keys: Sequence[bytes], messages: int) -> float:
    """Send some messages to warm up and then `messages` as fast as possible; seconds until these
    were acknowledged.
    """
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


def measure_contention(root: str, plan: ContentionPlan, report: Report) -> Contention:
    """Carry a plan out below `root`, which several processes must be able to reach. Raises what one
    of them raised.
    """
    producers, readers, spreads = [], [], []
    for load in plan.producers:
        report(f"contention, {load}: {load.seconds:g} s")
        share = measure_fairness(root, load)
        producers.append(share)
        report(
            f"  {share.puts_per_commit:.2f} PUTs/commit, p99 {share.acknowledged.p99:,.1f} ms, "
            f"{share.verdict}"
        )
    for consumers in plan.readers:
        report(f"contention, {consumers} consumers at {plan.reader_load}")
        read = _measure_readers(root, plan.reader_load, consumers)
        readers.append(read)
        report(f"  p99 {read.latency.p99:.1f} ms, {read.verdict}")
    for partitions in plan.partitions:
        report(f"contention, {partitions:,} partitions at {plan.spread_load}")
        spread = _measure_spread(root, plan, partitions)
        spreads.append(spread)
        report(
            f"  p99 {spread.latency.p99:.1f} ms, burst {spread.burst_rate:,.0f}/s, {spread.verdict}"
        )
    return Contention(
        plan, root.startswith("s3://"), tuple(producers), tuple(readers), tuple(spreads)
    )


def _measure_readers(root: str, load: Load, consumers: int) -> Readers:
    topic = _new_topic(root, "readers", 1)
    client, others = deltaq_client(root), OthersLoad()
    produced, consumed = run_load(client, topic, load, (None,), consumers)
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
    topic, burst_topic = (
        _new_topic(root, "spread", partitions),
        _new_topic(root, "burst", partitions),
    )
    client, others = deltaq_client(root), OthersLoad()
    produced, (consumed,) = run_load(client, topic, load, keys, 1)
    (burst_s,) = run_together([partial(burst, client, burst_topic, keys, plan.burst)])
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
        found.setdefault(assign_partitions("consistent", [key], partitions, 0)[0], key)
    return tuple(found[partition] for partition in range(partitions))


def judge_spread(sent: int, sequences: Sequence[int], partitions: int, foreign: int = 0) -> Verdict:
    """Judge messages of which number n went to partition n modulo `partitions`: those of each are
    to come in order.
    """
    arrivals = [array("q") for _ in range(partitions)]
    for sequence in sequences:
        arrivals[sequence % partitions].append(sequence // partitions)
    return judge_partitions(sent, arrivals, foreign)


def _judge_topic(root: str, topic: str, partitions: int, sent: int) -> Verdict:
    """Read a topic and judge it as `judge_spread` does; what is in another partition than it should
    be is foreign.
    """
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
