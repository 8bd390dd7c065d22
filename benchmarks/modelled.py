"""A modelled S3: what a topic costs a day, and how long messages take, over `linger.ms`.

Nobody's bucket is needed: a store in memory keeps each request waiting as long as S3 would, drawn from what others have
published of it, and counts it at S3's price.
"""

from __future__ import annotations

import builtins
import heapq
import math
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from random import Random
from statistics import NormalDist
from threading import Event
from time import monotonic, monotonic_ns, process_time

from benchmarks.client import subscribe
from benchmarks.counting_store import CountingStore
from benchmarks.distribution import Distribution, distribution
from benchmarks.finding import Chart, Series, Table, Target, at_most, cores_cell, known_cores
from benchmarks.history import Verdict, judge
from benchmarks.latency import SETTLE_S, Consumed, after_warmup
from benchmarks.load import DeliveryFailures, Load, send_patiently, send_steadily
from benchmarks.machine import OthersLoad
from benchmarks.payload import MESSAGE_BYTES, TimedPayloads
from benchmarks.rendezvous import await_reader
from benchmarks.suite import Tell
from deltaq import Consumer, KafkaError, Message, Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.store import MemoryStore, ObjectEntry, Pace, Store, Watch
from deltaq.store.objects import LIST_CHUNK, PACE, PART_BYTES, PARTS_IN_FLIGHT
from deltaq.store.watch import SignalWatch
from deltaq.testing.chance import chance

__all__ = [
    "FULL_MODELLED",
    "PUBLISHED_COSTS",
    "PUBLISHED_LATENCIES",
    "QUICK_MODELLED",
    "S3_STANDARD",
    "Cell",
    "Modelled",
    "ModelledPlan",
    "ModelledStore",
    "PaddedPayloads",
    "RequestLatency",
    "StoreModel",
    "Stream",
    "measure_modelled",
]

DAY_S = 86_400
MONTH_DAYS = 365 / 12
DAYS_KEPT = 7
"""As in `retention.ms`'s default."""

AIM_LINGER_MS = 250.0
ACKNOWLEDGED_AIM_MS = 700.0
ARRIVED_AIM_MS = 1_000.0
"""Marks p99 at this linger: about what systems with servers in front of S3 Standard publish of themselves."""

PATIENCE_S = 60.0
"""How long nothing may come before what is missing counts as lost: a stream may be more than the model's store takes,
and then arrives in large pieces."""

_P99 = NormalDist().inv_cdf(0.99)


@dataclass(frozen=True, slots=True)
class RequestLatency:
    """How long a small request takes, log-normal through two percentiles. Milliseconds."""

    p50: float
    p99: float

    def seconds(self, share: float) -> float:
        """What a share of all requests does not exceed, in seconds. Pure."""
        sigma = math.log(self.p99 / self.p50) / _P99
        return self.p50 * math.exp(sigma * NormalDist().inv_cdf(min(max(share, 1e-12), 1 - 1e-12))) / 1000


@dataclass(frozen=True, slots=True)
class StoreModel:
    """A store by kind of request (PUT, GET, LIST, DELETE): latencies, `mb_per_s` of the content of one request, dollars
    per million requests, and dollars a month per gigabyte kept."""

    name: str
    latencies: Mapping[str, RequestLatency]
    mb_per_s: float
    per_million: Mapping[str, float]
    gb_month: float

    def dollars_for_requests(self, per_s: Mapping[str, float]) -> float:
        """Dollars a day for so many requests of each kind a second."""
        return sum(rate * DAY_S * self.per_million[kind] / 1e6 for kind, rate in per_s.items())

    def dollars_for_keeping(self, mb_per_s: float, days: float = DAYS_KEPT) -> float:
        """Dollars a day for keeping what has been written in so many days, at a steady rate."""
        return mb_per_s * DAY_S * days / 1000 * self.gb_month / MONTH_DAYS


S3_STANDARD = StoreModel(
    "S3 Standard",
    {
        # turbopuffer's page on its architecture and Quickwit's and cdouglas' measurements: a small PUT takes 60 to
        # 100 ms at p50 and 195 at p99, a GET 63 and 78. A trace published by the makers of mountpoint-s3: the first
        # byte of a LIST after 13 to 14 ms and 35 to 42. Of DELETE nothing is told: taken for a PUT.
        "PUT": RequestLatency(65, 200),
        "GET": RequestLatency(63, 78),
        "LIST": RequestLatency(14, 42),
        "DELETE": RequestLatency(65, 200),
    },
    # Of a message's way through one PUT and one GET, a survey reckons 236 ms more at p50 for objects of 2 to 8 MiB than
    # for small ones: 10 MiB in 236 ms.
    mb_per_s=44.4,
    # AWS' questions and answers on S3, but for the price of keeping, which was not re-checked. That refused requests
    # and those for what is missing are paid for like any is an assumption too. Deleting costs nothing.
    per_million={"PUT": 5.0, "GET": 0.40, "LIST": 5.0, "DELETE": 0.0},
    gb_month=0.023,
)


@dataclass(frozen=True, slots=True)
class Published:
    """What is told of a system by others than us, with its source, which is to be judged by the reader."""

    system: str
    figures: tuple[str, ...]
    source: str


PUBLISHED_COSTS = (
    Published(
        "Kafka, traffic between zones only",
        ("46 to 58", "461 to 576"),
        "AWS, 0.02 $/GB; 3 copies, none or one reader in another zone",
    ),
    Published(
        "Kafka on machines of one's own, all in",
        ("90 to 100", "890 to 1,000"),
        "OpenData quotes 8,500 $ a month at 30 MiB/s, scaled; said to be a third if optimised",
    ),
    Published("WarpStream", ("14", "136"), "OpenData quotes 1,300 $ a month at 30 MiB/s, scaled; without a minimum"),
    Published("MSK Express", ("58 + 12", "405 + 115"), "3 brokers, 7 days, + clients' traffic; prices not re-checked"),
    Published("Kinesis on demand", ("105", "1,040"), "one reader; prices not re-checked"),
)
"""Dollars a day at 10 and at 100 MB/s."""

PUBLISHED_LATENCIES = (
    Published("WarpStream", ("", "400 to 600", "", "< 1,500"), "AWS' storage blog, WarpStream's blog"),
    Published("S2 Standard", ("", "< 400", "", "< 500"), "S2's documentation"),
    Published("Bufstream", ("260", "500", "", ""), "its page of benchmarks; from where to where is not told"),
    Published("Redpanda Cloud Topics", ("", "", "", "1,000 to 2,000"), "Redpanda's documentation, what to plan for"),
    Published("StreamNative Ursa", ("", "", "200 to 500", ""), "StreamNative's documentation; which mark is not told"),
)
"""Milliseconds on S3 Standard: acknowledgement p50 and p99, from end to end p50 and p99."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What is sent: messages of `message_bytes`."""

    load: Load
    message_bytes: int

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10^6) a second."""
        return self.load.rate * self.message_bytes / 1e6

    def __str__(self) -> str:
        return f"{self.mb_per_s:g} MB/s, linger {self.load.linger_ms:g} ms"


@dataclass(frozen=True, slots=True)
class ModelledPlan:
    """Each stream on a new store of the model, whose delays come from `seed`."""

    streams: tuple[Stream, ...]
    model: StoreModel = S3_STANDARD
    seed: int = 1


_LINGERS_MS = (5.0, 20.0, 100.0, 250.0, 1_000.0)
FULL_MODELLED = ModelledPlan(
    # Of 1 KB and of 10 KB, so many of them that the client's own work does not count for much.
    tuple(
        Stream(Load(10_000, linger_ms, seconds, warmup_s), size)
        for size, seconds, warmup_s in ((1_000, 20.0, 10.0), (10_000, 15.0, 5.0))
        for linger_ms in _LINGERS_MS
    )
)
QUICK_MODELLED = ModelledPlan(tuple(Stream(Load(10_000, linger_ms, 4.0, 4.0), 1_000) for linger_ms in (20.0, 250.0)))


@dataclass(frozen=True, slots=True)
class Cell:
    """One stream through one producer and one consumer. Latencies are from when a message was due, `acknowledged` to
    the delivery callback and `arrived` to the consumer's hands; requests of both clients, without the warm-up.

    `achieved_rate` is of messages acknowledged, up to the last one: below that of the load, the store was too slow, and
    latencies tell how long that went on.
    """

    stream: Stream
    verdict: Verdict
    acknowledged: Distribution
    arrived: Distribution
    achieved_rate: float
    requests_per_s: dict[str, float]
    cpu_s: float
    others_cores: float | None

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10^6) a second, as achieved."""
        return self.achieved_rate * self.stream.message_bytes / 1e6


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
        return self.plan.model.dollars_for_requests(cell.requests_per_s)

    def kept_dollars(self, cell: Cell) -> float:
        """A day."""
        return self.plan.model.dollars_for_keeping(cell.mb_per_s)

    def tables(self) -> Iterator[Table]:
        """Latency and cost of each stream, and what is told of other systems."""
        if self.cells:
            yield self._latency_table()
            yield self._cost_table()
            yield _published("Dollars a day, as told of others", ("10 MB/s", "100 MB/s"), PUBLISHED_COSTS)
            marks = "ack p50", "p99", "end to end p50", "p99"
            yield _published("Latency on S3 in ms, as told of others", marks, PUBLISHED_LATENCIES)

    def charts(self) -> Iterator[Chart]:
        """Dollars and marks over `linger.ms`."""
        if self.cells:
            name = self.plan.model.name
            dollars, arrived = self._lines(self.request_dollars), self._lines(lambda cell: cell.arrived.p99)
            yield Chart(f"Requests, modelled {name}", "linger.ms", "$ a day", dollars, log_x=True, log_y=True)
            yield Chart(f"End to end, p99, modelled {name}", "linger.ms", "ms", arrived, log_x=True, log_y=True)

    def targets(self) -> Iterator[Target]:
        """Of the streams with the one linger for which others publish what they reach."""
        for cell in self.cells:
            if cell.stream.load.linger_ms == AIM_LINGER_MS:
                what = f"modelled {self.plan.model.name}, {cell.stream}"
                yield at_most(f"acknowledged p99, {what}", ACKNOWLEDGED_AIM_MS, cell.acknowledged.p99, " ms")
                yield at_most(f"end to end p99, {what}", ARRIVED_AIM_MS, cell.arrived.p99, " ms")

    def _lines(self, figure: Callable[[Cell], float]) -> tuple[Series, ...]:
        return tuple(
            Series(
                f"{rate:g} MB/s",
                tuple(
                    (cell.stream.load.linger_ms, figure(cell)) for cell in self.cells if cell.stream.mb_per_s == rate
                ),
            )
            for rate in dict.fromkeys(cell.stream.mb_per_s for cell in self.cells)
        )

    def _latency_table(self) -> Table:
        head = (
            "stream",
            "ack p50",
            "p99",
            "end to end p50",
            "p99",
            "max",
            "achieved MB/s",
            "CPU s",
            "others",
            "messages",
        )
        rows = [
            (
                str(cell.stream),
                *(f"{mark:,.0f}" for mark in (cell.acknowledged.p50, cell.acknowledged.p99)),
                *(f"{mark:,.0f}" for mark in (cell.arrived.p50, cell.arrived.p99, cell.arrived.max)),
                f"{cell.mb_per_s:.1f}",
                f"{cell.cpu_s:.1f}",
                cores_cell(cell.others_cores),
                str(cell.verdict),
            )
            for cell in self.cells
        ]
        return Table(f"Modelled {self.plan.model.name}: ms from when a message was due", head, tuple(rows))

    def _cost_table(self) -> Table:
        title = (
            f"Modelled {self.plan.model.name}: one producer and one consumer, requests a second and dollars a day; "
            f"{DAYS_KEPT} days kept, not compressed; without the machines of the clients"
        )
        head = "stream", "PUT/s", "GET/s", "LIST/s", "DELETE/s", "requests $", "storage $", "both $"
        rows = []
        for cell in self.cells:
            rates = (f"{cell.requests_per_s.get(kind, 0.0):.1f}" for kind in ("PUT", "GET", "LIST", "DELETE"))
            requests, kept = self.request_dollars(cell), self.kept_dollars(cell)
            rows.append(
                (str(cell.stream), *rates, *(f"{dollars:.2f}" for dollars in (requests, kept, requests + kept)))
            )
        return Table(title, head, tuple(rows))


def _published(title: str, figures: Sequence[str], told: Sequence[Published]) -> Table:
    rows = tuple((one.system, *one.figures, one.source) for one in told)
    return Table(title, ("system", *figures, "source"), rows)


# --- the store -------------------------------------------------------------------------------------------------------


class ModelledStore(CountingStore):
    """Hands everything on to `inner`, one of this process, with the delays, and the requests, of a model.

    What an operation asks of S3 is what `deltaq.store.objects` would: large objects go in parts, several at once, and a
    listing is followed by a look at what comes after it. Nobody is told of what others write. The same operations
    in the same order meet the same delays for the same seed. Thread-safe.
    """

    def __init__(self, inner: Store, model: StoreModel, seed: int) -> None:
        super().__init__(inner, log_folder="")  # to S3 a log entry is an object like any other
        self._requests: Counter[str] = Counter()
        self._model = model
        self._seed = seed

    @property
    def pace(self) -> Pace:
        return PACE

    @property
    def is_remote(self) -> bool:
        return True

    def requests(self) -> Counter[str]:
        """How many there have been of each kind."""
        with self._lock:
            return self._requests.copy()

    def request_s(self, kind: str, size: int = 0) -> float:
        """Count one request with so many bytes of content, and draw the seconds it takes."""
        with self._lock:
            self._requests[kind] += 1
            number = self._requests[kind]
        drawn_s = self._model.latencies[kind].seconds(chance(self._seed, kind, number))
        return drawn_s + size / (self._model.mb_per_s * 1e6)

    def upload_s(self, size: int) -> float:
        """As `request_s`, of all requests of one `put`."""
        if size <= PART_BYTES:
            return self.request_s("PUT", size)
        begin_s, end_s = self.request_s("PUT"), self.request_s("PUT")
        under_way = [0.0] * PARTS_IN_FLIGHT
        for start in range(0, size, PART_BYTES):
            part_s = self.request_s("PUT", min(PART_BYTES, size - start))
            heapq.heapreplace(under_way, under_way[0] + part_s)
        return begin_s + max(under_way) + end_s

    def get(self, key: str) -> bytes:
        with _Delay(self.request_s("GET")) as delay:
            found = super().get(key)
            delay.seconds += self._content_s(len(found))
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with _Delay(self.request_s("GET")) as delay:
            found = super().get_range(key, start, length)
            delay.seconds += self._content_s(len(found))
        return found

    def put(self, key: str, data: bytes | memoryview, between: Callable[[], None] | None = None) -> None:
        with _Delay(self.upload_s(memoryview(data).nbytes)):
            super().put(key, data, between)

    def create(self, key: str, data: bytes | memoryview) -> None:
        with _Delay(self.request_s("PUT", memoryview(data).nbytes)):
            super().create(key, data)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        found = [*super().list(prefix, start_after)]
        self._look(len(found))
        return iter(found)

    def list_folders(self, prefix: str) -> builtins.list[str]:
        found = super().list_folders(prefix)
        self._look(len(found))
        return found

    def delete(self, key: str) -> None:
        with _Delay(self.request_s("DELETE")):
            super().delete(key)

    def watch(self) -> Watch:
        return SignalWatch(SYSTEM_CLOCK)

    def _look(self, entries: int) -> None:
        pages = max(1, -(-entries // LIST_CHUNK))
        time.sleep(sum(self.request_s("LIST") for _ in range(pages + 1)))

    def _content_s(self, size: int) -> float:
        return size / (self._model.mb_per_s * 1e6)


class _Delay:
    """Half of the time passes before what is inside, half after it: a request's way there and its answer's way back."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._before_s = seconds / 2

    def __enter__(self) -> _Delay:
        time.sleep(self._before_s)
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(self.seconds - self._before_s)


# --- measuring -------------------------------------------------------------------------------------------------------


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
