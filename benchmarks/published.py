"""The published benchmark of Delta tables as a queue, once more: its rates through deltaq, and through plain delta-rs.

What was published is of Pathway: one program writes a Delta table on MinIO, another one reads it, and the latency of
each message is taken. Here too it goes from one process to another. What is different: 100 random bytes a message
instead of 17 that are the same 100 times over, a time of its own for each, sent when due instead of 10,000 at once,
percentiles of windows beside cumulative ones, and every message accounted for.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from statistics import median_high
from time import monotonic, monotonic_ns, process_time
from typing import TypeAlias, cast
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.client import deltaq_client, subscribe
from benchmarks.delta_rs import Appender, Follower, create_queue
from benchmarks.distribution import percentile
from benchmarks.finding import Chart, Series, Table, Target, at_least, at_most, known_cores
from benchmarks.history import Verdict, judge
from benchmarks.latency import PATIENCE_S, SETTLE_S, send_and_read
from benchmarks.load import Load
from benchmarks.machine import OthersLoad
from benchmarks.payload import MESSAGE_BYTES
from benchmarks.rendezvous import reader_is_ready, send_to_reader
from deltaq import Consumer, KafkaError, Producer, Topic
from deltaq.names import entry_version, topic_folder
from deltaq.store import Store, open_store

__all__ = [
    "DELTA_RS",
    "DELTA_RS_KEPT",
    "FULL_PUBLISHED",
    "MESSAGES",
    "PUBLISHED",
    "QUICK_PUBLISHED",
    "TABLES",
    "Arrivals",
    "Figure",
    "Marks",
    "Passage",
    "Published",
    "PublishedPlan",
    "TimedRows",
    "Trial",
    "by_window",
    "collect",
    "judge_rows",
    "marks",
    "measure_passage",
    "measure_published",
    "published_at",
    "source",
]

Int64s: TypeAlias = npt.NDArray[np.int64]
Tell: TypeAlias = Callable[[str], None]
Source: TypeAlias = Callable[[], Iterable["pa.Array | pa.ChunkedArray"]]

TABLE_ROWS_MAX = 100_000
"""Rows of a table of a producer that is late: larger ones would make it later."""

FULL_S = 0.01
"""How long to wait when a producer's queue is full: to offer it a table costs as much as to hand it over."""

_SECOND_NS = 1_000_000_000
_POOL_ROWS = 1 << 16


# --- what was published ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Marks:
    """Percentiles of latency, in milliseconds."""

    p50: float
    p75: float
    p85: float
    p95: float
    p99: float


_PER_MILLE = (500, 750, 850, 950, 990)


@dataclass(frozen=True, slots=True)
class Figure:
    """What was published of `rate` messages a second, with writer and reader set to commit each `mode_ms`."""

    rate: int
    mode_ms: int
    marks: Marks


PUBLISHED = (
    Figure(10_000, 1000, Marks(940, 940, 940, 950, 1_940)),
    Figure(10_000, 100, Marks(260, 350, 360, 530, 670)),
    Figure(30_000, 100, Marks(280, 310, 320, 380, 640)),
    Figure(70_000, 1000, Marks(1_450, 1_720, 1_840, 1_890, 2_050)),
    Figure(70_000, 100, Marks(1_240, 16_060, 24_820, 35_660, 41_320)),
    Figure(150_000, 1000, Marks(1_680, 1_940, 2_040, 2_180, 3_090)),
    Figure(250_000, 1000, Marks(1_980, 2_270, 2_410, 3_360, 4_580)),
)
"""Of Pathway's article on Delta tables as a queue: MinIO in the same network, five minutes of which the first 30
seconds do not count, one thread in each program, percentiles cumulative over the run."""

KEEPS_UP_P99_MS = 2_000.0
"""The article's measure: at a rate that is kept up, the 99th percentile stays below this."""


def published_at(rate: int) -> Figure | None:
    """The figure of a rate, None if there is none; of two modes that of 1000 ms, which was measured at more rates."""
    return max((figure for figure in PUBLISHED if figure.rate == rate), key=lambda f: f.mode_ms, default=None)


# --- what is measured ------------------------------------------------------------------------------------------------

MESSAGES = "messages"
TABLES = "tables"
DELTA_RS = "delta-rs by URI"
DELTA_RS_KEPT = "delta-rs, table kept"
"""The ways: deltaq message by message, and by tables; plain delta-rs given the URI for each table of rows, and with one
object for all of them."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A load and its way. All but MESSAGES hand over a table each `tick_ms`, of the rows that have become due."""

    load: Load
    way: str = MESSAGES
    tick_ms: float = 0.0

    @property
    def name(self) -> str:
        """How the messages go, without how many."""
        if self.way == MESSAGES:
            return f"linger {self.load.linger_ms:g} ms"
        if self.way == TABLES:
            return f"tables each {self.tick_ms:g} ms, linger {self.load.linger_ms:g} ms"
        return f"{self.way}, each {self.tick_ms:g} ms"

    @property
    def is_ours(self) -> bool:
        """Whether it goes through deltaq."""
        return self.way in {MESSAGES, TABLES}

    def __str__(self) -> str:
        return f"{self.load.rate:,}/s, {self.name}"


@dataclass(frozen=True, slots=True)
class PublishedPlan:
    """What is measured, one after the other, and how long a window is."""

    trials: tuple[Trial, ...]
    window_s: float


def _plain(rate: int, seconds: float, warmup_s: float) -> tuple[Trial, ...]:
    return tuple(Trial(Load(rate, 0.0, seconds, warmup_s), way, 100.0) for way in (DELTA_RS, DELTA_RS_KEPT))


def _messages(rate: int) -> tuple[Trial, ...]:
    return tuple(Trial(Load(rate, linger_ms, 30.0, 5.0)) for linger_ms in (20.0, 5.0))


FULL_PUBLISHED = PublishedPlan(
    (
        *_messages(10_000),
        *_plain(10_000, 30.0, 5.0),
        *_messages(30_000),
        *_messages(70_000),
        *_plain(70_000, 30.0, 5.0),
        *_messages(150_000),
        *_messages(250_000),
        # Each table becomes a file of its own: with fewer of them, rows wait longer, and the disk syncs less often.
        Trial(Load(500_000, 5.0, 30.0, 5.0), TABLES, 20.0),
        Trial(Load(1_000_000, 5.0, 60.0, 5.0), TABLES, 50.0),
    ),
    window_s=5.0,
)
QUICK_PUBLISHED = PublishedPlan(
    (
        *(Trial(Load(rate, 20.0, 3.0, 1.0)) for rate in (10_000, 70_000)),
        *_plain(10_000, 3.0, 1.0),
        Trial(Load(500_000, 5.0, 3.0, 1.0), TABLES, 20.0),
    ),
    window_s=1.0,
)


@dataclass(frozen=True, slots=True)
class Passage:
    """The outcome of a trial.

    Of a message that is handed over by itself, latency counts from the call of `produce`, and `from_due` from when it
    was to be sent. A row of a table has but the latter: it waits for its table as a message waits for `linger.ms`.
    `windows` are in the order in which messages were due, `whole` is of all that counted. Commits and bytes include the
    warm-up.
    """

    trial: Trial
    verdict: Verdict
    windows: tuple[Marks, ...]
    whole: Marks
    from_due: Marks
    achieved_rate: float
    kept_up_s: float
    commits: int
    data_bytes: int
    log_bytes: int
    producer_cpu_s: float
    consumer_cpu_s: float
    others_cores: float | None

    @property
    def middle(self) -> Marks:
        """Of each mark, the median of the windows: the worse one of two in the middle."""
        return Marks(*map(median_high, zip(*map(astuple, self.windows), strict=True)))

    @property
    def worst_p99(self) -> float:
        """The 99th percentile of the worst window, in milliseconds."""
        return max(window.p99 for window in self.windows)

    @property
    def is_kept_up(self) -> bool:
        """Whether it was kept up to the end."""
        return self.kept_up_s >= self.trial.load.seconds


# --- rows that can be told from each other, made and understood without a Python step for each -----------------------

_ROW = np.dtype([("sent_ns", "<i8"), ("sequence", "<i8"), ("rest", "<u4", 21)])
assert _ROW.itemsize == MESSAGE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """For each arrival in order, the row's number, and when it was sent and received. `foreign`: of rows never made."""

    sequences: Int64s
    sent_ns: Int64s
    received_ns: Int64s
    foreign: int = 0


class TimedRows:
    """Columns of values of 100 bytes: time of sending (`time.monotonic_ns`), sequence number, and 84 random bytes.

    Producer and consumer make the same random bytes from the same `seed`, so that the consumer notices a changed one.
    """

    def __init__(self, seed: int) -> None:
        words = np.random.default_rng(seed).integers(0, 1 << 32, (_POOL_ROWS, 21), dtype=np.uint32)
        self._pool = words.astype("<u4")

    def make(self, sequences: Int64s, sent_ns: Int64s) -> pa.Array:
        """The rows of these numbers, as an Arrow array of binary."""
        rows = np.empty(len(sequences), _ROW)
        rows["sent_ns"], rows["sequence"] = sent_ns, sequences
        rows["rest"] = self._pool[sequences % _POOL_ROWS]
        ends = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(MESSAGE_BYTES)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(rows)]
        return pa.Array.from_buffers(pa.binary(), len(rows), buffers)

    def read(self, received: Iterable[tuple[int, pa.Array | pa.ChunkedArray]]) -> Arrivals:
        """What came, of columns with their time of arrival in the order in which they came."""
        sequences, sent, arrived, foreign = [], [], [], 0
        for received_ns, column in received:
            for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                rows = self._understood(chunk)
                foreign += len(chunk) - len(rows)
                sequences.append(rows["sequence"].copy())
                sent.append(rows["sent_ns"].copy())
                arrived.append(np.full(len(rows), received_ns))
        return Arrivals(_joined(sequences), _joined(sent), _joined(arrived), foreign)

    def _understood(self, values: pa.Array) -> npt.NDArray[np.void]:
        values = values.cast(pa.binary())
        fits = pc.fill_null(pc.equal(pc.binary_length(values), MESSAGE_BYTES), False)
        if not pc.all(fits, min_count=0).as_py():
            values = values.filter(fits)
        if not len(values):
            return np.empty(0, _ROW)
        _, ends, data = values.buffers()
        start = np.frombuffer(ends, np.int32, 1, values.offset * 4)[0]
        rows = np.frombuffer(data, _ROW, len(values), start)
        same = (rows["rest"] == self._pool[rows["sequence"] % _POOL_ROWS]).all(axis=1)
        return rows if same.all() else rows[same]


def _joined(parts: Sequence[Int64s]) -> Int64s:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def judge_rows(total: int, arrivals: Arrivals) -> Verdict:
    """As `judge`, which has to look at each number only if not all is as it should be."""
    if not arrivals.foreign and np.array_equal(arrivals.sequences, np.arange(total)):
        return Verdict(total, total, 0, 0, 0, 0)
    return judge(total, array("q", arrivals.sequences.tobytes()), arrivals.foreign)


# --- percentiles -----------------------------------------------------------------------------------------------------


def marks(nanoseconds: Int64s) -> Marks:
    """Of all measurements, none sampled or rounded. ValueError if there are none."""
    if not len(nanoseconds):
        raise ValueError("nothing was measured: all messages were lost, or the run was shorter than its warm-up")
    ordered = cast("list[int]", np.sort(nanoseconds))
    return Marks(*(float(percentile(ordered, mark)) / 1e6 for mark in _PER_MILLE))


def by_window(load: Load, sequences: Int64s, latency_ns: Int64s, window_s: float) -> tuple[Marks, ...]:
    """The marks of each window after the warm-up, by the time at which messages were due. A window of which nothing
    came has none."""
    window_ns = round(window_s * _SECOND_NS)
    windows = (sequences - load.warmup) * _SECOND_NS // load.rate // window_ns
    return tuple(marks(latency_ns[windows == window]) for window in np.unique(windows))


@dataclass(frozen=True, slots=True)
class _Seen:
    """The consumer's side of a passage."""

    verdict: Verdict
    windows: tuple[Marks, ...]
    whole: Marks
    cpu_s: float


def _seen(load: Load, arrivals: Arrivals, verdict: Verdict, window_s: float, cpu_s: float) -> _Seen:
    counted = (arrivals.sequences >= load.warmup) & (arrivals.sequences < load.total)
    latency_ns = (arrivals.received_ns - arrivals.sent_ns)[counted]
    windows = by_window(load, arrivals.sequences[counted], latency_ns, window_s)
    return _Seen(verdict, windows, marks(latency_ns), cpu_s)


def _kept_up_s(load: Load, windows: Iterable[Marks], window_s: float, achieved_rate: float) -> float:
    """For how long: until the first window that was too late, and not at all if less was sent than should have been."""
    if achieved_rate < 0.99 * load.rate:
        return 0.0
    kept = 0
    for window in windows:
        if window.p99 > KEEPS_UP_P99_MS:
            break
        kept += 1
    return min(load.seconds, kept * window_s)


# --- the two processes that pass tables ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sent:
    """The producer's side of a passage."""

    achieved_rate: float
    cpu_s: float


@contextmanager
def _sink(root: str, name: str, trial: Trial) -> Iterator[Callable[[pa.Array], None]]:
    """What takes a column of values; at the end all of them are committed. RuntimeError if one is not."""
    if not trial.is_ours:
        yield Appender(f"{root}/{name}", keep=trial.way == DELTA_RS_KEPT).append
        return
    failures: list[KafkaError] = []

    def told(error: KafkaError | None, _: object) -> None:
        failures.extend([error] if error is not None else [])

    # The usual limit of 100,000 rows is a tenth of a second of a million. That of 1 GiB remains.
    conf = {"bootstrap.servers": root, "linger.ms": trial.load.linger_ms, "queue.buffering.max.messages": 0}
    with Producer(conf) as producer:
        producer.list_topics(name)

        def append(values: pa.Array) -> None:
            table = pa.table({"value": values})
            while True:
                producer.poll(0)
                try:
                    producer.produce_arrow(name, table, on_delivery=told)
                except BufferError:
                    producer.poll(FULL_S)
                else:
                    return

        yield append
        producer.flush()
    if failures:
        raise RuntimeError(f"{len(failures)} tables were not delivered; the first: {failures[0]}")


@contextmanager
def source(root: str, name: str, trial: Trial) -> Iterator[Source]:
    """What gives the columns that are there by now, and waits for a moment if none is. TimeoutError if it is not ready
    in time."""
    if not trial.is_ours:
        yield Follower(f"{root}/{name}").poll
        return
    conf = {"bootstrap.servers": root, "group.id": f"reader-{name}", "auto.offset.reset": "earliest"}
    with Consumer(conf) as consumer:
        subscribe(consumer, name)

        def take() -> list[pa.Array]:
            batch = consumer.consume_arrow(timeout=0.1)
            return [] if batch is None else [batch.column("value")]

        yield take


def collect(take: Source, total: int) -> Iterator[tuple[int, pa.Array | pa.ChunkedArray]]:
    """Columns with their times of arrival, until all rows are there and no more have come for a while, or until too
    long none has come."""
    rows, last = 0, monotonic()
    while monotonic() - last < (SETTLE_S if rows >= total else PATIENCE_S):
        for column in take():
            received_ns = monotonic_ns()
            yield received_ns, column
            rows, last = rows + len(column), received_ns / _SECOND_NS


def _pass_tables(root: str, name: str, trial: Trial, window_s: float) -> tuple[_Sent, _Seen]:
    """Send from one process and read in another one; raises what either raised. Neither can wait for ever."""
    return send_to_reader(partial(_send, root, name, trial), partial(_read, root, name, trial, window_s))


def _send(root: str, name: str, trial: Trial) -> _Sent:
    load, rows, tick_ns = trial.load, TimedRows(trial.load.rate), round(trial.tick_ms * 1_000_000)
    cpu_s = process_time()
    sent = 0
    with _sink(root, name, trial) as append:
        start_ns = monotonic_ns()
        elapsed_ns = 0
        while sent < load.total:
            elapsed_ns = monotonic_ns() - start_ns
            due = min(load.total, elapsed_ns * load.rate // _SECOND_NS + 1)
            for first in range(sent, due, TABLE_ROWS_MAX):
                sequences = np.arange(first, min(due, first + TABLE_ROWS_MAX))
                append(rows.make(sequences, start_ns + sequences * _SECOND_NS // load.rate))
            sent = due
            if sent < load.total:
                next_ns = start_ns + (elapsed_ns // tick_ns + 1) * tick_ns
                time.sleep(max(0.0, (next_ns - monotonic_ns()) / _SECOND_NS))
    # To when the last table was begun: how long delta-rs takes for that one says nothing about the pace.
    return _Sent(load.total / (elapsed_ns / _SECOND_NS), process_time() - cpu_s)


def _read(root: str, name: str, trial: Trial, window_s: float) -> _Seen:
    cpu_s = process_time()
    received: deque[tuple[int, pa.Array | pa.ChunkedArray]] = deque()
    with source(root, name, trial) as take:
        reader_is_ready()
        # Only kept: to look into a table would delay the next one. A million rows a second are 6 GB a minute.
        received.extend(collect(take, trial.load.total))
    cpu_s = process_time() - cpu_s
    emptied = (received.popleft() for _ in range(len(received)))
    arrivals = TimedRows(trial.load.rate).read(emptied)
    return _seen(trial.load, arrivals, judge_rows(trial.load.total, arrivals), window_s, cpu_s)


# --- one trial, and all of them --------------------------------------------------------------------------------------


def measure_passage(root: str, trial: Trial, window_s: float) -> Passage:
    """Pass a load through a new topic or table below `root`, which two processes must be able to reach."""
    root, name = root.rstrip("/"), f"published-{uuid4().hex[:12]}"
    store = open_store(root)
    if trial.is_ours:
        folder = topic_folder(name)
        Topic(name, conf={"bootstrap.servers": root}).create()
    else:
        folder = f"{name}/"
        create_queue(f"{root}/{name}")
    others = OthersLoad()
    from_due: Marks | None = None
    if trial.way == MESSAGES:
        sent, seen, from_due = _pass_messages(root, name, trial.load, window_s)
    else:
        sent, seen = _pass_tables(root, name, trial, window_s)
    others_cores = others.cores()
    commits, data_bytes, log_bytes = _emptied(store, folder)
    return Passage(
        trial,
        seen.verdict,
        seen.windows,
        seen.whole,
        from_due or seen.whole,
        sent.achieved_rate,
        _kept_up_s(trial.load, seen.windows, window_s, sent.achieved_rate),
        commits,
        data_bytes,
        log_bytes,
        sent.cpu_s,
        seen.cpu_s,
        others_cores,
    )


def _pass_messages(root: str, topic: str, load: Load, window_s: float) -> tuple[_Sent, _Seen, Marks]:
    produced, consumed = send_and_read(deltaq_client(root), topic, load)
    sequences, sent_ns, received_ns = (
        np.frombuffer(column, np.int64) for column in (consumed.sequences, consumed.sent_ns, consumed.received_ns)
    )
    arrivals = Arrivals(sequences, sent_ns, received_ns, consumed.foreign)
    seen = _seen(load, arrivals, judge_rows(load.total, arrivals), window_s, consumed.cpu_s)
    counted = (arrivals.sequences >= load.warmup) & (arrivals.sequences < load.total)
    due_ns = produced.start_ns + arrivals.sequences * _SECOND_NS // load.rate
    achieved_rate = load.achieved_rate(produced.start_ns, produced.end_ns)
    return _Sent(achieved_rate, produced.cpu_s), seen, marks((arrivals.received_ns - due_ns)[counted])


def _emptied(store: Store, folder: str) -> tuple[int, int, int]:
    """Entries of the log beyond the first, bytes of data, and bytes of the log of a table, which is gone then: all the
    tables together could fill a disk."""
    entries = list(store.list(folder))
    in_log = [entry for entry in entries if "/_delta_log/" in entry.key]
    log_bytes = sum(entry.size for entry in in_log)
    for entry in entries:
        store.delete(entry.key)
    commits = sum(entry_version(entry.key) is not None for entry in in_log) - 1
    return commits, sum(entry.size for entry in entries) - log_bytes, log_bytes


def measure_published(root: str, plan: PublishedPlan, tell: Tell) -> Published:
    """Measure every trial below `root`, a path or URL. The tables are gone afterwards."""
    passages = []
    for trial in plan.trials:
        tell(f"  {trial}: {trial.load.warmup_s:g} s to warm up, {trial.load.seconds:g} s that count")
        passage = measure_passage(root, trial, plan.window_s)
        middle = passage.middle
        tell(f"    p50 {middle.p50:.1f} ms, p99 {middle.p99:.1f} ms, {passage.achieved_rate:,.0f}/s, {passage.verdict}")
        passages.append(passage)
    return Published(plan, root.startswith("s3://"), tuple(passages))


# --- what it says ----------------------------------------------------------------------------------------------------

_FASTER_AIM = 40.0
_S3_AIMS = (("p50", 22.0), ("p99", 60.0))
_S3_QUICK_AIM_MS = 12.0
_LOCAL_AIM_MS = 20.0
_MILLION_AIM_S = 60.0
_MILLION_AIM_MS = 200.0
_MARKS = ("p50", "p75", "p85", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Published:
    """The outcome of a plan. `on_s3` says whether it was measured on an object store with the API of S3."""

    plan: PublishedPlan
    on_s3: bool
    passages: tuple[Passage, ...]

    @property
    def is_clean(self) -> bool:
        """Whether every message of every trial arrived once, in order and unchanged."""
        return all(passage.verdict.is_clean for passage in self.passages)

    @property
    def others_cores(self) -> tuple[float, ...]:
        """Processors that others kept busy, for each trial."""
        return known_cores(passage.others_cores for passage in self.passages)

    def tables(self) -> Iterator[Table]:
        """By windows; over the whole run next to what was published; next to delta-rs; and what the loads were."""
        yield self._window_table()
        yield self._whole_table()
        if any(not passage.trial.is_ours for passage in self.passages):
            yield self._delta_rs_table()
        yield self._conditions_table()

    def _window_table(self) -> Table:
        title = f"Latency in ms: the median of windows of {self.plan.window_s:g} s, next to the best p50 published"
        head = ("load", *_MARKS, "worst p99", "due p99", "achieved/s", "kept up", "published", "times p50", "messages")
        rows = []
        for passage in self.passages:
            figure = published_at(passage.trial.load.rate)
            compared = ("-", "-") if figure is None else (_ms(figure.marks.p50), _times(figure.marks.p50, passage))
            rows.append(
                (
                    str(passage.trial),
                    *map(_ms, astuple(passage.middle)),
                    _ms(passage.worst_p99),
                    _ms(passage.from_due.p99),
                    f"{passage.achieved_rate:,.0f}",
                    "yes" if passage.is_kept_up else f"{passage.kept_up_s:g} s",
                    *compared,
                    str(passage.verdict),
                )
            )
        return Table(title, head, tuple(rows))

    def _whole_table(self) -> Table:
        title = "Latency in ms over the whole run, as it was published of Pathway (on MinIO, other machines)"
        rows = []
        for rate in sorted({passage.trial.load.rate for passage in self.passages}):
            ours = [passage for passage in self.passages if passage.trial.load.rate == rate]
            rows += [(str(passage.trial), *map(_ms, astuple(passage.whole))) for passage in ours]
            rows += [
                (f"{rate:,}/s, published, {figure.mode_ms} ms", *map(_ms, astuple(figure.marks)))
                for figure in PUBLISHED
                if figure.rate == rate
            ]
        return Table(title, ("load", *_MARKS), tuple(rows))

    def _delta_rs_table(self) -> Table:
        title = "Next to a plain delta-rs pipeline, in ms: how many times the latency of deltaq"
        head = ("load", "delta-rs", "deltaq p50", "delta-rs p50", "ratio", "deltaq p99", "delta-rs p99", "ratio")
        rows = []
        for ours, theirs in self._pairs():
            one, other = ours.middle, theirs.middle
            medians = _ms(one.p50), _ms(other.p50), f"{other.p50 / one.p50:.1f}"
            tails = _ms(one.p99), _ms(other.p99), f"{other.p99 / one.p99:.1f}"
            rows.append((str(ours.trial), theirs.trial.name, *medians, *tails))
        return Table(title, head, tuple(rows))

    def _pairs(self) -> Iterator[tuple[Passage, Passage]]:
        for theirs in self.passages:
            for ours in self.passages:
                alike = ours.trial.load.rate == theirs.trial.load.rate
                if alike and ours.trial.is_ours and not theirs.trial.is_ours:
                    yield ours, theirs

    def _conditions_table(self) -> Table:
        head = ("load", "sent", "commits", "bytes/message", "log KB/commit", "CPU s in", "CPU s out", "others")
        rows = tuple(
            (
                str(passage.trial),
                f"{passage.verdict.sent:,}",
                f"{passage.commits:,}",
                f"{passage.data_bytes / passage.verdict.sent:.0f}",
                f"{passage.log_bytes / max(1, passage.commits) / 1000:.1f}",
                f"{passage.producer_cpu_s:.2f}",
                f"{passage.consumer_cpu_s:.2f}",
                "-" if passage.others_cores is None else f"{passage.others_cores:.2f}",
            )
            for passage in self.passages
        )
        return Table("What these loads were, warm-up included", head, rows)

    def charts(self) -> Iterator[Chart]:
        """Median and tail over the rate, with what was published; and the tail of each window over time."""
        names = tuple(dict.fromkeys(passage.trial.name for passage in self.passages))
        for mark in ("p50", "p99"):
            series = [Series(name, self._over_rates(name, mark)) for name in names]
            series += [
                Series(f"published, {mode_ms} ms", _published_over_rates(mode_ms, mark)) for mode_ms in (1000, 100)
            ]
            yield Chart(f"{mark} over the rate", "messages/s", "ms", tuple(series), log_x=True, log_y=True)
        for name in names:
            alike = [passage for passage in self.passages if passage.trial.name == name]
            lines = tuple(Series(f"{one.trial.load.rate:,}/s", self._over_time(one)) for one in alike)
            yield Chart(f"p99 of each window, {name}", "s", "ms", lines)

    def _over_rates(self, name: str, mark: str) -> tuple[tuple[float, float], ...]:
        alike = [passage for passage in self.passages if passage.trial.name == name]
        return tuple(sorted((one.trial.load.rate, getattr(one.middle, mark)) for one in alike))

    def _over_time(self, passage: Passage) -> tuple[tuple[float, float], ...]:
        step = self.plan.window_s
        return tuple((number * step, window.p99) for number, window in enumerate(passage.windows, 1))

    def targets(self) -> Iterator[Target]:
        """What was aimed at of each trial. The median of the windows counts, not the best or the worst."""
        for passage in self.passages:
            if passage.trial.is_ours:
                yield from _s3_targets(passage) if self.on_s3 else _local_targets(passage)


def _s3_targets(passage: Passage) -> Iterator[Target]:
    trial, middle = passage.trial, passage.middle
    if trial.way == MESSAGES and trial.load.linger_ms == 20.0:
        for mark, aim_ms in _S3_AIMS:
            yield at_most(f"{mark}, {trial}", aim_ms, getattr(middle, mark), " ms")
        figure = published_at(trial.load.rate)
        if figure is not None:
            yield at_least(f"published p50/p50, {trial}", _FASTER_AIM, figure.marks.p50 / middle.p50)
    if trial.way == MESSAGES and trial.load.linger_ms == 5.0 and trial.load.rate in {10_000, 70_000}:
        yield at_most(f"p50, {trial}", _S3_QUICK_AIM_MS, middle.p50, " ms")


def _local_targets(passage: Passage) -> Iterator[Target]:
    trial, middle = passage.trial, passage.middle
    if trial.way == MESSAGES and trial.load.linger_ms == 5.0:
        yield at_most(f"p99, {trial}", _LOCAL_AIM_MS, middle.p99, " ms")
    if trial.way == TABLES and trial.load.rate == 1_000_000:
        yield at_least(f"kept up, {trial}", _MILLION_AIM_S, passage.kept_up_s, " s")
        yield at_most(f"p95, {trial}", _MILLION_AIM_MS, middle.p95, " ms")


def _published_over_rates(mode_ms: int, mark: str) -> tuple[tuple[float, float], ...]:
    return tuple((figure.rate, getattr(figure.marks, mark)) for figure in PUBLISHED if figure.mode_ms == mode_ms)


def _ms(value: float) -> str:
    return f"{value:,.1f}"


def _times(published_ms: float, passage: Passage) -> str:
    return f"{published_ms / passage.middle.p50:.0f}"
