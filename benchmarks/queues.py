"""Queues: how many messages four workers take from one, how soon one message comes to a worker that
waits, and what a long past costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from time import monotonic, monotonic_ns, sleep
from typing import Any
from uuid import uuid4

from benchmarks.barrier import run_together, send_to_reader, wait_for_all
from benchmarks.client import START_TIMEOUT_S, TIMEOUT_S, Client, deltaq_client, kafka_client
from benchmarks.distribution import Percentiles, distribution
from benchmarks.finding import Table, Target, at_most, columns, known_cores
from benchmarks.machine import OthersLoad
from benchmarks.suite import Place
from deltaq.names import group_folder, log_entry
from deltaq.share_groups.log import ShareLog
from deltaq.store import open_store


@dataclass(frozen=True, slots=True)
class QueuesPlan:
    """`messages` for `workers` in batches of `batch`; `singles`, each to a worker that waits."""

    messages: int
    workers: int
    batch: int
    singles: int


FULL_QUEUES = QueuesPlan(1_000_000, 4, 500, 300)
QUICK_QUEUES = QueuesPlan(50_000, 4, 500, 50)

PARTITIONS = 4
PAUSE_S = 0.02
"""Seconds between two messages to a worker that waits."""

QUIET_S = 3.0
"""Seconds without a message after which a worker ends."""

POLL_S = 0.5
OPENINGS = 3
YOUNG_BATCHES = 100
"""Batches that a young queue has had."""

KINDS = ("Consumer", "ShareConsumer")
LATENCY_AIM = 2.0
OPENING_AIM_MS = 50.0
"""How much longer it may take to open a queue with a long past than a young one."""


@dataclass(frozen=True, slots=True)
class Worked:
    """What one worker has taken: how many messages of each number of deliveries, and the times of
    the first and the last.
    """

    deliveries: dict[int, int]
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class QueueRate:
    """The workers of a queue together. `again` are messages that came more than once."""

    client: str
    messages: int
    again: int
    missing: int
    per_s: float


@dataclass(frozen=True, slots=True)
class QueueWait:
    """From the call of `produce` to a reader of this kind that waits."""

    client: str
    kind: str
    times: Percentiles


@dataclass(frozen=True, slots=True)
class QueuePast:
    """A group that has taken so many messages: bytes of its newest entry, and the shortest time to
    open its log in a new process.
    """

    messages: int
    state_bytes: int
    opening_ms: float


def rate_of(client: str, messages: int, found: list[Worked]) -> QueueRate:
    """The rate of workers from the first message to the last. Pure."""
    total: Counter[int] = Counter()
    for one in found:
        total.update(one.deliveries)
    taken = total.total()
    begun, ended = min(one.first_ns for one in found), max(one.last_ns for one in found)
    again = taken - total[1]
    per_s = taken / max(1e-9, (ended - begun) / 1e9)
    return QueueRate(client, messages, again, messages - total[1], per_s)


# --- the processes
# --------------------------------------------------------------------------------------------------


def _work(client: Client, topic: str, group: str, batch: int) -> Worked:
    conf = {**client.conf, "group.id": group, "max.poll.records": batch}
    deliveries: Counter[int] = Counter()
    first_ns = last_ns = 0
    consumer: Any = client.api.ShareConsumer(conf)
    consumer.subscribe([topic])
    wait_for_all()
    give_up_at = monotonic() + START_TIMEOUT_S
    while monotonic() < give_up_at:
        messages = consumer.poll(POLL_S)
        if len(messages):
            last_ns = monotonic_ns()
            first_ns = first_ns or last_ns
            give_up_at = monotonic() + QUIET_S
            deliveries.update(message.delivery_count() for message in messages)
    consumer.close()
    return Worked(dict(deliveries), first_ns, last_ns)


def _receive(client: Client, kind: str, topic: str, count: int) -> list[int]:
    consumer: Any = getattr(client.api, kind)({**client.conf, "group.id": f"waits-{uuid4().hex}"})
    consumer.subscribe([topic])
    # Until the reader has its place: both kinds begin with new messages.
    give_up_at = monotonic() + 5
    while monotonic() < give_up_at:
        consumer.poll(0.1)
    wait_for_all()
    found: list[int] = []
    give_up_at = monotonic() + TIMEOUT_S
    while len(found) < count and monotonic() < give_up_at:
        polled = consumer.poll(POLL_S)
        messages = polled if kind == "ShareConsumer" else [polled] if polled is not None else []
        now = monotonic_ns()
        found += [now - int(message.value()) for message in messages if message.error() is None]
        if messages:
            give_up_at = monotonic() + TIMEOUT_S
    consumer.close()
    return found


def _send(client: Client, topic: str, count: int) -> int:
    with client.api.Producer({**client.conf, "linger.ms": 0}) as producer:
        producer.list_topics(topic, timeout=TIMEOUT_S)
        wait_for_all()
        for _ in range(count):
            producer.produce(topic, str(monotonic_ns()).encode())
            producer.flush()
            sleep(PAUSE_S)
    return count


def _open(root: str, group: str) -> float:
    store = open_store(root)
    wait_for_all()
    begun_ns = monotonic_ns()
    ShareLog(store, group).read()
    return (monotonic_ns() - begun_ns) / 1e6


# --- the measurements
# --------------------------------------------------------------------------------------------------


def measure_rate(client: Client, plan: QueuesPlan, group: str) -> QueueRate:
    """Let workers take all messages of a new topic."""
    topic = f"queue-{uuid4().hex[:12]}"
    client.create_topic(topic, PARTITIONS)
    from_beginning(client, group)
    with client.api.Producer({**client.conf, "linger.ms": 50}) as producer:
        for number in range(plan.messages):
            while True:
                try:
                    producer.produce(topic, b"x" * 100, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
    work = partial(_work, client, topic, group, plan.batch)
    return rate_of(client.name, plan.messages, run_together([work] * plan.workers))


def from_beginning(client: Client, group: str) -> None:
    """Have a share group read what is there. Raises the library's KafkaException."""
    admin = import_module(f"{client.library}.admin")
    entry = admin.ConfigEntry(
        "share.auto.offset.reset",
        "earliest",
        incremental_operation=admin.AlterConfigOpType.SET,
    )
    resource = admin.ConfigResource("group", group, incremental_configs=[entry])
    changing = admin.AdminClient(dict(client.conf))  # a client that is gone does nothing any more
    changing.incremental_alter_configs([resource])[resource].result()


def measure_wait(client: Client, kind: str, count: int) -> QueueWait:
    """Send messages one by one to a reader that waits."""
    topic = f"waits-{uuid4().hex[:12]}"
    client.create_topic(topic)
    send, receive = (
        partial(_send, client, topic, count),
        partial(_receive, client, kind, topic, count),
    )
    _, found = send_to_reader(send, receive)
    return QueueWait(client.name, kind, distribution(found))


def measure_past(root: str, group: str, messages: int) -> QueuePast:
    """Open the log of a group in new processes, and look at its state."""
    store = open_store(root)
    state = ShareLog(store, group).read()
    size = len(store.get(log_entry(group_folder(group) + "_delta_log/", state.table.version)))
    openings = [run_together([partial(_open, root, group)])[0] for _ in range(OPENINGS)]
    return QueuePast(messages, size, min(openings))


@dataclass(frozen=True, slots=True)
class Queues:
    """The outcome of a plan. `judged` says whether it was measured on local disk, for which there
    are aims. `others` are the cores that other programs kept busy.
    """

    plan: QueuesPlan
    judged: bool
    rates: tuple[QueueRate, ...]
    waits: tuple[QueueWait, ...]
    pasts: tuple[QueuePast, ...]
    others: float | None

    @property
    def is_clean(self) -> bool:
        """Whether each message came, and none twice."""
        return not any(rate.again or rate.missing for rate in self.rates)

    @property
    def others_cores(self) -> tuple[float, ...]:
        return known_cores([self.others])

    def wait_ratio(self, client: str) -> float | None:
        """The median of a share consumer relative to that of a consumer."""
        found = {one.kind: one.times.p50 for one in self.waits if one.client == client}
        return found["ShareConsumer"] / found["Consumer"] if len(found) == len(KINDS) else None

    def tables(self) -> Iterator[Table]:
        """Rates, waits and the past."""
        yield Table(
            f"{self.plan.workers} workers, batches of {self.plan.batch}",
            columns("client | messages | a second | again | missing"),
            tuple(
                (of.client, f"{of.messages:,}", f"{of.per_s:,.0f}", str(of.again), str(of.missing))
                for of in self.rates
            ),
        )
        yield Table(
            "ms from `produce` to a reader that waits",
            columns("client | reader | p50 | p95 | p99 | messages"),
            tuple(
                (
                    of.client,
                    of.kind,
                    *(f"{time:.2f}" for time in (of.times.p50, of.times.p95, of.times.p99)),
                    str(of.times.count),
                )
                for of in self.waits
            ),
        )
        yield Table(
            "The past of a group",
            columns("messages taken | bytes of its last entry | ms to open"),
            tuple(
                (f"{of.messages:,}", f"{of.state_bytes:,}", f"{of.opening_ms:.1f}")
                for of in self.pasts
            ),
        )

    def targets(self) -> Iterator[Target]:
        """Waits and openings on local disk."""
        ratio = self.wait_ratio("deltaq")
        if self.judged and ratio is not None:
            yield at_most("one message to a worker, p50 to a consumer's", LATENCY_AIM, ratio)
        if self.judged and len(self.pasts) == 2:
            new, old = self.pasts
            more_ms = max(0.0, old.opening_ms - new.opening_ms)
            yield at_most(
                "opening a queue with a past, more than a young one", OPENING_AIM_MS, more_ms, " ms"
            )


def measure_queues(plan: QueuesPlan, place: Place) -> Iterator[Queues]:
    """One outcome. Kafka takes part if `place` names a broker that has share groups."""
    others, report = OthersLoad(), place.report
    clients = [deltaq_client(place.root)]
    if place.kafka:
        clients.append(kafka_client(place.kafka))
    old, new = (f"queue-{uuid4().hex[:12]}" for _ in range(2))
    rates, waits = [], []
    for client in clients:
        report(f"queues, {plan.workers} workers, {client.name}: {plan.messages:,} messages")
        rates.append(measure_rate(client, plan, old))
    for client in clients:
        for kind in KINDS:
            report(f"queues, one message to a {kind}, {client.name}: {plan.singles} times")
            waits.append(measure_wait(client, kind, plan.singles))
    report("queues, a young one and one with a past")
    # Its log has as many entries as a log keeps: they are what is read to open it.
    few = replace(plan, messages=min(plan.messages, plan.batch * YOUNG_BATCHES))
    measure_rate(clients[0], few, new)
    pasts = [
        measure_past(place.root, group, messages)
        for group, messages in ((new, few.messages), (old, plan.messages))
    ]
    yield Queues(
        plan, "://" not in place.root, tuple(rates), tuple(waits), tuple(pasts), others.cores()
    )
