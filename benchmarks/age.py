"""Age: what a topic costs that has seen very many commits, against one of the same kind that has
seen few.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter_ns, sleep
from uuid import uuid4

from benchmarks.ageing import Life, Report, grow
from benchmarks.distribution import Percentiles, distribution
from benchmarks.finding import Table, Target, at_most, known_cores
from benchmarks.footprint import Footprint, measure_footprint, read_through
from benchmarks.history import Verdict, summed
from benchmarks.machine import OthersLoad, drop_from_page_cache
from benchmarks.payload import TimedPayloads
from benchmarks.suite import Place
from deltaq import OFFSET_END, Consumer, KafkaError, Message, Producer, TopicPartition, names

TIMEOUT_S = 10.0
"""How long what is measured may take; then the benchmark fails."""

WARM_UP = 5
"""Rounds that do not count: what is loaded at first use is no matter of age."""

_RATIO_AIM = 1.2
_BYTES_AIM = 1.3

_OPERATIONS = (
    "acknowledged produce",
    "poll of a new record",
    "produce to poll",
    "open at the end",
    "open at an old time",
)


@dataclass(frozen=True, slots=True)
class AgePlan:
    """The two lives that are compared, and how often each operation is measured on each. `rest_s`:
    how long nothing happens between making and measuring.
    """

    old: Life
    young: Life
    rounds: int
    rest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OperationTimes:
    """What one operation takes on the young topic and on the old one."""

    operation: str
    young: Percentiles
    old: Percentiles

    @property
    def ratio(self) -> float:
        """Of the medians, old to young."""
        return self.old.p50 / self.young.p50


@dataclass(frozen=True, slots=True)
class Age:
    """The outcome. `verdict` is about all records of both topics, read after everything else; the
    footprints are from before anything was measured. `grown_s`: how long the old topic took to be
    made.
    """

    plan: AgePlan
    verdict: Verdict
    costs: tuple[OperationTimes, ...]
    young: Footprint
    old: Footprint
    grown_s: float
    others_cores: tuple[float, ...]

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean

    def tables(self) -> Iterator[Table]:
        """What each operation takes, and what all takes in the store."""
        yield self._cost_table()
        yield self._footprint_table()

    def _cost_table(self) -> Table:
        old, young = self.plan.old, self.plan.young
        title = (
            f"Age in ms: a topic of {old.commits:,} commits in {old.days:g} days, made in "
            f"{self.grown_s:,.0f} s, against one of {young.commits:,}; messages {self.verdict}"
        )
        rows = []
        for cost in self.costs:
            figures = cost.young.p50, cost.old.p50, cost.ratio, cost.young.p95, cost.old.p95
            rows.append(
                (cost.operation, *(f"{figure:.2f}" for figure in figures), f"{cost.old.count:,}")
            )
        head = "operation", "young p50", "old p50", "ratio", "young p95", "old p95", "times"
        return Table(title, head, tuple(rows))

    def _footprint_table(self) -> Table:
        both = self.young, self.old
        title = (
            "Objects, and bytes for each byte of payload, of which the old topic has "
            f"{self.old.payload_bytes:,} and the young one {self.young.payload_bytes:,}"
        )
        kinds = [(kind, [size.parts[kind] for size in both]) for kind in self.old.parts]
        rows = [
            _size_row(kind, [(part.objects, part.bytes) for part in parts], both)
            for kind, parts in kinds
        ]
        rows.append(_size_row("all", [(size.objects, size.bytes) for size in both], both))
        rows.append(
            _size_row("as one plain Parquet file", [(1, size.plain_bytes) for size in both], both)
        )
        return Table(title, ("kind", "young", "old", "young bytes", "old bytes"), tuple(rows))

    def targets(self) -> Iterator[Target]:
        """An old topic is hardly slower, and hardly takes more than its records."""
        for cost in self.costs:
            yield at_most(f"{cost.operation}, old/young", _RATIO_AIM, cost.ratio)
        yield at_most(
            "bytes of the old topic/payload", _BYTES_AIM, self.old.bytes / self.old.payload_bytes
        )


def _size_row(
    kind: str, taken: Sequence[tuple[int, int]], sizes: Sequence[Footprint]
) -> tuple[str, ...]:
    """Of each topic the objects, and behind these of each topic the bytes for each byte of
    payload.
    """
    ratios = (
        f"{count / size.payload_bytes:.3f}" for (_, count), size in zip(taken, sizes, strict=True)
    )
    return kind, *(f"{objects:,}" for objects, _ in taken), *ratios


class WrongResult(Exception):
    """An operation that was measured did not do what it should."""


@dataclass(slots=True)
class _Subject:
    """One topic while it is measured. `sent` counts its records; `taken` has what each operation
    took, in ns.
    """

    root: str
    topic: str
    life: Life
    payloads: TimedPayloads
    times_ms: array[int]
    sent: int
    taken: dict[str, list[int]] = field(default_factory=dict)

    def note(self, operation: str, nanoseconds: int) -> None:
        self.taken.setdefault(operation, []).append(nanoseconds)

    def next_offset(self, partition: int) -> int:
        """Where the records of a partition end: record n is in partition n modulo their number."""
        return len(range(partition, self.sent, self.life.partitions))

    def partitions(self, offset: int) -> list[TopicPartition]:
        return [
            TopicPartition(self.topic, partition, offset)
            for partition in range(self.life.partitions)
        ]


def measure_ages(plan: AgePlan, place: Place) -> Iterator[Age]:
    """Carry a plan out: one outcome."""
    place.report(f"age: {plan.old.commits:,} commits against {plan.young.commits:,}")
    yield measure_age(place.root, plan, place.report)


def measure_age(root: str, plan: AgePlan, report: Report) -> Age:
    """Make both topics below `root`, measure them alternately, and read them through."""
    payloads = TimedPayloads(plan.old.commits)
    started = perf_counter_ns()
    report(f"  the old topic: {plan.old.commits:,} commits in {plan.old.days:g} days")
    old = _subject(root, "old", plan.old, payloads, report)
    grown_s = (perf_counter_ns() - started) / 1e9
    young = _subject(root, "young", plan.young, payloads, report)
    sizes = [
        measure_footprint(root, subject.topic, subject.life.payload_bytes, 0)
        for subject in (young, old)
    ]
    if plan.rest_s:
        report(f"  {plan.rest_s:,.0f} s of rest, until the file system uses what was deleted again")
        sleep(plan.rest_s)
    others = OthersLoad()
    report(f"  measured alternately, {plan.rounds} rounds")
    _measure(young, old, plan.rounds)
    others_cores = known_cores([others.cores()])
    report("  everything is read and compared")
    found = [read_through(root, s.topic, s.life.partitions, s.sent, payloads) for s in (young, old)]
    small, large = (
        # The few records that came with measuring take as much as the others.
        replace(size, plain_bytes=plain_bytes * subject.life.total // subject.sent)
        for size, subject, (_, plain_bytes) in zip(sizes, (young, old), found, strict=True)
    )
    costs = tuple(
        OperationTimes(
            operation, distribution(young.taken[operation]), distribution(old.taken[operation])
        )
        for operation in _OPERATIONS
    )
    return Age(plan, summed([found[0][0], found[1][0]]), costs, small, large, grown_s, others_cores)


def _subject(root: str, age: str, life: Life, payloads: TimedPayloads, report: Report) -> _Subject:
    topic = f"{age}-{uuid4().hex[:12]}"
    return _Subject(
        root, topic, life, payloads, grow(root, topic, life, payloads, report), life.total
    )


# --- one record in, one record out, and opening
# ----------------------------------------------------------------------


def _measure(young: _Subject, old: _Subject, rounds: int) -> None:
    conf = {"bootstrap.servers": young.root, "linger.ms": 0}
    with (
        Producer(conf, on_delivery=_delivered) as producer,
        _at_end(young) as one,
        _at_end(old) as other,
    ):
        tails = [(young, one), (old, other)]
        for round_ in range(-WARM_UP, rounds):
            for subject, tail in tails if round_ % 2 else reversed(tails):
                _produce_and_poll(subject, producer, tail)
            for subject, _ in tails if round_ % 2 else reversed(tails):
                _open_at_end(subject)
            # Spread over the life of each, in an order that no pattern of its files can follow.
            place = (round_ + WARM_UP) * 0.618 % 1
            for subject, _ in tails if round_ % 2 else reversed(tails):
                _open_at_time(subject, int(place * subject.life.commits))
            if round_ < 0:
                young.taken.clear()
                old.taken.clear()


def _delivered(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise WrongResult(f"a message was not delivered: {error}")


def _consumer(subject: _Subject) -> Consumer:
    conf = {
        "bootstrap.servers": subject.root,
        "group.id": f"reader-{uuid4().hex[:12]}",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    return Consumer(conf)


@contextmanager
def _at_end(subject: _Subject) -> Iterator[Consumer]:
    """A consumer that has read all there is, and says so for each partition that it reads."""
    with _consumer(subject) as consumer:
        consumer.assign(subject.partitions(OFFSET_END))
        ends = [_next(consumer) for _ in range(subject.life.partitions)]
        found = sorted((end.partition(), end.offset()) for end in ends if _is_end(end))
        expected = [
            (partition, subject.next_offset(partition))
            for partition in range(subject.life.partitions)
        ]
        if found != expected:
            raise WrongResult(f"the partitions end at {found} instead of {expected}")
        yield consumer


def _produce_and_poll(subject: _Subject, producer: Producer, tail: Consumer) -> None:
    partition = subject.sent % subject.life.partitions
    value = subject.payloads.make(subject.sent)
    start = perf_counter_ns()
    producer.produce(subject.topic, value, partition=partition)
    producer.flush()
    acknowledged = perf_counter_ns()
    message = _next_record(tail)
    got = perf_counter_ns()
    if (message.value(), message.offset()) != (value, subject.next_offset(partition)):
        raise WrongResult(f"another record than the new one: {message.value()!r}")
    subject.sent += 1
    subject.note("acknowledged produce", acknowledged - start)
    subject.note("poll of a new record", got - acknowledged)
    subject.note("produce to poll", got - start)


def _next(consumer: Consumer) -> Message:
    message = consumer.poll(TIMEOUT_S)
    if message is None:
        raise WrongResult(f"nothing came within {TIMEOUT_S:g} s")
    return message


def _next_record(consumer: Consumer) -> Message:
    while _is_end(message := _next(consumer)):
        pass
    return message


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def _open_at_end(subject: _Subject) -> None:
    start = perf_counter_ns()
    with _at_end(subject):
        subject.note("open at the end", perf_counter_ns() - start)


def _open_at_time(subject: _Subject, commit: int) -> None:
    """From a moment before a commit: its first record of each partition is the first one to come.

    What is old is on the disk, and is looked for there on both topics: the few files of the young
    one would be in memory, because they are read again and again, and most of the old one's not.
    """
    drop_from_page_cache(Path(subject.root, names.topic_folder(subject.topic)))
    start = perf_counter_ns()
    with _consumer(subject) as consumer:
        consumer.assign(consumer.offsets_for_times(subject.partitions(subject.times_ms[commit])))
        message = _next_record(consumer)
        subject.note("open at an old time", perf_counter_ns() - start)
        first = commit * subject.life.records
        content = subject.payloads.read(message.value() or b"")
        if content is None or not first <= content[1] < first + subject.life.partitions:
            raise WrongResult(f"opened at record {first}, and {content} came")
