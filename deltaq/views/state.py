"""The state of rules: rows that rules add to and find by key.

New rows are in a table of DuckDB, which each use reads as a whole. When they have become many, they
are sealed: sorted by the hash of their key and written as a run (`runs.py`). Of the runs a rule
gets only what may have the keys that it asks for; its SQL compares the keys themselves. So the cost
of a tick follows the change, not the state. As in a log-structured merge tree, four runs of about
one size are merged to one, a part in each tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import log
from typing import TypeVar

import pyarrow as pa

from deltaq.tools.duckdb_tables import (
    Connection,
    described,
    fetched,
    filled,
    number_of,
    quoted,
    registered,
    streamed,
)
from deltaq.views.rules import Lookup, StateTable
from deltaq.views.runs import HASH, Hashes, RunFolder, RunMerge, RunWriter, SortedRun

SEAL_ROWS = 100_000
"""Rows of a table that are sealed."""

RUNS = 4
"""Runs of one size that are merged."""

MERGE_ROWS = 20_000
"""Whether to merge the rows of a table is asked when it has this many more than twice those of the
last time.
"""

PART_ROWS = 32_768
"""Rows of runs that are merged in a tick, at least."""

MOST_ROWS = 500_000
"""Rows of runs that are merged by one statement, at most."""

_PER_ROW = 16
"""Rows of runs that are merged for each row of a tick: more than those that one row is in, merge
after merge.
"""

_AFTER_ARROW = {
    "HUGEINT": "DECIMAL(38,0)",
    "UHUGEINT": "DECIMAL(38,0)",
    "UUID": "VARCHAR",
    "JSON": "VARCHAR",
}
"""What types of DuckDB become in Arrow that can be cast back."""


@dataclass(frozen=True, slots=True)
class SavedRows:
    """The rows of a table of state at one moment: those in runs, and the others."""

    runs: tuple[SortedRun, ...]
    recent: pa.Table


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The names of the objects that have such rows: of each run, and of the others ("" without
    any).
    """

    runs: tuple[str, ...]
    recent: str


@dataclass(eq=False)
class StateRows:
    """The rows of one table of state. `types` are its columns, with their types in DuckDB;
    `is_storable`: its rows are the same after they were Arrow. Not thread-safe.
    """

    connection: Connection
    table: StateTable
    folder: RunFolder
    runs: list[SortedRun] = field(default_factory=list)
    _merge: RunMerge | None = None
    _writer: RunWriter | None = None
    _rows: int = 0
    _asked: int = 0
    types: Mapping[str, str] = field(default_factory=dict)
    is_storable: bool = False
    _keys: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self._rows + sum(map(len, self.runs))

    def build(self) -> None:
        """Make the rows that are there."""
        self._rows = self._asked = filled(self.connection, self.table.name, self.table.build)
        self.types = described(self.connection, self.table.name)
        self.is_storable = self._is_storable()
        self._keys = self._key_types()
        if self._is_full():
            self._seal()

    def _is_storable(self) -> bool:
        rows = fetched(self.connection, f"from {self.table.name} limit 0")
        with registered(self.connection, rows) as source:
            back = described(self.connection, source)
        return all(
            own == other or _of_arrow(own) == other
            for own, other in zip(self.types.values(), back.values(), strict=True)
        )

    def _key_types(self) -> tuple[str, ...]:
        """The types of the key. What is asked for is cast to them: equal values of other types have
        other hashes.
        """
        if not self.table.key:
            return ()
        keys = ", ".join(f"{sql} as k{n}" for n, sql in enumerate(self.table.key))
        return tuple(described(self.connection, f"select {keys} from {self.table.name}").values())

    def _typed(self, source: str) -> str:
        """The rows of a table of Arrow in their types."""
        casts = (
            f"cast({quoted(name)} as {of}) as {quoted(name)}" for name, of in self.types.items()
        )
        return f"select {', '.join(casts)} from {source}"

    def grow(self) -> None:
        """Add the changes of a tick."""
        added = number_of(self.connection, f"insert into {self.table.name} {self.table.change}")
        self._rows += added
        if self._is_full():
            self._seal()
        elif self._rows > 2 * self._asked + MERGE_ROWS:
            self._shrink()
        self._merge_runs(max(PART_ROWS, _PER_ROW * added))

    def _is_full(self) -> bool:
        return bool(self.table.key) and self.is_storable and self._rows >= SEAL_ROWS

    def _shrink(self) -> None:
        """Merge the rows of the table if that makes it much smaller."""
        table = self.table
        query = f"select count(*) from {table.name} where {table.superfluous}"
        if 4 * number_of(self.connection, query) >= self._rows:
            merged = table.merged(f"from {table.name}")
            self._rows = filled(self.connection, table.name, merged)
        self._asked = self._rows

    def _seal(self) -> None:
        """Write the rows of the table as a run."""
        query = self._sorted(self.table.merged(f"from {self.table.name}"))
        rows = streamed(self.connection, query)
        writer = self.folder.writer(rows.schema)
        writer.add(rows)
        self.connection.execute(f"truncate {self.table.name}")
        self._rows = self._asked = 0
        self.runs += writer.runs()

    def _sorted(self, query: str) -> str:
        """The rows of a query, in the order of their hashes, which are the last column."""
        keys = ", ".join(self.table.key)
        return f"select *, hash({keys}) as {HASH} from ({query}) order by {HASH}"

    # --- what rules find ---

    @contextmanager
    def found(self, lookup: Lookup, name: str) -> Iterator[str]:
        """What may have the keys of a lookup: a table for FROM, which must not outlive the block.
        `name` is free for its use.
        """
        if not self.runs:
            yield self.table.name
            return
        wanted = self._hashes(lookup)
        # DuckDB takes long for many small pieces, and cannot apply all of its filters to Arrow.
        rows = pa.concat_tables(run.found(wanted) for run in self.runs).combine_chunks()
        with registered(self.connection, rows) as source:
            self.connection.execute(f"create temp table {name} as {self._typed(source)}")
        try:
            yield f"(from {self.table.name} union all from temp.{name})"
        finally:
            self.connection.execute(f"drop table temp.{name}")

    def _hashes(self, lookup: Lookup) -> Hashes:
        """The hashes of the keys that a lookup asks for, sorted."""
        queries = []
        for query, key in lookup.asked:
            casts = (f"try_cast({sql} as {of})" for sql, of in zip(key, self._keys, strict=True))
            queries.append(f"select hash({', '.join(casts)}) as h from ({query})")
        query = f"select distinct h from ({' union all '.join(queries)}) order by h"
        hashes: Hashes = fetched(self.connection, query).column("h").to_numpy()
        return hashes

    # --- merging ---

    def _merge_runs(self, rows: int) -> None:
        """Merge runs, so many of their rows at most."""
        while rows > 0:
            if self._merge is None:
                chosen = due(self.runs)
                if not chosen:
                    return
                self._merge = RunMerge.of(chosen)
            part = self._merge.part(min(rows, MOST_ROWS))
            rows -= part.num_rows
            self._merge_part(self._merge, part)

    def _merge_part(self, merge: RunMerge, part: pa.Table) -> None:
        with registered(self.connection, part) as source:
            query = self.table.merged(self._typed(source))
            merged = fetched(self.connection, self._sorted(query))
        if self._writer is None:
            self._writer = self.folder.writer(merged.schema)
        self._writer.add(merged.to_batches())
        if merge.is_done:
            self.runs = [run for run in self.runs if run not in merge.runs]
            self.runs += self._writer.runs()
            for run in merge.runs:
                run.remove()
            self._merge = self._writer = None

    # --- checkpoints ---

    def saved(self) -> SavedRows:
        """The rows."""
        recent = fetched(self.connection, f"from {self.table.name}")
        return SavedRows(tuple(self.runs), recent)

    def restore(self, stored: StoredRows, read: Callable[[str], pa.Table | None]) -> None:
        """Take these rows in the place of those that there are, which are in no run. Raises what
        `read` raises.
        """
        self.connection.execute(f"truncate {self.table.name}")
        recent = read(stored.recent)
        if recent is not None:
            with registered(self.connection, recent) as source:
                query = f"insert into {self.table.name} {self._typed(source)}"
                self._rows = self._asked = number_of(self.connection, query)
        for name in stored.runs:
            rows = read(name)
            if rows is not None:
                writer = self.folder.writer(rows.schema, name)
                writer.add(rows.to_batches())
                self.runs += writer.runs()

    def drop(self) -> None:
        """Forget all rows."""
        self.connection.execute(f"drop table if exists {self.table.name}")
        if self._writer is not None:
            self._writer.remove()
        for run in self.runs:
            run.remove()


def _of_arrow(kind: str) -> str:
    """What a type of DuckDB is after Arrow, if it can be cast back without a loss."""
    return "VARCHAR" if kind.startswith("ENUM") else _AFTER_ARROW.get(kind, "")


_Run = TypeVar("_Run", bound=Sized)


def due(runs: Sequence[_Run]) -> list[_Run]:
    """The runs that are to be merged: the smallest of those of which there are enough."""
    levels: dict[int, list[_Run]] = {}
    for run in runs:
        levels.setdefault(int(log(max(len(run) / SEAL_ROWS, 1), RUNS) + 0.5), []).append(run)
    return next((levels[n] for n in sorted(levels) if len(levels[n]) >= RUNS), [])
