"""A trace: where one message at a time spends its way from `produce` to the consumer, stage by
stage.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic_ns

from benchmarks.barrier import wait_for_all
from benchmarks.distribution import Percentiles, distribution
from benchmarks.finding import Table, Target, at_most
from benchmarks.floor import Floor, measure_floor
from benchmarks.flow import STAGES, UNMAINTAINED, ProducerRequests, Transfer, transfer
from benchmarks.history import Verdict
from benchmarks.load import Load
from benchmarks.payload import TimedPayloads
from benchmarks.suite import Place
from benchmarks.timed_store import TimedStore
from deltaq import Producer
from deltaq.names import topic_folder
from deltaq.store import open_store

PAUSE_S = 0.004, 0.012
"""Between two messages, at random: all is at rest when one is sent."""

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
    RuntimeError if a request of a message is not known.
    """
    place.report(f"trace: {plan.messages:,} messages, one at a time")
    share = plan.warmup / plan.messages
    load = Load(plan.messages, 0.0, seconds=1.0 - share, warmup_s=share)
    found = transfer(place.root, "trace", load, send_one_by_one)
    store = open_store(place.root)
    sizes = [
        entry.size
        for entry in store.list(topic_folder(found.topic))
        if entry.key.endswith(".parquet")
    ]
    chance = random.Random(plan.floor_rounds)
    floor = measure_floor(
        store, sum(sizes) // max(1, len(sizes)), plan.floor_rounds, lambda: _pause(chance)
    )
    yield traced(plan, found, floor, not store.is_remote)


def traced(plan: TracePlan, found: Transfer, floor: Floor, on_disk: bool) -> Trace:
    """The outcome. RuntimeError if a request of a message is not known. Pure."""
    stages, whole = found.stages()
    if len(whole) != plan.messages - plan.warmup or not found.verdict.is_clean:
        raise RuntimeError(
            f"all requests of {len(whole):,} messages are known, of {plan.messages:,} with "
            f"{plan.warmup:,} to warm up; messages {found.verdict}"
        )
    produced, acknowledged = found.read.consumed.sent_ns, found.sent.acknowledged
    waited = [acknowledged[n] - produced[n] for n in range(plan.warmup, plan.messages)]
    return Trace(
        plan,
        found.verdict,
        tuple(map(distribution, zip(*stages, strict=True))),
        distribution(whole),
        distribution(waited),
        floor,
        on_disk,
        found.others_cores,
    )


def send_one_by_one(root: str, topic: str, load: Load) -> ProducerRequests:
    """Send each message when the one before has been acknowledged, after a pause."""
    payloads, chance = TimedPayloads(load.rate), random.Random(load.rate)
    store, acknowledged = TimedStore(open_store(root), topic), array("q")

    def delivered(error: object, _: object) -> None:
        if error is not None:
            raise RuntimeError(f"a message was not delivered: {error}")
        acknowledged.append(monotonic_ns())

    conf = {"bootstrap.servers": root, "linger.ms": 0, "on_delivery": delivered, **UNMAINTAINED}
    with Producer(conf, store=store) as producer:
        producer.list_topics(topic)
        wait_for_all()
        for number in range(load.total):
            _pause(chance)
            producer.produce(topic, payloads.make(number))
            producer.flush()
    return ProducerRequests(store.puts, store.creates, acknowledged=acknowledged)


def _pause(chance: random.Random) -> None:
    time.sleep(chance.uniform(*PAUSE_S))
