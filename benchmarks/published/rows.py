"""Distinguishable rows, made and parsed in bulk, and percentiles of their latency. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby
from statistics import median_high
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.distribution import percentile
from benchmarks.history import Verdict, judge
from benchmarks.load import Load
from benchmarks.payload import MESSAGE_BYTES

Int64s: TypeAlias = npt.NDArray[np.int64]

_POOL_ROWS = 1 << 16
_ROW = np.dtype([("sent_ns", "<i8"), ("sequence", "<i8"), ("rest", "<u4", 21)])
assert _ROW.itemsize == MESSAGE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """For each arrival in order, the row's number, and when it was sent and received. `foreign`: of
    rows never made.
    """

    sequences: Int64s
    sent_ns: Int64s
    received_ns: Int64s
    foreign: int = 0


class TimedRows:
    """Columns of values of 100 bytes: time of sending (`time.monotonic_ns`), sequence number, and
    84 random bytes.

    Producer and consumer make the same random bytes from the same `seed`, so that the consumer
    notices a changed one.
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


_SECOND_NS = 1_000_000_000

SPIKE_FACTOR = 3.0
"""A window is part of a spike if its 99th percentile exceeds the median window's by this factor."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Percentiles of latency, in milliseconds."""

    p50: float
    p75: float
    p85: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Spike:
    """Windows in a row with a high 99th percentile: when the first began and the last ended, in
    seconds after the warm-up, the highest of them in milliseconds, and whether a usual window
    followed.
    """

    start_s: float
    end_s: float
    p99: float
    is_recovered: bool


_PER_MILLE = (500, 750, 850, 950, 990)


def marks(nanoseconds: Int64s) -> Marks:
    """Of all measurements, none sampled or rounded. ValueError if there are none."""
    if not len(nanoseconds):
        raise ValueError(
            "nothing was measured: all messages were lost, or the run was shorter than its warm-up"
        )
    ordered = cast("list[int]", np.sort(nanoseconds))
    return Marks(*(float(percentile(ordered, mark)) / 1e6 for mark in _PER_MILLE))


def middle_of(windows: Sequence[Marks]) -> Marks:
    """Of each mark, the median of the windows: the worse one of two in the middle."""
    return Marks(*map(median_high, zip(*map(astuple, windows), strict=True)))


def by_window(
    load: Load, sequences: Int64s, latency_ns: Int64s, window_s: float
) -> tuple[Marks, ...]:
    """The marks of each window after the warm-up, by the time at which messages were due. A window
    of which nothing came has none.
    """
    window_ns = round(window_s * _SECOND_NS)
    windows = (sequences - load.warmup) * _SECOND_NS // load.rate // window_ns
    return tuple(marks(latency_ns[windows == window]) for window in np.unique(windows))


def spikes(windows: Sequence[Marks], window_s: float) -> tuple[Spike, ...]:
    """The spikes of a run, in order."""
    limit = SPIKE_FACTOR * middle_of(windows).p99
    found = []
    for is_high, run in groupby(enumerate(windows), lambda numbered: numbered[1].p99 > limit):
        if is_high:
            high = list(run)
            (first, _), (last, _) = high[0], high[-1]
            worst = max(window.p99 for _, window in high)
            found.append(
                Spike(first * window_s, (last + 1) * window_s, worst, last + 1 < len(windows))
            )
    return tuple(found)
