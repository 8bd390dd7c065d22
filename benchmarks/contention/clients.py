"""The clients, each in a process of its own: one producer, and as many consumers as there are to
be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter, process_time
from uuid import uuid4

from benchmarks.barrier import START_TIMEOUT_S, run_together, wait_for_all
from benchmarks.client import Client, records_in, subscribe
from benchmarks.latency import Consumed, Produced, consume_all, with_unread
from benchmarks.load import DeliveryFailures, Load, send_patiently, send_steadily
from benchmarks.payload import TimedPayloads

__all__ = ["BURST_WARMUP", "burst", "run_load"]

BURST_WARMUP = 1_000
"""Messages that go before a burst: what is loaded at first use is no matter of its speed."""


def run_load(
    client: Client, topic: str, load: Load, keys: Sequence[bytes | None], consumers: int
) -> tuple[Produced, list[Consumed]]:
    """Send `load` from one process, message n with key n modulo their number, and read all of it in
    each of others.
    """
    partitions = len(keys)
    produce: Callable[[], Produced | Consumed] = partial(_produce, client, topic, load, keys)
    consume: Callable[[], Produced | Consumed] = partial(_consume, client, topic, load, partitions)
    outcomes = run_together([produce, *[consume] * consumers])
    (produced,) = [one for one in outcomes if isinstance(one, Produced)]
    records = records_in(client, topic, partitions)
    return produced, [
        with_unread(one, load, records) for one in outcomes if isinstance(one, Consumed)
    ]


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
    conf = {
        **client.conf,
        "group.id": f"reader-{uuid4().hex[:12]}",
        "auto.offset.reset": "earliest",
    }
    with client.api.Consumer(conf) as consumer:
        subscribe(consumer, topic, partitions, START_TIMEOUT_S)
        wait_for_all()
        return consume_all(consumer, TimedPayloads(load.rate), load, process_time())


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
