"""Measures one load after the other, each on a topic of its own, and checks that all its messages
arrived.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from itertools import count
from uuid import uuid4

from benchmarks.barrier import run_together
from benchmarks.client import deltaq_client
from benchmarks.contention.clients import BURST_WARMUP, burst, run_load
from benchmarks.contention.outcome import Contention, Readers, Spread
from benchmarks.contention.plan import ContentionPlan
from benchmarks.contention.producers import measure_fairness
from benchmarks.distribution import distribution
from benchmarks.history import Verdict, judge, judge_partitions, summed
from benchmarks.latency import waits_ns
from benchmarks.load import Load
from benchmarks.machine import OthersLoad
from benchmarks.payload import TimedPayloads
from benchmarks.suite import Report
from deltaq import Topic
from deltaq.partitioner import assign_partitions

__all__ = ["judge_spread", "keys_of", "measure_contention"]


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
