"""Latency: one process sends at a steady rate, another one reads; every message is timed and
accounted for.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, monotonic_ns, process_time
from typing import Any
from uuid import uuid4

from benchmarks.barrier import START_TIMEOUT_S, run_together, wait_for_all
from benchmarks.client import Client, deltaq_client, records_in, subscribe
from benchmarks.distribution import Percentiles, distribution
from benchmarks.finding import Table, Target, at_most, columns, cores_cell, known_cores
from benchmarks.floor import Floor, against_floor, measure_floor
from benchmarks.history import Verdict, judge, unread
from benchmarks.load import DeliveryFailures, Load, send_patiently, send_steadily
from benchmarks.machine import OthersLoad
from benchmarks.payload import TimedPayloads
from benchmarks.suite import Place
from deltaq.names import topic_folder, topic_log
from deltaq.store import open_store

TIMEOUT_S = 10.0
"""How long nothing may come before what is missing counts as lost."""

QUIET_S = 0.5
"""How long to go on reading when all is there: a double may still come."""

_AIM = 100_000, 20.0, 100.0
"""Messages a second, linger.ms, and the 99th percentile in milliseconds that is aimed at."""

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LatencyPlan:
    """The loads, one after the other, and how often the floor is measured after each."""

    loads: tuple[Load, ...]
    floor_rounds: int


@dataclass(frozen=True, slots=True)
class Produced:
    """The producer's side. Message n was due at `start_ns` + `Load.due_ns(n)`."""

    start_ns: int
    end_ns: int
    waits_for_room: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Consumed:
    """The consumer's side: for each arrival in order, the message's number, and when it was sent
    and received.
    """

    sequences: array[int]
    sent_ns: array[int]
    received_ns: array[int]
    foreign: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Latency:
    """The outcome of one load.

    `from_send` counts from the call of `produce`, `from_due` from when the message should have been
    sent: a producer that is held up cannot hide behind the first. `behind` is the difference.
    `by_second_p99_ms` shows drift and recovery. Counts of messages are those of the verdict;
    commits and bytes include the warm-up. Kafka has neither these nor a floor.
    """

    client: str
    load: Load
    verdict: Verdict
    from_send: Percentiles
    from_due: Percentiles
    behind: Percentiles
    by_second_p99_ms: tuple[float, ...]
    achieved_rate: float
    commits: int
    data_bytes: int
    log_bytes: int
    waits_for_room: int
    producer_cpu_s: float
    consumer_cpu_s: float
    floor: Floor | None
    others_cores: float | None


@dataclass(frozen=True, slots=True)
class Latencies:
    """The outcome of a plan."""

    loads: tuple[Latency, ...]

    @property
    def is_clean(self) -> bool:
        return all(latency.verdict.is_clean for latency in self.loads)

    @property
    def others_cores(self) -> tuple[float, ...]:
        return known_cores(latency.others_cores for latency in self.loads)

    def tables(self) -> Iterator[Table]:
        """The percentiles, and the conditions under which they came about."""
        title = "Latency in ms, from `produce` in one process to the value in the other"
        head = columns(
            "load | p50 | p95 | p99 | p99.9 | max | worst s | due p99 | floor | p50/floor | "
            "messages"
        )
        yield Table(title, head, tuple(map(_percentile_row, self.loads)))
        title = "What these loads were, warm-up included"
        sizes = "commits", "KB/commit", "log KB/commit"
        used = "full", "CPU s in", "CPU s out", "others"
        yield Table(
            title,
            ("load", "sent", "achieved/s", *sizes, *used),
            tuple(map(_condition_row, self.loads)),
        )

    def targets(self) -> Iterator[Target]:
        """The 99th percentile of the one load of which something is promised."""
        rate, linger_ms, aim_ms = _AIM
        for latency in self.loads:
            if (latency.load.rate, latency.load.linger_ms) == (rate, linger_ms):
                yield at_most(
                    f"p99 at {rate:,}/s, linger.ms={linger_ms:g}",
                    aim_ms,
                    latency.from_send.p99,
                    " ms",
                )


def _percentile_row(latency: Latency) -> tuple[str, ...]:
    sent = latency.from_send
    figures = (
        sent.p50,
        sent.p95,
        sent.p99,
        sent.p999,
        sent.max,
        max(latency.by_second_p99_ms),
        latency.from_due.p99,
    )
    against = against_floor(sent.p50, latency.floor)
    return (
        str(latency.load),
        *(f"{figure:.1f}" for figure in figures),
        *against,
        str(latency.verdict),
    )


def _condition_row(latency: Latency) -> tuple[str, ...]:
    commits = max(1, latency.commits)
    return (
        str(latency.load),
        f"{latency.verdict.sent:,}",
        f"{latency.achieved_rate:,.0f}",
        f"{latency.commits:,}",
        f"{latency.data_bytes / commits / 1000:.1f}",
        f"{latency.log_bytes / commits / 1000:.1f}",
        f"{latency.waits_for_room:,}",
        f"{latency.producer_cpu_s:.2f}",
        f"{latency.consumer_cpu_s:.2f}",
        cores_cell(latency.others_cores),
    )


def measure_latencies(plan: LatencyPlan, place: Place) -> Iterator[Latencies]:
    """Carry a plan out: one outcome."""
    measured = []
    for load in plan.loads:
        place.report(
            f"latency at {load}: {load.warmup_s:g} s to warm up, {load.seconds:g} s that count"
        )
        latency = measure_latency(deltaq_client(place.root), load, plan.floor_rounds)
        place.report(f"  p99 {latency.from_send.p99:.1f} ms, {latency.verdict}")
        measured.append(latency)
    yield Latencies(tuple(measured))


def measure_latency(client: Client, load: Load, floor_rounds: int) -> Latency:
    """Send and read `load` through a new topic, which two processes must be able to reach."""
    topic = f"latency-{uuid4().hex[:12]}"
    client.create_topic(topic)
    is_ours = client.library != "confluent_kafka"
    entries_before, _, _ = _sizes(client, topic) if is_ours else (0, 0, 0)
    others = OthersLoad()
    produced, consumed = send_and_read(client, topic, load)
    others_cores, floor = others.cores(), None
    commits = data_bytes = log_bytes = 0
    if is_ours:
        entries, data_bytes, log_bytes = _sizes(client, topic)
        commits = entries - entries_before
        store = open_store(client.bootstrap)
        floor = measure_floor(store, data_bytes // max(1, commits), floor_rounds)
    counted = after_warmup(load, consumed)
    due_ns = {at: produced.start_ns + load.due_ns(consumed.sequences[at]) for at in counted}
    return Latency(
        client.name,
        load,
        judge(load.total, consumed.sequences, consumed.foreign),
        distribution(consumed.received_ns[at] - consumed.sent_ns[at] for at in counted),
        distribution(waits_from_due_ns(load, produced, consumed)),
        distribution(consumed.sent_ns[at] - due_ns[at] for at in counted),
        _by_second(load, consumed, counted),
        load.achieved_rate(produced.start_ns, produced.end_ns),
        commits,
        data_bytes,
        log_bytes,
        produced.waits_for_room,
        produced.cpu_s,
        consumed.cpu_s,
        floor,
        others_cores,
    )


def _sizes(client: Client, topic: str) -> tuple[int, int, int]:
    """The objects in a topic's log, the bytes beside it, and the bytes in it."""
    store = open_store(client.bootstrap)
    in_log = [entry.size for entry in store.list(topic_log(topic))]
    all_bytes = sum(entry.size for entry in store.list(topic_folder(topic)))
    return len(in_log), all_bytes - sum(in_log), sum(in_log)


def after_warmup(load: Load, consumed: Consumed) -> list[int]:
    """The arrivals that count."""
    return [
        at for at, sequence in enumerate(consumed.sequences) if load.warmup <= sequence < load.total
    ]


def waits_ns(load: Load, consumed: Consumed) -> list[int]:
    """How long each of the messages that count took from `produce`."""
    return [consumed.received_ns[at] - consumed.sent_ns[at] for at in after_warmup(load, consumed)]


def waits_from_due_ns(load: Load, produced: Produced, consumed: Consumed) -> list[int]:
    """The same from when each was to be sent."""
    return [
        consumed.received_ns[at] - produced.start_ns - load.due_ns(consumed.sequences[at])
        for at in after_warmup(load, consumed)
    ]


def _by_second(load: Load, consumed: Consumed, counted: Sequence[int]) -> tuple[float, ...]:
    """The 99th percentile of each second, in milliseconds, by the time at which messages were
    due.
    """
    seconds: dict[int, list[int]] = {}
    for at in counted:
        second = load.due_ns(consumed.sequences[at] - load.warmup) // _SECOND_NS
        seconds.setdefault(second, []).append(consumed.received_ns[at] - consumed.sent_ns[at])
    return tuple(distribution(seconds[second]).p99 for second in sorted(seconds))


# --- the two processes
# -----------------------------------------------------------------------------------------------


def send_and_read(
    client: Client, topic: str, load: Load, copy: str = ""
) -> tuple[Produced, Consumed]:
    """Send `load` from one process and read it in another one, as `run_load` does.

    With `copy` that topic is read, to which something else copies `topic`.
    """
    produced, (consumed,) = run_load(client, topic, load, read=copy or topic)
    return produced, consumed


def run_load(
    client: Client,
    topic: str,
    load: Load,
    keys: Sequence[bytes | None] = (None,),
    consumers: int = 1,
    read: str = "",
) -> tuple[Produced, list[Consumed]]:
    """Send `load` from one process, message n with key n modulo their number, and read all of it in
    each of others; raises what one of them raised. None can wait for ever.
    """
    partitions, read = len(keys), read or topic
    produce: Callable[[], Produced | Consumed] = partial(_produce, client, topic, load, keys)
    consume: Callable[[], Produced | Consumed] = partial(_consume, client, read, load, partitions)
    outcomes = run_together([produce, *[consume] * consumers])
    (produced,) = [one for one in outcomes if isinstance(one, Produced)]
    records = records_in(client, read, partitions)
    return produced, [
        with_unread(one, load, records) for one in outcomes if isinstance(one, Consumed)
    ]


def with_unread(consumed: Consumed, load: Load, records: int) -> Consumed:
    """What a consumer saw of a topic with so many records, and as foreign what it did not wait for.
    Pure.
    """
    arrived = len(consumed.sequences) + consumed.foreign
    return replace(consumed, foreign=consumed.foreign + unread(load.total, arrived, records))


def _produce(client: Client, topic: str, load: Load, keys: Sequence[bytes | None]) -> Produced:
    payloads, failures, waits = TimedPayloads(load.rate), DeliveryFailures(), 0

    def send(sequence: int) -> None:
        nonlocal waits
        waits += send_patiently(
            producer, topic, payloads.make(sequence), keys[sequence % len(keys)]
        )

    conf = {**client.conf, **failures.conf, "linger.ms": load.linger_ms}
    with client.api.Producer(conf) as producer:
        producer.list_topics(topic)
        wait_for_all()
        cpu_s = process_time()
        start_ns, end_ns = send_steadily(load, send, lambda: producer.poll(0))
        producer.flush()
        cpu_s = process_time() - cpu_s
    failures.check()
    return Produced(start_ns, end_ns, waits, cpu_s)


def _consume(client: Client, topic: str, load: Load, partitions: int) -> Consumed:
    group = f"reader-{uuid4().hex[:12]}"
    conf = {**client.consumer_conf, "group.id": group, "auto.offset.reset": "earliest"}
    with client.api.Consumer(conf) as consumer:
        subscribe(consumer, topic, partitions, START_TIMEOUT_S)
        wait_for_all()
        return consume_all(consumer, TimedPayloads(load.rate), load, process_time())


def consume_all(consumer: Any, payloads: TimedPayloads, load: Load, cpu_s: float) -> Consumed:
    """Poll until all messages are there and no more have come for a while, or until too long none
    has come.
    """
    values: list[bytes] = []
    received = array("q")
    # Otherwise each collection looks at all values kept so far: for seconds, after half an hour.
    gc.freeze()
    last = monotonic()
    while True:
        message = consumer.poll(0.1)
        if message is None:
            if monotonic() - last > (QUIET_S if len(values) >= load.total else TIMEOUT_S):
                break
            continue
        error = message.error()
        if error is not None:
            raise RuntimeError(f"an error instead of a message: {error}")
        values.append(message.value())
        now_ns = monotonic_ns()
        received.append(now_ns)
        last = now_ns / _SECOND_NS
    # Looked into only now: the work on one message would delay the next.
    return _understood(values, received, payloads, process_time() - cpu_s)


def _understood(
    values: Sequence[bytes], received: array[int], payloads: TimedPayloads, cpu_s: float
) -> Consumed:
    sequences, sent, understood = array("q"), array("q"), array("q")
    for value, received_ns in zip(values, received, strict=True):
        content = payloads.read(value)
        if content is not None:
            sent.append(content[0])
            sequences.append(content[1])
            understood.append(received_ns)
    return Consumed(sequences, sent, understood, len(values) - len(sequences), cpu_s)
