"""Transactions of deltaq next to those of a real Kafka: the time of a commit, and the speed of a
consume-transform-produce loop. The same program text, alternating.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, process_time
from typing import Any
from uuid import uuid4

from benchmarks.client import Client, deltaq_client, kafka_client, records_in, subscribe
from benchmarks.finding import Table, Target, at_least, at_most
from benchmarks.suite import Place

MESSAGE = bytes(100)
MESSAGES = 1_000
"""Messages of a large transaction, half of them to each of two topics."""

LOOP_MESSAGES = 500
"""Most messages of one transaction of the loop."""

_NAMES = ("deltaq", "Kafka")
_AIMS = {"one message": 2.0, "1,000 messages to two topics, with offsets": 1.5}
_LOOP = "consume, process, produce: messages/s"


@dataclass(frozen=True, slots=True)
class TransactionPlan:
    """For both clients `rounds` times: so many `small` and `large` transactions, and a loop over
    `messages`.
    """

    small: int
    large: int
    messages: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Timed:
    """What one client took for one way in one round. `figure` is the median time of a transaction
    in milliseconds, or messages a second. `cpu_ms`: processor time of the client's process for each
    transaction. `is_whole`: whether each message arrived once.
    """

    client: str
    way: str
    figure: float
    cpu_ms: float
    is_whole: bool


@dataclass(frozen=True, slots=True)
class TransactionTimes:
    """The outcome of a plan."""

    plan: TransactionPlan
    timed: tuple[Timed, ...]

    @property
    def is_clean(self) -> bool:
        """Whether each message arrived once."""
        return all(one.is_whole for one in self.timed)

    @property
    def others_cores(self) -> tuple[float, ...]:
        """Not measured: the broker is one of the others."""
        return ()

    def tables(self) -> Iterator[Table]:
        """The medians of the rounds."""
        head = ("transaction", "deltaq", "Kafka", "ratio", "deltaq CPU ms", "Kafka CPU ms")
        rows = [self._row(way) for way in (*_AIMS, _LOOP)]
        yield Table("Transactions from begin to commit, p50 in ms", head, tuple(rows))

    def _row(self, way: str) -> tuple[str, ...]:
        ours, theirs = (self._median(name, way, "figure") for name in _NAMES)
        cpu = (f"{self._median(name, way, 'cpu_ms'):.2f}" for name in _NAMES)
        form = ",.0f" if way == _LOOP else ".2f"
        return way, format(ours, form), format(theirs, form), f"{ours / theirs:.2f}", *cpu

    def _median(self, client: str, way: str, field: str) -> float:
        same = [one for one in self.timed if (one.client, one.way) == (client, way)]
        return float(statistics.median(getattr(one, field) for one in same))

    def targets(self) -> Iterator[Target]:
        """The targets of the medians."""
        for way, aim in _AIMS.items():
            ours, theirs = (self._median(name, way, "figure") for name in _NAMES)
            yield at_most(f"commit of {way}, deltaq/Kafka", aim, ours / theirs)
        ours, theirs = (self._median(name, _LOOP, "figure") for name in _NAMES)
        yield at_least(f"{_LOOP}, deltaq/Kafka", 1.0, ours / theirs)


def measure_transactions(plan: TransactionPlan, place: Place) -> Iterator[TransactionTimes]:
    """Carry a plan out with deltaq and with the broker at `place.kafka`: one outcome."""
    place.report("transactions of deltaq and Kafka, alternating")
    clients = deltaq_client(place.root), kafka_client(place.kafka)
    timed: list[Timed] = []
    for round_ in range(plan.rounds):
        for measure in (_one_message, _two_topics, _loop):
            for client in clients if round_ % 2 else reversed(clients):
                found = measure(client, plan)
                timed.append(found)
                place.report(f"  {found.way}, {found.client}: {found.figure:,.2f}")
    yield TransactionTimes(plan, tuple(timed))


@contextmanager
def _producer(client: Client) -> Iterator[Any]:
    conf = {**client.conf, "transactional.id": f"t-{uuid4().hex[:8]}", "linger.ms": 0}
    with client.api.Producer(conf) as producer:
        producer.init_transactions()
        yield producer


def _topics(client: Client, count: int) -> list[str]:
    names = [f"bench-{uuid4().hex[:12]}" for _ in range(count)]
    for name in names:
        client.create_topic(name)
    return names


def _timed(transact: Callable[[], None], count: int) -> tuple[float, float]:
    """The median time of a transaction and the mean processor time, in ms, after one to warm up."""
    transact()
    times, cpu = [], process_time()
    for _ in range(count):
        begun = monotonic()
        transact()
        times.append(monotonic() - begun)
    return statistics.median(times) * 1000, (process_time() - cpu) / count * 1000


def _one_message(client: Client, plan: TransactionPlan) -> Timed:
    (topic,) = _topics(client, 1)
    with _producer(client) as producer:

        def transact() -> None:
            producer.begin_transaction()
            producer.produce(topic, MESSAGE)
            producer.commit_transaction()

        figures = _timed(transact, plan.small)
    is_whole = _count(client, topic) == plan.small + 1
    return Timed(client.name, "one message", *figures, is_whole)


def _two_topics(client: Client, plan: TransactionPlan) -> Timed:
    source, *topics = _topics(client, 3)
    conf = {**client.consumer_conf, "group.id": f"g-{source}"}
    with _producer(client) as producer, client.api.Consumer(conf) as consumer:
        subscribe(consumer, source)
        offset = 0

        def transact() -> None:
            nonlocal offset
            offset += 1
            producer.begin_transaction()
            for number in range(MESSAGES):
                producer.produce(topics[number % 2], MESSAGE)
            at = [client.api.TopicPartition(source, 0, offset)]
            producer.send_offsets_to_transaction(at, consumer.consumer_group_metadata())
            producer.commit_transaction()

        figures = _timed(transact, plan.large)
    is_whole = all(_count(client, topic) == (plan.large + 1) * MESSAGES // 2 for topic in topics)
    return Timed(client.name, "1,000 messages to two topics, with offsets", *figures, is_whole)


def _loop(client: Client, plan: TransactionPlan) -> Timed:
    source, target = _topics(client, 2)
    with client.api.Producer({**client.conf, "linger.ms": 5}) as plain:
        for number in range(plan.messages):
            plain.produce(source, MESSAGE, b"%d" % number)
            if number % 1000 == 0:
                plain.poll(0)
        plain.flush()
    conf = {**client.consumer_conf, "group.id": f"g-{source}", "auto.offset.reset": "earliest"}
    conf["enable.auto.commit"] = False
    done, transactions = 0, 0
    with _producer(client) as producer, client.api.Consumer(conf) as consumer:
        consumer.subscribe([source])
        begun = cpu = 0.0
        while done < plan.messages:
            messages = consumer.consume(LOOP_MESSAGES, 0.5)
            if not messages:
                continue
            # Joining the group is not part of the loop.
            begun, cpu = begun or monotonic(), cpu or process_time()
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, message.value(), message.key())
            held = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(held, consumer.consumer_group_metadata())
            producer.commit_transaction()
            done += len(messages)
            transactions += 1
        seconds = monotonic() - begun
        cpu_ms = (process_time() - cpu) / transactions * 1000
    is_whole = _count(client, target) == plan.messages
    return Timed(client.name, _LOOP, done / seconds, cpu_ms, is_whole)


def _count(client: Client, topic: str) -> int:
    """The committed records of a topic: Kafka's offsets count its markers, too."""
    if client.name == "deltaq":
        return records_in(client, topic)
    conf = {**client.conf, "group.id": f"count-{topic}", "enable.partition.eof": True}
    count = 0
    with client.api.Consumer({**conf, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([client.api.TopicPartition(topic, 0, 0)])
        while True:
            for message in consumer.consume(10_000, 1.0):
                if message.error():
                    return count
                count += 1
