"""Each stream in a fresh process: one producer and one consumer on a store of the model in its memory."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from random import Random
from threading import Event
from time import monotonic, monotonic_ns, process_time

from benchmarks.client import subscribe
from benchmarks.distribution import distribution
from benchmarks.history import judge
from benchmarks.latency import SETTLE_S, Consumed, after_warmup
from benchmarks.load import DeliveryFailures, Load, send_patiently, send_steadily
from benchmarks.machine import OthersLoad
from benchmarks.modelled.model import StoreModel
from benchmarks.modelled.outcome import Cell, Modelled
from benchmarks.modelled.plan import ModelledPlan, Stream
from benchmarks.modelled.store import ModelledStore
from benchmarks.payload import MESSAGE_BYTES, TimedPayloads
from benchmarks.rendezvous import await_reader
from benchmarks.suite import Tell
from deltaq import Consumer, KafkaError, Message, Producer, Topic
from deltaq.store import MemoryStore, Store

__all__ = ["PaddedPayloads", "measure_modelled"]

PATIENCE_S = 60.0
"""How long nothing may come before what is missing counts as lost: a stream may be more than the model's store takes,
and then arrives in large pieces."""


def measure_modelled(plan: ModelledPlan, tell: Tell) -> Modelled:
    """Carry a plan out, each stream in a fresh process with a store in its memory."""
    cells = []
    for stream in plan.streams:
        tell(f"modelled {plan.model.name}, {stream}")
        others = OthersLoad()
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            cell = pool.submit(_measure_stream, stream, plan.model, plan.seed).result()
        cell = replace(cell, others_cores=others.cores())
        cells.append(cell)
        dollars = plan.model.dollars_for_requests(cell.requests_per_s)
        tell(f"  p99 {cell.arrived.p99:,.0f} ms, {dollars:.2f} $ a day for requests, {cell.verdict}")
    return Modelled(plan, tuple(cells))


class PaddedPayloads(TimedPayloads):
    """Timed payloads with random bytes behind them, the same ones for all, up to `size`."""

    def __init__(self, seed: int, size: int) -> None:
        super().__init__(seed)
        self._padding = Random(seed).randbytes(size - MESSAGE_BYTES)

    def make(self, sequence: int) -> bytes:
        """The payload of message `sequence`, sent now."""
        return super().make(sequence) + self._padding

    def read(self, payload: bytes) -> tuple[int, int] | None:
        """(time of sending in ns, sequence number), or None if the payload was never made."""
        return super().read(payload[:MESSAGE_BYTES]) if payload[MESSAGE_BYTES:] == self._padding else None


@dataclass(frozen=True, slots=True)
class _Sent:
    """The producer's side: when each message was acknowledged, in order; and what both clients had requested when it
    was warm, and when the last message was sent."""

    start_ns: int
    end_ns: int
    acknowledged_ns: array[int]
    warm_ns: int
    warm_requests: Counter[str]
    end_requests: Counter[str]


def _measure_stream(stream: Stream, model: StoreModel, seed: int) -> Cell:
    """In the fresh process. Each client has a way of its own to the store, as if it were on a machine of its own."""
    load, topic, inner = stream.load, "events", MemoryStore("modelled")
    Topic(topic, store=inner).create()
    ways = ModelledStore(inner, model, seed), ModelledStore(inner, model, seed + 1)
    payloads, ready, cpu_s = PaddedPayloads(seed, stream.message_bytes), Event(), process_time()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read, ways[1], topic, load, payloads, ready)
        await_reader(ready, reading)
        sent = _send(ways[0], topic, load, payloads, lambda: ways[0].requests() + ways[1].requests())
        consumed = reading.result()
    due_ns = [sent.start_ns + load.due_ns(sequence) for sequence in range(load.total)]
    counted_s = (sent.end_ns - sent.warm_ns) / 1e9
    requests = {kind: sent.end_requests[kind] - sent.warm_requests[kind] for kind in sent.end_requests}
    return Cell(
        stream,
        judge(load.total, consumed.sequences, consumed.foreign),
        distribution(sent.acknowledged_ns[at] - due_ns[at] for at in range(load.warmup, load.total)),
        distribution(consumed.received_ns[at] - due_ns[consumed.sequences[at]] for at in after_warmup(load, consumed)),
        load.achieved_rate(sent.start_ns, sent.acknowledged_ns[-1]),
        {kind: number / counted_s for kind, number in requests.items()},
        process_time() - cpu_s,
        None,
    )


def _send(store: Store, topic: str, load: Load, payloads: TimedPayloads, requests: Callable[[], Counter[str]]) -> _Sent:
    failures = DeliveryFailures()
    acknowledged_ns = array("q")
    warm: list[tuple[int, Counter[str]]] = []

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        # One partition: messages are acknowledged in the order in which they were sent.
        if error is not None:
            failures.append(error)
        acknowledged_ns.append(monotonic_ns())

    def send(sequence: int) -> None:
        if sequence == load.warmup:
            warm.append((monotonic_ns(), requests()))
        send_patiently(producer, topic, payloads.make(sequence))

    # Only the linger is to decide how much goes into a commit.
    unlimited = {"batch.num.messages": 1_000_000, "batch.size": 2**31 - 1, "queue.buffering.max.messages": 0}
    conf = {"bootstrap.servers": store.url, "linger.ms": load.linger_ms, **unlimited}
    with Producer(conf, store=store, on_delivery=acknowledged) as producer:
        producer.list_topics(topic)
        start_ns, end_ns = send_steadily(load, send, lambda: producer.poll(0))
        end_requests = requests()
        producer.flush()
    failures.check()
    return _Sent(start_ns, end_ns, acknowledged_ns, *warm[0], end_requests)


def _read(store: Store, topic: str, load: Load, payloads: TimedPayloads, ready: Event) -> Consumed:
    conf = {"bootstrap.servers": store.url, "group.id": "readers", "auto.offset.reset": "earliest"}
    with Consumer(conf, store=store) as consumer:
        subscribe(consumer, topic)
        ready.set()
        return _read_all(consumer, payloads, load.total)


def _read_all(consumer: Consumer, payloads: TimedPayloads, total: int) -> Consumed:
    """Poll until all messages are there and no more have come for a while, or until too long none has come."""
    sequences, sent_ns, received_ns, foreign = array("q"), array("q"), array("q"), 0
    cpu_s, last = process_time(), monotonic()
    while monotonic() - last <= (SETTLE_S if len(sequences) >= total else PATIENCE_S):
        message = consumer.poll(0.1)
        if message is None:
            continue
        last = monotonic()
        if (error := message.error()) is not None:
            raise RuntimeError(f"an error instead of a message: {error}")
        content = payloads.read(message.value())
        if content is None:
            foreign += 1
        else:
            sent_ns.append(content[0])
            sequences.append(content[1])
            received_ns.append(int(last * 1e9))
    return Consumed(sequences, sent_ns, received_ns, foreign, process_time() - cpu_s)
