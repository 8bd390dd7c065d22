"""Throughput: how many messages a second each way in and out takes, in a process of its own, each
content checked.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from time import perf_counter, process_time
from typing import Any
from uuid import uuid4

import pyarrow as pa

from benchmarks.client import Client, deltaq_client
from benchmarks.finding import Table, Target, at_least, known_cores
from benchmarks.machine import OthersLoad
from benchmarks.payload import MESSAGE_BYTES, as_arrow, random_values
from benchmarks.suite import Place
from deltaq import KafkaError

FILE_ROWS = 10_000
"""Rows of a file of the topic that is read: what `batch.num.messages` allows by default."""

BLOCK_ROWS = 100_000
"""Rows of a table given to `produce_arrow`."""

TIMEOUT_S = 10.0
"""How long to wait for the next message before the rest counts as lost."""


_AIMS = {
    "produce, calls": 800_000,
    "produce_arrow, acknowledged": 3_000_000,
    "consume(500)": 800_000,
}
_NAMES = {"consume_500": "consume(500)", "produce_callback": "produce with callback, poll"}


class WrongContent(Exception):
    """What came out is not what went in."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run: seconds until the last call returned (only for ways in), and until all was there."""

    way: str
    messages: int
    calls_s: float | None
    seconds: float
    cpu_s: float
    others_cores: float | None
    client: str = "deltaq"


@dataclass(frozen=True, slots=True)
class WaySpeed:
    """Messages a second: the best of several runs, their median, and the slowest."""

    name: str
    best: float
    median: float
    worst: float
    cpu_us: float
    """Microseconds of CPU time a message took in the best run, all threads together."""


def name_of(way: str) -> str:
    """What a way is called in a report."""
    return _NAMES.get(way, way)


def speeds(runs: Sequence[Run]) -> list[WaySpeed]:
    """Runs of the same kind as one line each; ways in as two: when the calls had returned, and when
    all was safe.
    """
    found = []
    for way in dict.fromkeys(run.way for run in runs):
        alike = [run for run in runs if run.way == way]
        calls = [run.messages / run.calls_s for run in alike if run.calls_s is not None]
        best = min(alike, key=lambda run: run.seconds)
        cpu_us = best.cpu_s / best.messages * 1e6
        if calls and way == "produce":  # of a table, the call tells nothing about rows
            found.append(_speed(f"{name_of(way)}, calls", calls, cpu_us))
        done = [run.messages / run.seconds for run in alike]
        found.append(
            _speed(f"{name_of(way)}, acknowledged" if calls else name_of(way), done, cpu_us)
        )
    return found


def _speed(name: str, rates: list[float], cpu_us: float) -> WaySpeed:
    return WaySpeed(name, max(rates), statistics.median(rates), min(rates), cpu_us)


@dataclass(frozen=True, slots=True)
class Throughput:
    """The outcome of a plan: all its runs, of which there is at least one."""

    runs: tuple[Run, ...]

    @property
    def is_clean(self) -> bool:
        """Always: a run that went wrong has raised."""
        return True

    @property
    def others_cores(self) -> tuple[float, ...]:
        return known_cores(run.others_cores for run in self.runs)

    def tables(self) -> Iterator[Table]:
        """Each way in and out."""
        times = max(
            sum(run.way == way for run in self.runs) for way in {run.way for run in self.runs}
        )
        messages = self.runs[0].messages
        title = (
            f"Messages of {MESSAGE_BYTES} random bytes a second: {messages:,} messages, best of "
            f"{times}"
        )
        rows = (
            (
                speed.name,
                *(f"{rate:,.0f}" for rate in (speed.best, speed.median, speed.worst)),
                f"{speed.cpu_us:.2f}",
            )
            for speed in speeds(self.runs)
        )
        yield Table(title, ("way", "best", "median", "worst", "CPU us each"), tuple(rows))

    def targets(self) -> Iterator[Target]:
        """The median run counts, not the best."""
        for speed in speeds(self.runs):
            if speed.name in _AIMS:
                yield at_least(speed.name, _AIMS[speed.name], speed.median, "/s")


def measure_throughput(client: Client, way: str, messages: int, seed: int, filled: str) -> Run:
    """Measure one of `WAYS` in a fresh process. `filled` is a topic that `fill_topic` filled from
    `seed`.

    Raises WrongContent.
    """
    others = OthersLoad()
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        calls_s, seconds, cpu_s = pool.submit(
            measured_way, client, way, messages, seed, filled
        ).result()
    return Run(way, messages, calls_s, seconds, cpu_s, others.cores(), client.name)


def fill_topic(client: Client, topic: str, messages: int, seed: int) -> None:
    """Fill a new topic of one partition; deltaq's with files of 10,000 messages each, 1 MB."""
    client.create_topic(topic)
    values = random_values(messages, seed)
    if client.library != "deltaq":
        _produce(client, topic, values)
        return
    with _producer(client) as producer:
        for table in _tables(values, FILE_ROWS):
            producer.produce_arrow(topic, table)
            producer.flush()


def measured_way(
    client: Client, way: str, messages: int, seed: int, filled: str
) -> tuple[float | None, float, float]:
    """Runs in the fresh process."""
    values = random_values(messages, seed)
    _warm_up(client, values[:1000])
    if way in _IN:
        topic = f"{way}-{uuid4().hex[:12]}"
        client.create_topic(topic)
        cpu_s = process_time()
        calls_s, seconds = _IN[way](client, topic, values)
        cpu_s = process_time() - cpu_s
        _check(way, values, _consume(client, topic, messages)[1])
        _check_end(client, way, topic, messages)
        return calls_s, seconds, cpu_s
    cpu_s = process_time()
    seconds, found = _OUT[way](client, filled, messages)
    cpu_s = process_time() - cpu_s
    _check(way, values, found)
    _check_end(client, way, filled, messages)
    return None, seconds, cpu_s


def _warm_up(client: Client, values: list[bytes]) -> None:
    """Go every way once, on a topic of its own: what a process loads at first use is no matter of
    messages a second.
    """
    topic = f"warm-up-{uuid4().hex[:12]}"
    client.create_topic(topic)
    for name in WAYS if client.library == "deltaq" else KAFKA_WAYS:
        if name in _IN:
            _IN[name](client, topic, values)
        else:
            _OUT[name](client, topic, len(values))


def _check(way: str, expected: list[bytes], found: list[bytes] | pa.ChunkedArray) -> None:
    """WrongContent unless the values are the expected ones, each once and in order."""
    same = (
        found == expected
        if isinstance(found, list)
        else found.equals(pa.chunked_array([as_arrow(expected)]))
    )
    if not same:
        raise WrongContent(
            f"{way}: {len(expected):,} messages sent, {len(found):,} came, and they are not the "
            "same"
        )


def _check_end(client: Client, way: str, topic: str, messages: int) -> None:
    """WrongContent if the topic goes on behind the messages that were read: there doubles of them
    may stand.
    """
    with _consumer(client, topic) as consumer:
        first, end = consumer.get_watermark_offsets(client.api.TopicPartition(topic, 0), TIMEOUT_S)
    if (first, end) != (0, messages):
        raise WrongContent(
            f"{way}: {messages:,} messages sent, and the topic has offsets {first:,} to {end:,}"
        )


# --- ways in: seconds until the last call returned, and until all was acknowledged
# -----------------------------------


def _producer(client: Client) -> Any:
    # The queue's usual limits would make the caller wait for the disk, and the calls would no
    # longer be measured.
    return client.api.Producer({**client.conf, "queue.buffering.max.messages": 0})


def _produce(client: Client, topic: str, values: list[bytes]) -> tuple[float, float]:
    with _producer(client) as producer:
        producer.list_topics(topic)
        produce = producer.produce
        start = perf_counter()
        for value in values:
            produce(topic, value)
        called = perf_counter()
        producer.flush()
        return called - start, perf_counter() - start


def _produce_with_callback(client: Client, topic: str, values: list[bytes]) -> tuple[float, float]:
    failures: list[object] = []
    reported = 0

    def delivered(error: object, _: object) -> None:
        nonlocal reported
        reported += 1
        if error is not None:
            failures.append(error)

    with _producer(client) as producer:
        producer.list_topics(topic)
        produce, poll = producer.produce, producer.poll
        start = perf_counter()
        for value in values:
            produce(topic, value, on_delivery=delivered)
            poll(0)
        called = perf_counter()
        producer.flush()
        done = perf_counter()
    if failures or reported != len(values):
        raise WrongContent(
            f"produce with a callback: {reported:,} were reported, {len(failures):,} of them not "
            "delivered"
        )
    return called - start, done - start


def _produce_arrow(client: Client, topic: str, values: list[bytes]) -> tuple[float, float]:
    tables = _tables(values, BLOCK_ROWS)
    failures: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        failures.extend([error] if error is not None else [])

    with _producer(client) as producer:
        producer.list_topics(topic)
        start = perf_counter()
        for table in tables:
            producer.produce_arrow(topic, table, on_delivery=delivered)
        called = perf_counter()
        producer.flush()
        done = perf_counter()
    if failures:
        raise WrongContent(
            f"produce_arrow: {len(failures)} tables were not delivered; the first: {failures[0]}"
        )
    return called - start, done - start


def _tables(values: list[bytes], rows: int) -> list[pa.Table]:
    parts = (values[first : first + rows] for first in range(0, len(values), rows))
    return [pa.table({"value": as_arrow(part)}) for part in parts]


# --- ways out: seconds from the making of the consumer to the last value, and the values
# -----------------------------


def _consumer(client: Client, topic: str) -> Any:
    api = client.api
    consumer = api.Consumer({**client.consumer_conf, "group.id": f"reader-{uuid4().hex[:12]}"})
    consumer.assign([api.TopicPartition(topic, 0, api.OFFSET_BEGINNING)])
    return consumer


def _poll(client: Client, topic: str, messages: int) -> tuple[float, list[bytes]]:
    values: list[bytes] = []
    start = perf_counter()
    with _consumer(client, topic) as consumer:
        poll = consumer.poll
        while len(values) < messages and (message := poll(TIMEOUT_S)) is not None:
            values.append(message.value())
        return perf_counter() - start, values


def _consume(client: Client, topic: str, messages: int) -> tuple[float, list[bytes]]:
    values: list[bytes] = []
    start = perf_counter()
    with _consumer(client, topic) as consumer:
        batch: Sequence[Any] | None = None
        while len(values) < messages and batch != []:
            batch = consumer.consume(min(500, messages - len(values)), TIMEOUT_S)
            values += [message.value() for message in batch]
        return perf_counter() - start, values


def _consume_arrow(client: Client, topic: str, messages: int) -> tuple[float, pa.ChunkedArray]:
    columns: list[pa.Array] = []
    rows = 0
    start = perf_counter()
    with _consumer(client, topic) as consumer:
        while rows < messages and (batch := consumer.consume_arrow(timeout=TIMEOUT_S)) is not None:
            columns.append(batch.column("value"))
            rows += batch.num_rows
        seconds = perf_counter() - start
    return seconds, pa.chunked_array(columns, pa.binary())


_In = Callable[[Client, str, list[bytes]], tuple[float, float]]
_Out = Callable[[Client, str, int], "tuple[float, list[bytes] | pa.ChunkedArray]"]
_IN: dict[str, _In] = {
    "produce": _produce,
    "produce_callback": _produce_with_callback,
    "produce_arrow": _produce_arrow,
}
_OUT: dict[str, _Out] = {"poll": _poll, "consume_500": _consume, "consume_arrow": _consume_arrow}
WAYS = (*_IN, *_OUT)
"""What can be measured."""

KAFKA_WAYS = ("produce", "produce_callback", "poll", "consume_500")
"""What Kafka's client can do too."""


# --- all of them
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ThroughputPlan:
    """How many messages go each of the ways, and how often."""

    messages: int
    rounds: int
    ways: tuple[str, ...] = WAYS


def measure_speeds(plan: ThroughputPlan, place: Place) -> Iterator[Throughput]:
    """Carry a plan out: one outcome."""
    filled, seed = f"filled-{uuid4().hex[:12]}", 1
    place.report(f"throughput: filling the topic that is read with {plan.messages:,} messages")
    client = deltaq_client(place.root)
    fill_topic(client, filled, plan.messages, seed)
    runs = []
    # Round by round, so that a moment in which the machine was busy does not hit all runs of one
    # way.
    for number in range(1, plan.rounds + 1):
        for way in plan.ways:
            run = measure_throughput(client, way, plan.messages, seed, filled)
            place.report(
                f"  round {number} of {plan.rounds}, {way}: {run.messages / run.seconds:,.0f}/s"
            )
            runs.append(run)
    yield Throughput(tuple(runs))
