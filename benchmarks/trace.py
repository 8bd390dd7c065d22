"""A trace: where one message at a time spends its way from `produce` to the consumer, stage by
stage.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from time import monotonic_ns
from uuid import uuid4

from benchmarks.barrier import send_to_reader, wait_for_all
from benchmarks.client import deltaq_client, records_in, subscribe
from benchmarks.distribution import Percentiles, distribution
from benchmarks.finding import Table, Target, at_most
from benchmarks.floor import Floor, measure_floor
from benchmarks.history import Verdict, judge
from benchmarks.latency import Consumed, consume_all, with_unread
from benchmarks.load import Load
from benchmarks.machine import OthersLoad
from benchmarks.payload import TimedPayloads
from benchmarks.suite import Place
from benchmarks.timed_store import Span, TimedStore
from deltaq import Consumer, Producer, Topic
from deltaq.names import topic_folder
from deltaq.store import open_store

PAUSE_S = 0.004, 0.012
"""Between two messages, at random: all is at rest when one is sent."""

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

_P50_AIM_MS = 2.5
_FLOOR_AIM = 2.2


@dataclass(frozen=True, slots=True)
class TracePlan:
    """How many messages, one at a time with `linger.ms` 0; the first `warmup` of them do not
    count.
    """

    messages: int
    warmup: int
    floor_rounds: int


FULL_TRACE = TracePlan(2000, 200, 300)
QUICK_TRACE = TracePlan(150, 30, 30)


@dataclass(frozen=True, slots=True)
class Trace:
    """What each of `STAGES` took, in the same order, and all of them; `acknowledged` from `produce`
    to the callback.
    """

    plan: TracePlan
    verdict: Verdict
    stages: tuple[Percentiles, ...]
    whole: Percentiles
    acknowledged: Percentiles
    floor: Floor
    on_disk: bool
    others: float | None

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean

    @property
    def others_cores(self) -> tuple[float, ...]:
        return () if self.others is None else (self.others,)

    def tables(self) -> Iterator[Table]:
        title = (
            "One message at a time, linger 0: ms on its way from `produce` to `poll`; "
            f"{self.verdict}"
        )
        named = [
            *zip(STAGES, self.stages, strict=True),
            ("all", self.whole),
            ("acknowledged", self.acknowledged),
        ]
        rows = [
            (
                name,
                *(f"{mark:.3f}" for mark in (took.p50, took.p90, took.p99, took.max)),
                f"{took.p50 / self.whole.p50:.0%}",
            )
            for name, took in named
        ]
        yield Table(title, ("stage", "p50", "p90", "p99", "max", "of all"), tuple(rows))
        floor = self.floor
        marks = floor.put_ms, floor.create_ms, floor.get_entry_ms, floor.get_data_ms, floor.total_ms
        yield Table(
            "The bare store with the same pauses: median ms, one after the other, files of "
            f"{floor.file_bytes:,} bytes",
            ("put", "create", "get entry", "get data", "all", "message/all"),
            ((*(f"{mark:.3f}" for mark in marks), f"{self.whole.p50 / floor.total_ms:.2f}"),),
        )

    def targets(self) -> Iterator[Target]:
        if self.on_disk:
            yield at_most(
                "p50 of one message at a time, linger 0", _P50_AIM_MS, self.whole.p50, " ms"
            )
        yield at_most(
            "one message at a time/bare store", _FLOOR_AIM, self.whole.p50 / self.floor.total_ms
        )


def measure_trace(plan: TracePlan, place: Place) -> Iterator[Trace]:
    """Send and read the messages of `plan` from two processes. Raises what either raised, and
    RuntimeError if the requests of a message cannot be distinguished from those of others.
    """
    place.report(f"trace: {plan.messages:,} messages, one at a time")
    topic = f"trace-{uuid4().hex[:12]}"
    Topic(topic, conf={"bootstrap.servers": place.root}).create()
    others = OthersLoad()
    sent, read = send_to_reader(
        partial(_send, place.root, topic, plan), partial(_read, place.root, topic, plan)
    )
    others_cores = others.cores()
    records = records_in(deltaq_client(place.root), topic)
    read = replace(read, consumed=with_unread(read.consumed, _load(plan), records))
    store = open_store(place.root)
    sizes = [
        entry.size for entry in store.list(topic_folder(topic)) if entry.key.endswith(".parquet")
    ]
    chance = random.Random(plan.floor_rounds)
    floor = measure_floor(
        store, sum(sizes) // max(1, len(sizes)), plan.floor_rounds, lambda: _pause(chance)
    )
    yield _traced(plan, sent, read, floor, not store.is_remote, others_cores)


def _traced(
    plan: TracePlan,
    sent: _Sent,
    read: _Read,
    floor: Floor,
    on_disk: bool,
    others_cores: float | None,
) -> Trace:
    verdict = judge(plan.messages, read.consumed.sequences, read.consumed.foreign)
    steps = [sent.puts, sent.creates, read.entries, read.files]
    if any(len(spans) != plan.messages for spans in steps) or not verdict.is_clean:
        counts = ", ".join(f"{len(spans):,}" for spans in steps)
        raise RuntimeError(
            f"{plan.messages:,} messages made {counts} requests of the four kinds; messages "
            f"{verdict}"
        )
    whole, stages = [], []
    for number in range(plan.warmup, plan.messages):
        moments = [sent.produced[number]]
        for spans in steps:
            moments += spans[number]
        moments.append(read.consumed.received_ns[number])
        stages.append([later - sooner for sooner, later in pairwise(moments)])
        whole.append(moments[-1] - moments[0])
    acknowledged = [
        sent.acknowledged[n] - sent.produced[n] for n in range(plan.warmup, plan.messages)
    ]
    return Trace(
        plan,
        verdict,
        tuple(map(distribution, zip(*stages, strict=True))),
        distribution(whole),
        distribution(acknowledged),
        floor,
        on_disk,
        others_cores,
    )


# --- the two processes
# -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sent:
    """Of each message when it was sent and acknowledged, and when its requests began and ended."""

    produced: Sequence[int]
    acknowledged: Sequence[int]
    puts: list[Span]
    creates: list[Span]


@dataclass(frozen=True, slots=True)
class _Read:
    """Of each message when it came, and when its requests began and ended."""

    consumed: Consumed
    entries: list[Span]
    files: list[Span]


def _send(root: str, topic: str, plan: TracePlan) -> _Sent:
    payloads, chance = TimedPayloads(plan.messages), random.Random(plan.messages)
    store = TimedStore(open_store(root), topic)
    produced, acknowledged = array("q"), array("q")

    def delivered(error: object, _: object) -> None:
        if error is not None:
            raise RuntimeError(f"a message was not delivered: {error}")
        acknowledged.append(monotonic_ns())

    # Maintenance would put files and entries of its own between those of the messages.
    conf = {
        "bootstrap.servers": root,
        "linger.ms": 0,
        "on_delivery": delivered,
        "maintenance.enable": False,
    }
    with Producer(conf, store=store) as producer:
        producer.list_topics(topic)
        wait_for_all()
        for number in range(plan.messages):
            _pause(chance)
            payload = payloads.make(number)
            produced.append(monotonic_ns())
            producer.produce(topic, payload)
            producer.flush()
    return _Sent(produced, acknowledged, list(store.puts.values()), list(store.creates.values()))


def _load(plan: TracePlan) -> Load:
    """Of which only the total counts."""
    return Load(rate=plan.messages, linger_ms=0.0, seconds=1.0, warmup_s=0.0)


def _pause(chance: random.Random) -> None:
    time.sleep(chance.uniform(*PAUSE_S))


def _read(root: str, topic: str, plan: TracePlan) -> _Read:
    store = TimedStore(open_store(root), topic)
    conf = {
        "bootstrap.servers": root,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    with Consumer(conf, store=store) as consumer:
        subscribe(consumer, topic)
        store.forget()  # what opening the topic took
        wait_for_all()
        consumed = consume_all(consumer, TimedPayloads(plan.messages), _load(plan), 0.0)
    return _Read(consumed, list(store.entries.values()), list(store.files.values()))
