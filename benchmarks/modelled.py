"""Streams of messages through a modelled S3: latency, requests and dollars a day."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from random import Random
from threading import Event, Lock
from time import monotonic, monotonic_ns, process_time

from benchmarks.distribution import Percentiles, distribution
from benchmarks.finding import Table, Target, at_most, columns, cores_cell, known_cores
from benchmarks.history import Verdict, judge, summed
from benchmarks.latency import QUIET_S, Consumed, after_warmup, with_unread
from benchmarks.load import DeliveryFailures, Load, send_patiently, send_steadily
from benchmarks.machine import OthersLoad
from benchmarks.modelled_store import DAYS_KEPT, S3_STANDARD, ModelledStore, StoreModel
from benchmarks.payload import MESSAGE_BYTES, TimedPayloads
from benchmarks.suite import Report
from deltaq import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, Topic, TopicPartition
from deltaq.store import MemoryStore, Store


@dataclass(frozen=True, slots=True)
class Stream:
    """What is sent: messages of `message_bytes` to one topic, by `pairs` producers that each send
    an equal share of them to a partition of their own, which one of as many consumers reads.
    """

    load: Load
    message_bytes: int
    pairs: int = 1

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10^6) a second."""
        return self.load.rate * self.message_bytes / 1e6

    @property
    def share(self) -> Load:
        """What one of the producers sends."""
        return replace(self.load, rate=self.load.rate // self.pairs)

    def __str__(self) -> str:
        clients = f", {self.pairs} producers and consumers" if self.pairs > 1 else ""
        size = f"of {self.message_bytes / 1000:g} KB{clients}"
        return f"{self.mb_per_s:g} MB/s {size}, linger {self.load.linger_ms:g} ms"


@dataclass(frozen=True, slots=True)
class ModelledPlan:
    """Each stream on a new store of the model, whose delays come from `seed`."""

    streams: tuple[Stream, ...]
    model: StoreModel = S3_STANDARD
    seed: int = 1


_LINGERS_MS = (5.0, 20.0, 100.0, 250.0, 1_000.0)
FULL_MODELLED = ModelledPlan(
    (
        *(Stream(Load(10_000, linger_ms, 20.0, 10.0), 1_000) for linger_ms in _LINGERS_MS),
        # One request brings 44 MB/s, and one client has few under way. Of 100 KB, so that the
        # Python of 16 clients in one process is not what is measured.
        *(
            Stream(Load(1_000, linger_ms, 20.0, 10.0), 100_000, pairs=8)
            for linger_ms in _LINGERS_MS
        ),
    )
)
QUICK_MODELLED = ModelledPlan(
    tuple(Stream(Load(10_000, linger_ms, 4.0, 4.0), 1_000) for linger_ms in (20.0, 250.0))
)


AIM_LINGER_MS = 250.0
ACKNOWLEDGED_AIM_MS = 700.0
ARRIVED_AIM_MS = 1_000.0
"""Marks p99 at this linger: about what systems with servers in front of S3 Standard publish of
themselves.
"""

KEPT_UP_SHARE = 0.9
"""Of what is sent a second, what has to go all the way in the whole time, the last message's
latency included.
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One stream. Latencies are from when a message was due, without the warm-up, `acknowledged` to
    the delivery callback and `arrived` to the consumer's hands.

    `requests` by kind are those of all clients within `seconds`: from the first message until every
    one had been both acknowledged and read.
    """

    stream: Stream
    verdict: Verdict
    acknowledged: Percentiles
    arrived: Percentiles
    seconds: float
    requests: dict[str, int]
    cpu_s: float
    others_cores: float | None

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10^6) a second that went all the way, in the whole time."""
        return self.verdict.sent * self.stream.message_bytes / 1e6 / self.seconds

    @property
    def requests_per_s(self) -> dict[str, float]:
        """In the whole time."""
        return {kind: number / self.seconds for kind, number in self.requests.items()}

    @property
    def is_kept_up(self) -> bool:
        """Whether the stream kept up. Otherwise latencies depend on the duration, and requests are
        of a lower rate.
        """
        return self.mb_per_s >= KEPT_UP_SHARE * self.stream.mb_per_s


@dataclass(frozen=True, slots=True)
class Modelled:
    """The outcome of a plan."""

    plan: ModelledPlan
    cells: tuple[Cell, ...]

    @property
    def is_clean(self) -> bool:
        return all(cell.verdict.is_clean for cell in self.cells)

    @property
    def others_cores(self) -> tuple[float, ...]:
        return known_cores(cell.others_cores for cell in self.cells)

    def request_dollars(self, cell: Cell) -> float:
        """A day."""
        return self.plan.model.prices.dollars_for_requests(cell.requests_per_s)

    def kept_dollars(self, cell: Cell) -> float:
        """A day."""
        return self.plan.model.dollars_for_keeping(cell.mb_per_s)

    def tables(self) -> Iterator[Table]:
        """Latency and cost of each stream."""
        if self.cells:
            yield self._latency_table()
            yield self._cost_table()

    def targets(self) -> Iterator[Target]:
        """Of the streams with the one linger for which others publish what they reach."""
        for cell in self.cells:
            if cell.stream.load.linger_ms == AIM_LINGER_MS:
                what = f"modelled {self.plan.model.name}, {cell.stream}"
                yield at_most(
                    f"acknowledged p99, {what}", ACKNOWLEDGED_AIM_MS, cell.acknowledged.p99, " ms"
                )
                yield at_most(f"end to end p99, {what}", ARRIVED_AIM_MS, cell.arrived.p99, " ms")

    def _latency_table(self) -> Table:
        head = columns(
            "stream | ack p50 | p99 | end to end p50 | p99 | max | achieved MB/s | kept up | "
            "CPU s | others | messages"
        )
        rows = [
            (
                str(cell.stream),
                *(f"{mark:,.0f}" for mark in (cell.acknowledged.p50, cell.acknowledged.p99)),
                *(
                    f"{mark:,.0f}"
                    for mark in (cell.arrived.p50, cell.arrived.p99, cell.arrived.max)
                ),
                f"{cell.mb_per_s:.1f}",
                _kept_up(cell),
                f"{cell.cpu_s:.1f}",
                cores_cell(cell.others_cores),
                str(cell.verdict),
            )
            for cell in self.cells
        ]
        return Table(
            f"Modelled {self.plan.model.name}: ms from when a message was due", head, tuple(rows)
        )

    def _cost_table(self) -> Table:
        title = (
            f"Modelled {self.plan.model.name}: requests a second and dollars a day at the MB/s that"
            f" were achieved; {DAYS_KEPT} days kept, not compressed; without the machines of the "
            "clients"
        )
        kinds = "PUT", "GET", "LIST", "DELETE"
        dollars = "requests $", "storage $", "both $"
        head = "stream", "achieved MB/s", "kept up", *(f"{kind}/s" for kind in kinds), *dollars
        rows = []
        for cell in self.cells:
            rates = (f"{cell.requests_per_s.get(kind, 0.0):.1f}" for kind in kinds)
            requests, kept = self.request_dollars(cell), self.kept_dollars(cell)
            prices = (f"{price:.2f}" for price in (requests, kept, requests + kept))
            rows.append((str(cell.stream), f"{cell.mb_per_s:.1f}", _kept_up(cell), *rates, *prices))
        return Table(title, head, tuple(rows))


def _kept_up(cell: Cell) -> str:
    return "yes" if cell.is_kept_up else "NO"


TOPIC = "events"

TIMEOUT_S = 60.0
"""Seconds without a message after which missing ones count as lost. A stream beyond the capacity of
the modelled store arrives in large pieces.
"""


def measure_modelled(plan: ModelledPlan, report: Report) -> Modelled:
    """Carry a plan out, each stream in a fresh process with a store in its memory."""
    cells = []
    for stream in plan.streams:
        report(f"modelled {plan.model.name}, {stream}")
        others = OthersLoad()
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            cell = pool.submit(_measure_stream, stream, plan.model, plan.seed).result()
        cell = replace(cell, others_cores=others.cores())
        cells.append(cell)
        dollars = plan.model.prices.dollars_for_requests(cell.requests_per_s)
        report(
            f"  p99 {cell.arrived.p99:,.0f} ms, {dollars:.2f} $ a day for requests, {cell.verdict}"
        )
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
        return (
            super().read(payload[:MESSAGE_BYTES])
            if payload[MESSAGE_BYTES:] == self._padding
            else None
        )


class Bill:
    """The requests of all clients, each of which has its own store, from `begin` until every client
    has called `done`. Thread-safe.
    """

    def __init__(self, stores: Sequence[ModelledStore]) -> None:
        self._stores = stores
        self._left = len(stores)
        self._lock = Lock()
        self._began = self._now()
        self._ended: tuple[int, Counter[str]] | None = None

    def begin(self) -> None:
        """Start counting."""
        self._began = self._now()

    def done(self) -> None:
        """All messages of a client are acknowledged, or read. The last client's call ends the
        counting.
        """
        with self._lock:
            self._left -= 1
            if not self._left:
                self._ended = self._now()

    def total(self) -> tuple[float, dict[str, int]]:
        """Seconds, and requests of each kind; up to now if it is still open, because a message was
        lost.
        """
        (began_ns, before), (ended_ns, after) = self._began, self._ended or self._now()
        return (ended_ns - began_ns) / 1e9, {
            kind: number - before[kind] for kind, number in after.items()
        }

    def _now(self) -> tuple[int, Counter[str]]:
        return monotonic_ns(), sum((store.requests() for store in self._stores), Counter())


def _measure_stream(stream: Stream, model: StoreModel, seed: int) -> Cell:
    """Run in the fresh process. Each client has its own connection to the store, as if on its own
    machine.
    """
    inner, cpu_s = MemoryStore("modelled"), process_time()
    Topic(TOPIC, partitions=stream.pairs, store=inner).create()
    stores = [ModelledStore(inner, model, seed + number) for number in range(2 * stream.pairs)]
    of_producers, of_consumers = stores[: stream.pairs], stores[stream.pairs :]
    payloads = [
        PaddedPayloads(seed + partition, stream.message_bytes) for partition in range(stream.pairs)
    ]
    bill = Bill(stores)
    with ThreadPoolExecutor(len(stores)) as pool:
        ready = [Event() for _ in of_consumers]
        readings = [
            pool.submit(
                _read, store, partition, stream.share, payloads[partition], ready[partition], bill
            )
            for partition, store in enumerate(of_consumers)
        ]
        for is_ready, reading in zip(ready, readings, strict=True):
            _await_reader(is_ready, reading)
        bill.begin()
        sendings = [
            pool.submit(_send, store, partition, stream.share, payloads[partition], bill)
            for partition, store in enumerate(of_producers)
        ]
        sent = [sending.result() for sending in sendings]
        read = [reading.result() for reading in readings]
    cpu_s = process_time() - cpu_s
    records = _records_in(inner, stream.pairs)
    read = [
        with_unread(consumed, stream.share, number)
        for consumed, number in zip(read, records, strict=True)
    ]
    results = [
        PartitionResult(stream.share, *side, consumed)
        for side, consumed in zip(sent, read, strict=True)
    ]
    return cell_of(stream, results, *bill.total(), cpu_s)


def _await_reader(ready: Event, reading: Future[Consumed]) -> None:
    """Wait until a reader has set `ready`. Raises what it raised before."""
    while not ready.wait(0.1):
        if reading.done():
            reading.result()


def _records_in(store: Store, partitions: int) -> list[int]:
    """The number of records in each partition."""
    with Consumer({"bootstrap.servers": store.url, "group.id": "count"}, store=store) as consumer:
        bounds = [
            consumer.get_watermark_offsets(TopicPartition(TOPIC, number))
            for number in range(partitions)
        ]
    return [end - first for first, end in bounds]


def cell_of(
    stream: Stream,
    results: Sequence[PartitionResult],
    seconds: float,
    requests: Mapping[str, int],
    cpu_s: float,
) -> Cell:
    """The outcome for the messages of all partitions together. Pure."""
    return Cell(
        stream,
        summed([result.verdict for result in results]),
        distribution(late_ns for result in results for late_ns in result.acknowledged_ns_late()),
        distribution(late_ns for result in results for late_ns in result.arrived_ns_late()),
        seconds,
        dict(requests),
        cpu_s,
        None,
    )


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """The outcome of one partition: when the first message was due, when each was acknowledged, and
    what was read.
    """

    load: Load
    start_ns: int
    acknowledged_ns: array[int]
    consumed: Consumed

    @property
    def verdict(self) -> Verdict:
        """Whether each message arrived once and in order."""
        return judge(self.load.total, self.consumed.sequences, self.consumed.foreign)

    def acknowledged_ns_late(self) -> Iterator[int]:
        """Of each message that counts, the time from when it was due to its delivery callback."""
        for number in range(self.load.warmup, self.load.total):
            yield self.acknowledged_ns[number] - self._due_ns(number)

    def arrived_ns_late(self) -> Iterator[int]:
        """Of each message that counts, the time from when it was due until `poll` returned it."""
        for at in after_warmup(self.load, self.consumed):
            yield self.consumed.received_ns[at] - self._due_ns(self.consumed.sequences[at])

    def _due_ns(self, number: int) -> int:
        return self.start_ns + self.load.due_ns(number)


# --- the clients, each in a thread
# -----------------------------------------------------------------------------------


def _send(
    store: Store, partition: int, load: Load, payloads: TimedPayloads, bill: Bill
) -> tuple[int, array[int]]:
    """When the first message was due, and when each was acknowledged, in order."""
    failures = DeliveryFailures()
    acknowledged_ns = array("q")

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        # One partition: messages are acknowledged in the order in which they were sent.
        if error is not None:
            failures.append(error)
        acknowledged_ns.append(monotonic_ns())

    def send(sequence: int) -> None:
        send_patiently(producer, TOPIC, payloads.make(sequence), partition=partition)

    # Only the linger is to decide how much goes into a commit.
    unlimited = {
        "batch.num.messages": 1_000_000,
        "batch.size": 2**31 - 1,
        "queue.buffering.max.messages": 0,
    }
    conf = {"bootstrap.servers": store.url, "linger.ms": load.linger_ms, **unlimited}
    with Producer(conf, store=store, on_delivery=acknowledged) as producer:
        producer.list_topics(TOPIC)
        start_ns, _ = send_steadily(load, send, lambda: producer.poll(0))
        producer.flush()
        bill.done()
    failures.check()
    return start_ns, acknowledged_ns


def _read(
    store: Store, partition: int, load: Load, payloads: TimedPayloads, ready: Event, bill: Bill
) -> Consumed:
    conf = {"bootstrap.servers": store.url, "group.id": "readers"}
    with Consumer(conf, store=store) as consumer:
        consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING)])
        consumer.get_watermark_offsets(TopicPartition(TOPIC, partition))  # it has found the topic
        ready.set()
        return _read_all(consumer, payloads, load.total, bill)


def _read_all(consumer: Consumer, payloads: TimedPayloads, total: int, bill: Bill) -> Consumed:
    """Poll until all messages are there and no more have come for a while, or until too long none
    has come.
    """
    sequences, sent_ns, received_ns, foreign = array("q"), array("q"), array("q"), 0
    cpu_s, last = process_time(), monotonic()
    while monotonic() - last <= (QUIET_S if len(sequences) >= total else TIMEOUT_S):
        message = consumer.poll(0.1)
        if message is None:
            continue
        last = monotonic()
        if (error := message.error()) is not None:
            raise RuntimeError(f"an error instead of a message: {error}")
        content = payloads.read(message.value())
        if content is None:
            foreign += 1
            continue
        sent_ns.append(content[0])
        sequences.append(content[1])
        received_ns.append(int(last * 1e9))
        if len(sequences) == total:
            bill.done()
    return Consumed(sequences, sent_ns, received_ns, foreign, process_time() - cpu_s)
