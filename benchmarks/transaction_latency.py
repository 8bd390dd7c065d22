"""What a transaction takes longer than the same messages and offsets without one, in creates of the
store. The ways alternate.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from uuid import uuid4

from benchmarks.client import deltaq_client, records_in, subscribe
from benchmarks.finding import Table, Target, at_most
from benchmarks.suite import Place
from deltaq import Consumer, Producer, TopicPartition
from deltaq.store import open_store

MESSAGE = bytes(100)
ENTRY = bytes(600)
"""As large as an entry of these logs."""

WARM_UP = 5
"""Times that each way is gone before it is measured."""

_CREATE = "create"
_PAIRS = {
    "one message": ("produce, flush", "one message in a transaction"),
    "two topics, with offsets": (
        "produce to two topics, flush, commit offsets",
        "two topics with offsets in a transaction",
    ),
}
"""By their name the two ways, without and with a transaction."""

ADDED_MAX = 2.5
"""The aim: so many creates longer."""


@dataclass(frozen=True, slots=True)
class LatencyOfTransactions:
    """The outcome: p50 in milliseconds by way. `is_clean`: whether each message arrived once."""

    times: int
    p50_ms: dict[str, float]
    is_clean: bool

    @property
    def others_cores(self) -> tuple[float, ...]:
        """Not measured: the store may be one of the others."""
        return ()

    def tables(self) -> Iterator[Table]:
        """Each pair, with what the transaction adds."""
        create = self.p50_ms[_CREATE]
        rows = tuple(
            (
                name,
                *(f"{self.p50_ms[way]:.2f}" for way in pair),
                f"{self._added(*pair):.2f}",
            )
            for name, pair in _PAIRS.items()
        )
        head = ("p50 in ms", "without", "in a transaction", "added, in creates")
        title = f"A transaction, {self.times} times; a create takes {create:.2f} ms"
        yield Table(title, head, rows)

    def targets(self) -> Iterator[Target]:
        """What is added, for each pair."""
        for name, pair in _PAIRS.items():
            yield at_most(
                f"added by a transaction of {name}, creates", ADDED_MAX, self._added(*pair)
            )

    def _added(self, without: str, within: str) -> float:
        return (self.p50_ms[within] - self.p50_ms[without]) / self.p50_ms[_CREATE]


def measure_latency_of_transactions(times: int, place: Place) -> Iterator[LatencyOfTransactions]:
    """Go each way `times` times: one outcome."""
    place.report(f"transactions next to plain produces, {times} times each")
    client = deltaq_client(place.root)
    source, *topics = [f"bench-{uuid4().hex[:12]}" for _ in range(3)]
    for topic in (source, *topics):
        client.create_topic(topic)
    conf = {**client.conf, "linger.ms": 0}
    group = {**client.consumer_conf, "group.id": f"g-{source}", "enable.auto.commit": False}
    with (
        Producer(conf) as plain,
        Producer({**conf, "transactional.id": f"t-{source}"}) as transactional,
        Consumer(group) as consumer,
    ):
        transactional.init_transactions()
        subscribe(consumer, source)
        ways = _Ways(place.root, plain, transactional, consumer, source, topics).all()
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(WARM_UP + times):
            for name, go in ways.items():
                begun = monotonic()
                go()
                taken[name].append((monotonic() - begun) * 1000)
    p50_ms = {name: statistics.median(found[WARM_UP:]) for name, found in taken.items()}
    # Two ways write to the first topic alone, and two to both.
    expected = [4 * (WARM_UP + times), 2 * (WARM_UP + times)]
    is_clean = [records_in(client, topic) for topic in topics] == expected
    yield LatencyOfTransactions(times, p50_ms, is_clean)


@dataclass
class _Ways:
    """The ways to write a message, and a create of the store to compare with."""

    root: str
    plain: Producer
    transactional: Producer
    consumer: Consumer
    source: str
    topics: list[str]
    offset: int = 0

    def all(self) -> dict[str, Callable[[], None]]:
        """Each way by its name."""
        store, folder = open_store(self.root), f"creates/{uuid4().hex}/"
        pairs = iter((self._one, self._one_in_transaction, self._two, self._two_in_transaction))
        ways = {way: next(pairs) for pair in _PAIRS.values() for way in pair}
        return {_CREATE: lambda: store.create(f"{folder}{uuid4().hex}", ENTRY), **ways}

    def _one(self) -> None:
        self.plain.produce(self.topics[0], MESSAGE)
        self.plain.flush()

    def _one_in_transaction(self) -> None:
        self.transactional.begin_transaction()
        self.transactional.produce(self.topics[0], MESSAGE)
        self.transactional.commit_transaction()

    def _two(self) -> None:
        for topic in self.topics:
            self.plain.produce(topic, MESSAGE)
        self.plain.flush()
        self.consumer.commit(offsets=self._next(), asynchronous=False)

    def _two_in_transaction(self) -> None:
        self.transactional.begin_transaction()
        for topic in self.topics:
            self.transactional.produce(topic, MESSAGE)
        self.transactional.send_offsets_to_transaction(
            self._next(), self.consumer.consumer_group_metadata()
        )
        self.transactional.commit_transaction()

    def _next(self) -> list[TopicPartition]:
        self.offset += 1
        return [TopicPartition(self.source, 0, self.offset)]
