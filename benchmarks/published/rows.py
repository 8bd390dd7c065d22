"""Distinguishable rows, made and parsed in bulk. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.history import Verdict, judge
from benchmarks.payload import MESSAGE_BYTES

__all__ = ["Arrivals", "Int64s", "TimedRows", "judge_rows"]

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
