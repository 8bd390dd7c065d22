"""Sorted runs: rows in files that never change, found by the hash of their key.

A run has two files. One has the hashes, sorted; the other has the rows in the same order, as Arrow.
Both are mapped into memory, so the operating system keeps there what is used and what fits. To find
the rows of some keys costs the same in a large run as in a small one, but for what is on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.errors import InvalidConfig

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Hashes: TypeAlias = "npt.NDArray[np.uint64]"
Numbers: TypeAlias = "npt.NDArray[np.int64]"

HASH = "_h"
"""The last column of rows that are written: the hash of their key."""

BLOCK_ROWS = 1_000_000
"""Rows of a file of rows that are one piece of Arrow, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class SortedRun:
    """Rows by the hash of their key, one at least. `starts` are the numbers of the first rows of
    the blocks.
    """

    rows_path: Path
    hashes_path: Path
    schema: pa.Schema
    hashes: Hashes
    blocks: tuple[pa.RecordBatch, ...]
    starts: Numbers

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def name(self) -> str:
        """What tells it apart from all others."""
        return self.rows_path.stem

    @classmethod
    def opened(cls, rows_path: Path, hashes_path: Path) -> SortedRun:
        """The run in these files. Raises OSError, and pa.ArrowInvalid for damaged files."""
        import numpy as np  # noqa: PLC0415 - an extra

        with pa.ipc.open_file(pa.memory_map(str(rows_path))) as reader:
            schema = reader.schema
            blocks = tuple(reader.get_batch(n) for n in range(reader.num_record_batches))
        lengths = [block.num_rows for block in blocks]
        hashes: Hashes = np.asarray(np.memmap(hashes_path, np.uint64, "r"))
        if len(hashes) != sum(lengths):
            raise pa.ArrowInvalid(f"{rows_path} has {sum(lengths)} rows and {len(hashes)} hashes")
        starts = np.concatenate(([0], np.cumsum(lengths)))[:-1].astype(np.int64)
        return cls(rows_path, hashes_path, schema, hashes, blocks, starts)

    def found(self, wanted: Hashes) -> pa.Table:
        """The rows whose hash is one of these, which are sorted, each once."""
        import numpy as np  # noqa: PLC0415 - an extra

        lefts = np.searchsorted(self.hashes, wanted, "left")
        lengths = np.searchsorted(self.hashes, wanted, "right") - lefts
        lefts, lengths = lefts[lengths > 0], lengths[lengths > 0]
        # The numbers of the rows: for each hash as many as it has, one after the other.
        before = np.cumsum(lengths) - lengths
        numbers = np.repeat(lefts - before, lengths) + np.arange(lengths.sum())
        return pa.Table.from_batches(list(self._taken(numbers)), self.schema)

    def _taken(self, numbers: Numbers) -> Iterator[pa.RecordBatch]:
        """The rows with these numbers, which are sorted."""
        import numpy as np  # noqa: PLC0415 - an extra

        borders = np.searchsorted(numbers, self.starts[1:])
        for block, start, part in zip(
            self.blocks, self.starts, np.split(numbers, borders), strict=True
        ):
            if len(part):
                yield block.take(pa.array(part - start))

    def between(self, start: int, end: int) -> pa.Table:
        """The rows with numbers from `start` to before `end`, and their hashes."""
        parts = []
        for block, first in zip(self.blocks, self.starts.tolist(), strict=True):
            low, high = max(start - first, 0), min(end - first, block.num_rows)
            if low < high:
                parts.append(block.slice(low, high - low))
        rows = pa.Table.from_batches(parts, self.schema)
        return rows.append_column(HASH, pa.array(self.hashes[start:end]))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, with their hashes."""
        for block, start in zip(self.blocks, self.starts.tolist(), strict=True):
            hashes = pa.array(self.hashes[start : start + block.num_rows])
            yield block.append_column(HASH, hashes)

    def remove(self) -> None:
        """Remove its files. What was found in them stays readable."""
        self.rows_path.unlink()
        self.hashes_path.unlink()


class RunWriter:
    """Writes a run. Rows are added in the order of their hashes, in `HASH`, their last column."""

    def __init__(self, rows_path: Path, hashes_path: Path, schema: pa.Schema) -> None:
        self._paths = rows_path, hashes_path
        self._rows = pa.ipc.new_file(str(rows_path), schema.remove(len(schema) - 1))
        self._hashes = hashes_path.open("wb")
        self._waiting: list[pa.RecordBatch] = []

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows. Raises InvalidConfig if there is no room."""
        with _needing_room():
            for batch in batches:
                last = batch.num_columns - 1
                self._hashes.write(batch.column(last).to_numpy().data)
                self._waiting.append(batch.remove_column(last))
                if sum(rows.num_rows for rows in self._waiting) >= BLOCK_ROWS:
                    self._write()

    def _write(self) -> None:
        # Pieces that are few are quicker to read.
        for rows in pa.Table.from_batches(self._waiting).combine_chunks().to_batches():
            for start in range(0, rows.num_rows, BLOCK_ROWS):
                self._rows.write_batch(rows.slice(start, BLOCK_ROWS))
        self._waiting.clear()

    def close(self) -> None:
        """End the files, without rows that `runs` has not written."""
        self._rows.close()
        self._hashes.close()

    def remove(self) -> None:
        """Remove the files."""
        self.close()
        for path in self._paths:
            path.unlink()

    def runs(self) -> list[SortedRun]:
        """The run, to which nothing is added any more; none if it has no row. Raises
        InvalidConfig if there is no room.
        """
        with _needing_room():
            if self._waiting:
                self._write()
            self.close()
        if self._paths[1].stat().st_size:
            return [SortedRun.opened(*self._paths)]
        self.remove()
        return []


class RunFolder:
    """A temporary folder with the runs of one engine, made when there is a first run. `parent` is
    where; None for the system's folder for such files. Use it as a context manager.
    """

    def __init__(self, clock: Clock, parent: Path | None = None) -> None:
        self._clock = clock
        self._parent = parent
        self._path: Path | None = None
        self._open = ExitStack()
        self._writers: WeakSet[RunWriter] = WeakSet()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()
        self._open.close()

    def writer(self, schema: pa.Schema, name: str = "") -> RunWriter:
        """A new run for rows with these columns, `HASH` the last one; by default with a name of its
        own. Raises InvalidConfig if there is no room.
        """
        with _needing_room():
            if self._path is None:
                made = TemporaryDirectory(prefix="deltaq-views-", dir=self._parent)
                self._path = Path(self._open.enter_context(made))
            name = name or self._clock.unique_id()
            writer = RunWriter(self._path / f"{name}.rows", self._path / f"{name}.hashes", schema)
        self._writers.add(writer)
        return writer


def check_numpy() -> None:
    """Raises ModuleNotFoundError if runs cannot be read, for want of numpy."""
    import numpy  # noqa: F401, PLC0415 - an extra


@contextmanager
def _needing_room() -> Iterator[None]:
    """An OSError within it, such as that of a full disk, becomes InvalidConfig."""
    try:
        yield
    except OSError as error:
        reason = f"the state of views cannot be written: {error}: give another state_dir"
        raise InvalidConfig(reason, key="state_dir") from error


@dataclass(eq=False)
class RunMerge:
    """A merge of runs in parts: each part has the rows whose hashes lie in one range, so that rows
    with the same key are in one part.
    """

    runs: Sequence[SortedRun]
    _at: list[int]

    @classmethod
    def of(cls, runs: Sequence[SortedRun]) -> RunMerge:
        """A merge that has not begun."""
        return cls(tuple(runs), [0] * len(runs))

    @property
    def is_done(self) -> bool:
        """Whether no part is left."""
        return all(at == len(run) for at, run in zip(self._at, self.runs, strict=True))

    def part(self, rows: int) -> pa.Table:
        """The next part: about so many rows, more if one hash has more."""
        ends = self._ends(rows)
        tables = [
            run.between(at, end) for run, at, end in zip(self.runs, self._at, ends, strict=True)
        ]
        self._at = ends
        return pa.concat_tables(tables)

    def _ends(self, rows: int) -> list[int]:
        # The run with the most rows left decides where the part ends.
        left = [len(run) - at for run, at in zip(self.runs, self._at, strict=True)]
        longest = max(range(len(left)), key=left.__getitem__)
        run, at = self.runs[longest], self._at[longest] + max(1, rows // len(self.runs))
        if at >= len(run):
            return [len(run) for run in self.runs]
        last = run.hashes[at - 1]
        return [int(run.hashes.searchsorted(last, "right")) for run in self.runs]
